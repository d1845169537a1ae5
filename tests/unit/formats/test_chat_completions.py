import json

import pytest

from perdure.v1 import message_pb2 as pb
from perdure_server.errors import ValueNotStorable
from perdure_server.formats.chat_completions import FORMAT as NAME
from tests.unit.formats.chat import FORMAT, derive, kinds, payload_of


@pytest.mark.parametrize(
    ("word", "role"),
    [
        ("user", pb.ROLE_USER),
        ("assistant", pb.ROLE_ASSISTANT),
        ("tool", pb.ROLE_TOOL),
        ("function", pb.ROLE_TOOL),
        ("system", pb.ROLE_SYSTEM),
        ("developer", pb.ROLE_SYSTEM),
    ],
)
def test_each_role_has_a_canonical_role(word: str, role: int) -> None:
    assert FORMAT.check(payload_of(role=word, content="x"), "p") == role
    assert derive(role=word, content="x").role == role


CALL = {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({}, "p.role"),
        ({"role": None}, "p.role"),
        ({"role": "User"}, "p.role"),
        ({"role": "model"}, "p.role"),
        ({"role": ["user"]}, "p.role"),
        ({"role": "user", "content": 5}, "p.content"),
        ({"role": "user", "content": {"type": "text"}}, "p.content"),
        ({"role": "user", "content": ["x"]}, "p.content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "p.content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "p.content[0].text"),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "text", "text": None},
                ],
            },
            "p.content[1].text",
        ),
        ({"role": "assistant", "refusal": 1}, "p.refusal"),
        ({"role": "user", "name": {}}, "p.name"),
        ({"role": "tool", "tool_call_id": 7}, "p.tool_call_id"),
        ({"role": "assistant", "tool_calls": {}}, "p.tool_calls"),
        ({"role": "assistant", "tool_calls": [None]}, "p.tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{}]}, "p.tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": 1, "function": CALL}]},
            "p.tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": 1, "function": CALL}]},
            "p.tool_calls[0].type",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": ""}}]},
            "p.tool_calls[0].function.name",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [
                    {"function": CALL},
                    {"function": {"name": "f", "arguments": {}}},
                ],
            },
            "p.tool_calls[1].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]},
            "p.tool_calls[0].custom.name",
        ),
        ({"role": "assistant", "function_call": "f"}, "p.function_call"),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            "p.function_call.arguments",
        ),
    ],
)
def test_a_known_member_of_another_shape_is_refused_with_its_path(
    members: dict[str, object], path: str
) -> None:
    with pytest.raises(ValueNotStorable) as caught:
        FORMAT.check(json.dumps(members).encode(), "p")
    assert caught.value.metadata["path"] == path


@pytest.mark.parametrize("payload", [b"[]", b'"user"', b"null", b"1"])
def test_a_payload_that_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueNotStorable) as caught:
        FORMAT.check(payload, "p")
    assert caught.value.metadata["path"] == "p"


def test_a_role_given_twice_is_refused() -> None:
    with pytest.raises(ValueNotStorable) as caught:
        FORMAT.check(b'{"role": "user", "content": "x", "role": "system"}', "p")
    assert caught.value.metadata["path"] == "p.role"


def test_a_lone_surrogate_in_arguments_is_refused_with_its_path() -> None:
    payload = (
        rb'{"role": "assistant", "tool_calls": [{"function": '
        rb'{"name": "f", "arguments": "cut \ud83d"}}]}'
    )
    with pytest.raises(ValueNotStorable) as caught:
        FORMAT.check(payload, "p")
    assert caught.value.metadata["path"] == "p.tool_calls[0].function.arguments"


def test_null_empty_text_and_an_empty_list_stay_different() -> None:
    assert derive(role="assistant", content=None).blocks == ()
    assert derive(role="assistant").blocks == ()
    assert derive(role="assistant", content="").blocks == (
        pb.Block(text=pb.TextBlock(text="")),
    )
    opaque = pb.OpaqueBlock(format=NAME, type="content", payload=b"[]")
    assert derive(role="assistant", content=[]).blocks == (pb.Block(opaque=opaque),)


def test_null_empty_text_and_an_empty_list_differ_in_a_tool_result() -> None:
    contents = [
        list(
            derive(role="tool", tool_call_id="c", content=content)
            .blocks[0]
            .tool_result.content
        )
        for content in (None, "", [], [{"type": "text", "text": ""}])
    ]
    assert [len(content) for content in contents] == [0, 1, 1, 1]
    assert contents[1] != contents[2]
    assert contents[1] == contents[3]


