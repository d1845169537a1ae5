import json
from datetime import UTC, datetime

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from perdure.v1 import message_pb2 as pb
from perdure_server.canonical.message import canonicalize, read_message
from perdure_server.canonical.projection import (
    MAX_TEXT_BYTES,
    MAX_TOOL_CALLS,
    Projection,
    ToolCall,
    project,
)

CHAT = "openai.chat_completions"


def native(**members: object) -> pb.Message:
    payload = json.dumps(members).encode()
    return pb.Message(
        message_id="m1", native=pb.NativePayload(format=CHAT, payload=payload)
    )


def projected(sent: pb.Message) -> Projection:
    return project(read_message(sent.SerializeToString(), "m"))


def call(call_id: str, name: str, arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_text_becomes_content() -> None:
    shown = projected(native(role="user", content="Where is A-1?"))
    assert (shown.role, shown.content) == ("user", "Where is A-1?")
    assert (shown.tool_name, shown.tool_result, shown.tool_calls) == (None, None, ())


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, None),
        ("", ""),
        ([], None),
        ([{"type": "text", "text": ""}], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image_url", "image_url": {"url": "u"}}], None),
    ],
)
def test_content_is_null_where_there_is_no_text(
    content: object, shown: str | None
) -> None:
    assert projected(native(role="assistant", content=content)).content == shown
    result = projected(native(role="tool", tool_call_id="c", content=content))
    assert (result.content, result.tool_result) == (None, shown)


def test_columns_of_a_call_are_those_of_the_first() -> None:
    calls = [call("c1", "find", '{"a": 1}'), call("c2", "book", '{"b": ')]
    shown = projected(native(role="assistant", content=None, tool_calls=calls))
    assert (shown.tool_name, shown.tool_args) == ("find", '{"a": 1}')
    assert shown.tool_calls == (
        ToolCall("c1", "find", '{"a": 1}'),
        ToolCall("c2", "book", '{"b": '),
    )


def test_a_result_shows_its_call_id_name_and_text() -> None:
    shown = projected(native(role="tool", tool_call_id="c", name="f", content="done"))
    assert (shown.tool_call_id, shown.tool_name) == ("c", "f")
    assert (shown.tool_result, shown.tool_args) == ("done", None)


def test_a_result_without_a_call_id_pairs_with_a_call_without_one() -> None:
    legacy = {"name": "f", "arguments": "{}"}
    asked = projected(native(role="assistant", content=None, function_call=legacy))
    answered = projected(native(role="function", name="f", content="1"))
    assert asked.tool_calls[0].call_id == answered.tool_call_id == ""
    assert projected(native(role="user", content="x")).tool_call_id is None


def test_nul_is_kept_in_the_body_and_shown_as_a_sign() -> None:
    sent = native(
        role="assistant", content="a\0b", tool_calls=[call("c\0", "f\0", "\0")]
    )
    message = read_message(sent.SerializeToString(), "m")
    assert json.loads(message.native.payload)["content"] == "a\0b"
    assert canonicalize(message).blocks[0].text.text == "a\0b"
    shown = project(message)
    assert shown.content == "a\u2400b"
    assert shown.tool_calls == (ToolCall("c\u2400", "f\u2400", "\u2400"),)


@pytest.mark.parametrize("lead", [0, 1, 2, 3])
def test_long_text_is_cut_at_a_code_point(lead: int) -> None:
    text = "a" * lead + "\U0001f600" * 20_000
    shown = projected(native(role="user", content=text)).content
    assert shown is not None
    assert text.startswith(shown)
    assert MAX_TEXT_BYTES - 4 < len(shown.encode()) <= MAX_TEXT_BYTES


def test_text_of_exactly_the_limit_is_whole() -> None:
    text = "x" * MAX_TEXT_BYTES
    assert projected(native(role="user", content=text)).content == text


def test_more_calls_than_the_limit_are_in_the_body_alone() -> None:
    calls = [call(f"c{i}", "f", "{}") for i in range(MAX_TOOL_CALLS + 1)]
    sent = native(role="assistant", tool_calls=calls)
    message = read_message(sent.SerializeToString(), "m")
    assert len(project(message).tool_calls) == MAX_TOOL_CALLS
    assert len(canonicalize(message).blocks) == MAX_TOOL_CALLS + 1


def test_what_the_writer_states_beside_the_payload_is_shown() -> None:
    sent = native(role="assistant", content="x")
    sent.model, sent.run_id = "gpt-4o", "run-7"
    sent.usage.input_tokens = 0
    sent.usage.output_tokens = 2**63 - 1
    sent.create_time.CopyFrom(Timestamp(seconds=-1, nanos=999_999_999))
    shown = projected(sent)
    assert (shown.model, shown.run_id) == ("gpt-4o", "run-7")
    assert (shown.input_tokens, shown.output_tokens) == (0, 2**63 - 1)
    assert (shown.cached_tokens, shown.reasoning_tokens) == (None, None)
    assert shown.create_time == datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)


