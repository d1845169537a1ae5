"""A JSON reader that does not recurse and knows the path of what it reads.

Slower than the standard library; used for deep text, for faults, and for the
exact text of a part.
"""

import json
import re
from dataclasses import dataclass, field
from typing import TypeAlias

MAX_DEPTH = 1000
"""Objects and arrays inside one another, the outermost included."""

MAX_PATH_PARTS = 16
"""Parts of a fault's path; deeper faults are named by the part they lie in."""

SPAN_DEPTH = 2
"""Down to here the reader keeps where each value stands in the text."""

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class JsonNumber:
    """A number as its text: nothing here calculates, and no digit is lost."""

    text: str


JsonValue: TypeAlias = (
    "dict[str, JsonValue] | list[JsonValue] | str | bool | JsonNumber | None"
)


class JsonFault(ValueError):
    """The text is not strict JSON. `path` leads to the fault, "" at the top."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


def refuse_constant(name: str) -> JsonValue:
    """Refuse NaN, Infinity and -Infinity, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


@dataclass(slots=True)
class _Open:
    """A container that is being read."""

    start: int
    members: dict[str, JsonValue] | None = None
    items: list[JsonValue] = field(default_factory=list)
    key: str = ""
    index: int = 0
    value_start: int = 0

    @property
    def part(self) -> str | int:
        """Name or index of the value that is being read."""
        return self.key if self.members is not None else self.index


class JsonReader:
    """Reads one text, once.

    Args:
        text: The JSON text.
        lenient: Let a member stand twice and a surrogate stand alone.

    Attributes:
        spans: Start and end of each value down to SPAN_DEPTH, by its path.
    """

    def __init__(self, text: str, *, lenient: bool = False) -> None:
        self._text = text
        self._lenient = lenient
        self._open: list[_Open] = []
        self.spans: dict[tuple[str | int, ...], tuple[int, int]] = {}

    def read(self) -> JsonValue:
        """Return the value.

        Raises:
            JsonFault: Not strict JSON, or nested deeper than MAX_DEPTH.
        """
        position = self._skip(0)
        while True:
            value, position, done = self._begin_value(position)
            while done:
                if not self._open:
                    return self._end_of_text(value, position)
                self._attach(value, position)
                value, position, done = self._after_value(position)

    def _begin_value(self, position: int) -> tuple[JsonValue, int, bool]:
        """Read a scalar or an empty container whole, or open a container."""
        if self._open:
            self._open[-1].value_start = position
        first = self._text[position : position + 1]
        if first not in ("{", "["):
            value, position = self._scalar(position)
            return value, position, True
        if len(self._open) == MAX_DEPTH:
            raise self._fault(f"JSON is nested deeper than {MAX_DEPTH}")
        self._open.append(_Open(position, {} if first == "{" else None))
        position = self._skip(position + 1)
        if self._text[position : position + 1] == ("}" if first == "{" else "]"):
            return self._close(), position + 1, True
        if first == "{":
            position = self._key(position)
        return None, position, False

    def _after_value(self, position: int) -> tuple[JsonValue, int, bool]:
        """Go on behind a value: to the next one, or close the container."""
        top = self._open[-1]
        position = self._skip(position)
        mark = self._text[position : position + 1]
        if mark == ("}" if top.members is not None else "]"):
            return self._close(), position + 1, True
        if mark != ",":
            raise self._fault("not JSON text")
        position = self._skip(position + 1)
        if top.members is not None:
            position = self._key(position)
        else:
            top.index += 1
        return None, position, False

    def _key(self, position: int) -> int:
        top = self._open[-1]
        if self._text[position : position + 1] != '"':
            top.key = ""
            raise self._fault("not JSON text")
        name, position = self._scalar(position)
        assert isinstance(name, str)
        top.key = name
        if top.members is not None and name in top.members and not self._lenient:
            raise self._fault("a member stands twice in one object")
        position = self._skip(position)
        if self._text[position : position + 1] != ":":
            raise self._fault("not JSON text")
        return self._skip(position + 1)

    def _scalar(self, position: int) -> tuple[JsonValue, int]:
        try:
            value, end = _SCALARS.raw_decode(self._text, position)
        except ValueError as exc:
            raise self._fault("not JSON text") from exc
        if isinstance(value, str) and not self._lenient and not _encodes(value):
            raise self._fault("text holds a lone surrogate")
        return value, end

    def _attach(self, value: JsonValue, end: int) -> None:
        top = self._open[-1]
        if len(self._open) <= SPAN_DEPTH:
            parts = tuple(opened.part for opened in self._open)
            self.spans[parts] = (top.value_start, end)
        if top.members is None:
            top.items.append(value)
        else:
            top.members[top.key] = value

    def _close(self) -> JsonValue:
        top = self._open.pop()
        return top.items if top.members is None else top.members

    def _end_of_text(self, value: JsonValue, position: int) -> JsonValue:
        if self._skip(position) != len(self._text):
            raise self._fault("text follows the JSON value")
        return value

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return match.end() if match else position

    def _fault(self, message: str) -> JsonFault:
        parts = [opened.part for opened in self._open[:MAX_PATH_PARTS]]
        return JsonFault(message, "".join(map(_path_part, parts)))


def _path_part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    if _PLAIN_NAME.match(part):
        return f".{part}"
    return f"[{json.dumps(part[:64])}]" if part else ""


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_SCALARS = json.JSONDecoder(
    parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=refuse_constant
)
