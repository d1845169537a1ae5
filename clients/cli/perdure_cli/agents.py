"""`perdure agents`: who owns what."""

from __future__ import annotations

from typing import Any

import click

import perdure
from perdure.v1 import agent_pb2
from perdure_cli.output import Output, time_of
from perdure_cli.session import client_command, selection_options

STATES = {
    agent_pb2.LEASE_STATE_LIVE: "live",
    agent_pb2.LEASE_STATE_LOST: "lost",
    agent_pb2.LEASE_STATE_FREE: "free",
}


@click.group()
def agents() -> None:
    """Who owns which agent, and where it stands."""


@agents.command("list")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@selection_options
@client_command
async def list_agents(
    client: perdure.AsyncClient, output: Output, selection: Any, limit: int
) -> None:
    """List agents in the order of their ids; without a selection, all."""
    found: list[dict[str, Any]] = []
    async for agent in client.agents.list(**(selection or {"all": True})):
        if len(found) == limit:
            output.note(f"the first {limit}; more with --limit")
            break
        found.append(described(agent))
    output.rows(
        [
            "agent_id",
            "lease_state",
            "owner",
            "labels",
            "epoch",
            "head_step",
            "framework",
        ],
        found,
        "no such agents",
    )


@agents.command("show")
@click.argument("agent_id")
@client_command
async def show_agent(
    client: perdure.AsyncClient, output: Output, agent_id: str
) -> None:
    """Show one agent."""
    async for agent in client.agents.list(ids=[agent_id]):
        output.record(described(agent))
        return
    raise click.ClickException(
        f"there is no agent {agent_id!r}; list them with: perdure agents list"
    )


def described(agent: agent_pb2.Agent) -> dict[str, Any]:
    """Return an agent as a row."""
    return {
        "agent_id": agent.agent_id,
        "conversation_id": agent.conversation_id,
        "agent_slug": agent.agent_slug,
        "parent_agent_id": agent.parent_agent_id,
        "framework": agent.framework,
        "lease_state": STATES.get(agent.lease_state, "unknown"),
        "owner": agent.owner,
        "labels": dict(agent.labels),
        "lease_expire_time": time_of(agent.lease_expire_time),
        "epoch": agent.epoch,
        "head_step": agent.head_step,
        "branch": agent.canonical_branch,
        "schema_version": agent.schema_version,
        "create_time": time_of(agent.create_time),
    }
