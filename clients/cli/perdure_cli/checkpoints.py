"""`perdure checkpoints`: list and show steps, prune them, drop all."""

from __future__ import annotations

import pprint
from datetime import timedelta
from typing import Any

import click

import perdure
from perdure.v1.checkpoint_pb2 import Checkpoint
from perdure_cli.output import Output, time_of
from perdure_cli.session import client_command, selection_options


@click.group()
def checkpoints() -> None:
    """Where each agent stood, step by step."""


@checkpoints.command("list")
@click.argument("agent_id")
@click.option("--branch", default="", help="Else the canonical one.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1))
@client_command
async def list_checkpoints(
    client: perdure.AsyncClient, output: Output, agent_id: str, branch: str, limit: int
) -> None:
    """List the steps of an agent, newest first."""
    found: list[dict[str, Any]] = []
    async for checkpoint in client.checkpoints.list(agent_id, branch=branch):
        if len(found) == limit:
            output.note(f"the newest {limit}; more with --limit")
            break
        found.append(_described(checkpoint))
    output.rows(
        ["step", "read_seq", "frame_bytes", "raw_bytes", "epoch", "create_time"],
        found,
        "no checkpoints",
    )


@checkpoints.command("show")
@click.argument("agent_id")
@click.option("--step", default=0, help="Else the newest.")
@click.option("--state", is_flag=True, help="Print the state too.")
@client_command
async def show_checkpoint(
    client: perdure.AsyncClient, output: Output, agent_id: str, step: int, state: bool
) -> None:
    """Show one step of an agent."""
    found = await client.checkpoints.get(agent_id, step=step)
    described = _described(found.checkpoint)
    if state and output.as_json:
        described["state"] = found.state
    output.record(described)
    if state and not output.as_json:
        output.text(pprint.pformat(found.state, width=100, compact=True))


@checkpoints.command("prune")
@click.option("--keep-steps", type=click.IntRange(1), help="Newest steps that stay.")
@click.option("--keep-days", type=float, help="Younger steps stay.")
@click.option("--max-days", type=float, help="Older steps go in any case.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@selection_options
@client_command
async def prune_checkpoints(
    client: perdure.AsyncClient,
    output: Output,
    selection: Any,
    keep_steps: int | None,
    keep_days: float | None,
    max_days: float | None,
    dry_run: bool,
) -> None:
    """Remove old steps, never a head. Without a policy the tenant's is used."""
    pruned = await client.checkpoints.prune(
        keep_steps=keep_steps,
        keep_age=None if keep_days is None else timedelta(days=keep_days),
        max_age=None if max_days is None else timedelta(days=max_days),
        dry_run=dry_run,
        **selection,
    )
    output.record(_counts(pruned, dry_run))


@checkpoints.command("drop-all")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@selection_options
@client_command
async def drop_checkpoints(
    client: perdure.AsyncClient,
    output: Output,
    selection: Any,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove every step, heads too: the agents come back from their messages."""
    if not dry_run and not yes:
        planned = await client.checkpoints.prune(
            drop_all=True, dry_run=True, **selection
        )
        click.confirm(
            f"Drop {planned.checkpoint_count:,} checkpoints of "
            f"{planned.agent_count:,} agents?",
            abort=True,
        )
    dropped = await client.checkpoints.prune(
        drop_all=True, dry_run=dry_run, **selection
    )
    output.record(_counts(dropped, dry_run))


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "agent_id": checkpoint.agent_id,
        "branch": checkpoint.branch,
        "step": checkpoint.step,
        "keyframe_step": checkpoint.keyframe_step,
        "read_seq": checkpoint.read_seq,
        "schema_version": checkpoint.schema_version,
        "digest": checkpoint.digest.hex(),
        "raw_bytes": checkpoint.raw_bytes,
        "frame_bytes": checkpoint.frame_bytes,
        "epoch": checkpoint.epoch,
        "run_id": checkpoint.run_id,
        "create_time": time_of(checkpoint.create_time),
    }


def _counts(pruned: Any, dry_run: bool) -> dict[str, Any]:
    return {
        "agents": pruned.agent_count,
        "would_remove" if dry_run else "removed": pruned.checkpoint_count,
        "frame_bytes": pruned.frame_bytes,
    }
