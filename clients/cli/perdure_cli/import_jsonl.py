"""`perdure import`: conversations from a JSONL file of Chat Completions messages."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

import perdure
from perdure.messages import MAX_BATCH_MESSAGES, Payload, serialize_all
from perdure_cli.conversation_file import (
    LineFault,
    SourceConversation,
    parse_lines,
    read_lines,
)
from perdure_cli.output import Output
from perdure_cli.record import Record
from perdure_cli.session import connected

BATCH_BYTES = 2 * 1024 * 1024
AT_ONCE = 16
"""Conversations that are under way together."""
MAX_ID_BYTES = 255
MAX_FAULTS_TOLD = 20
_BEYOND_SEQ = 2**62
_PLACE = re.compile(r"messages\[([0-9]+)\]")


@click.command("import")
@click.argument(
    "file", type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)
)
@click.option("--prefix", default="", help="Put before each conversation's id.")
@connected
async def import_jsonl(
    client: perdure.AsyncClient, output: Output, file: Path, prefix: str
) -> None:
    """Import conversations: a line of FILE is {"id": ..., "messages": [...]}.

    Safe to run again: what is there already is recognised. A faulty line is reported
    by its number and nothing of it is written; the others are imported, and the exit
    status is 1.
    """
    columns = (
        TextColumn("importing"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    is_shown = console.is_terminal and not output.as_json
    with Progress(*columns, console=console, disable=not is_shown) as bars:
        work = _Import(client, prefix)
        await work.run(_counted(file, bars))
    _report(output, file, work)


def _counted(file: Path, bars: Progress) -> Iterator[bytes]:
    task = bars.add_task("", total=file.stat().st_size)
    for line in read_lines(file):
        bars.advance(task, len(line))
        yield line


@dataclass
class _Import:
    """One file's way into the store."""

    client: perdure.AsyncClient
    prefix: str
    conversation_count: int = 0
    message_count: int = 0
    new_count: int = 0
    faults: list[LineFault] = field(default_factory=list)

    async def run(self, lines: Iterator[bytes]) -> None:
        room = asyncio.Semaphore(AT_ONCE)
        try:
            async with asyncio.TaskGroup() as tasks:
                for item in parse_lines(lines):
                    if isinstance(item, LineFault):
                        self.faults.append(item)
                        continue
                    await room.acquire()
                    task = tasks.create_task(self._take(item))
                    task.add_done_callback(lambda _: room.release())
        except* perdure.PerdureError as group:
            raise group.exceptions[0] from None
        self.faults.sort(key=lambda fault: fault.line)

    async def _take(self, source: SourceConversation) -> None:
        try:
            new_count = await self._write(source)
        except (
            perdure.Invalid,
            perdure.Conflict,
            perdure.Refused,
            perdure.NotFound,
        ) as error:
            self.faults.append(LineFault(source.line, _reason(error)))
            return
        self.conversation_count += 1
        self.message_count += len(source.messages)
        self.new_count += new_count

    async def _write(self, source: SourceConversation) -> int:
        """Append what is not there yet; return how many messages were new."""
        conversation_id = self.prefix + source.conversation_id
        ids = [_message_id(conversation_id, n) for n in range(len(source.messages))]
        # What is wrong with a size or a text is found before anything is written.
        sizes = [len(body) for body in serialize_all(source.messages, ids)]
        stored = min(await self._stored(conversation_id), len(ids))
        batches = list(_batches(sizes, stored))
        for start, end in batches[1:]:
            with _places_from(start):
                await self._rehearse(
                    conversation_id, source.messages[start:end], ids[start:end]
                )
        new_count = 0
        for start, end in batches:
            # What is stored must be these messages, and the rest must follow on them.
            with _places_from(start):
                placed = await self.client.history.append(
                    conversation_id,
                    source.messages[start:end],
                    message_ids=ids[start:end],
                    expected_seq=0 if end <= stored else start,
                )
            new_count += sum(not message.replayed for message in placed.messages)
        return new_count

    async def _stored(self, conversation_id: str) -> int:
        try:
            found = await self.client.history.get(conversation_id)
        except perdure.NotFound as error:
            if error.reason == "DELETED":
                raise
            return 0
        return found.message_count

    async def _rehearse(
        self, conversation_id: str, payloads: Sequence[Payload], ids: Sequence[str]
    ) -> None:
        """Let the server check a later batch before the first one is written."""
        try:
            await self.client.history.append(
                conversation_id,
                payloads,
                message_ids=ids,
                expected_seq=_BEYOND_SEQ,
                create=False,
            )
        except (perdure.Conflict, perdure.NotFound):
            return


def _batches(sizes: Sequence[int], stored: int) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges within the limits of an append, parted at `stored`."""
    start, batch_bytes = 0, 0
    for place, size in enumerate(sizes):
        is_full = (
            place - start == MAX_BATCH_MESSAGES or batch_bytes + size > BATCH_BYTES
        )
        if place > start and (is_full or place == stored):
            yield start, place
            start, batch_bytes = place, 0
        batch_bytes += size
    if start < len(sizes):
        yield start, len(sizes)


@contextmanager
def _places_from(start: int) -> Iterator[None]:
    """Let errors name a message by its place in the conversation, not in a batch."""
    try:
        yield
    except perdure.PerdureError as error:
        found = _PLACE.match(error.path)
        if found:
            place = int(found[1]) + start
            error.metadata["path"] = f"messages[{place}]{error.path[found.end() :]}"
        raise


def _message_id(conversation_id: str, place: int) -> str:
    name = f"{conversation_id}-{place}"
    if len(name.encode()) <= MAX_ID_BYTES:
        return name
    return f"{hashlib.sha256(conversation_id.encode()).hexdigest()}-{place}"


def _reason(error: perdure.PerdureError) -> str:
    if error.reason == "SEQ_CONFLICT":
        return (
            "the conversation holds other messages already; import it with --prefix "
            "under another id"
        )
    return str(error)


def _report(output: Output, file: Path, work: _Import) -> None:
    told = work.faults if output.as_json else work.faults[:MAX_FAULTS_TOLD]
    result: Record = {
        "conversations": work.conversation_count,
        "messages": work.message_count,
        "new_messages": work.new_count,
        "faults": len(work.faults),
    }
    if output.as_json:
        lines = [{"line": fault.line, "reason": fault.reason} for fault in told]
        output.json({**result, "faults": lines})
    else:
        for fault in told:
            output.note(f"{file}: {fault}")
        if len(work.faults) > len(told):
            output.note(f"{file}: {len(work.faults) - len(told)} more faulty lines")
        output.record(result)
    if work.faults:
        sys.exit(1)
