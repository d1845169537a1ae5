"""`perdure conversations`: what was said, in order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import click

import perdure
from perdure_cli.agents import limit_option
from perdure_cli.errors import CommandError
from perdure_cli.output import Columns, Output, cell, of
from perdure_cli.record import Record, iso, record_of
from perdure_cli.session import connected

COLUMNS: Columns = {
    "conversation": of("conversation_id"),
    "messages": of("message_count"),
    "user": of("user_id"),
    "kind": of("agent_slug"),
    "owned": of("owned"),
    "created": of("create_time"),
}
DEFAULT_NEWEST = 20


@click.group()
def conversations() -> None:
    """Conversations and their messages."""


@conversations.command("list")
@click.option("--user", "user_id", default="", help="Only those of this user.")
@click.option("--agent-slug", default="", help="Only those of this kind of agent.")
@limit_option
@connected
async def list_conversations(
    client: perdure.AsyncClient,
    output: Output,
    user_id: str,
    agent_slug: str,
    limit: int,
) -> None:
    """List conversations in the order of their ids."""
    found = client.history.list(user_id=user_id, agent_slug=agent_slug, page_size=500)
    await output.listing(found, COLUMNS, limit=limit)


@conversations.command("show")
@click.argument("conversation_id")
@click.option(
    "--newest",
    default=DEFAULT_NEWEST,
    show_default=True,
    type=click.IntRange(0),
    help="So many of the newest messages; 0: all.",
)
@click.option("--follow", is_flag=True, help="Go on with new messages. Ctrl-C ends.")
@connected
async def show_conversation(
    client: perdure.AsyncClient,
    output: Output,
    conversation_id: str,
    newest: int,
    follow: bool,
) -> None:
    """Show the messages of a conversation."""
    found = await client.history.get(conversation_id)
    if not output.as_json:
        output.text(f"{conversation_id}: {found.message_count} messages", "bold")
    first = max(0, found.message_count - newest) if newest else 0
    reading = client.history.read(conversation_id, from_seq=first, follow=follow)
    async with aclosing(reading) as messages:
        async for message in messages:
            if output.as_json:
                output.json(_message_record(message))
            else:
                who = message.agent_id and f" {message.agent_id} step {message.step}"
                output.text(f"[{message.seq}] {message.role}{who}", "cyan")
                output.text(_words(message.payload))


@conversations.command("export")
@click.argument("conversation_ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every conversation.")
@connected
async def export_conversations(
    client: perdure.AsyncClient,
    output: Output,
    conversation_ids: tuple[str, ...],
    everything: bool,
) -> None:
    """Write conversations to stdout as `perdure import` reads them.

    One a line: {"id": ..., "messages": [...]}, the messages as their providers made
    them.
    """
    if bool(conversation_ids) == everything:
        raise click.UsageError("name the conversations, or --all")
    count = 0
    with output.busy("exporting") as tell:
        async for conversation_id in _ids(client, conversation_ids):
            messages = await client.history.load(conversation_id)
            output.json({"id": conversation_id, "messages": messages})
            count += 1
            tell(f"exporting: {count}")
    output.note(f"{count} conversations")


async def _ids(
    client: perdure.AsyncClient, named: tuple[str, ...]
) -> AsyncIterator[str]:
    for conversation_id in named:
        yield conversation_id
    if not named:
        async for found in client.history.list(page_size=500):
            # An agent's conversation before its first message.
            if found.message_count:
                yield found.conversation_id


def _message_record(message: perdure.StoredMessage) -> Record:
    payload = message.payload
    if isinstance(payload, bytes):
        raise CommandError(
            f"message {message.seq} is not JSON: read it with the Python client"
        )
    return {
        "seq": message.seq,
        "message_id": message.message_id,
        "role": message.role,
        "record_time": iso(message.record_time),
        "agent_id": message.agent_id,
        "step": message.step,
        "superseded_by": message.superseded_by,
        "payload": payload,
        "blocks": [record_of(block) for block in message.message.blocks],
    }


def _words(payload: Any) -> str:
    """Return what a Chat Completions message says; of others their JSON."""
    if not isinstance(payload, dict):
        return cell(payload, whole=True)
    lines = []
    content = payload.get("content")
    if isinstance(content, str):
        lines.append(content)
    elif isinstance(content, list):
        lines += [str(part.get("text", json.dumps(part))) for part in content]
    for call in payload.get("tool_calls") or ():
        called = call.get("function") or call.get("custom") or {}
        arguments = called.get("arguments") or called.get("input") or ""
        lines.append(f"-> {called.get('name', '')}({arguments})")
    return "\n".join(lines) or json.dumps(payload, ensure_ascii=False)
