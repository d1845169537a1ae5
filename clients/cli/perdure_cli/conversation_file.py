"""Conversations from a JSONL file: `{"id": ..., "messages": [...]}` a line.

Messages are Chat Completions objects. A bad line is a fault with its number;
the lines around it are read all the same.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_LINE_BYTES: Final = 64 * 1024 * 1024

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourceConversation:
    """One conversation as its source tells it."""

    conversation_id: str
    messages: list[JsonObject]
    line: int = 0
    """Line of its file, from 1; 0: not of a file."""


@dataclass(frozen=True, slots=True)
class LineFault:
    """A line that holds no conversation. `line` counts from 1."""

    line: int
    reason: str

    def __str__(self) -> str:
        """Return the fault as a person reads it."""
        return f"line {self.line}: {self.reason}"


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; of a longer one than MAX_LINE_BYTES a longer part.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line
            while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE_BYTES + 1)


def parse_lines(lines: Iterable[bytes]) -> Iterator[SourceConversation | LineFault]:
    """Yield each line's conversation or its fault, in order. Blank lines are none."""
    first_lines: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            conversation = _conversation(line, number)
        except ValueError as exc:
            yield LineFault(number, str(exc))
            continue
        seen = first_lines.setdefault(conversation.conversation_id, number)
        if seen != number:
            name = json.dumps(conversation.conversation_id)
            yield LineFault(number, f"id {name} stands on line {seen} already")
            continue
        yield conversation


def _conversation(line: bytes, number: int) -> SourceConversation:
    value = _json(line, "utf-8-sig" if number == 1 else "utf-8")
    if not isinstance(value, dict):
        raise ValueError('not an object with "id" and "messages"')
    conversation_id = value.get("id")
    if not isinstance(conversation_id, str) or not conversation_id:
        raise ValueError('"id" is not a text of at least one character')
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError('"messages" is not a list of at least one message')
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f'messages[{index}] is not an object with a "role"')
    return SourceConversation(conversation_id, messages, number)


def _json(line: bytes, encoding: str) -> object:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        text = line.rstrip(b"\r\n").decode(encoding)
        value = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as exc:
        raise ValueError(f"not UTF-8 at byte {exc.start + 1}") from exc
    except UnicodeEncodeError as exc:
        raise ValueError("text holds a lone surrogate") from exc
    except json.JSONDecodeError as exc:
        raise ValueError(f"not JSON at column {exc.colno}: {exc.msg}") from exc
    except RecursionError as exc:
        raise ValueError("JSON is nested too deep") from exc
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
