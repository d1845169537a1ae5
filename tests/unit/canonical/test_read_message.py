import json

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from perdure.v1 import message_pb2 as pb
from perdure_server.canonical.message import MAX_MESSAGE_BYTES, read_message
from perdure_server.errors import LimitExceeded, PerdureError, ValueNotStorable

CHAT = "openai.chat_completions"


def chat(**members: object) -> pb.NativePayload:
    return pb.NativePayload(format=CHAT, payload=json.dumps(members).encode())


def message(**fields: object) -> pb.Message:
    given: dict[str, object] = {"message_id": "m1", "role": pb.ROLE_USER, **fields}
    return pb.Message(**given)  # type: ignore[arg-type]


def refusal(body: bytes | pb.Message) -> PerdureError:
    if isinstance(body, pb.Message):
        body = body.SerializeToString()
    with pytest.raises(PerdureError) as caught:
        read_message(body, "messages[2]")
    return caught.value


def test_a_native_payload_alone_is_enough() -> None:
    sent = pb.Message(message_id="m1", native=chat(role="user", content="x"))
    assert read_message(sent.SerializeToString(), "m") == sent


def test_reading_never_changes_a_payload() -> None:
    payload = b'{ "content" : "a\\u0000b \\ud83d\\ude00", "role":"user","n":1.10 }\n'
    native = pb.NativePayload(format=CHAT, payload=payload)
    sent = pb.Message(message_id="m1", native=native)
    assert read_message(sent.SerializeToString(), "m").native.payload == payload


