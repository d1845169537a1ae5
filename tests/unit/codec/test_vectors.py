"""The vector files: both backends obey them, and they obey their schema."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest

from perdure_codec import DecodeError, FrameError, decode, open_frame, read_header
from perdure_codec.errors import FRAME_CODES, RAW_CODES
from perdure_codec.extension import Extension

VECTORS = Path(__file__).parents[2] / "vectors"
SCHEMA = json.loads((VECTORS / "schema.json").read_text())
FILES = sorted((VECTORS / "codec").glob("*/*.json"))


def cases(folder: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}: {case['description']}")
        for path in FILES
        if path.parent.name == folder
        for case in json.loads(path.read_text())
    ]


def untyped(node: dict[str, Any]) -> object:
    kind, value = node["type"], node.get("value")
    if kind in ("list", "tuple"):
        items = [untyped(item) for item in value]
        return items if kind == "list" else tuple(items)
    if kind == "map":
        return {untyped(key): untyped(item) for key, item in value}
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(value))[0]
    return {
        "null": lambda: None,
        "bool": lambda: value == "true",
        "int": lambda: int(value),
        "text": lambda: value,
        "bytes": lambda: bytes.fromhex(value),
    }[kind]()


def complaints(schema: dict[str, Any], node: Any) -> list[str]:
    """Check the part of JSON Schema that schema.json uses."""
    if "$ref" in schema:
        return complaints(SCHEMA["$defs"][schema["$ref"].split("/")[-1]], node)
    if "oneOf" in schema:
        fitting = [each for each in schema["oneOf"] if not complaints(each, node)]
        return [] if len(fitting) == 1 else [f"{len(fitting)} forms fit {node!r:.80}"]
    if "enum" in schema:
        return [] if node in schema["enum"] else [f"{node!r:.80} is none of the names"]
    types = {"string": str, "array": list, "object": dict, "null": type(None)}
    if not isinstance(node, types[schema["type"]]):
        return [f"{node!r:.80} is no {schema['type']}"]
    if isinstance(node, str):
        fits = re.search(schema.get("pattern", ""), node)
        return [] if fits else [f"{node!r:.80} does not fit {schema['pattern']}"]
    if isinstance(node, list):
        return [text for item in node for text in complaints(schema["items"], item)]
    if isinstance(node, dict):
        known = schema["properties"]
        found = [
            f"{name} is missing" for name in schema["required"] if name not in node
        ]
        found += [f"{name} is not known" for name in node if name not in known]
        for name in node.keys() & known.keys():
            found += complaints(known[name], node[name])
        return found
    return []


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_file_fits_the_schema(path):
    schema = SCHEMA["$defs"][f"codec/{path.parent.name}"]

    assert complaints(schema, json.loads(path.read_text())) == []


def test_the_schema_check_sees_faults():
    schema = SCHEMA["$defs"]["codec/valid"]
    good = {"description": "ok", "value": {"type": "null"}, "encodings": ["c0"],
            "canonical": 0}  # fmt: skip

    assert complaints(schema, [good]) == []
    for fault in (
        {"encodings": ["C0"]}, {"canonical": 1}, {"value": {"type": "int"}},
        {"value": {"type": "float", "value": "1.0"}}, {"more": 1},
    ):  # fmt: skip
        assert complaints(schema, [{**good, **fault}])
    assert complaints(schema, [{"description": "ok"}])


@pytest.mark.parametrize("case", cases("valid"))
def test_every_encoding_of_a_valid_vector_is_read(codec, is_same, case):
    value = untyped(case["value"])

    for encoding in case["encodings"]:
        assert is_same(codec.unpack(bytes.fromhex(encoding)), value)


@pytest.mark.parametrize("case", cases("valid"))
def test_the_canonical_encoding_of_a_valid_vector_is_written(codec, case):
    written = codec.pack(untyped(case["value"])).hex()

    assert written == case["encodings"][case["canonical"]]


@pytest.mark.parametrize("case", cases("valid"))
def test_an_independent_reader_agrees_where_no_extension_is_used(is_same, case):
    for encoding in case["encodings"]:
        raw = bytes.fromhex(encoding)
        try:
            value = msgpack.unpackb(raw, strict_map_key=False, ext_hook=refuse)
        except LookupError:
            continue
        if "signalling" not in case["description"]:
            assert is_same(value, untyped(case["value"]))


def refuse(code: int, data: bytes) -> object:
    raise LookupError(code)


@pytest.mark.parametrize("case", cases("invalid"))
def test_every_invalid_vector_is_refused_with_its_code(codec, case):
    with pytest.raises(DecodeError) as caught:
        codec.unpack(bytes.fromhex(case["hex"]))

    assert caught.value.code == case["error"]


@pytest.mark.parametrize("case", cases("frames"))
def test_every_frame_vector_is_read_or_refused(codec, is_same, case):
    frame = bytes.fromhex(case["hex"])
    if "error" in case:
        with pytest.raises(FrameError) as caught:
            decode(frame)
        assert caught.value.code == case["error"]
        return

    header = read_header(frame)
    for name, wanted in case["header"].items():
        value = getattr(header, name)
        assert (value.hex() if isinstance(value, bytes) else str(value)) == str(wanted)
    if case["raw"] is not None:
        raw = open_frame(frame)
        assert raw.hex() == case["raw"]
        assert is_same(codec.unpack(raw), untyped(case["value"]))


def test_every_code_has_a_vector_that_shows_it():
    shown = {
        case.values[0].get("error")
        for folder in ("invalid", "frames")
        for case in cases(folder)
    }

    assert (RAW_CODES | FRAME_CODES) - shown == {"TOO_MANY_COLLISIONS"}


def test_the_schema_knows_exactly_the_codes():
    definitions = SCHEMA["$defs"]
    raw = definitions["codec/invalid"]["items"]["properties"]["error"]["enum"]
    frame = definitions["codec/frames"]["items"]["oneOf"][1]["properties"]["error"][
        "enum"
    ]

    assert set(raw) == RAW_CODES
    assert set(frame) == FRAME_CODES


def test_the_specification_lists_every_code_and_extension():
    text = (VECTORS.parents[1] / "codec" / "SPEC.md").read_text()

    for name in RAW_CODES | FRAME_CODES:
        assert f"`{name}`" in text
    for extension in Extension:
        assert re.search(rf"^\| {extension.value} \| {extension.name} ", text, re.M)
