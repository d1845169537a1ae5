"""`perdure demo`: the whole loop on real conversations, in one command."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from perdure_cli.conversation_file import SourceConversation
from perdure_cli.demo.conversations import ConversationFileError, load_conversations
from perdure_cli.demo.processes import DemoError
from perdure_cli.demo.replay import units_of
from perdure_cli.demo.stage import Stage
from perdure_cli.errors import CommandError

MIN_AGENTS = 8


@click.command()
@click.option(
    "--agents",
    default=200,
    show_default=True,
    type=click.IntRange(MIN_AGENTS, 2000),
    help="How many agents, each with one conversation.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Conversations as JSONL; else those that PERDURE_DEMO_DATA names, else the "
    "project's own generator.",
)
def demo(agents: int, data: Path | None) -> None:
    """Let a fleet of agents lose workers and server, and come back whole.

    The last line is one JSON object with what was counted. Exits with status 1 if a
    promise broke.
    """
    named = os.environ.get("PERDURE_DEMO_DATA")
    source = data or (Path(named) if named else None)
    try:
        name, conversations = load_conversations(source, agents)
        _require_steps(conversations)
        stage = Stage(source, name, conversations)
        result = asyncio.run(_play(stage))
    except (ConversationFileError, DemoError) as exc:
        raise CommandError(str(exc)) from exc
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
    print(json.dumps(result), flush=True)
    if not stage.is_kept:
        sys.exit(1)


def _require_steps(conversations: Sequence[SourceConversation]) -> None:
    for item in conversations:
        if not any(unit.is_step for unit in units_of(item.messages)):
            raise DemoError(
                f"conversation {item.conversation_id} has only a user's messages: "
                "give a file in which an agent speaks too"
            )


async def _play(stage: Stage) -> dict[str, Any]:
    """Play it; SIGTERM ends it in order, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await stage.run()
