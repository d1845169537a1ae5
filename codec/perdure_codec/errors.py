"""Everything the codec raises.

CodecError
├── EncodeError          a value that cannot be kept, with its path
│   └── NotJson          a value or text that JSON cannot say, with its path
└── DecodeError          raw bytes that are refused, with a code and an offset
    └── FrameError       a frame that is refused, with a code and an offset
"""

from __future__ import annotations

from perdure_codec.limits import MAX_DEPTH, MAX_EQUAL_HASHES, MAX_ITEMS, MAX_RAW_BYTES

FRAME_CODES = frozenset(
    {
        "TRUNCATED",
        "TRAILING_BYTES",
        "BAD_MAGIC",
        "UNKNOWN_VERSION",
        "UNKNOWN_KIND",
        "UNKNOWN_COMPRESSION",
        "UNKNOWN_DICTIONARY",
        "RESERVED_NOT_ZERO",
        "BASE_NOT_ZERO",
        "DIGEST_MISMATCH",
        "TOO_LARGE",
        "RATIO_TOO_HIGH",
        "DECOMPRESSION_FAILED",
        "RAW_LENGTH_MISMATCH",
        "RAW_DIGEST_MISMATCH",
        "DELTA_WITHOUT_BASE",
    }
)
"""Every code of a FrameError."""

RAW_CODES = frozenset(
    {
        "TRUNCATED",
        "TRAILING_BYTES",
        "TOO_LARGE",
        "TOO_DEEP",
        "TOO_MANY_ITEMS",
        "TOO_MANY_COLLISIONS",
        "UNUSED_TAG",
        "INVALID_UTF8",
        "INVALID_KEY",
        "DUPLICATE_KEY",
        "UNKNOWN_EXTENSION",
        "INVALID_EXTENSION",
    }
)
"""Every code of a DecodeError that is not a FrameError."""

REASON_SURROGATE = "text with a lone surrogate is not storable"
REASON_TOO_DEEP = f"nested deeper than {MAX_DEPTH:,} levels, or a cycle"
REASON_TOO_MANY_ITEMS = f"more than {MAX_ITEMS:,} items in one state"
REASON_TOO_LARGE = f"more than {MAX_RAW_BYTES:,} bytes in one state"
REASON_COLLISIONS = f"more than {MAX_EQUAL_HASHES:,} keys of one dict share a hash"

_TYPE_NAME_CHARACTERS = 80


def reason_for_type(kind: type, *, as_key: bool = False) -> str:
    """Say why a value of this type is refused, by the type's name alone."""
    name = kind.__qualname__[:_TYPE_NAME_CHARACTERS]
    return f"{name} is not storable as a key" if as_key else f"{name} is not storable"


class CodecError(Exception):
    """The base of all errors of this package."""


class EncodeError(CodecError):
    """A value cannot be kept exactly, so nothing was written.

    Attributes:
        path: Where it is, from the root `$`: `$.messages[3]["a b"]`; `{2}` is the
            third key of a dict.
        reason: Why, without the value itself.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[EncodeError], tuple[str, str]]:
        """Pickle by the arguments: errors cross process boundaries in pools."""
        return type(self), (self.path, self.reason)


class NotJson(EncodeError):
    """A state holds what JSON cannot say, or a text is not the JSON we accept."""


class DecodeError(CodecError):
    """Bytes are refused as a whole; nothing was decoded.

    Attributes:
        code: One of `RAW_CODES` or, for a FrameError, of `FRAME_CODES`.
        offset: The byte at which the refused value or field begins.
    """

    def __init__(self, code: str, offset: int) -> None:
        super().__init__(f"{code} at byte {offset}")
        self.code = code
        self.offset = offset

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, int]]:
        """Pickle by the arguments: errors cross process boundaries in pools."""
        return type(self), (self.code, self.offset)


class FrameError(DecodeError):
    """A frame is refused: its header, its length, its digests or its compression."""
