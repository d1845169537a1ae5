"""AppendMessages: identity, order, atomicity and the order of its checks."""

import asyncio
import hashlib
import uuid
from typing import Any

import asyncpg
import pytest

from perdure.v1 import agent_pb2
from perdure.v1 import history_service_pb2 as pb
from tests.support.wire import Wire, refused, said


def places(response: Any) -> list[tuple[str, int, bool]]:
    return [(m.message_id, m.seq, m.replayed) for m in response.messages]


async def test_seqs_are_dense_from_zero_in_the_order_of_the_request(
    wire: Wire,
) -> None:
    first = await wire.append("dense", said("a"), said("b"))
    second = await wire.append("dense", said("c"))
    assert places(first) == [("a", 0, False), ("b", 1, False)]
    assert places(second) == [("c", 2, False)]
    assert (second.message_count, second.generation) == (3, 1)


# R56
async def test_a_retry_is_answered_with_the_first_answer(wire: Wire) -> None:
    await wire.append("retry", said("a"), said("b"), expected_seq=0)
    await wire.append("retry", said("c"))
    again = await wire.append("retry", said("a"), said("b"), expected_seq=0)
    assert places(again) == [("a", 0, True), ("b", 1, True)]
    assert again.message_count == 3


# R56
async def test_equal_text_under_another_id_is_another_message(wire: Wire) -> None:
    await wire.append("twins", said("a", "yes"))
    answer = await wire.append("twins", said("b", "yes"))
    assert places(answer) == [("b", 1, False)]


