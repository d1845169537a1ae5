"""Which doubles a 32-bit float keeps bit for bit, and the way there and back.

NaNs go through integers: a hardware conversion may quiet them or drop their payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_NAN_EXPONENT = 0x7FF0_0000_0000_0000
_QUIET_BIT = 1 << 51
_LOST_MANTISSA = (1 << 29) - 1


def narrow(values: Sequence[float]) -> bytes | None:
    """Return little-endian 32-bit floats, or None if one would lose a bit."""
    try:
        narrowed = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:
        return None
    if any(value != value for value in values):
        return _narrow_each(values)
    widened = struct.unpack(f"<{len(values)}f", narrowed)
    wide_bytes = struct.pack(f"<{len(values)}d", *widened)
    return narrowed if wide_bytes == struct.pack(f"<{len(values)}d", *values) else None


def widen(data: bytes | memoryview) -> list[float]:
    """Return the doubles with exactly the bits of little-endian 32-bit floats."""
    values = list(struct.unpack(f"<{len(data) // 4}f", data))
    for index, value in enumerate(values):
        if value != value:
            (bits,) = struct.unpack_from("<I", data, index * 4)
            values[index] = _widen_nan(bits)
    return values


def _narrow_each(values: Sequence[float]) -> bytes | None:
    pieces = []
    for value in values:
        if value != value:
            (bits,) = struct.unpack("<Q", struct.pack("<d", value))
            if not bits & _QUIET_BIT or bits & _LOST_MANTISSA:
                return None
            narrow_bits = bits >> 32 & 0x8000_0000 | 0x7F80_0000
            narrow_bits |= bits >> 29 & 0x007F_FFFF
            pieces.append(struct.pack("<I", narrow_bits))
            continue
        piece = narrow([value])
        if piece is None:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _widen_nan(bits: int) -> float:
    wide = (bits & 0x8000_0000) << 32 | _NAN_EXPONENT | (bits & 0x007F_FFFF) << 29
    (value,) = struct.unpack("<d", struct.pack("<Q", wide))
    return float(value)
