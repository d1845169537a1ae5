import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure_server.errors import LimitExceeded, PerdureError, ValueNotStorable
from perdure_server.formats.json_reader import JsonFault, JsonNumber, JsonReader
from perdure_server.formats.json_text import (
    MAX_VALUES,
    SHALLOW,
    is_json,
    parse_shallow,
    read_json,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def refusal(text: str | bytes) -> PerdureError:
    payload = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(PerdureError) as caught:
        read_json(payload, "payload")
    return caught.value


@given(json_values, st.booleans(), st.sampled_from([None, 2]))
def test_both_readers_agree_on_json_text(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    if "Infinity" in json.dumps(value):
        return
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert JsonReader(text).read() == parse_shallow(text)
    assert is_json(text)


@given(st.text('{}[]",:\\ \n0123456789.-+eEtruefalsn\u00e9', max_size=30))
def test_both_readers_refuse_the_same_text(text: str) -> None:
    try:
        expected = parse_shallow(text)
    except ValueError:
        with pytest.raises(JsonFault):
            JsonReader(text).read()
    else:
        assert JsonReader(text).read() == expected


def test_numbers_keep_every_digit() -> None:
    digits = "9" * 5000
    assert read_json(f"[{digits}, 1.10, -0.0, 1e999]".encode(), "p") == [
        JsonNumber(digits),
        JsonNumber("1.10"),
        JsonNumber("-0.0"),
        JsonNumber("1e999"),
    ]


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_constant_that_is_not_json_is_refused_with_its_path(constant: str) -> None:
    fault = refusal(f'{{"a": [1, {constant}]}}')
    assert isinstance(fault, ValueNotStorable)
    assert fault.metadata["path"] == "payload.a[1]"


def test_a_member_that_stands_twice_is_refused_with_its_path() -> None:
    assert refusal('{"a": {"role": 1, "role": 1}}').metadata["path"] == "payload.a.role"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (r'{"a": ["x", "\ud83d"]}', "payload.a[1]"),
        (r'{"a": "\ude00"}', "payload.a"),
        (r'{"a": "\uD83D\\\uDE00"}', "payload.a"),
        (r'{"a": "\ud83d\ude00\ude00"}', "payload.a"),
        (r'{"\ud83d": 1}', "payload"),
        (r'{"a": {"\ud83d": 1}}', "payload.a"),
    ],
)
def test_a_lone_surrogate_is_refused_with_its_path(text: str, path: str) -> None:
    fault = refusal(text)
    assert fault.metadata["path"] == path
    assert fault.message == "text holds a lone surrogate"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\\ud83d"', r"\ud83d"),
        (r'"\\\ud83d\ude00"', "\\\U0001f600"),
    ],
)
def test_an_escaped_pair_or_backslash_is_no_lone_surrogate(
    text: str, value: str
) -> None:
    assert read_json(text.encode(), "p") == value


def test_a_surrogate_in_the_bytes_is_not_utf_8() -> None:
    assert refusal(b'"\xed\xa0\xbd"').message == "not UTF-8"


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_of_1000_is_read_and_of_1001_is_refused(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    legal = opening * 1000 + "1" + closing * 1000
    value = read_json(legal.encode(), "p")
    for _ in range(SHALLOW):
        assert isinstance(value, list | dict)
        value = value[0] if isinstance(value, list) else value["a"]
    assert value is None
    assert "deeper than 1000" in refusal(f"[{legal}]").message


@pytest.mark.parametrize("depth", [5_000, 100_000, 200_000])
def test_very_deep_text_is_refused_at_once(depth: int) -> None:
    started = time.perf_counter()
    refusal("[" * depth)
    refusal("[" * depth + "]" * depth)
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("depth", [SHALLOW, SHALLOW + 1, 2 * SHALLOW + 1, 990])
@pytest.mark.parametrize(
    "fault", ["NaN", "tru", '{"b": 1, "b": 2}', r'"\ud83d"', "1 2", "[1}", '"\n"', ""]
)
def test_a_fault_at_any_depth_is_found(depth: int, fault: str) -> None:
    legal = '{"a": "]\\"[{", "b": [[], {}], "c": ' * depth + "1" + "}" * depth
    assert read_json(legal.encode(), "p")
    assert isinstance(refusal(legal.replace("1", fault)), ValueNotStorable)


def test_a_large_batch_of_deep_text_is_read_in_seconds() -> None:
    payload = b"[" * 300 + b"]" * 300 + b",1" * 1200
    started = time.perf_counter()
    for _ in range(1000):
        read_json(b"[" + payload + b"]", "p")
    assert time.perf_counter() - started < 5


def test_text_that_is_cut_off_in_a_string_is_refused_at_once() -> None:
    started = time.perf_counter()
    refusal("[" * 300 + "]" * 300 + ',"' + '\\"' * 1_000_000)
    refusal("[" * 300 + '"' + '\\"' * 1_000_000 + "]" * 300)
    assert time.perf_counter() - started < 2


def test_brackets_inside_text_are_not_nesting() -> None:
    text = "[{" * 5000 + '\\"'
    assert read_json(json.dumps([text]).encode(), "p") == [text]


def test_too_many_values_are_refused_with_the_limit() -> None:
    fault = refusal("[" + "1," * (MAX_VALUES + 1) + "1]")
    assert isinstance(fault, LimitExceeded)
    assert fault.metadata["limit"] == str(MAX_VALUES)


def test_many_commas_inside_text_are_not_values() -> None:
    assert read_json(b'"' + b"," * MAX_VALUES + b'"', "p") == "," * MAX_VALUES


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "payload"),
        ("{", "payload"),
        ('{"a"', "payload.a"),
        ('{"a": 1,}', "payload"),
        ("[1, 2", "payload[1]"),
        ("[1 2]", "payload[0]"),
        ("[01]", "payload[0]"),
        ('{"a": "b\nc"}', "payload.a"),
        ('{"a": "b\0c"}', "payload.a"),
        ('{"a": [tru]}', "payload.a[0]"),
        ("\ufeff{}", "payload"),
        ("{} {}", "payload"),
        ("[" * 300 + "]" * 299, "payload"),
    ],
)
def test_text_that_is_not_json_is_refused_with_its_path(text: str, path: str) -> None:
    fault = refusal(text)
    assert isinstance(fault, ValueNotStorable)
    assert fault.metadata["path"] == path


def test_the_path_of_a_fault_is_short_whatever_the_text() -> None:
    name = "x" * 100_000
    inner = '{"' + name + '": NaN}'
    for text in (inner, "[" * 150 + inner + "]" * 150, '{"a b\u00e9": NaN}'):
        path = refusal(text).metadata["path"]
        assert path.isascii()
        assert len(path) < 500


def test_text_is_json_only_as_a_whole() -> None:
    assert is_json('{"a": 1, "a": 2}')
    assert is_json("[" * 900 + "]" * 900)
    assert not is_json('{"cmd": "pri')
    assert not is_json("")
    assert not is_json("NaN")
    assert not is_json("[" * 5000 + "]" * 5000)