@pytest.mark.parametrize(
    ("seconds", "year"), [(-62_135_596_800, 1), (253_402_300_799, 9999)]
)
def test_times_at_either_end_project(seconds: int, year: int) -> None:
    sent = native(role="user", content="x")
    sent.create_time.CopyFrom(Timestamp(seconds=seconds, nanos=999_999_999))
    time = projected(sent).create_time
    assert time is not None
    assert time.year == year


def test_a_message_born_canonical_projects_from_its_blocks() -> None:
    result = pb.ToolResultBlock(
        call_id="c", content=[pb.Block(text=pb.TextBlock(text="1"))]
    )
    sent = pb.Message(
        message_id="m1",
        role=pb.ROLE_TOOL,
        blocks=[
            pb.Block(text=pb.TextBlock(text="a")),
            pb.Block(refusal=pb.RefusalBlock(text="b")),
            pb.Block(tool_result=result),
        ],
    )
    shown = projected(sent)
    assert (shown.content, shown.tool_call_id, shown.tool_result) == ("a\nb", "c", "1")


def test_an_unknown_format_projects_its_role_alone() -> None:
    kept = pb.NativePayload(format="acme", payload=b"\xff\0")
    sent = pb.Message(message_id="m1", role=pb.ROLE_ASSISTANT, native=kept)
    shown = projected(sent)
    assert (shown.role, shown.content, shown.tool_calls) == ("assistant", None, ())


def test_the_canonical_message_has_blocks_and_no_native_payload() -> None:
    sent = native(role="user", name="ada", content="x")
    sent.model = "m"
    message = read_message(sent.SerializeToString(), "m")
    canonical = canonicalize(message)
    assert not canonical.HasField("native")
    assert (canonical.role, canonical.author) == (pb.ROLE_USER, "ada")
    assert (canonical.message_id, canonical.model) == ("m1", "m")
    assert [block.text.text for block in canonical.blocks] == ["x"]
    assert message.HasField("native")


def test_what_the_writer_states_wins_over_what_is_derived() -> None:
    sent = native(role="user", name="ada", content="x")
    sent.author = "Ada L."
    sent.blocks.append(pb.Block(text=pb.TextBlock(text="stated")))
    canonical = canonicalize(read_message(sent.SerializeToString(), "m"))
    assert canonical.author == "Ada L."
    assert [block.text.text for block in canonical.blocks] == ["stated"]


def test_the_payload_of_an_unknown_format_becomes_one_opaque_block() -> None:
    kept = pb.NativePayload(format="acme", payload=b"\xff\0")
    sent = pb.Message(message_id="m1", role=pb.ROLE_USER, native=kept)
    canonical = canonicalize(read_message(sent.SerializeToString(), "m"))
    assert [block.opaque.payload for block in canonical.blocks] == [b"\xff\0"]
    assert canonical.blocks[0].opaque.format == "acme"


text = st.text(st.characters(exclude_categories=["Cs"]))
parts = st.fixed_dictionaries({"type": st.just("text"), "text": text}) | (
    st.fixed_dictionaries(
        {"type": st.sampled_from(["image_url", "file", "input_audio", "x"])},
        optional={"image_url": text, "file": st.dictionaries(text, text)},
    )
)
calls_of_any_kind = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries({"name": text, "arguments": text}),
    },
    optional={"id": st.none() | text, "index": st.integers()},
)
chat_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(
            ["user", "assistant", "tool", "system", "developer", "function"]
        ),
        "content": st.none() | text | st.lists(parts),
    },
    optional={
        "name": text,
        "tool_call_id": st.none() | text,
        "refusal": st.none() | text,
        "tool_calls": st.lists(calls_of_any_kind),
        "function_call": st.fixed_dictionaries({"name": text, "arguments": text}),
        "reasoning_content": st.none() | text | st.integers(),
        "audio": st.none() | st.dictionaries(text, text),
        "annotations": st.lists(st.dictionaries(text, st.floats(allow_nan=False))),
    },
)


def storable(value: str | None) -> bool:
    return value is None or (
        "\0" not in value and len(value.encode()) <= MAX_TEXT_BYTES
    )


@given(chat_messages)
def test_every_message_that_is_read_projects(members: dict[str, object]) -> None:
    if "Infinity" in json.dumps(members):
        return
    message = read_message(native(**members).SerializeToString(), "m")
    shown = project(message)
    texts = [shown.content, shown.tool_name, shown.tool_args, shown.tool_result]
    for made in shown.tool_calls:
        texts += [made.call_id, made.name, made.arguments]
    assert all(storable(value) for value in texts)
    canonical = canonicalize(message)
    assert canonical.role == pb.Role.Value(f"ROLE_{shown.role.upper()}")
    assert project(canonical) == shown
    read_message(canonical.SerializeToString(), "canonical")
