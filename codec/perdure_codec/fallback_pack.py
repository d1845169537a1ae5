"""The writer of the pure twin: one value to raw MessagePack, exactly or not at all."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgpack  # type: ignore[import-untyped]

from perdure_codec.collision import KeyHashes
from perdure_codec.errors import (
    REASON_COLLISIONS,
    REASON_SURROGATE,
    REASON_TOO_DEEP,
    REASON_TOO_LARGE,
    REASON_TOO_MANY_ITEMS,
    EncodeError,
    reason_for_type,
)
from perdure_codec.extension import Extension
from perdure_codec.float32 import narrow
from perdure_codec.limits import (
    MAX_DEPTH,
    MAX_EQUAL_HASHES,
    MAX_ITEMS,
    MAX_RAW_BYTES,
    MIN_VECTOR_ITEMS,
)
from perdure_codec.path import Segment, render

_EXT32 = struct.Struct(">BIb")


class _Level:
    """A container that is being written.

    Attributes:
        entries: What is left of it: (segment, value, is it in a key).
        segment: The entry that is being written, for the path of an error.
        length_at: Where the length of a tuple's extension goes, else -1.
    """

    __slots__ = ("entries", "length_at", "segment")

    def __init__(
        self, entries: Iterator[tuple[Segment, object, bool]], length_at: int
    ) -> None:
        self.entries = entries
        self.segment: Segment = ("index", 0)
        self.length_at = length_at


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self.levels: list[_Level] = []
        self.items = 0
        self.packer = msgpack.Packer(use_bin_type=True)

    def write(self, value: object) -> bytes:
        self._value(value, False)
        while self.levels:
            level = self.levels[-1]
            entry = next(level.entries, None)
            if entry is None:
                self._close(self.levels.pop())
                continue
            level.segment, item, in_key = entry
            self._value(item, in_key)
        return bytes(self.out)

    def _value(self, value: object, in_key: bool) -> None:
        kind = type(value)
        if value is None or kind is bool or kind is float:
            self.out += self.packer.pack(value)
        elif isinstance(value, int) and kind is int:
            self._integer(value)
        elif isinstance(value, (str, bytes)) and kind in (str, bytes):
            self._octets(value)
        elif isinstance(value, tuple) and kind is tuple:
            self._tuple(value, in_key)
        elif in_key or kind not in (list, dict):
            raise self._fault(reason_for_type(kind, as_key=in_key))
        elif isinstance(value, list):
            self._list(value)
        elif isinstance(value, dict):
            self._dict(value)
        if len(self.out) > MAX_RAW_BYTES:
            raise self._fault(REASON_TOO_LARGE)

    def _integer(self, value: int) -> None:
        if -(2**63) <= value < 2**64:
            self.out += self.packer.pack(value)
            return
        # One bit for the sign; of a negative number, two's complement needs the
        # bits of its complement.
        size = (value if value > 0 else ~value).bit_length() // 8 + 1
        if size > MAX_RAW_BYTES:
            raise self._fault(REASON_TOO_LARGE)
        data = value.to_bytes(size, "big", signed=True)
        self.out += self.packer.pack_ext_type(Extension.BIG_INTEGER, data)

    def _octets(self, value: str | bytes) -> None:
        if len(value) > MAX_RAW_BYTES:
            raise self._fault(REASON_TOO_LARGE)
        try:
            self.out += self.packer.pack(value)
        except UnicodeEncodeError:
            raise self._fault(REASON_SURROGATE) from None

    def _tuple(self, value: tuple[object, ...], in_key: bool) -> None:
        self._enter(len(value))
        length_at = len(self.out) + 1
        self.out += _EXT32.pack(0xC9, 0, Extension.TUPLE)
        self.out += self.packer.pack_array_header(len(value))
        entries = ((("index", n), item, in_key) for n, item in enumerate(value))
        self.levels.append(_Level(entries, length_at))

    def _list(self, value: list[object]) -> None:
        self._enter(len(value))
        if len(value) >= MIN_VECTOR_ITEMS and all(type(x) is float for x in value):
            self._vector([x for x in value if isinstance(x, float)])
            return
        self.out += self.packer.pack_array_header(len(value))
        entries = ((("index", n), item, False) for n, item in enumerate(value.copy()))
        self.levels.append(_Level(entries, -1))

    def _vector(self, values: list[float]) -> None:
        data = narrow(values)
        width = 8 if data is None else 4
        if data is None:
            data = struct.pack(f"<{len(values)}d", *values)
        data_at = len(self.out) + _EXT32.size + 3
        padding = -data_at % width
        length = 3 + padding + len(data)
        self.out += _EXT32.pack(0xC9, length, Extension.FLOAT_VECTOR)
        self.out += bytes((width, 0, padding)) + bytes(padding) + data

    def _dict(self, value: dict[object, object]) -> None:
        self._enter(2 * len(value))
        self.out += self.packer.pack_map_header(len(value))
        if len(value) > MAX_EQUAL_HASHES:
            hashes = KeyHashes()
            for key in value:
                if type(key) in (tuple, int) and not hashes.add(key):
                    raise self._fault(REASON_COLLISIONS)
        self.levels.append(_Level(_pairs(value), -1))

    def _enter(self, items: int) -> None:
        if len(self.levels) >= MAX_DEPTH:
            raise self._fault(REASON_TOO_DEEP)
        self.items += items
        if self.items > MAX_ITEMS:
            raise self._fault(REASON_TOO_MANY_ITEMS)

    def _close(self, level: _Level) -> None:
        if level.length_at >= 0:
            length = len(self.out) - level.length_at - 5
            struct.pack_into(">I", self.out, level.length_at, length)

    def _fault(self, reason: str) -> EncodeError:
        return EncodeError(render([level.segment for level in self.levels]), reason)


def _pairs(value: dict[object, object]) -> Iterator[tuple[Segment, object, bool]]:
    for position, (key, item) in enumerate(list(value.items())):
        yield ("key", position), key, True
        yield ("member", key), item, False


def pack(value: object) -> bytes:
    """Turn a state into raw MessagePack, bit- and type-exact.

    Raises:
        EncodeError: With the path of the first thing that cannot be kept.
    """
    return _Writer().write(value)