def test_a_message_of_no_blocks_is_allowed() -> None:
    sent = message(role=pb.ROLE_ASSISTANT)
    assert read_message(sent.SerializeToString(), "m") == sent


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (pb.Message(role=pb.ROLE_USER), "message_id"),
        (message(message_id="a\0b"), "message_id"),
        (message(author="a\0b"), "author"),
        (message(model="a\0b"), "model"),
        (message(run_id="a\0b"), "run_id"),
        (message(role=pb.ROLE_UNSPECIFIED), "role"),
        (message(role=17), "role"),
        (message(status=9), "status"),
        (message(native=pb.NativePayload(payload=b"{}")), "native.format"),
        (message(native=pb.NativePayload(format="a\0b")), "native.format"),
        (message(native=pb.NativePayload(format="x", version="\0")), "native.version"),
        (message(native=pb.NativePayload(format=CHAT)), "native.payload"),
        (message(native=chat(role="robot")), "native.payload.role"),
        (message(native=chat(role="assistant")), "role"),
        (message(usage=pb.Usage(input_tokens=-1)), "usage.input_tokens"),
        (message(usage=pb.Usage(reasoning_tokens=-(2**63))), "usage.reasoning_tokens"),
        (message(create_time=Timestamp(seconds=2**40)), "create_time.seconds"),
        (message(create_time=Timestamp(seconds=-(2**40))), "create_time.seconds"),
        (message(create_time=Timestamp(nanos=-1)), "create_time.nanos"),
        (message(create_time=Timestamp(nanos=10**9)), "create_time.nanos"),
        (message(metadata_json="{"), "metadata_json"),
        (message(metadata_json='{"a": NaN}'), "metadata_json.a"),
        (message(metadata_json='{"a": "\\ud83d"}'), "metadata_json.a"),
        (message(blocks=[pb.Block()]), "blocks[0]"),
        (message(blocks=[pb.Block(media=pb.MediaBlock())]), "blocks[0].media"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused_with_its_path(
    sent: pb.Message, path: str
) -> None:
    fault = refusal(sent)
    assert isinstance(fault, ValueNotStorable)
    assert fault.metadata["path"] == f"messages[2].{path}"


@pytest.mark.parametrize(
    ("block", "path"),
    [
        (pb.Block(media=pb.MediaBlock(media_kind=77, url="x")), "media.media_kind"),
        (pb.Block(tool_result=pb.ToolResultBlock(status=77)), "tool_result.status"),
        (
            pb.Block(tool_result=pb.ToolResultBlock(content=[pb.Block()])),
            "tool_result.content[0]",
        ),
        (pb.Block(compaction=pb.CompactionBlock(from_seq=-1)), "compaction.from_seq"),
        (pb.Block(compaction=pb.CompactionBlock(from_seq=2)), "compaction.to_seq"),
        (
            pb.Block(text=pb.TextBlock(citations=[pb.Citation(start_index=-1)])),
            "text.citations[0].start_index",
        ),
        (
            pb.Block(text=pb.TextBlock(citations=[pb.Citation(start_index=3)])),
            "text.citations[0].end_index",
        ),
        (pb.Block(data=pb.DataBlock(payload_json="{")), "data.payload_json"),
        (pb.Block(control=pb.ControlBlock(payload_json="x")), "control.payload_json"),
    ],
)
def test_a_block_out_of_range_is_refused_with_its_path(
    block: pb.Block, path: str
) -> None:
    fault = refusal(message(blocks=[pb.Block(text=pb.TextBlock()), block]))
    assert isinstance(fault, ValueNotStorable)
    assert fault.metadata["path"] == f"messages[2].blocks[1].{path}"


@pytest.mark.parametrize(
    "field",
    ["message_id", "author", "run_id", "group_id", "stop_reason", "model", "provider"],
)
def test_a_name_of_255_bytes_is_kept_and_of_256_refused(field: str) -> None:
    read_message(message(**{field: "\u00e9" * 127 + "x"}).SerializeToString(), "m")
    fault = refusal(message(**{field: "\u00e9" * 128}))
    assert isinstance(fault, LimitExceeded)
    assert fault.metadata == {
        "path": f"messages[2].{field}",
        "limit": "255",
        "actual": "256",
    }


def test_a_message_over_3_mib_is_refused_with_the_limit() -> None:
    fault = refusal(message(native=pb.NativePayload(format="x", payload=b"x" * 2**22)))
    assert isinstance(fault, LimitExceeded)
    assert fault.metadata["path"] == "messages[2]"
    assert fault.metadata["limit"] == str(MAX_MESSAGE_BYTES)


def test_metadata_of_64_kib_is_kept_verbatim_and_more_is_refused() -> None:
    text = '{"a": 1.10, "b": "' + "x" * (64 * 1024 - 20) + '"}'
    sent = message(metadata_json=text)
    assert read_message(sent.SerializeToString(), "m").metadata_json == text
    assert isinstance(refusal(message(metadata_json=text + " ")), LimitExceeded)


def test_an_unknown_format_is_kept_whatever_its_bytes_and_needs_a_role() -> None:
    native = pb.NativePayload(format="acme.v2", payload=b"\xff\0\x00not json")
    sent = message(native=native)
    assert read_message(sent.SerializeToString(), "m") == sent
    fault = refusal(pb.Message(message_id="m1", native=native))
    assert fault.metadata["path"] == "messages[2].role"


def test_a_stated_role_that_agrees_with_the_payload_is_allowed() -> None:
    sent = message(role=pb.ROLE_SYSTEM, native=chat(role="developer", content="x"))
    assert read_message(sent.SerializeToString(), "m") == sent


@pytest.mark.parametrize("count", [0, 2**63 - 1])
def test_a_count_at_either_end_is_kept(count: int) -> None:
    sent = message(usage=pb.Usage(input_tokens=count, cached_tokens=count))
    assert read_message(sent.SerializeToString(), "m") == sent


@pytest.mark.parametrize("depth", [300, 900])
def test_a_payload_nested_within_the_limit_is_kept(depth: int) -> None:
    payload = b'{"role":"user","x":' + b"[" * depth + b"]" * depth + b"}"
    sent = pb.Message(
        message_id="m1", native=pb.NativePayload(format=CHAT, payload=payload)
    )
    assert read_message(sent.SerializeToString(), "m") == sent


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_a_payload_nested_too_deep_is_refused(depth: int) -> None:
    payload = b'{"role":"user","x":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    native = pb.NativePayload(format=CHAT, payload=payload)
    fault = refusal(pb.Message(message_id="m1", native=native))
    assert fault.metadata["path"] == "messages[2].native.payload"


def test_deep_metadata_is_refused() -> None:
    assert isinstance(refusal(message(metadata_json="[" * 5_000)), ValueNotStorable)
