"""How an error names a place inside a state."""

from __future__ import annotations

import json
from collections.abc import Sequence

Segment = tuple[str, object]
"""("index", n) of a list or tuple, ("member", key) or ("key", n-th) of a dict."""

_MAX_KEY_CHARACTERS = 64
_MAX_SEGMENTS = 32


def render(segments: Sequence[Segment]) -> str:
    """Write segments, outermost first, as a path of bounded length.

    Args:
        segments: The way from the root to the fault.
    """
    if len(segments) > _MAX_SEGMENTS:
        half = _MAX_SEGMENTS // 2
        head = "".join(_text(*part) for part in segments[:half])
        tail = "".join(_text(*part) for part in segments[-half:])
        return f"${head}...{tail}"
    return "$" + "".join(_text(*part) for part in segments)


def _text(kind: str, what: object) -> str:
    if kind == "index":
        return f"[{what}]"
    if kind == "key":
        return f"{{{what}}}"
    return _member(what)


def _member(key: object) -> str:
    if isinstance(key, str):
        short = key[:_MAX_KEY_CHARACTERS] + ("..." if key[64:] else "")
        if key.isidentifier() and key.isascii() and short == key:
            return f".{key}"
        return f"[{json.dumps(short)}]"
    if isinstance(key, int) and key.bit_length() > 64:
        return "(int)"
    if key is None or isinstance(key, (int, float)):
        return f"({key!r})"
    return f"({type(key).__name__})"
