"""The reader of the pure twin: raw MessagePack to one value, hostile input refused."""

from __future__ import annotations

import struct

from perdure_codec.collision import KeyHashes
from perdure_codec.errors import DecodeError
from perdure_codec.extension import Extension
from perdure_codec.float32 import widen
from perdure_codec.limits import MAX_DEPTH, MAX_EQUAL_HASHES, MAX_ITEMS, MAX_RAW_BYTES

_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_LENGTHS = {1: struct.Struct(">B"), 2: struct.Struct(">H"), 4: struct.Struct(">I")}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}

_OPENED = object()


class _Level:
    """A container that is being read.

    Attributes:
        at: The byte at which it begins.
        missing: Values to read until it is whole; of a map, keys count too.
        values: What has been read; of a map, keys and values in turn.
        in_key: Whether it is part of a key.
        end_before: The outer end of what may be read, if it is a tuple, else -1.
        hashes: The bound on keys that share a hash, if the map is large.
    """

    __slots__ = ("at", "end_before", "hashes", "in_key", "is_map", "missing", "values")

    def __init__(
        self,
        at: int,
        missing: int,
        *,
        is_map: bool,
        in_key: bool = False,
        end_before: int = -1,
    ) -> None:
        self.at = at
        self.missing = missing
        self.values: list[object] = []
        self.is_map = is_map
        self.in_key = in_key
        self.end_before = end_before
        large = is_map and missing > 2 * MAX_EQUAL_HASHES
        self.hashes = KeyHashes() if large else None


