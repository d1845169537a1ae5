"""ReadMessages: pages, directions, tokens, views and sizes."""

import json

import pytest

from perdure.v1 import history_service_pb2 as pb
from perdure.v1 import message_pb2
from tests.support.server import ServerProcess
from tests.support.wire import Wire, refused, said

MIB = 1024 * 1024
WIRE_LIMIT_BYTES = 4 * MIB


async def fill(wire: Wire, conversation_id: str, count: int, text: str = "x") -> None:
    bodies = [said(f"m{number}", text) for number in range(count)]
    await wire.append(conversation_id, *bodies)


def seqs(messages: list[message_pb2.StoredMessage]) -> list[int]:
    return [message.seq for message in messages]


async def test_an_empty_conversation_is_an_end_without_messages(wire: Wire) -> None:
    await wire.create("nothing")
    assert await wire.batches("nothing") == []


async def test_each_place_to_begin_gives_its_messages(wire: Wire) -> None:
    await fill(wire, "starts", 10)
    assert seqs(await wire.read("starts")) == list(range(10))
    assert seqs(await wire.read("starts", from_seq=7)) == [7, 8, 9]
    assert seqs(await wire.read("starts", from_seq=10)) == []
    assert seqs(await wire.read("starts", newest_count=3)) == [7, 8, 9]
    assert seqs(await wire.read("starts", newest_count=99)) == list(range(10))
    assert seqs(await wire.read("starts", limit=4)) == [0, 1, 2, 3]
    assert seqs(await wire.read("starts", backward=True, limit=3)) == [9, 8, 7]
    assert seqs(await wire.read("starts", backward=True, from_seq=2)) == [2, 1, 0]
    from_end = await wire.read("starts", backward=True, from_seq=10)
    assert seqs(from_end) == list(range(10))[::-1]


async def test_newest_counts_what_the_view_shows(wire: Wire) -> None:
    await fill(wire, "newest", 6)
    await wire.append("newest", said("z"), supersedes=pb.SeqRange(from_seq=3, to_seq=6))
    assert seqs(await wire.read("newest", newest_count=3)) == [1, 2, 6]
    everything = await wire.read("newest", newest_count=3, include_superseded=True)
    assert seqs(everything) == [4, 5, 6]


@pytest.mark.parametrize(
    ("fields", "reason", "path"),
    [
        ({"from_seq": 4}, "RANGE_INVALID", "from_seq"),
        ({"from_seq": -1}, "VALUE_NOT_STORABLE", "from_seq"),
        ({"newest_count": 0}, "VALUE_NOT_STORABLE", "newest_count"),
        ({"limit": -1}, "VALUE_NOT_STORABLE", "limit"),
        ({"backward": True, "follow": True}, "VALUE_NOT_STORABLE", "follow"),
        ({"backward": True, "newest_count": 1}, "VALUE_NOT_STORABLE", "newest_count"),
    ],
)
async def test_a_place_that_is_not_there_is_refused(
    fields: dict[str, int], reason: str, path: str, wire: Wire
) -> None:
    await wire.append("short", *[said(f"m{number}") for number in range(3)])
    with refused(reason) as refusal:
        await wire.read("short", **fields)
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.metadata["path"] == path


async def test_an_unknown_conversation_is_not_found(wire: Wire) -> None:
    with refused("CONVERSATION_NOT_FOUND") as refusal:
        await wire.read("never-made")
    assert refusal.code == "NOT_FOUND"


@pytest.mark.parametrize("backward", [False, True])
async def test_any_token_resumes_without_gap_or_duplicate(
    backward: bool, wire: Wire
) -> None:
    conversation_id = f"tokens-{backward}"
    for part in range(4):
        bodies = [said(f"{part}-{n}", "x" * 60_000) for n in range(10)]
        await wire.append(conversation_id, *bodies)
    batches = await wire.batches(conversation_id, backward=backward)
    assert len(batches) > 5
    whole = [message.seq for batch in batches for message in batch.messages]
    seen = []
    for batch in batches:
        seen += seqs(batch.messages)
        rest = await wire.read(
            conversation_id, backward=backward, resume_token=batch.resume_token
        )
        assert seen + seqs(rest) == whole


async def test_a_token_counts_what_was_sent_towards_the_limit(wire: Wire) -> None:
    await fill(wire, "limited", 20, "x" * 60_000)
    (first, *_) = await wire.batches("limited", limit=6)
    rest = await wire.read("limited", limit=6, resume_token=first.resume_token)
    assert seqs(first.messages) + seqs(rest) == list(range(6))


