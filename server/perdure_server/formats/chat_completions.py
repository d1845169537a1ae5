"""Messages of OpenAI Chat Completions: checked at the edge, read as blocks.

Known members must have their documented shape. Unknown members, parts and kinds
of call are kept: vendors add their own.
"""

from __future__ import annotations

from typing import Final

from perdure.v1 import message_pb2 as pb
from perdure_server.errors import ValueNotStorable
from perdure_server.formats.chat_parts import OpaqueParts, content_blocks
from perdure_server.formats.derived import Derived
from perdure_server.formats.json_reader import JsonValue
from perdure_server.formats.json_text import is_json, read_json

FORMAT: Final = "openai.chat_completions"

_ROLES: Final = {
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
    "function": pb.ROLE_TOOL,
    "system": pb.ROLE_SYSTEM,
    "developer": pb.ROLE_SYSTEM,
}

# Member of a call's object that holds its text, by type of the call.
_CALL_TEXT: Final = {"function": "arguments", "custom": "input"}

_TEXT_MEMBERS: Final = ("name", "tool_call_id", "refusal")
_PART_TEXT: Final = {"text": "text", "refusal": "refusal"}
_MEMBERS: Final = frozenset(
    {"role", "content", "tool_calls", "function_call", *_TEXT_MEMBERS}
)

JsonObject = dict[str, JsonValue]


class ChatCompletions:
    """The format `openai.chat_completions`: one message object as JSON text."""

    def check(self, payload: bytes, path: str) -> pb.Role.ValueType:
        """Return the role of a payload, or raise with the path of its fault."""
        members = _object(read_json(payload, path), path)
        role = _text(members.get("role"), f"{path}.role")
        if role not in _ROLES:
            raise ValueNotStorable(
                "not a role of Chat Completions", path=f"{path}.role"
            )
        for name in _TEXT_MEMBERS:
            if members.get(name) is not None:
                _text(members[name], f"{path}.{name}")
        _check_content(members.get("content"), f"{path}.content")
        _check_calls(members.get("tool_calls"), f"{path}.tool_calls")
        legacy = members.get("function_call")
        if legacy is not None:
            _check_call_texts(legacy, "arguments", f"{path}.function_call")
        return _ROLES[role]

    def derive(self, payload: bytes, *, opaque: bool) -> Derived:
        """Return role, speaker and blocks of a payload that passed `check`."""
        members = _object(read_json(payload, ""), "")
        kept = OpaqueParts(FORMAT, payload) if opaque else None
        name = str(members["role"])
        role = _ROLES[name]
        author = _string(members.get("name"))
        content = content_blocks(members.get("content"), kept, name)
        if role == pb.ROLE_TOOL:
            result = pb.ToolResultBlock(
                call_id=_string(members.get("tool_call_id")),
                name=author,
                content=content,
            )
            content, author = [pb.Block(tool_result=result)], ""
        blocks = [
            _reasoning(members),
            *content,
            _refusal(members),
            _audio(members),
            *_calls(members, kept),
            *_unread(members, kept),
        ]
        return Derived(role, author, tuple(b for b in blocks if b is not None))


def _check_content(content: JsonValue, path: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise ValueNotStorable("not null, text or a list of parts", path=path)
    for index, item in enumerate(content):
        part = _object(item, f"{path}[{index}]")
        kind = _text(part.get("type"), f"{path}[{index}].type")
        if kind in _PART_TEXT:
            member = _PART_TEXT[kind]
            _text(part.get(member), f"{path}[{index}].{member}")


def _check_calls(calls: JsonValue, path: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise ValueNotStorable("not a list of tool calls", path=path)
    for index, item in enumerate(calls):
        here = f"{path}[{index}]"
        call = _object(item, here)
        if call.get("id") is not None:
            _text(call["id"], f"{here}.id")
        kind = _text(_call_kind(call), f"{here}.type")
        if kind in _CALL_TEXT:
            _check_call_texts(call.get(kind), _CALL_TEXT[kind], f"{here}.{kind}")


def _check_call_texts(value: JsonValue, member: str, path: str) -> None:
    called = _object(value, path)
    _text(called.get("name"), f"{path}.name")
    _text(called.get(member), f"{path}.{member}")


def _reasoning(members: JsonObject) -> pb.Block | None:
    """Return the reasoning that vendors add, under either of its usual names."""
    for name in ("reasoning_content", "reasoning"):
        if text := _string(members.get(name)):
            return pb.Block(reasoning=pb.ReasoningBlock(text=text))
    return None


def _refusal(members: JsonObject) -> pb.Block | None:
    text = _string(members.get("refusal"))
    return pb.Block(refusal=pb.RefusalBlock(text=text)) if text else None


def _audio(members: JsonObject) -> pb.Block | None:
    """Return the sound of an answer, which this format names by id alone."""
    audio = members.get("audio")
    if not isinstance(audio, dict) or not isinstance(audio.get("id"), str):
        return None
    media = pb.MediaBlock(
        media_kind=pb.MEDIA_KIND_AUDIO, provider_file_id=_string(audio["id"])
    )
    return pb.Block(media=media)


def _calls(members: JsonObject, kept: OpaqueParts | None) -> list[pb.Block]:
    blocks = []
    calls = members.get("tool_calls")
    for index, item in enumerate(calls if isinstance(calls, list) else []):
        call = _object(item, "")
        kind = str(_call_kind(call))
        if kind in _CALL_TEXT:
            called = _object(call.get(kind), "")
            blocks.append(_call(call.get("id"), kind, called, _CALL_TEXT[kind]))
        elif kept is not None:
            blocks.append(kept.block(("tool_calls", index), kind))
    if members.get("function_call") is not None:
        called = _object(members["function_call"], "")
        blocks.append(_call(None, "function_call", called, "arguments"))
    return blocks


def _call(call_id: JsonValue, kind: str, called: JsonObject, member: str) -> pb.Block:
    text = str(called[member])
    call = pb.ToolCallBlock(
        call_id=_string(call_id),
        name=str(called["name"]),
        arguments=text,
        arguments_valid=is_json(text),
        call_kind=kind,
    )
    return pb.Block(tool_call=call)


def _call_kind(call: JsonObject) -> JsonValue:
    kind = call.get("type")
    return "function" if kind is None else kind


def _unread(members: JsonObject, kept: OpaqueParts | None) -> list[pb.Block]:
    """Keep what a vendor added and no block above has read."""
    if kept is None:
        return []
    return [
        kept.block((name,), name)
        for name, value in members.items()
        if name not in _MEMBERS and value is not None and not _is_read(members, name)
    ]


def _is_read(members: JsonObject, name: str) -> bool:
    if name == "audio":
        return _audio(members) is not None
    if name == "reasoning" and _string(members.get("reasoning_content")):
        return members[name] == members["reasoning_content"]
    return name in ("reasoning", "reasoning_content") and bool(_string(members[name]))


def _object(value: JsonValue, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueNotStorable("not a JSON object", path=path)
    return value


def _text(value: JsonValue, path: str) -> str:
    if not isinstance(value, str):
        raise ValueNotStorable("not a JSON string", path=path)
    return value


def _string(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
