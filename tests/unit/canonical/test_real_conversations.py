import json
import os
from collections import deque
from pathlib import Path

import pytest

from perdure.v1 import message_pb2 as pb
from perdure_cli.demo.conversations import SourceConversation, load_conversations
from perdure_server.canonical.message import canonicalize, read_message
from perdure_server.canonical.projection import project
from perdure_server.formats.chat_completions import FORMAT


def conversations() -> list[SourceConversation]:
    """Those of the generator, and those of PERDURE_DEMO_DATA where it is set."""
    found = load_conversations(None, 200)[1]
    path = os.environ.get("PERDURE_DEMO_DATA")
    if path:
        found += load_conversations(Path(path), 10_000)[1]
    return found


def read(message: dict[str, object], place: int) -> pb.Message:
    native = pb.NativePayload(format=FORMAT, payload=json.dumps(message).encode())
    sent = pb.Message(message_id=f"m{place}", native=native)
    return read_message(sent.SerializeToString(), f"messages[{place}]")


@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_conversation_is_read_byte_for_byte(ascii_only: bool) -> None:
    for conversation in conversations():
        for message in conversation.messages:
            payload = json.dumps(message, ensure_ascii=ascii_only).encode()
            native = pb.NativePayload(format=FORMAT, payload=payload)
            sent = pb.Message(message_id="m", native=native).SerializeToString()
            assert read_message(sent, "m").native.payload == payload


def test_every_conversation_projects_as_its_source_tells_it() -> None:
    for conversation in conversations():
        for place, source in enumerate(conversation.messages):
            shown = project(read(source, place))
            assert shown.role == source["role"]
            text = shown.tool_result if shown.role == "tool" else shown.content
            assert text == (source["content"] and source["content"][: 64 * 1024])
            calls = source.get("tool_calls") or []
            assert [(c.call_id, c.name, c.arguments) for c in shown.tool_calls] == [
                (c["id"], c["function"]["name"], c["function"]["arguments"])
                for c in calls
            ]


def test_every_call_of_a_conversation_is_answered_by_the_next_result_of_its_id() -> (
    None
):
    paired = 0
    for conversation in conversations():
        open_calls: dict[str, deque[str]] = {}
        for place, source in enumerate(conversation.messages):
            shown = project(read(source, place))
            for call in shown.tool_calls:
                open_calls.setdefault(call.call_id, deque()).append(call.name)
            if shown.tool_call_id is not None:
                name = open_calls[shown.tool_call_id].popleft()
                assert shown.tool_name in (None, name)
                paired += 1
        assert not any(open_calls.values()), conversation.conversation_id
    assert paired > 500


def test_every_conversation_is_whole_in_canonical_blocks() -> None:
    for conversation in conversations():
        for place, source in enumerate(conversation.messages):
            message = read(source, place)
            canonical = canonicalize(message)
            assert project(canonical) == project(message)
            assert not any(b.HasField("opaque") for b in canonical.blocks)
