"""A frame is taken whole or refused; damage never passes, bombs never grow."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import FrozenInstanceError

import pytest
import xxhash
import zstandard

import perdure_codec
from perdure_codec import FrameError, decode, encode, open_frame, read_header, seal
from perdure_codec.errors import FRAME_CODES
from perdure_codec.limits import MAX_RAW_BYTES

STATE = {"messages": ["hello"] * 40, "vector": [0.5] * 16, "n": (1, 2**90)}
HEADER = struct.Struct("<4sBBBBIIQQ16s16sQ")
FIELDS = (
    "magic", "version", "kind", "compression", "reserved", "dictionary_id",
    "schema_version", "raw_bytes", "payload_bytes", "raw_digest", "base_digest",
    "frame_digest",
)  # fmt: skip


def rewrite(frame: bytes, **changes: object) -> bytes:
    """Change header fields or the payload of a frame, with a right frame digest."""
    payload = changes.pop("payload", frame[72:])
    assert isinstance(payload, bytes)
    fields = dict(zip(FIELDS, HEADER.unpack_from(frame), strict=True))
    fields["payload_bytes"] = len(payload)
    fields.update(changes)
    head = HEADER.pack(*fields.values())[:64]
    digest = changes.get("frame_digest", xxhash.xxh64_intdigest(head + payload))
    assert isinstance(digest, int)
    return head + digest.to_bytes(8, "little") + payload


def code_of(frame: bytes, read=decode) -> str:
    with pytest.raises(FrameError) as caught:
        read(frame)
    assert caught.value.code in FRAME_CODES
    return caught.value.code


def test_a_state_comes_back_from_its_frame():
    for compress in (True, False):
        frame = encode(STATE, schema_version=7, compress=compress)

        assert decode(frame) == STATE
        header = read_header(frame)
        assert header.schema_version == 7
        assert header.compression == ("zstd" if compress else "none")
        assert header.frame_bytes == len(frame)
        assert header.raw_bytes == len(perdure_codec.pack(STATE))
        assert header.raw_digest == perdure_codec.raw_digest(perdure_codec.pack(STATE))
        assert header.kind == "keyframe"
        assert header.base_digest == b""


def test_the_identity_of_a_state_does_not_depend_on_compression():
    frames = [encode(STATE, level=level) for level in (-7, 1, 3, 19)]
    frames.append(encode(STATE, compress=False))

    assert len({read_header(frame).raw_digest for frame in frames}) == 1


def test_a_header_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        read_header(encode(1)).raw_bytes = 2  # type: ignore[misc]


def test_a_small_state_is_not_made_larger_by_compression():
    frame = encode({"a": 1})

    assert read_header(frame).compression == "none"
    assert len(frame) == 72 + len(perdure_codec.pack({"a": 1}))


@pytest.mark.parametrize("compress", [True, False])
def test_every_truncation_of_a_frame_is_refused(compress):
    frame = encode(STATE, compress=compress)

    for size in range(len(frame)):
        assert code_of(frame[:size], read_header) == "TRUNCATED"
        assert code_of(frame[:size]) == "TRUNCATED"


@pytest.mark.parametrize("compress", [True, False])
def test_every_extension_of_a_frame_is_refused(compress):
    frame = encode(STATE, compress=compress)

    for extra in (b"\x00", frame[:72], frame):
        assert code_of(frame + extra, read_header) == "TRAILING_BYTES"


@pytest.mark.parametrize("compress", [True, False])
def test_every_flipped_bit_of_a_frame_is_refused_from_outside(compress):
    frame = encode(STATE, compress=compress)

    for position in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            code_of(bytes(damaged), read_header)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"magic": b"\xc1PRE"}, "BAD_MAGIC"),
        ({"version": 0}, "UNKNOWN_VERSION"),
        ({"version": 2}, "UNKNOWN_VERSION"),
        ({"kind": 2}, "UNKNOWN_KIND"),
        ({"compression": 2}, "UNKNOWN_COMPRESSION"),
        ({"reserved": 1}, "RESERVED_NOT_ZERO"),
        ({"dictionary_id": 1}, "UNKNOWN_DICTIONARY"),
        ({"raw_bytes": MAX_RAW_BYTES + 1}, "TOO_LARGE"),
        ({"payload_bytes": MAX_RAW_BYTES + 1}, "TOO_LARGE"),
        ({"payload_bytes": 1}, "TRAILING_BYTES"),
        ({"payload_bytes": 10_000}, "TRUNCATED"),
        ({"base_digest": b"\x01" * 16}, "BASE_NOT_ZERO"),
        ({"frame_digest": 1}, "DIGEST_MISMATCH"),
        ({"payload": b""}, "RATIO_TOO_HIGH"),
    ],
)
def test_every_wrong_field_is_refused_with_its_code(changes, code):
    frame = encode(STATE)
    if code == "RATIO_TOO_HIGH":
        changes = {**changes, "raw_bytes": 2**20 + 1}

    assert code_of(rewrite(frame, **changes), read_header) == code


def test_a_wrong_raw_length_is_refused():
    plain, packed = encode(STATE, compress=False), encode(STATE)
    raw_bytes = len(perdure_codec.pack(STATE))

    for step in (-1, 1):
        wrong = raw_bytes + step
        assert code_of(rewrite(plain, raw_bytes=wrong), read_header) == (
            "RAW_LENGTH_MISMATCH"
        )
        assert code_of(rewrite(packed, raw_bytes=wrong)) == "RAW_LENGTH_MISMATCH"


def test_a_wrong_raw_digest_is_refused_by_whoever_unpacks():
    for compress in (True, False):
        frame = rewrite(encode(STATE, compress=compress), raw_digest=bytes(16))

        read_header(frame)
        assert code_of(frame) == "RAW_DIGEST_MISMATCH"


def test_a_delta_is_recognised_and_not_decoded():
    base = bytes(range(16))
    frame = rewrite(encode(STATE), kind=1, base_digest=base)

    assert read_header(frame).kind == "delta"
    assert read_header(frame).base_digest == base
    assert code_of(frame) == "DELTA_WITHOUT_BASE"


def test_a_payload_that_is_no_single_zstd_frame_is_refused():
    packed = encode(STATE)
    raw = perdure_codec.pack(STATE)
    half = zstandard.compress(raw[:100]) + zstandard.compress(raw[100:])
    dictionary = zstandard.ZstdCompressionDict(b"hello" * 40)
    with_dictionary = zstandard.ZstdCompressor(dict_data=dictionary).compress(raw)

    for payload in (b"\x00" * 30, packed[72:-1], packed[72:] + b"\x00", half, b""):
        code = code_of(rewrite(packed, payload=payload))
        assert code in ("DECOMPRESSION_FAILED", "RAW_LENGTH_MISMATCH")
    assert code_of(rewrite(packed, payload=with_dictionary)) in (
        "DECOMPRESSION_FAILED", "RAW_DIGEST_MISMATCH",
    )  # fmt: skip


@pytest.fixture
def few_bytes() -> Iterator[None]:
    """Fail the test if it holds more than a megabyte more at any moment."""
    tracemalloc.start()
    yield
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**20


def test_a_tiny_frame_that_declares_a_terabyte_is_refused_without_memory(few_bytes):
    small = encode(STATE)
    inner = bytearray(small[72:])

    for raw_bytes in (2**40, 2**63, 2**64 - 1, MAX_RAW_BYTES):
        code = code_of(rewrite(small, raw_bytes=raw_bytes))
        assert code in ("TOO_LARGE", "RATIO_TOO_HIGH")
    # The size inside the zstd frame: an 8-byte content size of one terabyte.
    inner[4:7] = b"\xe0" + (2**40).to_bytes(8, "little")
    assert code_of(rewrite(small, payload=bytes(inner))) == "RAW_LENGTH_MISMATCH"


@pytest.fixture(scope="module")
def bombs() -> tuple[bytes, bytes]:
    """200 MiB and, without a size inside, 2 MiB of zeros."""
    sized = zstandard.compress(bytes(200 * 2**20), 19)
    unsized = zstandard.ZstdCompressor(write_content_size=False)
    return sized, unsized.compress(bytes(2 * 2**20))


def test_a_zstd_bomb_is_refused_without_memory(bombs, few_bytes):
    frame = encode(STATE)

    for raw_bytes in (200 * 2**20, MAX_RAW_BYTES):
        bomb = rewrite(frame, payload=bombs[0], raw_bytes=raw_bytes)
        assert code_of(bomb) == "RATIO_TOO_HIGH"
    assert code_of(rewrite(frame, payload=bombs[0])) == "RAW_LENGTH_MISMATCH"
    assert code_of(rewrite(frame, payload=bombs[1])) == "DECOMPRESSION_FAILED"


def test_a_frame_without_a_size_inside_zstd_is_read():
    raw = perdure_codec.pack(STATE)
    payload = zstandard.ZstdCompressor(write_content_size=False).compress(raw)

    assert decode(rewrite(encode(STATE), payload=payload)) == STATE


def test_a_state_that_compresses_beyond_the_ratio_is_kept_uncompressed():
    state = bytes(20 * 2**20)
    frame = encode(state)

    assert read_header(frame).compression == "none"
    assert decode(frame) == state
    assert read_header(encode(bytes(2**20 - 5))).compression == "zstd"


def test_arguments_out_of_range_are_errors_of_the_caller():
    for schema_version in (-1, 2**32):
        with pytest.raises(ValueError, match="schema_version"):
            seal(b"\xc0", schema_version=schema_version)
    with pytest.raises(ValueError, match="level"):
        seal(b"\xc0", level=23)


def test_a_frame_of_no_state_is_refused_by_the_unpacker():
    assert open_frame(seal(b"")) == b""
    with pytest.raises(perdure_codec.DecodeError) as caught:
        decode(seal(b""))
    assert caught.value.code == "TRUNCATED"
    assert not isinstance(caught.value, FrameError)


def test_any_buffer_is_a_frame():
    frame = encode(STATE)

    for form in (bytearray(frame), memoryview(frame)):
        assert decode(form) == STATE
        assert read_header(form) == read_header(frame)


def test_errors_survive_pickling():
    for error in (
        perdure_codec.EncodeError("$.a", "set is not storable"),
        perdure_codec.NotJson("$", "bytes is not JSON"),
        FrameError("TRUNCATED", 3),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)


def test_threads_share_the_module_without_harm():
    states = [{**STATE, "n": n, "text": "é" * 3_000 * (n % 3)} for n in range(8)]
    failures: list[object] = []

    def work(state: object) -> None:
        try:
            for _ in range(150):
                frame = encode(state)
                if decode(frame) != state:
                    failures.append(state)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []


@pytest.mark.parametrize("wanted", ["", "python", "cython", "rust"])
def test_the_environment_chooses_the_backend(wanted):
    done = subprocess.run(
        [sys.executable, "-c", "import perdure_codec as c; print(c.BACKEND)"],
        env={**os.environ, "PERDURE_CODEC": wanted},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    if wanted == "rust":
        assert "PERDURE_CODEC must be" in done.stderr
    else:
        assert done.stdout.strip() == (wanted or "cython")


def test_the_compiled_backend_is_the_one_in_use():
    if os.environ.get("PERDURE_CODEC") != "python":
        assert perdure_codec.BACKEND == "cython"
