"""`perdure checkpoints`: the states of agents, and how they are dropped."""

from __future__ import annotations

import re
from datetime import timedelta

import click

import perdure
from perdure.selector import Selection
from perdure.v1.checkpoint_service_pb2 import PruneCheckpointsResponse
from perdure_cli.agents import limit_option
from perdure_cli.errors import CommandError
from perdure_cli.output import Columns, Output, is_interactive, of
from perdure_cli.record import readable, record_of
from perdure_cli.selection import require_selection, selection_options
from perdure_cli.session import connected

COLUMNS: Columns = {
    "step": of("step"),
    "branch": of("branch"),
    "read": of("read_seq"),
    "raw bytes": of("raw_bytes"),
    "frame bytes": of("frame_bytes"),
    "epoch": of("epoch"),
    "digest": lambda record: record["digest"][:12],
    "created": of("create_time"),
}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")


def _age(
    context: click.Context, option: click.Parameter, value: str | None
) -> timedelta | None:
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is not an age such as 90s, 15m, 12h or 30d", context, option
        )
    return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])


@click.group()
def checkpoints() -> None:
    """States of agents, step by step."""


@checkpoints.command("list")
@click.argument("agent_id")
@click.option("--branch", default="", help="Absent: the canonical one.")
@limit_option
@connected
async def list_checkpoints(
    client: perdure.AsyncClient, output: Output, agent_id: str, branch: str, limit: int
) -> None:
    """List the checkpoints of an agent, newest first."""
    found = client.checkpoints.list(agent_id, branch=branch, page_size=500)
    await output.listing(found, COLUMNS, limit=limit)


@checkpoints.command("show")
@click.argument("agent_id")
@click.option("--step", default=0, type=click.IntRange(0), help="Absent: the newest.")
@click.option("--branch", default="", help="Absent: the canonical one.")
@connected
async def show_checkpoint(
    client: perdure.AsyncClient, output: Output, agent_id: str, step: int, branch: str
) -> None:
    """Show a checkpoint with its state, as far as JSON can say it."""
    found = await client.checkpoints.get(agent_id, step=step, branch=branch)
    state = readable(found.state)
    if output.as_json:
        output.json({**record_of(found.checkpoint), "state": state})
        return
    output.record(record_of(found.checkpoint))
    output.console.print_json(data=state, ensure_ascii=True)


@checkpoints.command("prune")
@selection_options
@click.option("--keep-steps", type=click.IntRange(1), help="Newest that always stay.")
@click.option(
    "--keep-age",
    metavar="AGE",
    callback=_age,
    help="Younger ones stay: 90s, 15m, 12h, 30d.",
)
@click.option(
    "--max-age", metavar="AGE", callback=_age, help="Older ones go, but for the newest."
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@connected
async def prune(
    client: perdure.AsyncClient,
    output: Output,
    selection: Selection,
    dry_run: bool,
    keep_steps: int | None,
    keep_age: timedelta | None,
    max_age: timedelta | None,
) -> None:
    """Remove old checkpoints, never an agent's newest.

    Without a policy of its own by the retention of the server: what is older than 30
    days, or older than a day and outside the newest 50.
    """
    require_selection(selection)
    with output.busy("pruning"):
        done = await client.checkpoints.prune(
            keep_steps=keep_steps,
            keep_age=keep_age,
            max_age=max_age,
            dry_run=dry_run,
            **selection,
        )
    _report(output, done, "would be removed" if dry_run else "removed")


@checkpoints.command("drop-all")
@selection_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@connected
async def drop_all(
    client: perdure.AsyncClient,
    output: Output,
    selection: Selection,
    yes: bool,
    dry_run: bool,
) -> None:
    """Remove every checkpoint of agents, the newest too.

    The agents come back from their messages, marked as rebuilt.
    """
    require_selection(selection)
    with output.busy("counting"):
        counted = await client.checkpoints.prune(
            drop_all=True, dry_run=True, **selection
        )
    if dry_run:
        _report(output, counted, "would be removed")
        return
    if not yes:
        _confirm(counted)
    with output.busy("dropping"):
        done = await client.checkpoints.prune(drop_all=True, **selection)
    _report(output, done, "removed")


def _confirm(counted: PruneCheckpointsResponse) -> None:
    what = (
        f"{counted.checkpoint_count} checkpoints of {counted.agent_count} agents, "
        "the newest too"
    )
    if not is_interactive():
        raise CommandError(f"this drops {what}: add --yes to do it")
    click.confirm(f"Drop {what}?", abort=True, err=True)


def _report(output: Output, done: PruneCheckpointsResponse, verb: str) -> None:
    if output.as_json:
        output.json(record_of(done))
        return
    output.text(
        f"{done.checkpoint_count} checkpoints of {done.agent_count} agents {verb}, "
        f"{done.frame_bytes} bytes"
    )
