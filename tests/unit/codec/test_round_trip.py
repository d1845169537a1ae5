"""What goes in comes out, type for type and bit for bit, from both backends."""

from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure_codec import _codec, fallback

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
KEYS = st.recursive(
    SCALARS.filter(lambda key: key == key),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
VECTORS = st.lists(st.floats(), min_size=14, max_size=24) | st.lists(
    st.floats(width=32), min_size=14, max_size=24
)
VALUES = st.recursive(
    SCALARS | VECTORS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(inner, max_size=6).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=6)
    ),
    max_leaves=40,
)


def double(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    return float(value)


QUIET_NAN = double(0x7FF8_0000_0000_0000)
PAYLOAD_NAN = double(0xFFF8_0000_0000_0001)
FLOAT32_PAYLOAD_NAN = double(0xFFF8_0000_2000_0000)
SIGNALLING_NAN = double(0x7FF4_0000_0000_0000)

CASES = {
    "none": None,
    "booleans beside integers": [True, 1, False, 0, 1.0, 0.0],
    "a list of booleans": [True, False] * 20,
    "booleans among floats": [1.0, True] * 20,
    "integer boundaries": [
        sign * 2**power + step
        for power in (5, 7, 8, 15, 16, 31, 32, 53, 63, 64, 65, 127, 128, 200)
        for sign in (1, -1)
        for step in (-1, 0, 1)
    ],
    "a very large integer": 7**40_000,
    "negative zero": -0.0,
    "infinities": [float("inf"), float("-inf")],
    "NaN with a payload": [QUIET_NAN, PAYLOAD_NAN, SIGNALLING_NAN],
    "a vector of quiet NaN": [QUIET_NAN] * 20,
    "a vector of 32-bit NaN payloads": [FLOAT32_PAYLOAD_NAN, 1.5] * 20,
    "a vector of 64-bit NaN payloads": [PAYLOAD_NAN] * 20,
    "a vector of signalling NaN": [SIGNALLING_NAN] * 20,
    "a vector of negative zeros": [-0.0] * 20,
    "a vector of infinities": [float("inf"), float("-inf")] * 10,
    "a vector of 32-bit subnormals": [2.0**-149, -(2.0**-140)] * 10,
    "a vector of 64-bit subnormals": [5e-324] * 20,
    "a vector beyond 32 bits": [1e39] * 20,
    "a vector of tenths": [0.1] * 20,
    "vectors at every alignment": [["x" * n, [0.5] * 16, [0.1] * 16] for n in range(9)],
    "a list of floats below a vector": [0.5] * 15,
    "text": ["", "a", "a\x00b", "é", "日本語", "🙂", "\u07ff\u0800\uffff\U00010000"],
    "text lengths": ["x" * n for n in (31, 32, 33, 255, 256, 65_535, 65_536)],
    "wide text lengths": ["日" * n for n in (10, 11, 85, 86, 21_845, 21_846)],
    "bytes lengths": [b"x" * n for n in (0, 1, 255, 256, 65_535, 65_536)],
    "list lengths": [[None] * n for n in (0, 15, 16, 65_535, 65_536)],
    "dict lengths": [dict.fromkeys(range(n)) for n in (0, 15, 16, 257, 65_536)],
    "tuples": [(), (1,), ((), ((),)), tuple(range(20)), (1,) * 65_536],
    "keys of every type": {
        None: 0, True: 1, 2: 2, 2.5: 3, "a": 4, b"a": 5, (): 6, (1, (b"x",)): 7,
        2**200: 8, -0.0: 9, "": 10,
    },
    "many tuple keys": {(x, y): x for x in range(40) for y in range(40)},
    "order of keys": {"b": 1, "a": 2, "c": 3},
    "two NaN keys": {QUIET_NAN: 1, PAYLOAD_NAN: 2},
}  # fmt: skip


@pytest.mark.parametrize("value", CASES.values(), ids=CASES.keys())
def test_a_value_comes_back_with_its_type_and_bits(codec, is_same, value):
    assert is_same(codec.unpack(codec.pack(value)), value)


@pytest.mark.parametrize("value", CASES.values(), ids=CASES.keys())
def test_both_backends_write_the_same_bytes(value):
    assert _codec.pack(value) == fallback.pack(value)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=VALUES)
def test_any_value_comes_back_from_either_backend(is_same, value):
    raw = _codec.pack(value)

    assert raw == fallback.pack(value)
    assert is_same(_codec.unpack(raw), value)
    assert is_same(fallback.unpack(raw), value)


@settings(max_examples=100, deadline=None)
@given(value=st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.binary() | st.floats(),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=5),
    max_leaves=15,
))  # fmt: skip
def test_plain_values_are_the_bytes_that_msgpack_writes(value):
    assert _codec.pack(value) == msgpack.packb(value)


def test_data_that_looks_like_our_own_tags_stays_data(codec, is_same):
    lookalikes = [
        {"__tuple__": [1, 2]},
        {"type": "tuple", "value": []},
        [32, b"\x90"],
        b"\xc7\x01\x20\x90",
        "\xc1PRD",
        b"\xc1PRD\x01" + bytes(67),
        {"$ext": 1, "data": "AAAA"},
    ]

    assert is_same(codec.unpack(codec.pack(lookalikes)), lookalikes)


# R35
def test_nul_survives_in_text_keys_and_bytes(codec, is_same):
    state = {"a\x00b": "a\x00b", "\x00": b"\x00", ("\x00",): ["\x00" * 40]}

    assert is_same(codec.unpack(codec.pack(state)), state)


# R30
def test_legal_nesting_passes_in_both_directions(codec, is_same):
    for wrap in (lambda v: [v], lambda v: {"k": v}, lambda v: (v,)):
        state: object = 1
        for _ in range(1_000):
            state = wrap(state)

        assert is_same(codec.unpack(codec.pack(state)), state)
        state = None  # a chain this long is freed level by level


def test_shorter_and_longer_encodings_of_a_value_are_both_read(codec):
    assert codec.unpack(bytes.fromhex("d900")) == ""
    assert codec.unpack(bytes.fromhex("cf0000000000000001")) == 1
    assert codec.unpack(bytes.fromhex("dd00000001c0")) == [None]
    assert codec.unpack(bytes.fromhex("ca3fc00000")) == 1.5


def test_a_32_bit_signalling_nan_is_widened_bit_for_bit(codec):
    value = codec.unpack(bytes.fromhex("ca7fa00001"))

    assert struct.pack(">d", value).hex() == "7ff4000020000000"


def test_any_buffer_of_bytes_is_read(codec):
    raw = codec.pack({"a": [0.5] * 20})

    for form in (bytearray(raw), memoryview(raw), memoryview(raw).toreadonly()):
        assert codec.unpack(form) == {"a": [0.5] * 20}