# R56
async def test_a_reused_id_names_both_digests_and_nothing_is_written(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    await wire.append("reused", said("a"), said("b"))
    with refused("ID_REUSED") as refusal:
        await wire.append("reused", said("new"), said("b", "other words"))
    assert refusal.code == "ALREADY_EXISTS"
    assert refusal.metadata["path"] == "messages[1].message_id"
    assert refusal.metadata["message_id"] == "b"
    other = hashlib.sha256(said("b", "other words")).hexdigest()
    assert refusal.metadata["digest"] == other
    assert refusal.metadata["stored_digest"] == hashlib.sha256(said("b")).hexdigest()
    ids = await connection.fetch(
        "SELECT message_id FROM perdure.messages WHERE conversation_id = 'reused'"
    )
    assert sorted(row["message_id"] for row in ids) == ["a", "b"]


async def test_a_batch_that_is_known_in_part_stores_the_rest(wire: Wire) -> None:
    await wire.append("part", said("a"))
    answer = await wire.append("part", said("a"), said("b"))
    assert places(answer) == [("a", 0, True), ("b", 1, False)]


async def test_a_stale_expected_seq_is_aborted_and_says_the_current_one(
    wire: Wire,
) -> None:
    await wire.append("expected", said("a"), said("b"), expected_seq=0)
    with refused("SEQ_CONFLICT") as refusal:
        await wire.append("expected", said("c"), expected_seq=1)
    assert refusal.code == "ABORTED"
    assert refusal.metadata["expected_seq"] == "1"
    assert refusal.metadata["current_seq"] == "2"
    await wire.append("expected", said("c"), expected_seq=2)


async def test_a_missing_conversation_is_only_made_when_asked(wire: Wire) -> None:
    with refused("CONVERSATION_NOT_FOUND") as refusal:
        await wire.append("nowhere", said("a"), create_if_missing=False)
    assert refusal.code == "NOT_FOUND"
    await wire.append("nowhere", said("a"))


async def test_the_stored_bytes_are_the_bytes_that_were_sent(wire: Wire) -> None:
    # Fields out of order and one that is unknown: parsing and serializing again
    # would give other bytes.
    body = said("a", "text") + b"\xfa\xff\x1f\x01z" + b"\x10\x01"
    await wire.append("bytes", body)
    (stored,) = await wire.read("bytes")
    assert stored.message == body
    assert stored.digest == hashlib.sha256(body).digest()


async def test_one_bad_message_refuses_its_batch_by_its_path(wire: Wire) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.append("bad", said("a"), b"\xff\xff", said("c"))
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.metadata["path"].startswith("messages[1]")
    with refused("CONVERSATION_NOT_FOUND"):
        await wire.read("bad")


async def test_two_messages_of_a_batch_may_not_share_an_id(wire: Wire) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.append("double", said("a"), said("b"), said("a"))
    assert refusal.metadata["path"] == "messages[2].message_id"


async def test_an_empty_batch_is_refused(wire: Wire) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.append("empty")
    assert refusal.metadata["path"] == "messages"


async def test_superseded_messages_stay_but_leave_the_default_view(
    wire: Wire,
) -> None:
    await wire.append("rewind", said("a"), said("b"), said("c"))
    await wire.append(
        "rewind", said("b2"), supersedes=pb.SeqRange(from_seq=1, to_seq=3)
    )
    assert [m.message_id for m in await wire.read("rewind")] == ["a", "b2"]
    everything = await wire.read("rewind", include_superseded=True)
    assert [m.message_id for m in everything] == ["a", "b", "c", "b2"]
    marks = [
        m.superseded_by if m.HasField("superseded_by") else None for m in everything
    ]
    assert marks == [None, 3, 3, None]


@pytest.mark.parametrize(
    ("first", "end", "reason"),
    [
        (0, 5, "RANGE_INVALID"),
        (1, 1, "VALUE_NOT_STORABLE"),
        (-1, 1, "VALUE_NOT_STORABLE"),
    ],
)
async def test_a_range_outside_the_conversation_is_refused(
    first: int, end: int, reason: str, wire: Wire
) -> None:
    conversation_id = f"range-{first}-{end}"
    await wire.append(conversation_id, said("a"))
    with refused(reason) as refusal:
        await wire.append(
            conversation_id,
            said("b"),
            supersedes=pb.SeqRange(from_seq=first, to_seq=end),
        )
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.metadata["path"].startswith("supersedes")


async def test_an_owned_conversation_takes_what_users_say_without_a_fence(
    wire: Wire,
) -> None:
    worker = await writer_without_admin(wire)
    fence = await wire.acquire("owner", "owned")
    await worker.append("owned", said("question"))
    with refused("FENCE_REQUIRED") as refusal:
        await worker.append("owned", said("answer", role="assistant"))
    assert refusal.code == "FAILED_PRECONDITION"
    answer = await worker.append(
        "owned", said("answer", role="assistant"), fence=fence, step=1
    )
    assert places(answer) == [("answer", 1, False)]
    stored = await wire.read("owned")
    assert (stored[1].agent_id, stored[1].step) == ("owner", 1)
    # An operator's key may repair a conversation without being its agent.
    await wire.append("owned", said("repair", role="assistant"))
    await worker.channel.close()


async def test_a_stale_fence_is_refused_before_anything_else_is_looked_at(
    wire: Wire,
) -> None:
    fence = await wire.acquire("thawed", "thawed")
    await wire.append("thawed", said("a", role="assistant"), fence=fence, step=1)
    stale = agent_pb2.Fence(
        agent_id="thawed", epoch=fence.epoch, claim_id=str(uuid.uuid4())
    )
    # A replay, a wrong seq and a reused id: the fence is judged before them.
    for body in (said("a", role="assistant"), said("a", "other", role="assistant")):
        with refused("STALE_FENCE") as refusal:
            await wire.append("thawed", body, fence=stale, step=1, expected_seq=9)
        assert refusal.code == "FAILED_PRECONDITION"
        assert refusal.metadata["current_epoch"] == str(fence.epoch)
    # The error says whether that very write had been committed.
    with refused("STALE_FENCE") as refusal:
        await wire.append("thawed", said("a", role="assistant"), fence=stale, step=1)
    assert refusal.metadata["committed"] == "true"
    with refused("STALE_FENCE") as refusal:
        await wire.append("thawed", said("b", role="assistant"), fence=stale, step=1)
    assert refusal.metadata["committed"] == "false"


async def test_a_replay_is_recognised_before_its_seq_is_checked(wire: Wire) -> None:
    fence = await wire.acquire("replay", "replay")
    for _ in range(2):
        answer = await wire.append(
            "replay", said("a", role="assistant"), fence=fence, step=1, expected_seq=0
        )
        assert answer.messages[0].seq == 0


async def test_the_conversation_is_looked_for_before_the_fence(wire: Wire) -> None:
    fence = await wire.acquire("other-agent", "other-conversation")
    with refused("CONVERSATION_NOT_FOUND"):
        await wire.append("not-there", said("a"), fence=fence, create_if_missing=False)


async def test_a_fence_opens_no_other_conversation(wire: Wire) -> None:
    fence = await wire.acquire("here", "here")
    await wire.create("elsewhere")
    with refused("FENCE_REQUIRED"):
        await wire.append("elsewhere", said("a", role="assistant"), fence=fence)


async def test_a_step_without_a_fence_is_refused(wire: Wire) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.append("unfenced", said("a"), step=4)
    assert refusal.metadata["path"] == "step"


async def test_another_generation_is_answered_as_deleted(wire: Wire) -> None:
    await wire.append("generation", said("a"), generation=1)
    with refused("DELETED") as refusal:
        await wire.append("generation", said("b"), generation=2)
    assert refusal.code == "NOT_FOUND"


async def test_a_closed_conversation_takes_replays_only(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    await wire.append("closed", said("a"))
    await connection.execute(
        "UPDATE perdure_store.conversations SET close_time = now() "
        "WHERE conversation_id = 'closed'"
    )
    assert places(await wire.append("closed", said("a"))) == [("a", 0, True)]
    with refused("CONVERSATION_CLOSED") as refusal:
        await wire.append("closed", said("b"))
    assert refusal.code == "FAILED_PRECONDITION"


async def test_64_concurrent_appenders_leave_a_dense_sequence(wire: Wire) -> None:
    async def one(writer: int) -> list[tuple[str, int]]:
        own = []
        for number in range(10):
            message_id = f"{writer}-{number}"
            answer = await wire.append("crowd", said(message_id))
            own.append((message_id, answer.messages[0].seq))
        return own

    acknowledged = await asyncio.gather(*(one(writer) for writer in range(64)))
    for own in acknowledged:
        assert [seq for _, seq in own] == sorted(seq for _, seq in own)
    stored = await wire.read("crowd")
    assert [m.seq for m in stored] == list(range(640))
    expected = dict(place for own in acknowledged for place in own)
    assert {m.message_id: m.seq for m in stored} == expected


async def test_refused_appends_in_a_crowd_harm_no_neighbour(wire: Wire) -> None:
    await wire.append("mixed", said("taken"))

    async def one(number: int) -> str:
        try:
            if number % 3 == 0:
                with refused("SEQ_CONFLICT"):
                    await wire.append("mixed", said(f"{number}"), expected_seq=0)
                return "conflict"
            if number % 3 == 1:
                with refused("ID_REUSED"):
                    await wire.append("mixed", said("taken", f"{number}"))
                return "reused"
            await wire.append("mixed", said(f"{number}"))
        except AssertionError as error:
            return str(error)
        return "stored"

    outcomes = await asyncio.gather(*(one(number) for number in range(90)))
    assert [outcomes.count(o) for o in ("conflict", "reused", "stored")] == [30, 30, 30]
    assert [m.seq for m in await wire.read("mixed")] == list(range(31))


async def writer_without_admin(wire: Wire) -> Wire:
    from perdure.v1 import admin_service_pb2 as admin_pb

    key_id, secret = f"worker-{uuid.uuid4().hex[:8]}", "s" * 40
    await wire.admin.CreateKey(
        admin_pb.CreateKeyRequest(
            key_id=key_id,
            key_secret=secret,
            scopes=[admin_pb.SCOPE_READ, admin_pb.SCOPE_WRITE],
        ),
        metadata=wire.key,
    )
    return Wire(wire.address, f"pd_default_{key_id}_{secret}")
