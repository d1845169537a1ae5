"""The frame around a raw state: header, digests, compression. SPEC.md section 2.

It never looks into the raw bytes; both backends share it.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import Final, Literal

import xxhash
import zstandard

from perdure_codec.errors import FrameError
from perdure_codec.limits import MAX_RAW_BYTES, MAX_ZSTD_RATIO, RATIO_FREE_BYTES

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"\xc1PRD"
"""0xC1 begins no MessagePack value and no UTF-8 text."""
VERSION: Final = 1
HEADER_BYTES: Final = 72

_HEADER = struct.Struct("<4sBBBBIIQQ16s16sQ")
_DIGEST_AT = 64
_NO_BASE = bytes(16)
_KINDS: tuple[Literal["keyframe", "delta"], ...] = ("keyframe", "delta")
_COMPRESSIONS: tuple[Literal["none", "zstd"], ...] = ("none", "zstd")
_MIN_LEVEL, _MAX_LEVEL = -7, 19


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A checked header: lengths and frame digest agree with the bytes.

    Attributes:
        version: Format version, 1.
        kind: `keyframe` holds a whole state, `delta` changes to a base.
        compression: Of the payload.
        dictionary_id: Compression dictionary; 0 is none, the only one so far.
        schema_version: The application's own, 0 to 2**32-1.
        raw_bytes: Length of the raw state as declared.
        raw_digest: XXH3-128 of the raw state as declared, 16 bytes: its identity.
        base_digest: `raw_digest` of a delta's base, 16 bytes; empty for a keyframe.
        frame_bytes: Length of the whole frame.
    """

    version: int
    kind: Literal["keyframe", "delta"]
    compression: Literal["none", "zstd"]
    dictionary_id: int
    schema_version: int
    raw_bytes: int
    raw_digest: bytes
    base_digest: bytes
    frame_bytes: int


