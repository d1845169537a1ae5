"""Checks of single values: bounds, and the path of each refusal."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from perdure_server.errors import LimitExceeded, PerdureError, ValueNotStorable
from perdure_server.rpc import checks
from perdure_server.rpc.timestamps import from_timestamp, to_timestamp


def refusal(check: Callable[..., Any], *values: Any) -> PerdureError:
    with pytest.raises(PerdureError) as caught:
        check(*values)
    return caught.value


def test_an_id_is_1_to_255_bytes_without_nul() -> None:
    for good in ("a", "x" * 255, "é" * 127, " ", "\n", "😀" * 63):
        assert checks.check_id(good, "p") == good
    for bad in ("", "\0", "a\0b"):
        assert isinstance(refusal(checks.check_id, bad, "p"), ValueNotStorable)
    for long in ("x" * 256, "é" * 128, "😀" * 64):
        error = refusal(checks.check_id, long, "p")
        assert isinstance(error, LimitExceeded)
        assert error.metadata == {"path": "p", "limit": "255", "actual": "256"}


def test_a_uuid_is_text_in_the_usual_form() -> None:
    value = uuid.uuid4()
    assert checks.check_uuid(str(value), "p") == value
    for bad in ("", "x", str(value)[:-1], str(value) + "0", "\0"):
        assert refusal(checks.check_uuid, bad, "p").metadata["path"] == "p"


@pytest.mark.parametrize(
    "text", ["", "0", '"a"', '{"a":[1,2.0,null]}', "-0.0", "1e999"]
)
def test_json_is_returned_as_it_is(text: str) -> None:
    assert checks.check_json(text, "p") == text


@pytest.mark.parametrize("text", ["{", "NaN", "-Infinity", "'a'", "1 2", "[1,]", "\0"])
def test_what_is_not_json_is_refused(text: str) -> None:
    assert isinstance(refusal(checks.check_json, text, "p"), ValueNotStorable)


def test_deep_json_is_refused_before_it_hurts() -> None:
    error = refusal(checks.check_json, "[" * 30_000, "p")
    assert error.metadata["path"] == "p"


def test_a_count_is_a_bigint() -> None:
    for good in (0, 1, 2**31, 2**53 + 1, 2**63 - 1):
        assert checks.check_count(good, "p") == good
    for bad in (-1, 2**63):
        assert isinstance(refusal(checks.check_count, bad, "p"), ValueNotStorable)
    assert refusal(checks.check_count, 0, "p", 1).metadata["path"] == "p"


def test_a_duration_is_within_its_bounds() -> None:
    assert checks.check_duration_ms(Duration(seconds=1), "p", 1000, 2000) == 1000
    assert (
        checks.check_duration_ms(Duration(seconds=1, nanos=500_000_000), "p", 0, 2000)
        == 1500
    )
    for bad in (Duration(nanos=999_999_999), Duration(seconds=-1), Duration(seconds=3)):
        assert refusal(checks.check_duration_ms, bad, "p", 1000, 2000)


def test_a_page_has_a_default_and_a_largest_size() -> None:
    assert [checks.page_size(n) for n in (0, 1, 1000, 1001, 2**31 - 1)] == [
        100,
        1,
        1000,
        1000,
        1000,
    ]
    assert refusal(checks.page_size, -1).metadata["path"] == "page_size"


@pytest.mark.parametrize("seconds", [-62135596800, -1, 0, 1, 253402300799])
@pytest.mark.parametrize("micros", [0, 1, 999_999])
def test_a_time_comes_back_to_the_microsecond(seconds: int, micros: int) -> None:
    sent = Timestamp(seconds=seconds, nanos=micros * 1000)
    assert to_timestamp(from_timestamp(sent, "p")) == sent


@pytest.mark.parametrize(
    "time",
    [
        Timestamp(seconds=-62135596801),
        Timestamp(seconds=253402300800),
        Timestamp(nanos=-1),
        Timestamp(nanos=10**9),
        Timestamp(seconds=2**63 - 1),
    ],
)
def test_a_time_that_python_cannot_hold_is_refused(time: Timestamp) -> None:
    assert refusal(from_timestamp, time, "p").metadata["path"].startswith("p")
