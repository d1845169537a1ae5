"""What people and SQL see of a message: columns derived from its blocks."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.v1 import message_pb2 as pb
from perdure_server.canonical.message import derive

MAX_TEXT_BYTES: Final = 64 * 1024
"""UTF-8 bytes of one projected text; longer text is cut at a code point."""

MAX_TOOL_CALLS: Final = 1000
"""Calls of one message that are projected. The body has all of them."""

_SHOWN_NUL: Final = "\u2400"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# asyncpg writes the very ends of datetime as infinity: a column stays one
# microsecond inside.
_FIRST: Final = datetime.min.replace(microsecond=1, tzinfo=UTC)
_LAST: Final = datetime.max.replace(microsecond=999_998, tzinfo=UTC)
_ROLES: Final = {
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
    pb.ROLE_SYSTEM: "system",
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a message; arguments as the model wrote them."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Projection:
    """Columns of a message. None: the message does not say.

    content is the text that it speaks, tool_result that of its first tool result,
    tool_name and tool_args belong to its first call, or tool_name to that result.
    """

    role: str
    create_time: datetime | None
    content: str | None
    tool_call_id: str | None
    tool_name: str | None
    tool_args: str | None
    tool_result: str | None
    model: str | None
    run_id: str | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    tool_calls: tuple[ToolCall, ...]


def project(message: pb.Message) -> Projection:
    """Return the columns of a message that `read_message` returned.

    Never fails on content: NUL in text is shown as U+2400, long text is cut.
    """
    derived = derive(message, opaque=False)
    calls = _tool_calls(derived.blocks)
    result = next(
        (b.tool_result for b in derived.blocks if b.HasField("tool_result")), None
    )
    counts = {field.name: count for field, count in message.usage.ListFields()}
    name = calls[0].name if calls else result and _shown(result.name)
    return Projection(
        role=_ROLES[derived.role],
        create_time=_time(message),
        content=_spoken(derived.blocks),
        tool_call_id=None if result is None else _shown(result.call_id),
        tool_name=name or None,
        tool_args=calls[0].arguments if calls else None,
        tool_result=None if result is None else _spoken(result.content),
        model=message.model or None,
        run_id=message.run_id or None,
        input_tokens=counts.get("input_tokens"),
        cached_tokens=counts.get("cached_tokens"),
        output_tokens=counts.get("output_tokens"),
        reasoning_tokens=counts.get("reasoning_tokens"),
        tool_calls=calls,
    )


def _tool_calls(blocks: Iterable[pb.Block]) -> tuple[ToolCall, ...]:
    calls = [b.tool_call for b in blocks if b.HasField("tool_call")]
    return tuple(
        ToolCall(_shown(call.call_id), _shown(call.name), _shown(call.arguments))
        for call in calls[:MAX_TOOL_CALLS]
    )


def _spoken(blocks: Iterable[pb.Block]) -> str | None:
    """Return the text of blocks, one a line; None when there is no text block."""
    texts = []
    for block in blocks:
        kind = block.WhichOneof("kind")
        if kind == "text":
            texts.append(block.text.text)
        elif kind == "refusal":
            texts.append(block.refusal.text)
        elif kind == "instruction":
            texts.append(block.instruction.text)
        elif kind == "compaction":
            texts.append(block.compaction.text)
        elif kind == "error":
            texts.append(block.error.message)
    return _shown("\n".join(texts)) if texts else None


def _shown(text: str) -> str:
    """Return text as a column can hold it."""
    encoded = text.replace("\0", _SHOWN_NUL).encode()
    return encoded[:MAX_TEXT_BYTES].decode(errors="ignore")


def _time(message: pb.Message) -> datetime | None:
    if not message.HasField("create_time"):
        return None
    stamp = message.create_time
    time = _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
    return min(max(time, _FIRST), _LAST)
