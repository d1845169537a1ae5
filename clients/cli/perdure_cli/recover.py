"""`perdure recover`: fence what dead workers held, and watch it come back."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing

import click
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

import perdure
from perdure.selector import Selection
from perdure.v1.recovery_service_pb2 import Recovery, RecoveryProgress
from perdure_cli.output import Output, cell
from perdure_cli.record import record_of
from perdure_cli.selection import (
    require_known,
    require_selection,
    selection_options,
)
from perdure_cli.session import connected

BAR_CHARS = 30

even_live_option = click.option(
    "--even-live",
    is_flag=True,
    help="Agents whose worker still renews its lease too: it is cut off.",
)


@click.group()
def recover() -> None:
    """Bring back the agents of workers that died."""


@recover.command("plan")
@selection_options
@even_live_option
@connected
async def plan(
    client: perdure.AsyncClient,
    output: Output,
    selection: Selection,
    even_live: bool,
) -> None:
    """Count what a recovery would take; nothing is changed."""
    require_selection(selection)
    await require_known(client, selection)
    with output.busy("counting"):
        counted = await client.recovery.start(
            dry_run=True, even_live=even_live, **selection
        )
    if output.as_json:
        output.json(record_of(counted))
        return
    taken = counted.agent_count - counted.live_count
    output.text(
        f"{taken} of {counted.agent_count} agents would be fenced, with "
        f"{counted.frame_bytes} bytes of state"
    )
    if counted.live_count:
        output.note(
            f"{counted.live_count} have a live worker: --even-live takes them too"
        )
    output.note("the same options after `perdure recover start` do it")


@recover.command("start")
@selection_options
@even_live_option
@click.option("--recovery-id", help="Go on with a recovery that was started before.")
@connected
async def start(
    client: perdure.AsyncClient,
    output: Output,
    selection: Selection,
    even_live: bool,
    recovery_id: str | None,
) -> None:
    """Fence agents, so that new workers can restore them.

    From then on no old worker can write. Prints the recovery's id, which workers pass
    to `client.agents.restore(recovery_id=...)`.
    """
    require_selection(selection)
    await require_known(client, selection)
    with output.busy("fencing"):
        started = await client.recovery.start(
            recovery_id=recovery_id, even_live=even_live, **selection
        )
    if output.as_json:
        output.json(record_of(started))
        return
    output.text(started.recovery_id, "bold")
    output.text(_counts(started))
    output.note(
        "they wait for workers that call "
        f'client.agents.restore(recovery_id="{started.recovery_id}")'
    )
    output.note(f"watch it: perdure recover watch {started.recovery_id}")


@recover.command("watch")
@click.argument("recovery_id", type=click.UUID)
@click.option("--once", is_flag=True, help="Only the present state.")
@connected
async def watch(
    client: perdure.AsyncClient, output: Output, recovery_id: object, once: bool
) -> None:
    """Watch a recovery until every fenced agent has resumed."""
    board = _Board()
    watching = client.recovery.watch(str(recovery_id), once=once)
    async with aclosing(watching) as events:
        if not output.is_terminal:
            async for progress in events:
                if output.as_json:
                    output.json(record_of(progress))
                else:
                    output.text(_counts(progress.recovery))
            return
        with Live(console=output.console, get_renderable=board.table):
            async for progress in events:
                board.take(progress)


class _Board:
    """A recovery by the workers that have its agents now."""

    def __init__(self) -> None:
        self._agents: dict[str, tuple[str, str]] = {}
        self._recovery = Recovery()

    def take(self, progress: RecoveryProgress) -> None:
        self._recovery = progress.recovery
        for agent in progress.agents:
            record = record_of(agent)
            self._agents[agent.agent_id] = (record["owner"], record["state"])

    def table(self) -> Table:
        table = Table(title=_counts(self._recovery), title_justify="left", box=None)
        for name in ("worker", "agents", "resumed", "", "states"):
            table.add_column(name)
        for owner in sorted({owner for owner, _ in self._agents.values()}):
            states = Counter(
                state for holder, state in self._agents.values() if holder == owner
            )
            total = states.total()
            bar = ProgressBar(total=total, completed=states["resumed"], width=BAR_CHARS)
            share = f"{states['resumed']}/{total}"
            table.add_row(
                cell(owner) or "nobody yet", str(total), share, bar, cell(states)
            )
        return table


def _counts(recovery: Recovery) -> str:
    parts = [
        f"{recovery.agent_count} agents",
        f"{recovery.fenced_count} fenced",
        f"{recovery.restored_count} restored",
        f"{recovery.resumed_count} resumed",
    ]
    for count, name in (
        (recovery.live_count, "left to their live worker"),
        (recovery.moved_count, "claimed by others meanwhile"),
        (recovery.busy_count, "busy"),
        (recovery.broken_count, "broken"),
    ):
        if count:
            parts.append(f"{count} {name}")
    return ", ".join(parts)
