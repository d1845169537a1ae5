"""Chat Completions messages for tests."""

import json

from perdure.v1 import message_pb2 as pb
from perdure_server.formats import chat_completions
from perdure_server.formats.derived import Derived

FORMAT = chat_completions.ChatCompletions()


def payload_of(**members: object) -> bytes:
    return json.dumps(members).encode()


def derive(*, opaque: bool = True, **members: object) -> Derived:
    payload = payload_of(**members)
    FORMAT.check(payload, "payload")
    return FORMAT.derive(payload, opaque=opaque)


def kinds(blocks: tuple[pb.Block, ...]) -> list[str | None]:
    return [block.WhichOneof("kind") for block in blocks]
