"""Strict JSON text from outside: bounded before it is parsed, faults with a path.

Stricter than RFC 8259 where two readers would disagree: no NaN, no member
twice, no lone surrogate. Numbers stay text.
"""

import json
import re
from typing import Final

from perdure_server.errors import LimitExceeded, ValueNotStorable
from perdure_server.formats.json_reader import (
    MAX_DEPTH,
    JsonFault,
    JsonNumber,
    JsonReader,
    JsonValue,
    refuse_constant,
)

MAX_VALUES: Final = 100_000
"""Values in one text. Keeps the slowest reading below half a second."""

SHALLOW: Final = 200
"""Depth that the recursive parser of the standard library surely has room for.

Containers below it are checked, and read as null."""

_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_LONE_SURROGATE: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)


def read_json(payload: bytes, path: str) -> JsonValue:
    """Return the value of a strict JSON text, numbers as JsonNumber.

    Raises:
        ValueNotStorable: Not UTF-8, not JSON, NaN, a member twice, a lone
            surrogate, or nested deeper than MAX_DEPTH; with the path of the fault.
        LimitExceeded: More than MAX_VALUES values.
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError as exc:
        raise ValueNotStorable("not UTF-8", path=path) from exc
    deep = _depth(text, path) > SHALLOW
    if not _has_lone_surrogate(text):
        try:
            return _parse_deep(text, _PARSER) if deep else parse_shallow(text)
        except (ValueError, RecursionError):
            pass  # read again below, slower, to name the path
    try:
        return JsonReader(text).read()
    except JsonFault as fault:
        raise ValueNotStorable(fault.message, path=path + fault.path) from fault


def parse_shallow(text: str) -> JsonValue:
    """Return the value of a text that is not deep, by the standard library.

    Raises:
        ValueError: Not JSON, or a member twice.
        RecursionError: Deeper than the stack has room for.
    """
    value: JsonValue = _PARSER.decode(text)
    return value


def is_json(text: str) -> bool:
    """Say whether a text is JSON. Text beyond the bounds of `read_json` is not."""
    try:
        if _depth(text, "") > SHALLOW:
            _parse_deep(text, _LENIENT_PARSER)
        else:
            _LENIENT_PARSER.decode(text)
    except (ValueError, RecursionError, LimitExceeded, ValueNotStorable):
        return False
    return True


def _parse_deep(text: str, parser: json.JSONDecoder) -> JsonValue:
    """Parse a text layer by layer, so that the parser never recurses far.

    Returns the first layer, with null for each container below it.
    """
    first, below = _layer(text)
    value: JsonValue = parser.decode(first)
    while below:
        outer, deeper = _layer(below.pop())
        parser.decode(outer)
        below += deeper
    return value


def _layer(text: str) -> tuple[str, list[str]]:
    """Return a text with null for what is deeper than SHALLOW, and those parts."""
    kept: list[str] = []
    below: list[str] = []
    depth = end = start = 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
            if depth == SHALLOW + 1:
                start = token.start()
        elif mark in "]}":
            if depth == SHALLOW + 1:
                kept.append(text[end:start])
                end = token.end()
                below.append(text[start:end])
            depth -= 1
    return "null".join([*kept, text[end:]]), below


def _depth(text: str, path: str) -> int:
    """Return how deep a text is nested at most, without parsing it."""
    brackets = text.count("[") + text.count("{")
    if brackets <= SHALLOW and text.count(",") <= MAX_VALUES:
        return brackets
    # Without what a backslash protects, every quote left is a real one.
    unescaped = text.replace("\\\\", "  ").replace('\\"', "  ")
    outside = "".join(unescaped.split('"')[::2])
    opened = outside.count("[") + outside.count("{")
    values = opened + outside.count(",")
    if values > MAX_VALUES:
        raise LimitExceeded(
            "JSON text has too many values", path=path, limit=MAX_VALUES, actual=values
        )
    if outside.count("]") + outside.count("}") != opened:
        raise ValueNotStorable("not JSON text", path=path)
    deepest = depth = 0
    for bracket in re.findall(r"[\[\]{}]", outside):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise ValueNotStorable(f"JSON is nested deeper than {MAX_DEPTH}", path=path)
    return deepest


def _has_lone_surrogate(text: str) -> bool:
    if "\\u" not in text:
        return False
    return bool(_LONE_SURROGATE.search(text.replace("\\\\", "  ")))


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands twice in one object")
    return members


_PARSER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_float=JsonNumber,
    parse_int=JsonNumber,
    parse_constant=refuse_constant,
)
_LENIENT_PARSER = json.JSONDecoder(
    parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=refuse_constant
)
