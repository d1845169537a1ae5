"""JSON text means the same state, or is refused with the place of the fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure_codec import NotJson, from_json, json_reader, pack, to_json, unpack

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(value=JSON)
def test_a_json_value_comes_back_equal(is_same_json, value):
    text = to_json(pack(value))

    assert is_same_json(json.loads(text), value)
    assert from_json(text) == pack(value)
    assert pack(json_reader.read(text)) == pack(value)
    assert from_json(json.dumps(value)) == pack(value)


@pytest.fixture(scope="module")
def is_same_json():
    return lambda left, right: repr(left) == repr(right)


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ('{"a": 1, "a": 2}', "$.a", "a duplicate name"),
        ('{"b": [{"a": 1, "\\u0061": 2}]}', "$.b[0].a", "a duplicate name"),
        ("[NaN]", "$[0]", "not JSON"),
        ("[1, -Infinity]", "$[1]", "not JSON"),
        ('{"q": [1e999]}', "$.q[0]", "outside the range"),
        ('{"s": "\\ud800"}', "$.s", "lone surrogate"),
        ('{"s": {"\\udfff": 1}}', "$.s{0}", "lone surrogate"),
        ("[1,]", "$[1]", "not JSON"),
        ("[01]", "$[1]", "not JSON"),
        ("[1 2]", "$[1]", "not JSON"),
        ('{"a" 1}', "$.a", "not JSON"),
        ('{"a": 1,}', "$.a", "not JSON"),
        ('{"a": "\n"}', "$.a", "not JSON"),
        ('{"a": "x', "$.a", "not JSON"),
        ("[" + "9" * 4_301 + "]", "$[0]", "more than 4,300 digits"),
        ("", "$", "not JSON"),
        ("1 x", "$", "not JSON"),
        ("\ufeff1", "$", "not JSON"),
        ("'a'", "$", "not JSON"),
        (b"\xff", "$", "not UTF-8"),
        ('"a"'.encode("utf-16"), "$", "not UTF-8"),
    ],
)
def test_text_that_is_not_strict_json_is_refused_with_its_path(text, path, reason):
    with pytest.raises(NotJson, match=reason) as caught:
        from_json(text)

    assert caught.value.path == path


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [b"x"]}, "$.a[0]"),
        ({"a": (1,)}, "$.a"),
        ({"a": {1: 2}}, "$.a(1)"),
        ({"a": {None: 2}}, "$.a(None)"),
        ([float("nan")], "$[0]"),
        ([1.0] * 20 + [float("inf")], "$[20]"),
        ([10**4_300], "$[0]"),
    ],
)
def test_a_value_that_json_cannot_say_is_refused_with_its_path(value, path):
    with pytest.raises(NotJson) as caught:
        to_json(pack(value))

    assert caught.value.path == path


# R30
def test_json_nested_100000_deep_is_refused_and_legal_depth_passes():
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 1_001 + "]" * 1_001):
        with pytest.raises(NotJson, match="nested deeper"):
            from_json(text)

    legal = "[" * 1_000 + "]" * 1_000
    assert to_json(from_json(legal)) == legal


def test_numbers_keep_their_kind_and_every_digit():
    text = "[1,1.0,-0.0,0.1,1e+300,9007199254740993,123456789012345678901234567890]"

    assert to_json(from_json(text)) == text
    assert unpack(from_json("[-0, 1E2, 5e-324]")) == [-0.0, 100.0, 5e-324]
    assert to_json(from_json("-0")) == "-0.0"
    assert to_json(from_json("9" * 4_300)) == "9" * 4_300


# R35
def test_nul_survives_in_json_text_and_names():
    text = '{"a\\u0000b":"\\u0000"}'

    assert unpack(from_json(text)) == {"a\x00b": "\x00"}
    assert to_json(from_json(text)) == text
