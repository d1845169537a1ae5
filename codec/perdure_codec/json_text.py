"""JSON text to raw MessagePack and back, strictly: equal values or a refusal.

The standard library's parser does the work; the one in `json_reader` finds the
place of a fault, and reads what is nested deeper than Python's own limit.
"""

from __future__ import annotations

import json
import math
from json.encoder import encode_basestring

from perdure_codec import json_reader
from perdure_codec.backend import pack, unpack
from perdure_codec.errors import (
    EncodeError,
    NotJson,
)
from perdure_codec.frame import Buffer
from perdure_codec.json_reader import number
from perdure_codec.limits import MAX_JSON_INTEGER_DIGITS
from perdure_codec.path import Segment, render

_FIRST_TOO_LONG = 10**MAX_JSON_INTEGER_DIGITS


def from_json(text: str | bytes) -> bytes:
    """Turn JSON text into raw MessagePack.

    Objects become dicts, arrays lists. A number without fraction and exponent is an
    integer of any size up to MAX_JSON_INTEGER_DIGITS, except `-0`, which is the float
    -0.0; any other number is the nearest double and must be finite.

    Args:
        text: RFC 8259 text; bytes must be UTF-8 without a byte order mark.

    Raises:
        NotJson: With the path of a syntax fault, duplicate name, non-finite number,
            lone surrogate, or a limit passed. `$` if the bytes are no UTF-8.
    """
    if not isinstance(text, str):
        try:
            text = bytes(text).decode()
        except UnicodeDecodeError:
            raise NotJson("$", "not UTF-8") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=number,
            parse_int=number,
        )
    except (ValueError, RecursionError):
        value = json_reader.read(text)
    try:
        return pack(value)
    except EncodeError as exc:
        raise NotJson(exc.path, exc.reason) from None


def to_json(raw: Buffer) -> str:
    """Turn raw MessagePack into JSON text that means the same values.

    Text is written as itself, without spaces; integers are written whole, even above
    2**53 (a reader that keeps all numbers as doubles will round them).

    Raises:
        DecodeError: `raw` is refused.
        NotJson: With the path of bytes, a tuple, a key that is not text, NaN or an
            infinity, an integer of more than MAX_JSON_INTEGER_DIGITS digits.
    """
    return _Writer().write(unpack(raw))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate name")
    return result


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


class _Level:
    """A list or dict that is being written: what is left, and how it ends."""

    __slots__ = ("entries", "first", "segment", "tail")

    def __init__(self, value: dict[object, object] | list[object]) -> None:
        self.first = True
        self.segment: Segment = ("index", 0)
        if isinstance(value, dict):
            self.entries = iter(value.items())
            self.tail = "}"
        else:
            self.entries = iter(enumerate(value))
            self.tail = "]"


class _Writer:
    """Writes with a stack of its own, so a legal depth never meets Python's limit."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.levels: list[_Level] = []

    def write(self, value: object) -> str:
        self._value(value)
        while self.levels:
            level = self.levels[-1]
            entry = next(level.entries, None)
            if entry is None:
                self.pieces.append(self.levels.pop().tail)
                continue
            if not level.first:
                self.pieces.append(",")
            level.first = False
            self._entry(level, *entry)
        return "".join(self.pieces)

    def _entry(self, level: _Level, key: object, value: object) -> None:
        if level.tail == "]":
            level.segment = ("index", key)
        else:
            level.segment = ("member", key)
            if not isinstance(key, str):
                raise self._fault(f"a key of type {type(key).__name__} is not JSON")
            self.pieces.append(encode_basestring(key) + ":")
        self._value(value)

    def _value(self, value: object) -> None:
        if isinstance(value, str):
            self.pieces.append(encode_basestring(value))
        elif isinstance(value, dict):
            self.pieces.append("{")
            self.levels.append(_Level(value))
        elif isinstance(value, list):
            self.pieces.append("[")
            self.levels.append(_Level(value))
        elif value is None:
            self.pieces.append("null")
        elif isinstance(value, bool):
            self.pieces.append("true" if value else "false")
        elif isinstance(value, int):
            if not -_FIRST_TOO_LONG < value < _FIRST_TOO_LONG:
                raise self._fault(json_reader.REASON_INTEGER)
            self.pieces.append(repr(value))
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise self._fault("a number that is not finite is not JSON")
            self.pieces.append(repr(value))
        else:
            raise self._fault(f"{type(value).__name__} is not JSON")

    def _fault(self, reason: str) -> NotJson:
        return NotJson(render([level.segment for level in self.levels]), reason)
