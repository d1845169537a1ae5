"""What a person sees of the demo: acts in words, workers as bars.

On a terminal the bars live below the acts; elsewhere only the acts are printed.
Everything goes to stderr, so that stdout holds the result alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure_cli.demo.processes import DemoWorker

_COLOURS = {
    "runs": "green",
    "killed": "red",
    "frozen": "cyan",
    "thawed": "yellow",
    "done": "blue",
}


class Screen:
    """Shows acts and workers."""

    def __init__(
        self,
        workers: Sequence[DemoWorker],
        progress: Mapping[str, int],
        lengths: Mapping[str, int],
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._workers = workers
        self._progress = progress
        self._lengths = lengths
        self._started = time.monotonic()
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._bars,
                refresh_per_second=8,
                transient=True,
            )

    def say(self, text: str, style: str = "") -> None:
        """Print one line with the time since the start."""
        line = Text(f"{time.monotonic() - self._started:5.1f} s  ", style="dim")
        line.append(text, style=style)
        self._console.print(line, soft_wrap=True)

    def act(self, title: str) -> None:
        """Begin an act."""
        self.say(title, style="bold")

    def __enter__(self) -> Self:
        """Begin to show bars."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the acts alone on the screen."""
        if self._live is not None:
            self._live.stop()

    def _bars(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for worker in self._workers:
            done = sum(self._progress.get(known, 0) for known in worker.agent_ids)
            total = sum(self._lengths[known] for known in worker.agent_ids)
            colour = _COLOURS[worker.condition]
            bar = ProgressBar(
                total=max(1, total), completed=done, width=40, complete_style=colour
            )
            table.add_row(
                worker.name,
                Text(worker.condition, style=colour),
                bar,
                f"{len(worker.agent_ids)} agents",
                f"{done:,} / {total:,} messages",
            )
        return table


Say = Callable[[str], None]