async def test_a_token_of_another_conversation_or_of_nobody_is_stale(
    wire: Wire,
) -> None:
    await fill(wire, "mine", 2)
    await fill(wire, "yours", 2)
    (batch,) = await wire.batches("mine")
    for token in (batch.resume_token[:-4] + "AAAA", "x", "é", "=" * 5000):
        with refused("TOKEN_STALE") as refusal:
            await wire.read("mine", resume_token=token)
        assert refusal.code == "FAILED_PRECONDITION"
    with refused("TOKEN_STALE"):
        await wire.read("yours", resume_token=batch.resume_token)


async def test_a_batch_holds_256_kib_or_one_larger_message(wire: Wire) -> None:
    for number, size in enumerate([10, 3 * MIB - 200, 10, 200_000, 200_000, 10]):
        await wire.append("sizes", said(f"m{number}", "x" * size))
    batches = await wire.batches("sizes")
    shapes = [[len(m.message) for m in batch.messages] for batch in batches]
    for shape in shapes:
        assert len(shape) == 1 or sum(shape) <= 256 * 1024
    assert sum(len(shape) for shape in shapes) == 6
    assert max(batch.ByteSize() for batch in batches) < WIRE_LIMIT_BYTES


async def test_views_carry_the_bytes_the_blocks_or_both(wire: Wire) -> None:
    payload = b'{"role": "user", "content": "Hi"}'
    native = message_pb2.NativePayload(
        format="openai.chat_completions", payload=payload
    )
    body = message_pb2.Message(message_id="a", native=native).SerializeToString()
    await wire.append("views", body)
    (plain,) = await wire.read("views")
    assert plain.message == body
    assert not plain.HasField("canonical")
    (canonical,) = await wire.read("views", view=pb.MESSAGE_VIEW_CANONICAL)
    assert canonical.message == b""
    assert canonical.canonical.role == message_pb2.ROLE_USER
    assert canonical.canonical.blocks[0].text.text == "Hi"
    assert not canonical.canonical.HasField("native")
    (both,) = await wire.read("views", view=pb.MESSAGE_VIEW_BOTH)
    assert (both.message, both.canonical) == (body, canonical.canonical)


async def test_a_message_too_large_in_both_views_names_its_seq(wire: Wire) -> None:
    await wire.append("huge", said("a"))
    await wire.append("huge", said("b", "x" * (3 * MIB - 100)))
    assert len(await wire.read("huge")) == 2
    assert len(await wire.read("huge", view=pb.MESSAGE_VIEW_CANONICAL)) == 2
    with refused("LIMIT_EXCEEDED") as refusal:
        await wire.read("huge", view=pb.MESSAGE_VIEW_BOTH)
    assert refusal.metadata["seq"] == "1"
    assert refusal.metadata["path"] == "view"


async def test_many_small_parts_in_both_views_still_fit_each_response(
    wire: Wire,
) -> None:
    # Parts that no block can hold are kept whole in the canonical view: it is
    # larger than what was sent.
    parts = [{"type": "x"} for _ in range(2_000)]
    payload = json.dumps({"role": "user", "content": parts}).encode()
    native = message_pb2.NativePayload(
        format="openai.chat_completions", payload=payload
    )
    bodies = [
        message_pb2.Message(message_id=f"m{n}", native=native).SerializeToString()
        for n in range(60)
    ]
    await wire.append("parts", *bodies)
    batches = await wire.batches("parts", view=pb.MESSAGE_VIEW_BOTH)
    assert sum(len(batch.messages) for batch in batches) == 60
    assert max(batch.ByteSize() for batch in batches) < WIRE_LIMIT_BYTES


async def test_nothing_of_a_tenant_is_seen_by_another(
    wire: Wire, server: ServerProcess
) -> None:
    from perdure.v1 import admin_service_pb2 as admin_pb

    await wire.append("private", said("a"))
    (batch,) = await wire.batches("private")
    await wire.admin.CreateTenant(
        admin_pb.CreateTenantRequest(
            tenant_id="neighbour", key_id="first", key_secret="n" * 40
        ),
        metadata=wire.key,
    )
    other = Wire(server.address, f"pd_neighbour_first_{'n' * 40}")
    with refused("CONVERSATION_NOT_FOUND"):
        await other.read("private")
    await other.append("private", said("theirs"))
    assert [m.message_id for m in await wire.read("private")] == ["a"]
    with refused("TOKEN_STALE"):
        await other.read("private", resume_token=batch.resume_token)
    await other.channel.close()
