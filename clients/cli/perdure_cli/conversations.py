"""`perdure conversations`: list them, show one, read its messages."""

from __future__ import annotations

import json
from typing import Any

import click

import perdure
from perdure.v1.conversation_pb2 import Conversation
from perdure_cli.output import Output, time_of
from perdure_cli.session import client_command

_MAX_TEXT_CHARS = 160


@click.group()
def conversations() -> None:
    """Every message, in order."""


@conversations.command("list")
@click.option("--user", "user_id", default="", help="Only those of this user.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@client_command
async def list_conversations(
    client: perdure.AsyncClient, output: Output, user_id: str, limit: int
) -> None:
    """List conversations in the order of their ids."""
    found: list[dict[str, Any]] = []
    async for conversation in client.history.list(user_id=user_id):
        if len(found) == limit:
            output.note(f"the first {limit}; more with --limit")
            break
        found.append(_described(conversation))
    output.rows(
        ["conversation_id", "user_id", "messages", "owned", "create_time"],
        found,
        "no conversations yet; `perdure import FILE.jsonl` brings some",
    )


@conversations.command("show")
@click.argument("conversation_id")
@client_command
async def show_conversation(
    client: perdure.AsyncClient, output: Output, conversation_id: str
) -> None:
    """Show what is known of a conversation."""
    output.record(_described(await client.history.get(conversation_id)))


@conversations.command("read")
@click.argument("conversation_id")
@click.option("--newest", type=click.IntRange(1), help="Only the newest so many.")
@click.option("--follow", is_flag=True, help="Go on with new messages; Ctrl-C ends.")
@client_command
async def read_conversation(
    client: perdure.AsyncClient,
    output: Output,
    conversation_id: str,
    newest: int | None,
    follow: bool,
) -> None:
    """Print the messages; with --json one native payload a line, as it was stored."""
    messages = client.history.read(
        conversation_id, newest=newest, follow=follow, view="both"
    )
    async for message in messages:
        if output.as_json:
            output.text(json.dumps(message.payload, ensure_ascii=False))
        else:
            text = _text_of(message.payload)
            output.text(f"{message.seq:>6}  {message.role:<9}  {text}")


def _described(conversation: Conversation) -> dict[str, Any]:
    return {
        "conversation_id": conversation.conversation_id,
        "user_id": conversation.user_id,
        "agent_slug": conversation.agent_slug,
        "messages": conversation.message_count,
        "revision": conversation.revision,
        "owned": conversation.owned,
        "source_format": conversation.source_format,
        "source_id": conversation.source_id,
        "create_time": time_of(conversation.create_time),
        "close_time": time_of(conversation.close_time),
    }


def _text_of(payload: Any) -> str:
    if not isinstance(payload, dict):
        return ""
    content = payload.get("content")
    text = content if isinstance(content, str) else ""
    for call in payload.get("tool_calls") or []:
        function = call.get("function") or {}
        text += f" [{function.get('name')} {function.get('arguments')}]"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT_CHARS else text[: _MAX_TEXT_CHARS - 1] + "…"
