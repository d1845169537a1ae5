"""Messages on their way out: exact, or refused with the path."""

import json
import uuid
from datetime import datetime
from typing import Any

import pytest

from perdure.errors import Invalid
from perdure.messages import native_message, new_message_id, serialize, serialize_all
from perdure.payload import MAX_DEPTH, dump_json
from perdure.v1.message_pb2 import Message


def test_a_dict_becomes_compact_json_in_utf8() -> None:
    payload = {
        "role": "user",
        "content": "Grüße \u0000 \U0001f600",
        "n": [1, 2.5, None],
    }

    text = dump_json(payload, "payload")

    assert b"\\u00fc" not in text
    assert b", " not in text
    assert json.loads(text) == payload


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": float("nan")}]}, "payload.a[1].b"),
        ({"a": float("inf")}, "payload.a"),
        ({"a": (1, 2)}, "payload.a"),
        ({"a": {1: "x"}}, "payload.a"),
        ({"a": b"x"}, "payload.a"),
        ({"a": "\ud800"}, "payload.a"),
        ({"a": {"\ud800": 1}}, "payload.a"),
        ({"a": object()}, "payload.a"),
    ],
)
def test_what_json_would_change_is_refused_with_its_path(
    value: dict[str, Any], path: str
) -> None:
    with pytest.raises(Invalid) as caught:
        dump_json(value, "payload")

    assert caught.value.path == path
    assert caught.value.reason == "VALUE_NOT_STORABLE"


def test_a_cycle_and_a_deep_payload_are_refused_before_recursion() -> None:
    cycle: dict[str, Any] = {}
    cycle["again"] = cycle
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}

    for value in (cycle, deep):
        with pytest.raises(Invalid, match=str(MAX_DEPTH)):
            dump_json(value, "payload")
    while deep:  # taken apart by hand: nested deletion recurses
        deep = deep.pop("a")


def test_text_and_bytes_are_kept_as_given() -> None:
    given = '{ "role" : "user" }'

    for payload in (given, given.encode()):
        assert native_message(payload).native.payload == given.encode()


def test_a_message_of_the_callers_own_is_kept_as_given() -> None:
    message = Message(message_id="m1", role=1)

    assert Message.FromString(serialize(message)) == message


def test_a_batch_names_the_message_that_is_at_fault() -> None:
    with pytest.raises(Invalid) as caught:
        serialize_all([{"role": "user"}, {"content": {2}}])

    assert caught.value.path == "messages[1].payload.content"


def test_one_message_is_not_mistaken_for_a_batch() -> None:
    with pytest.raises(Invalid, match="pass a list"):
        serialize_all({"role": "user"})  # type: ignore[arg-type]


def test_an_object_of_a_library_is_refused_saying_what_to_pass() -> None:
    with pytest.raises(Invalid, match="pass a dict"):
        native_message(object())  # type: ignore[arg-type]


def test_a_message_above_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(Invalid) as caught:
        serialize({"content": "x" * (3 * 1024 * 1024)})

    assert caught.value.reason == "LIMIT_EXCEEDED"
    assert caught.value.metadata["limit"] == str(3 * 1024 * 1024)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        native_message({"role": "user"}, create_time=datetime(2026, 1, 1))

    assert caught.value.path == "create_time"


def test_message_ids_are_version_7_uuids_and_all_differ() -> None:
    ids = [new_message_id() for _ in range(1000)]

    assert len(set(ids)) == 1000
    assert {uuid.UUID(each).version for each in ids} == {7}
    assert {uuid.UUID(each).variant for each in ids} == {uuid.RFC_4122}
    assert ids[0][:9] <= ids[-1][:9]
