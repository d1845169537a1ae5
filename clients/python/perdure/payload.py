"""JSON text of a provider's object: exact, or refused with the path of the fault."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from perdure.errors import Invalid

MAX_DEPTH: Final = 200
"""Containers inside each other in one payload."""


def dump_json(value: Mapping[str, Any], path: str) -> bytes:
    """Write an object as compact JSON in UTF-8.

    What JSON would change is refused: keys that are not text, tuples, NaN and
    infinities, lone surrogates, objects of a class.

    Raises:
        Invalid: With the path of the value that cannot be kept.
    """
    _check(value, path)
    if not isinstance(value, dict):
        value = dict(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _check(value: Any, path: str) -> None:
    pending: list[tuple[Any, str, int]] = [(value, path, 0)]
    while pending:
        item, where, depth = pending.pop()
        if isinstance(item, str):
            _check_text(item, where)
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise _refuse(where, "NaN and infinities are not JSON")
        elif isinstance(item, (dict, Mapping) if depth == 0 else dict):
            _check_depth(depth, where)
            for key, inner in item.items():
                if not isinstance(key, str):
                    kind = type(key).__name__
                    raise _refuse(where, f"a key of type {kind} is not JSON")
                _check_text(key, where)
                pending.append((inner, f"{where}.{key}", depth + 1))
        elif isinstance(item, list):
            _check_depth(depth, where)
            for index, inner in enumerate(item):
                pending.append((inner, f"{where}[{index}]", depth + 1))
        elif item is not None and not isinstance(item, int):
            raise _refuse(where, f"{type(item).__name__} is not JSON")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refuse(path, "text with a lone surrogate") from error


def _check_depth(depth: int, path: str) -> None:
    if depth >= MAX_DEPTH:
        raise _refuse(path[:200], f"nested deeper than {MAX_DEPTH} levels, or a cycle")


def _refuse(path: str, why: str) -> Invalid:
    readable = path.encode("utf-8", "replace").decode()
    return Invalid(why, reason="VALUE_NOT_STORABLE", metadata={"path": readable})
