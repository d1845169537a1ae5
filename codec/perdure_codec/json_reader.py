"""A strict JSON reader with a stack of its own that can say where a fault is.

Slower than the standard library's: `json_text` asks it only after that one failed.
"""

from __future__ import annotations

import math
import re
from json.decoder import scanstring  # type: ignore[attr-defined]

from perdure_codec.errors import REASON_TOO_DEEP, NotJson
from perdure_codec.limits import MAX_DEPTH, MAX_JSON_INTEGER_DIGITS
from perdure_codec.path import Segment, render

REASON_INTEGER = f"an integer of more than {MAX_JSON_INTEGER_DIGITS:,} digits"
REASON_SYNTAX = "not JSON at this place"
REASON_NOT_FINITE = "a number outside the range of a double"

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"null": None, "true": True, "false": False}


def number(text: str) -> int | float:
    """Convert one JSON number; `-0` is a float, since no integer has its sign.

    Raises:
        ValueError: It has too many digits or no finite double; says which.
    """
    if text == "-0":
        return -0.0
    digits = text.removeprefix("-")
    if digits.isdigit():
        if len(digits) > MAX_JSON_INTEGER_DIGITS:
            raise ValueError(REASON_INTEGER)
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(REASON_NOT_FINITE)
    return value


class _Level:
    """An array or object that is being read; `name` is the member under way."""

    __slots__ = ("name", "value")

    def __init__(self, value: list[object] | dict[str, object]) -> None:
        self.value = value
        self.name = ""

    def segment(self) -> Segment:
        if isinstance(self.value, list):
            return ("index", len(self.value))
        return ("member", self.name)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.levels: list[_Level] = []

    def read(self) -> object:
        while True:
            opened, value = self._value()
            if opened:
                continue
            value = self._give(value)
            if not self.levels:
                break
        if self._peek():
            raise self._fault(REASON_SYNTAX)
        return value

    def _give(self, value: object) -> object:
        """Add a value to the innermost level, closing those that end behind it."""
        while self.levels:
            level = self.levels[-1]
            if isinstance(level.value, list):
                level.value.append(value)
            else:
                level.value[level.name] = value
            mark = self._peek()
            if mark == ",":
                self.position += 1
                if isinstance(level.value, dict):
                    self._name(level)
                break
            if mark != ("]" if isinstance(level.value, list) else "}"):
                raise self._fault(REASON_SYNTAX)
            self.position += 1
            value = self.levels.pop().value
        return value

    def _value(self) -> tuple[bool, object]:
        """Read a value, or open a container that is not empty: (True, None)."""
        mark = self._peek()
        if mark in ("[", "{"):
            return self._open(mark)
        if mark == '"':
            return False, self._string()
        for word, constant in _CONSTANTS.items():
            if self.text.startswith(word, self.position):
                self.position += len(word)
                return False, constant
        match = _NUMBER.match(self.text, self.position)
        if match is None:
            raise self._fault(REASON_SYNTAX)
        self.position = match.end()
        try:
            return False, number(match.group())
        except ValueError as exc:
            raise self._fault(str(exc)) from None

    def _open(self, mark: str) -> tuple[bool, object]:
        if len(self.levels) >= MAX_DEPTH:
            raise self._fault(REASON_TOO_DEEP)
        self.position += 1
        value: list[object] | dict[str, object] = [] if mark == "[" else {}
        if self._peek() == ("]" if mark == "[" else "}"):
            self.position += 1
            return False, value
        level = _Level(value)
        self.levels.append(level)
        if isinstance(value, dict):
            self._name(level)
        return True, None

    def _name(self, level: _Level) -> None:
        if self._peek() != '"':
            raise self._fault(REASON_SYNTAX)
        level.name = self._string()
        if level.name in level.value:
            raise self._fault("a duplicate name")
        if self._peek() != ":":
            raise self._fault(REASON_SYNTAX)
        self.position += 1

    def _string(self) -> str:
        try:
            value, self.position = scanstring(self.text, self.position + 1, True)
        except ValueError:
            raise self._fault(REASON_SYNTAX) from None
        return str(value)

    def _peek(self) -> str:
        """Return the next character that is not white space, or nothing."""
        match = _SPACE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return self.text[self.position : self.position + 1]

    def _fault(self, reason: str) -> NotJson:
        return NotJson(render([level.segment() for level in self.levels]), reason)


def read(text: str) -> object:
    """Return the value of a JSON text.

    Raises:
        NotJson: With the path of the fault.
    """
    return _Reader(text).read()