def test_arguments_that_are_not_json_are_kept_as_they_are() -> None:
    calls = [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
        for text in ('{"cmd": "pri', '{"cmd": 1}', "")
    ]
    blocks = derive(role="assistant", content=None, tool_calls=calls).blocks
    assert [(b.tool_call.arguments, b.tool_call.arguments_valid) for b in blocks] == [
        ('{"cmd": "pri', False),
        ('{"cmd": 1}', True),
        ("", False),
    ]


def test_calls_of_every_kind_become_blocks_in_order() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": CALL},
        {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
        {"id": "c3", "type": "future", "future": {"size": 1.50}},
        {"function": CALL},
    ]
    blocks = derive(role="assistant", content="hm", tool_calls=calls).blocks
    assert kinds(blocks) == ["text", "tool_call", "tool_call", "opaque", "tool_call"]
    assert blocks[2].tool_call.arguments == "select 1"
    assert blocks[2].tool_call.call_kind == "custom"
    assert blocks[3].opaque.type == "future"
    assert json.loads(blocks[3].opaque.payload) == calls[2]
    assert blocks[4].tool_call.call_id == ""


def test_a_legacy_function_call_and_its_result_have_no_call_id() -> None:
    call = derive(role="assistant", content=None, function_call=CALL).blocks[0]
    assert (call.tool_call.name, call.tool_call.call_id) == ("f", "")
    assert call.tool_call.call_kind == "function_call"
    result = derive(role="function", name="f", content="done").blocks[0].tool_result
    assert (result.name, result.call_id) == ("f", "")


def test_a_tool_message_is_one_result_with_its_call_id() -> None:
    derived = derive(role="tool", tool_call_id="c1", name="f", content="shipped")
    result = derived.blocks[0].tool_result
    assert (result.call_id, result.name) == ("c1", "f")
    assert result.status == pb.TOOL_RESULT_STATUS_UNSPECIFIED
    assert result.content[0].text.text == "shipped"
    assert derived.author == ""


def test_a_developer_message_is_an_instruction_and_keeps_its_origin() -> None:
    block = derive(role="developer", content="Be brief.").blocks[0]
    assert block.instruction == pb.InstructionBlock(
        text="Be brief.", origin="developer"
    )
    assert kinds(derive(role="system", content="Be brief.").blocks) == ["text"]


def test_media_parts_become_media_blocks() -> None:
    parts = [
        {
            "type": "image_url",
            "image_url": {"url": "https://x.test/a", "detail": "low"},
        },
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:,x"}},
    ]
    media = [b.media for b in derive(role="user", content=parts).blocks]
    assert (media[0].url, media[0].detail) == ("https://x.test/a", "low")
    assert (media[1].inline, media[1].media_type) == (b"RIFF", "audio/wav")
    assert media[2].provider_file_id == "file_1"
    assert (media[3].url, media[3].filename) == ("data:,x", "a.pdf")


@pytest.mark.parametrize(
    "part",
    [
        '{"type": "image_url", "image_url": "https://x.test/a"}',
        '{"type":  "input_audio", "input_audio": {"data": "%%%"}}',
        '{"type": "hologram", "hologram": {"size": 1.50, "b": 9007199254740993}}',
        '{"type": "file", "file": {}}',
    ],
)
def test_a_part_without_a_block_of_its_own_is_kept_in_its_own_words(part: str) -> None:
    payload = f'{{"role": "user", "content": [ {part} , {part}]}}'.encode()
    FORMAT.check(payload, "p")
    blocks = FORMAT.derive(payload, opaque=True).blocks
    assert [block.opaque.payload.decode() for block in blocks] == [part, part]
    assert FORMAT.derive(payload, opaque=False).blocks == ()


def test_what_vendors_add_is_read_or_kept() -> None:
    derived = derive(
        role="assistant",
        content="It has shipped.",
        refusal=None,
        reasoning_content="Look it up.",
        reasoning_details=[{"signature": "c2ln"}],
        audio={"id": "audio_1"},
        annotations=None,
    )
    assert kinds(derived.blocks) == ["reasoning", "text", "media", "opaque"]
    assert derived.blocks[3].opaque.type == "reasoning_details"


def test_reasoning_of_another_shape_is_kept_and_not_refused() -> None:
    blocks = derive(role="assistant", content=None, reasoning={"effort": "low"}).blocks
    assert [block.opaque.payload for block in blocks] == [b'{"effort": "low"}']


def test_a_refusal_is_a_block_where_it_has_words() -> None:
    assert kinds(derive(role="assistant", refusal="No.").blocks) == ["refusal"]
    assert derive(role="assistant", refusal="").blocks == ()
    part = {"type": "refusal", "refusal": "No."}
    assert kinds(derive(role="assistant", content=[part]).blocks) == ["refusal"]


def test_the_name_of_a_speaker_is_the_author() -> None:
    assert derive(role="user", name="ada", content="x").author == "ada"
