"""What commands print: tables on a terminal, tab-separated lines in a pipe, JSON.

Results go to stdout, everything about them to stderr. Stored text is shown with its
control characters made visible: it must not steer the reader's terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from google.protobuf.message import Message
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from perdure_cli.record import Record, record_of

DEFAULT_LIMIT = 1000
CELL_CHARS = 120
"""A longer cell is cut in tables; `--json` has it whole."""

_T = TypeVar("_T")
Columns = Mapping[str, Callable[[Record], object]]
"""Heading -> what of a record stands below it."""

# C0 but tab and newline, DEL, C1, and what reverses the direction of text.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (9, 10)},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


class Output:
    """Where one command's results go."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, markup=False)
        self.side = Console(highlight=False, markup=False, stderr=True)

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the results."""
        return self.console.is_terminal and not self.as_json

    def json(self, record: object) -> None:
        """Print one JSON document on one line."""
        click.echo(json.dumps(record, ensure_ascii=False))

    def text(self, text: str, style: str = "") -> None:
        """Print a line of the result."""
        self.console.print(Text(visible(text), style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something about the result, on stderr."""
        self.side.print(Text(visible(text), style="dim"), soft_wrap=True)

    def record(self, record: Record) -> None:
        """Print one thing: a field a line, or one JSON object."""
        if self.as_json:
            self.json(record)
            return
        width = max(len(name) for name in record)
        for name, value in record.items():
            line = Text(f"{name:<{width}}  ", style="dim")
            line.append(cell(value, whole=True), style="not dim")
            self.console.print(line, soft_wrap=True)

    def table(self, columns: Columns, records: Sequence[Record]) -> None:
        """Print many things: a row each, or one JSON object a line."""
        if self.as_json:
            for record in records:
                self.json(record)
            return
        if not self.is_terminal:
            click.echo("\t".join(columns))
            for record in records:
                click.echo(_tabbed(columns, record))
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            table.add_column(name, overflow="fold")
        for record in records:
            table.add_row(*(Text(cell(show(record))) for show in columns.values()))
        self.console.print(table)

    async def listing(
        self,
        items: AsyncIterator[_T],
        columns: Columns,
        *,
        limit: int,
        read: Callable[[_T], Record] | None = None,
    ) -> int:
        """Print a list as it arrives; return how many there were.

        Args:
            items: Messages of the wire, or what `read` makes records of.
            columns: Of the table; JSON has every field.
            limit: Stop after so many and say so; 0: none.
            read: How an item becomes a record.
        """
        shown: list[Record] = []
        count = 0
        if not (self.as_json or self.is_terminal):
            click.echo("\t".join(columns))
        async for item in items:
            if limit and count == limit:
                self.note(f"only the first {limit} are shown: --limit 0 shows all")
                break
            count += 1
            record = _record(item) if read is None else read(item)
            if self.as_json:
                self.json(record)
            elif self.is_terminal:
                shown.append(record)
            else:
                click.echo(_tabbed(columns, record))
        if self.is_terminal:
            self.table(columns, shown)
        return count

    @contextmanager
    def busy(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show on stderr that work goes on; call the result with news of it."""
        if not self.side.is_terminal:
            yield lambda news: None
            return
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            console=self.side,
            transient=True,
        ) as progress:
            task = progress.add_task(text, total=None)
            yield lambda news: progress.update(task, description=news)


def visible(text: str) -> str:
    """Return text in which control characters are seen instead of obeyed."""
    return text.translate(_CONTROLS)


def cell(value: object, *, whole: bool = False) -> str:
    """Return a value as it stands in a table, on one line unless `whole`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}={item}" for name, item in value.items())
    elif isinstance(value, list):
        text = ", ".join(str(item) for item in value)
    else:
        text = str(value)
    if whole:
        return visible(text)
    text = " ".join(visible(text).split())
    return text if len(text) <= CELL_CHARS else f"{text[: CELL_CHARS - 1]}…"


def of(name: str) -> Callable[[Record], object]:
    """Return the column of one field."""
    return lambda record: record[name]


def is_interactive() -> bool:
    """Whether a person can be asked something."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _record(item: Any) -> Record:
    return record_of(item) if isinstance(item, Message) else dict(item)


def _tabbed(columns: Columns, record: Record) -> str:
    return "\t".join(" ".join(_plain(show(record))) for show in columns.values())


def _plain(value: object) -> list[str]:
    return cell(value, whole=True).split()
