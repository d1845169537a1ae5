"""What cannot be kept is refused with its path; hostile bytes with code and place."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import gc
import random
import sys
import threading
import time
import tracemalloc

import pytest

from perdure_codec import DecodeError, EncodeError, _codec, fallback
from perdure_codec.errors import RAW_CODES
from perdure_codec.limits import MAX_DEPTH, MAX_EQUAL_HASHES, MAX_ITEMS


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


class Number(float):
    pass


NOT_STORABLE = {
    "set": ({"a": [1, {2}]}, "$.a[1]"),
    "frozenset as a key": ({"a": {(1, frozenset()): 2}}, "$.a{0}[1]"),
    "bytearray": ([bytearray(b"x")], "$[0]"),
    "a member of an IntEnum": ({"colour": Colour.RED}, "$.colour"),
    "a subclass of str": (["ok", Text("x")], "$[1]"),
    "a subclass of str as a key": ({"a": {Text("x"): 1}}, "$.a{0}"),
    "a subclass of float in a vector": ([1.0] * 19 + [Number(1)], "$[19]"),
    "a subclass of dict": ({"d": collections.OrderedDict()}, "$.d"),
    "a named tuple": ((collections.namedtuple("P", "x")(1),), "$[0]"),
    "Decimal": ({"price": decimal.Decimal(1)}, "$.price"),
    "datetime": ({"at": datetime.datetime(2026, 1, 1)}, "$.at"),
    "a lone surrogate": ({"a b": ["x", "\ud800"]}, '$["a b"][1]'),
    "a lone surrogate beside wide text": ({1: "🙂\udfff"}, "$(1)"),
    "a lone surrogate as a key": ({"x": {"ok": 1, "\ud800": 2}}, "$.x{1}"),
    "a value under a bytes key": ({b"k": object()}, "$(bytes)"),
    "a value under a tuple key": ({(1, 2): object()}, "$(tuple)"),
    "an object": (object(), "$"),
}


@pytest.mark.parametrize(
    ("value", "path"), NOT_STORABLE.values(), ids=NOT_STORABLE.keys()
)
def test_what_cannot_be_kept_is_refused_with_its_path(codec, value, path):
    with pytest.raises(EncodeError) as caught:
        codec.pack(value)

    assert caught.value.path == path


def test_the_reason_names_the_type_and_never_the_value(codec):
    with pytest.raises(EncodeError) as caught:
        codec.pack({"secret": {"hunter2"}})

    assert caught.value.reason == "set is not storable"
    assert "hunter2" not in str(caught.value)


def nested(depth: int, kind: str) -> object:
    state: object = None
    for _ in range(depth):
        state = [state] if kind == "list" else (state,)
        if kind == "dict":
            state = {"k": state}
    return state


# R30
@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_a_state_nested_100000_deep_is_refused(codec, kind):
    with pytest.raises(EncodeError, match="nested deeper than 1,000 levels"):
        codec.pack(nested(100_000, kind))


def test_one_level_above_the_limit_is_refused_and_the_path_stays_short(codec):
    with pytest.raises(EncodeError) as caught:
        codec.pack(nested(MAX_DEPTH + 1, "list"))

    assert len(caught.value.path) < 200


def test_a_cycle_is_refused(codec):
    state: dict[str, object] = {}
    state["self"] = [state]

    with pytest.raises(EncodeError, match="cycle"):
        codec.pack(state)


def test_a_state_that_refers_to_itself_many_times_is_refused_by_its_items(codec):
    state: object = [None] * 1_000
    for _ in range(3):
        state = [state] * 1_000

    with pytest.raises(EncodeError, match="more than 10,000,000 items"):
        _codec.pack(state)


# R30
@pytest.mark.parametrize(
    "level",
    [b"\x91", b"\x81\xa1k", b"\xdd\x00\x00\x00\x01", b"\x81\xc0"],
    ids=["list", "dict", "wide list", "dict under None"],
)
def test_bytes_nested_200000_deep_are_refused(codec, level):
    with pytest.raises(DecodeError) as caught:
        codec.unpack(level * 200_000)

    assert caught.value.code == "TOO_DEEP"
    assert caught.value.offset == MAX_DEPTH * len(level)


def tuple_bytes(depth: int) -> bytes:
    raw = b"\x90"
    for _ in range(depth):
        body = b"\x91" + raw if raw != b"\x90" else raw
        raw = b"\xc9" + len(body).to_bytes(4, "big") + b"\x20" + body
    return raw


def test_tuples_nested_too_deep_are_refused_also_in_a_key(codec):
    for raw in (tuple_bytes(1_001), b"\x81" + tuple_bytes(1_000) + b"\xc0"):
        with pytest.raises(DecodeError) as caught:
            codec.unpack(raw)

        assert caught.value.code == "TOO_DEEP"


def test_legal_depth_needs_no_large_stack(codec):
    raw = b"\x81\xa1k" * 1_000 + b"\xc0"
    failures: list[BaseException] = []

    def work() -> None:
        try:
            codec.pack(codec.unpack(raw))
        except BaseException as exc:
            failures.append(exc)

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()

    assert failures == []


def test_a_declared_size_is_compared_before_anything_is_allocated(codec):
    tracemalloc.start()
    for tag in ("c6", "db", "dd", "df", "c9"):
        for size in ("00989600", "7fffffff", "ffffffff"):
            with pytest.raises(DecodeError) as caught:
                codec.unpack(bytes.fromhex(tag + size) + b"\x01" * 1_000)
            assert caught.value.code in ("TRUNCATED", "TOO_MANY_ITEMS")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 2**20


def test_lists_that_each_claim_the_rest_are_refused_by_their_sum(codec):
    raw = (b"\xdd" + (2**20).to_bytes(4, "big")) * 100 + bytes(2**20)

    with pytest.raises(DecodeError) as caught:
        codec.unpack(raw)

    assert caught.value.code == "TOO_MANY_ITEMS"


def test_items_of_all_containers_count_together(codec):
    half = MAX_ITEMS // 2
    raw = b"\x92" + 2 * (b"\xdd" + half.to_bytes(4, "big") + b"\xc0" * half)

    with pytest.raises(DecodeError) as caught:
        codec.unpack(raw)

    assert caught.value.code == "TOO_MANY_ITEMS"
    assert caught.value.offset == 6 + half


PRIME = 2**61 - 1


def colliding_keys(count: int) -> dict[str, list[object]]:
    minus = [
        tuple(-1 if n >> bit & 1 else -2 for bit in range(12)) for n in range(2**12)
    ]
    return {
        "tuple": list(minus[:count]),
        "big int": [PRIME * (2**70 + n) for n in range(count)],
        "tuple of big int": [(PRIME * (2**70 + n),) for n in range(count)],
    }


@pytest.mark.parametrize("kind", colliding_keys(1))
def test_more_keys_of_one_hash_than_the_bound_are_refused_both_ways(codec, kind):
    keys = colliding_keys(MAX_EQUAL_HASHES + 1)[kind]
    legal = dict.fromkeys(keys[:-1])
    raw = b"\xde" + len(keys).to_bytes(2, "big")
    raw += b"".join(codec.pack(key) + b"\xc0" for key in keys)

    assert len({hash(key) for key in keys}) == 1
    assert codec.unpack(codec.pack(legal)) == legal
    with pytest.raises(EncodeError, match="share a hash"):
        codec.pack(dict.fromkeys(keys))
    with pytest.raises(DecodeError) as caught:
        codec.unpack(raw)
    assert caught.value.code == "TOO_MANY_COLLISIONS"


def test_a_flood_of_colliding_keys_is_refused_in_little_time():
    count = 60_000
    raw = b"\xdf" + count.to_bytes(4, "big")
    raw += b"".join(fallback.pack(PRIME * (2**70 + n)) + b"\xc0" for n in range(count))

    started = time.process_time()
    with pytest.raises(DecodeError):
        _codec.unpack(raw)

    assert time.process_time() - started < 0.5


def test_every_truncation_of_a_state_is_refused(codec):
    raw = codec.pack(
        {
            "a": [1, 2.5, (3, "é" * 20)],
            (1,): [0.5] * 16,
            "n": 2**200,
            "b": b"\x00" * 300,
        }
    )

    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            codec.unpack(raw[:size])
    with pytest.raises(DecodeError) as caught:
        codec.unpack(raw + b"\xc0")
    assert caught.value.code == "TRAILING_BYTES"


def outcome(unpack, raw: bytes) -> tuple[str, object]:
    try:
        return "value", repr(unpack(raw))
    except DecodeError as exc:
        return exc.code, exc.offset


def test_mutated_bytes_get_the_same_answer_from_both_backends():
    source = random.Random(30)
    raw = _codec.pack(
        {
            "messages": [
                {"role": "user", "content": "héllo", "n": n} for n in range(4)
            ],
            "vector": [0.25] * 16,
            "wide": [0.1] * 16,
            ("k", (1, 2**80)): (True, None, -(2**70)),
            "bytes": bytes(20),
        }
    )

    for _ in range(20_000):
        mutant = bytearray(raw)
        for _ in range(source.randint(1, 4)):
            mutant[source.randrange(len(mutant))] = source.randrange(256)
        if source.random() < 0.2:
            del mutant[source.randrange(len(mutant)) :]
        state = bytes(mutant)
        answer = outcome(_codec.unpack, state)
        assert answer == outcome(fallback.unpack, state)
        assert answer[0] in {"value", *RAW_CODES}


def test_random_bytes_get_the_same_answer_from_both_backends():
    source = random.Random(31)

    for _ in range(20_000):
        state = source.randbytes(source.randint(0, 40))
        assert outcome(_codec.unpack, state) == outcome(fallback.unpack, state)


def test_refused_bytes_and_states_leave_no_memory_behind():
    source = random.Random(32)
    state = {"a": ["text", (1, 2**80)] * 10, "v": [0.5] * 20, ("k", 1): {"b": b"x"}}
    raw = _codec.pack(state)
    mutants = [raw[: source.randrange(len(raw))] + b"\xc1" for _ in range(200)]
    refused = {**state, "bad": [{"x": {1}}]}

    def work() -> None:
        for mutant in mutants:
            with pytest.raises(DecodeError):
                _codec.unpack(mutant)
            with pytest.raises(EncodeError):
                _codec.pack(refused)
            assert _codec.unpack(_codec.pack(state)) == state

    work()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(5):
        work()
    gc.collect()

    assert sys.getallocatedblocks() - before < 200


def test_the_cyclic_collector_is_left_as_it_was():
    for enabled in (True, False):
        gc.enable() if enabled else gc.disable()
        try:
            _codec.unpack(b"\x91\xc0")
            with pytest.raises(DecodeError):
                _codec.unpack(b"\x91\xc1")
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
