"""`perdure agents`: who holds which agent, and where it stands."""

from __future__ import annotations

import click

import perdure
from perdure.selector import Selection
from perdure_cli.errors import CommandError
from perdure_cli.output import DEFAULT_LIMIT, Columns, Output, of
from perdure_cli.record import Record, record_of
from perdure_cli.selection import selection_options
from perdure_cli.session import connected

COLUMNS: Columns = {
    "agent": of("agent_id"),
    "lease": of("lease_state"),
    "owner": of("owner"),
    "labels": of("labels"),
    "framework": of("framework"),
    "step": of("head_step"),
    "epoch": of("epoch"),
    "conversation": of("conversation_id"),
}

limit_option = click.option(
    "--limit",
    default=DEFAULT_LIMIT,
    show_default=True,
    type=click.IntRange(0),
    help="Show at most so many; 0: all.",
)


@click.group()
def agents() -> None:
    """Agents, and who holds them."""


@agents.command("list")
@selection_options
@limit_option
@connected
async def list_agents(
    client: perdure.AsyncClient, output: Output, selection: Selection, limit: int
) -> None:
    """List agents with their leases; without an option every one."""
    found = client.agents.list(page_size=500, **(selection or {"all": True}))
    await output.listing(found, COLUMNS, limit=limit)


@agents.command("show")
@click.argument("agent_id")
@connected
async def show_agent(
    client: perdure.AsyncClient, output: Output, agent_id: str
) -> None:
    """Show one agent and its newest checkpoint."""
    found = [agent async for agent in client.agents.list(ids=[agent_id])]
    if not found:
        raise CommandError(
            f"there is no agent {agent_id}: `perdure agents list` shows those that "
            "exist"
        )
    record = record_of(found[0])
    newest = None
    async for checkpoint in client.checkpoints.list(agent_id, page_size=1):
        newest = record_of(checkpoint)
        break
    if output.as_json:
        output.json({**record, "checkpoint": newest})
        return
    output.record(record)
    if newest:
        output.text("\nnewest checkpoint", "bold")
        output.record(newest)
    if output.is_terminal:
        output.note(_next(record, has_checkpoint=newest is not None))


def _next(record: Record, *, has_checkpoint: bool) -> str:
    agent_id = record["agent_id"]
    if record["lease_state"] == "lost":
        return f"its worker is gone: perdure recover start --id {agent_id}"
    if not has_checkpoint:
        return f"no checkpoint: perdure conversations show {record['conversation_id']}"
    return f"its state: perdure checkpoints show {agent_id}"