class _Reader:
    def __init__(self, raw: bytes | bytearray | memoryview) -> None:
        self.raw = memoryview(raw).cast("B")
        self.position = 0
        self.end = len(self.raw)
        self.items = 0
        self.levels: list[_Level] = []

    def read(self) -> object:
        """Read the one value, then require the end."""
        while True:
            value = self._value()
            if value is _OPENED:
                continue
            value = self._give(value)
            if not self.levels:
                break
        if self.position != self.end:
            raise DecodeError("TRAILING_BYTES", self.position)
        return value

    def _give(self, value: object) -> object:
        """Add a value to the innermost container, closing those it completes."""
        while self.levels:
            level = self.levels[-1]
            level.values.append(value)
            level.missing -= 1
            if level.hashes and level.missing % 2 and not level.hashes.add(value):
                raise DecodeError("TOO_MANY_COLLISIONS", level.at)
            if level.missing:
                break
            value = self._close(self.levels.pop())
        return value

    def _value(self) -> object:
        """Read one value, or the beginning of a container: then it is _OPENED."""
        at = self.position
        tag = self._take(at, 1)[0]
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self._open(at, 2 * (tag & 0x0F), is_map=True)
        if tag < 0xA0:
            return self._open(at, tag & 0x0F, is_map=False)
        if tag < 0xC0:
            return self._text(at, tag & 0x1F)
        if tag >= 0xE0:
            return tag - 0x100
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            form = _NUMBERS[tag]
            return form.unpack(self._take(at, form.size))[0]
        if tag == 0xCA:
            return widen(bytes(self._take(at, 4))[::-1])[0]
        return self._sized(at, tag)

    def _sized(self, at: int, tag: int) -> object:
        if tag in _TEXT:
            return self._text(at, self._length(at, _TEXT[tag]))
        if tag in _BYTES:
            return bytes(self._take(at, self._length(at, _BYTES[tag])))
        if tag in _ARRAYS:
            return self._open(at, self._length(at, _ARRAYS[tag]), is_map=False)
        if tag in _MAPS:
            return self._open(at, 2 * self._length(at, _MAPS[tag]), is_map=True)
        if tag in _EXTENSIONS:
            return self._extension(at, self._length(at, _EXTENSIONS[tag]))
        if tag in _FIXED_EXTENSIONS:
            return self._extension(at, _FIXED_EXTENSIONS[tag])
        raise DecodeError("UNUSED_TAG", at)

    def _extension(self, at: int, size: int) -> object:
        code = self._take(at, 1)[0]
        data = self._take(at, size)
        if code == Extension.BIG_INTEGER:
            return _big_integer(at, data)
        if code == Extension.FLOAT_VECTOR:
            return self._vector(at, data)
        if code == Extension.TUPLE:
            return self._tuple(at, size)
        raise DecodeError("UNKNOWN_EXTENSION", at)

    def _vector(self, at: int, data: memoryview) -> object:
        """Read [width, 0, padding], zeros up to a multiple of the width, floats."""
        if self._in_key():
            raise DecodeError("INVALID_KEY", at)
        if len(data) < 3 or data[0] not in (4, 8) or data[1]:
            raise DecodeError("INVALID_EXTENSION", at)
        width, padding = data[0], data[2]
        data_at = self.position - len(data) + 3
        floats = data[3 + padding :]
        if (
            padding != -data_at % width
            or len(data) < 3 + padding
            or any(data[3 : 3 + padding])
            or len(floats) % width
        ):
            raise DecodeError("INVALID_EXTENSION", at)
        self._count(at, len(floats) // width, 0)
        if width == 4:
            return widen(floats)
        return list(struct.unpack(f"<{len(floats) // 8}d", floats))

    def _tuple(self, at: int, size: int) -> object:
        in_key = self._in_key()
        outer_end, self.end = self.end, self.position
        self.position -= size
        tag = self.raw[self.position] if size else 0
        self.position += 1
        if 0x90 <= tag <= 0x9F:
            count = tag & 0x0F
        elif tag in _ARRAYS:
            count = self._length(at, _ARRAYS[tag])
        else:
            raise DecodeError("INVALID_EXTENSION", at)
        self._count(at, count, count)
        level = _Level(at, count, is_map=False, in_key=in_key, end_before=outer_end)
        if not count:
            return self._close(level)
        self.levels.append(level)
        return _OPENED

    def _open(self, at: int, count: int, *, is_map: bool) -> object:
        if self._in_key():
            raise DecodeError("INVALID_KEY", at)
        self._count(at, count, count)
        if not count:
            return {} if is_map else []
        self.levels.append(_Level(at, count, is_map=is_map))
        return _OPENED

    def _count(self, at: int, items: int, least_bytes: int) -> None:
        """Check the bounds of a container before anything of it is read."""
        if len(self.levels) >= MAX_DEPTH:
            raise DecodeError("TOO_DEEP", at)
        self.items += items
        if self.items > MAX_ITEMS:
            raise DecodeError("TOO_MANY_ITEMS", at)
        if least_bytes > self.end - self.position:
            raise DecodeError("TRUNCATED", at)

    def _close(self, level: _Level) -> object:
        if level.is_map:
            return _map(level)
        if level.end_before < 0:
            return level.values
        if self.position != self.end:
            raise DecodeError("INVALID_EXTENSION", level.at)
        self.end = level.end_before
        return tuple(level.values)

    def _in_key(self) -> bool:
        if not self.levels:
            return False
        level = self.levels[-1]
        return level.in_key or (level.is_map and level.missing % 2 == 0)

    def _take(self, at: int, size: int) -> memoryview:
        start = self.position
        if size > self.end - start:
            raise DecodeError("TRUNCATED", at)
        self.position = start + size
        return self.raw[start : self.position]

    def _length(self, at: int, size: int) -> int:
        (length,) = _LENGTHS[size].unpack(self._take(at, size))
        return int(length)

    def _text(self, at: int, size: int) -> str:
        try:
            return str(self._take(at, size), "utf-8")
        except UnicodeDecodeError:
            raise DecodeError("INVALID_UTF8", at) from None


def _map(level: _Level) -> dict[object, object]:
    keys = level.values[::2]
    result = dict(zip(keys, level.values[1::2], strict=True))
    if len(result) != len(keys):
        raise DecodeError("DUPLICATE_KEY", level.at)
    return result


def _big_integer(at: int, data: memoryview) -> int:
    value = int.from_bytes(data, "big", signed=True)
    shortest = (value if value > 0 else ~value).bit_length() // 8 + 1
    if -(2**63) <= value < 2**64 or len(data) != shortest:
        raise DecodeError("INVALID_EXTENSION", at)
    return value


def unpack(raw: bytes | bytearray | memoryview) -> object:
    """Turn raw MessagePack into the value it stands for.

    Raises:
        DecodeError: The bytes are not exactly one value within the limits.
    """
    if memoryview(raw).nbytes > MAX_RAW_BYTES:
        raise DecodeError("TOO_LARGE", 0)
    return _Reader(raw).read()
