import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.v1 import message_pb2 as pb
from perdure_server.canonical.message import read_message
from perdure_server.errors import PerdureError, ValueNotStorable


def refusal(body: bytes) -> PerdureError:
    with pytest.raises(PerdureError) as caught:
        read_message(body, "messages[0]")
    return caught.value


def with_lone_surrogate(message: pb.Message) -> bytes:
    """Serialize a message, then put half a surrogate pair where it says `<->`."""
    body = message.SerializeToString()
    assert b"<->" in body
    return body.replace(b"<->", b"\xed\xa0\xbd")


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (pb.Message(message_id="<->"), "message_id"),
        (pb.Message(model="<->"), "model"),
        (
            pb.Message(
                blocks=[pb.Block(), pb.Block(text=pb.TextBlock(text="half <->"))]
            ),
            "blocks[1].text.text",
        ),
        (
            pb.Message(
                blocks=[
                    pb.Block(
                        tool_result=pb.ToolResultBlock(
                            content=[
                                pb.Block(text=pb.TextBlock(text="a" * 9999 + "<->"))
                            ]
                        )
                    )
                ]
            ),
            "blocks[0].tool_result.content[0].text.text",
        ),
        (
            pb.Message(
                blocks=[pb.Block(reasoning=pb.ReasoningBlock(summaries=["a", "<->"]))]
            ),
            "blocks[0].reasoning.summaries[1]",
        ),
    ],
)
def test_a_lone_surrogate_on_the_wire_is_refused_with_its_path(
    message: pb.Message, path: str
) -> None:
    fault = refusal(with_lone_surrogate(message))
    assert fault.metadata["path"] == f"messages[0].{path}"
    assert fault.message == "text is not UTF-8"


def test_a_valid_emoji_with_joiners_is_kept_byte_for_byte() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    sent = pb.Message(
        message_id="m1",
        role=pb.ROLE_USER,
        blocks=[pb.Block(text=pb.TextBlock(text=family))],
    )
    assert read_message(sent.SerializeToString(), "m").blocks[0].text.text == family


def test_a_message_that_is_cut_off_is_refused() -> None:
    body = pb.Message(message_id="m1", role=pb.ROLE_USER, model="x" * 50)
    fault = refusal(body.SerializeToString()[:-5])
    assert fault.message == "the message is cut off"


def nested(depth: int) -> bytes:
    block = pb.Block(text=pb.TextBlock(text="x"))
    for _ in range(depth):
        block = pb.Block(tool_result=pb.ToolResultBlock(content=[block]))
    message = pb.Message(message_id="m1", role=pb.ROLE_TOOL, blocks=[block])
    return message.SerializeToString()


def test_blocks_inside_blocks_are_bounded() -> None:
    read_message(nested(20), "m")


def test_blocks_nested_too_deep_are_refused() -> None:
    body = b""
    for _ in range(5_000):
        content = b"\x22" + varint(len(body)) + body  # ToolResultBlock.content
        body = b"\x2a" + varint(len(content)) + content  # Block.tool_result
    fault = refusal(b"\x0a\x02m1\x1a" + varint(len(body)) + body)
    assert isinstance(fault, ValueNotStorable)
    assert "nested too deep" in fault.message


def test_a_body_of_very_many_fields_is_refused_at_once() -> None:
    started = time.perf_counter()
    refusal(b"\x0a\x00" * 1_500_000 + b"\x0a\x05")
    assert time.perf_counter() - started < 2


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused_with_a_path(body: bytes) -> None:
    paths = ["messages[0]"]
    try:
        read_message(body, "messages[0]")
    except PerdureError as fault:
        paths.append(fault.metadata["path"])
    assert all(path.startswith("messages[0]") for path in paths)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
