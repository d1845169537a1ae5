"""`perdure recover`: plan, start and watch a recovery."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

import perdure
from perdure.v1.recovery_service_pb2 import Recovery, RecoveryProgress, RecoveryState
from perdure_cli.output import Output, time_of
from perdure_cli.session import client_command, selection_options

_EVEN_LIVE = click.option(
    "--even-live", is_flag=True, help="Fence agents under a live lease too."
)


@click.group()
def recover() -> None:
    """Bring a fleet back after its workers died: plan, start, watch."""


@recover.command("plan")
@_EVEN_LIVE
@selection_options
@client_command
async def plan(
    client: perdure.AsyncClient, output: Output, selection: Any, even_live: bool
) -> None:
    """Count what a recovery would fence; nothing is written."""
    planned = await client.recovery.start(
        dry_run=True, even_live=even_live, **selection
    )
    output.record(
        {
            "agents": planned.agent_count,
            "would_fence": planned.fenced_count,
            "live": planned.live_count,
            "frame_bytes": planned.frame_bytes,
        }
    )
    if planned.live_count:
        output.note("agents under a live lease stay; --even-live takes them too")


@recover.command("start")
@click.option("--recovery-id", help="Go on with a recovery that was started before.")
@_EVEN_LIVE
@selection_options
@client_command
async def start(
    client: perdure.AsyncClient,
    output: Output,
    selection: Any,
    even_live: bool,
    recovery_id: str | None,
) -> None:
    """Fence the agents; new workers restore them with the id that is printed."""
    recovery = await client.recovery.start(
        recovery_id=recovery_id, even_live=even_live, **selection
    )
    output.record(_described(recovery))
    output.note(f"next: perdure recover watch {recovery.recovery_id}")


@recover.command("watch")
@click.argument("recovery_id")
@click.option("--once", is_flag=True, help="Show the present state and end.")
@client_command
async def watch(
    client: perdure.AsyncClient, output: Output, recovery_id: str, once: bool
) -> None:
    """Show how far a recovery is until every agent has resumed.

    With --json: a line for each agent that changed.
    """
    events = client.recovery.watch(recovery_id, once=once)
    if output.as_json:
        async for event in events:
            _print_changes(output, event)
        return
    with Live(console=Console(), refresh_per_second=8) as live:
        async for event in events:
            live.update(_bars(event.recovery))


def _print_changes(output: Output, event: RecoveryProgress) -> None:
    for agent in event.agents:
        output.text(
            json.dumps(
                {
                    "agent_id": agent.agent_id,
                    "state": _state_name(agent.state),
                    "owner": agent.owner,
                    "head_step": agent.head_step,
                }
            )
        )


def _bars(recovery: Recovery) -> Table:
    table = Table.grid(padding=(0, 2))
    total = max(1, recovery.agent_count)
    for name, count in (
        ("fenced", recovery.fenced_count),
        ("restored", recovery.restored_count),
        ("resumed", recovery.resumed_count),
    ):
        table.add_row(
            name, ProgressBar(total=total, completed=count, width=50), f"{count:,}"
        )
    left_alone = recovery.moved_count + recovery.live_count + recovery.busy_count
    if left_alone:
        table.add_row(
            "left alone",
            f"{recovery.moved_count} moved, {recovery.live_count} live, "
            f"{recovery.busy_count} busy",
            f"{left_alone:,}",
        )
    return table


def _described(recovery: Recovery) -> dict[str, Any]:
    return {
        "recovery_id": recovery.recovery_id,
        "agents": recovery.agent_count,
        "fenced": recovery.fenced_count,
        "moved": recovery.moved_count,
        "live": recovery.live_count,
        "busy": recovery.busy_count,
        "restored": recovery.restored_count,
        "resumed": recovery.resumed_count,
        "frame_bytes": recovery.frame_bytes,
        "create_time": time_of(recovery.create_time),
    }


def _state_name(state: RecoveryState.ValueType) -> str:
    return RecoveryState.Name(state).removeprefix("RECOVERY_STATE_").lower()