class _Contexts(threading.local):
    """zstd contexts of one thread: they must never be used by two at a time."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        found = self.compressors.get(level)
        if found is None:
            found = zstandard.ZstdCompressor(level=level)
            self.compressors[level] = found
        return found


_contexts = _Contexts()


def raw_digest(raw: Buffer) -> bytes:
    """Return the identity of a raw state: XXH3-128, 16 bytes, big-endian."""
    return xxhash.xxh3_128_digest(raw)


def seal(
    raw: Buffer, *, schema_version: int = 0, compress: bool = True, level: int = 1
) -> bytes:
    """Put a raw state into a keyframe frame.

    Args:
        raw: MessagePack as `pack` writes it; not examined here.
        schema_version: The application's own, 0 to 2**32-1.
        compress: Allow zstd; it is used only where it makes the frame smaller and
            stays within the ratio that readers accept.
        level: zstd level, -7 to 19.

    Raises:
        ValueError: An argument is out of range, or `raw` above MAX_RAW_BYTES.
    """
    if not 0 <= schema_version <= 0xFFFFFFFF:
        raise ValueError("schema_version must be 0 to 2**32-1")
    if not _MIN_LEVEL <= level <= _MAX_LEVEL:
        raise ValueError(f"level must be {_MIN_LEVEL} to {_MAX_LEVEL}")
    view = _octets(raw)
    raw_bytes = view.nbytes
    if raw_bytes > MAX_RAW_BYTES:
        raise ValueError(f"raw must be at most {MAX_RAW_BYTES} bytes")
    payload: Buffer = view
    compression = 0
    if compress:
        packed = _contexts.compressor(level).compress(view)
        if len(packed) < raw_bytes and _within_ratio(raw_bytes, len(packed)):
            payload, compression = packed, 1
    header = _HEADER.pack(
        MAGIC, VERSION, 0, compression, 0, 0, schema_version,
        raw_bytes, len(payload), raw_digest(view), _NO_BASE, 0,
    )[:_DIGEST_AT]  # fmt: skip
    digest = _frame_digest(header, payload).to_bytes(8, "little")
    return b"".join((header, digest, payload))


def read_header(frame: Buffer) -> FrameHeader:
    """Check a frame from outside and return its header; never decompresses.

    Checks the magic, the version, the length against the real one, the digest over
    header and payload, then every field. The raw digest is not checked here.

    Raises:
        FrameError: Anything is wrong.
    """
    return _check(_octets(frame))


def open_frame(frame: Buffer) -> bytes:
    """Return the raw state of a keyframe, its length and digest checked.

    Memory is bounded by the bytes given: what a header declares is compared with
    MAX_RAW_BYTES and the ratio bound before anything is decompressed.

    Raises:
        FrameError: The frame is refused, or is a delta (DELTA_WITHOUT_BASE).
    """
    view = _octets(frame)
    header = _check(view)
    if header.kind == "delta":
        raise FrameError("DELTA_WITHOUT_BASE", 5)
    payload = view[HEADER_BYTES:]
    if header.compression == "zstd":
        raw = _decompress(payload, header.raw_bytes)
    else:
        raw = payload.tobytes()
    if raw_digest(raw) != header.raw_digest:
        raise FrameError("RAW_DIGEST_MISMATCH", 32)
    return raw


def _octets(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _frame_digest(header: Buffer, payload: Buffer) -> int:
    state = xxhash.xxh64(header)
    state.update(payload)
    return state.intdigest()


def _within_ratio(raw_bytes: int, payload_bytes: int) -> bool:
    return raw_bytes <= RATIO_FREE_BYTES + MAX_ZSTD_RATIO * payload_bytes


def _check(view: memoryview) -> FrameHeader:
    """Check in the order of SPEC.md section 3, so every language agrees on the code."""
    prefix = view[: len(MAGIC)]
    if prefix != MAGIC[: len(prefix)]:
        raise FrameError("BAD_MAGIC", 0)
    if len(view) > 4 and view[4] != VERSION:
        raise FrameError("UNKNOWN_VERSION", 4)
    if len(view) < HEADER_BYTES:
        raise FrameError("TRUNCATED", len(view))
    (_, version, kind, compression, reserved, dictionary_id, schema_version,
     raw_bytes, payload_bytes, digest, base, frame_digest,
    ) = _HEADER.unpack_from(view)  # fmt: skip
    if payload_bytes > MAX_RAW_BYTES:
        raise FrameError("TOO_LARGE", 24)
    if len(view) < HEADER_BYTES + payload_bytes:
        raise FrameError("TRUNCATED", len(view))
    if len(view) > HEADER_BYTES + payload_bytes:
        raise FrameError("TRAILING_BYTES", HEADER_BYTES + payload_bytes)
    if frame_digest != _frame_digest(view[:_DIGEST_AT], view[HEADER_BYTES:]):
        raise FrameError("DIGEST_MISMATCH", _DIGEST_AT)
    _check_fields(kind, compression, reserved, dictionary_id, raw_bytes)
    if _KINDS[kind] == "keyframe":
        _check_keyframe(compression, raw_bytes, payload_bytes, base)
    return FrameHeader(
        version=version,
        kind=_KINDS[kind],
        compression=_COMPRESSIONS[compression],
        dictionary_id=dictionary_id,
        schema_version=schema_version,
        raw_bytes=raw_bytes,
        raw_digest=digest,
        base_digest=base if _KINDS[kind] == "delta" else b"",
        frame_bytes=len(view),
    )


def _check_fields(
    kind: int, compression: int, reserved: int, dictionary_id: int, raw_bytes: int
) -> None:
    if kind >= len(_KINDS):
        raise FrameError("UNKNOWN_KIND", 5)
    if compression >= len(_COMPRESSIONS):
        raise FrameError("UNKNOWN_COMPRESSION", 6)
    if reserved:
        raise FrameError("RESERVED_NOT_ZERO", 7)
    if dictionary_id:
        raise FrameError("UNKNOWN_DICTIONARY", 8)
    if raw_bytes > MAX_RAW_BYTES:
        raise FrameError("TOO_LARGE", 16)


def _check_keyframe(
    compression: int, raw_bytes: int, payload_bytes: int, base: bytes
) -> None:
    if base != _NO_BASE:
        raise FrameError("BASE_NOT_ZERO", 48)
    if _COMPRESSIONS[compression] == "none":
        if raw_bytes != payload_bytes:
            raise FrameError("RAW_LENGTH_MISMATCH", 16)
    elif not _within_ratio(raw_bytes, payload_bytes):
        raise FrameError("RATIO_TOO_HIGH", 16)


def _decompress(payload: memoryview, raw_bytes: int) -> bytes:
    """Decompress one zstd frame that must give exactly `raw_bytes`.

    A size inside the zstd frame is compared first: zstandard would allocate it.
    """
    try:
        declared = zstandard.get_frame_parameters(payload).content_size
        unknown = declared == zstandard.CONTENTSIZE_UNKNOWN
        if declared != raw_bytes and not unknown:
            raise FrameError("RAW_LENGTH_MISMATCH", 16)
        raw = _contexts.decompressor.decompress(
            payload, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as exc:
        raise FrameError("DECOMPRESSION_FAILED", HEADER_BYTES) from exc
    if len(raw) != raw_bytes:
        raise FrameError("RAW_LENGTH_MISMATCH", 16)
    return raw
