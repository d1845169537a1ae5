"""CommitService on the wire: an error names its operation, and nothing is written."""

import uuid
from typing import Any

import asyncpg
import pytest

import perdure_codec
from perdure.v1 import agent_pb2, checkpoint_pb2, history_service_pb2
from perdure.v1 import commit_service_pb2 as pb
from tests.support.wire import Wire, refused, said


@pytest.fixture
def name() -> str:
    return f"a-{uuid.uuid4().hex[:12]}"


def append(*bodies: bytes, **fields: Any) -> pb.Operation:
    return pb.Operation(append=pb.AppendOperation(messages=bodies, **fields))


def checkpoint(agent_id: str, step: int, **fields: Any) -> pb.Operation:
    fields.setdefault("frame", perdure_codec.encode({"step": step}))
    write = checkpoint_pb2.CheckpointWrite(agent_id=agent_id, step=step, **fields)
    return pb.Operation(put_checkpoint=write)


async def commit(
    wire: Wire, fence: agent_pb2.Fence, *operations: pb.Operation, step: int = 1
) -> pb.CommitResponse:
    request = pb.CommitRequest(fence=fence, operations=operations, step=step)
    response: pb.CommitResponse = await wire.commits.Commit(request, metadata=wire.key)
    return response


async def counts(connection: asyncpg.Connection, name: str) -> tuple[int, int]:
    row = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM perdure_store.messages "
        "WHERE conversation_id = $1), (SELECT count(*) "
        "FROM perdure_store.checkpoints WHERE agent_id = $1)",
        name,
    )
    return tuple(row.values())


async def test_results_come_in_the_order_of_the_operations(
    wire: Wire, name: str
) -> None:
    fence = await wire.acquire(name, name)

    response = await commit(
        wire,
        fence,
        checkpoint(name, 1, read_seq=3),
        append(said("m1", role="assistant")),
        append(said("m2", role="tool"), said("m3", role="assistant"), expected_seq=1),
    )

    first, second, third = response.results
    assert first.put_checkpoint.step == 1
    assert [result.seq for result in second.append.messages] == [0]
    assert [result.seq for result in third.append.messages] == [1, 2]
    assert third.append.message_count == 3


async def test_a_commit_sent_again_is_answered_as_the_first_time(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    fence = await wire.acquire(name, name)
    operations = (
        append(said("m1", role="assistant"), expected_seq=0),
        checkpoint(name, 1, read_seq=1),
    )
    await commit(wire, fence, *operations)

    again = await commit(wire, fence, *operations)

    assert again.results[0].append.messages[0].replayed
    assert again.results[1].put_checkpoint.replayed
    assert await counts(connection, name) == (1, 1)


@pytest.mark.parametrize(
    ("operation", "reason", "path"),
    [
        (pb.Operation(), "VALUE_NOT_STORABLE", "operations[1]"),
        (append(), "VALUE_NOT_STORABLE", "operations[1].append.messages"),
        (
            append(said("ok"), b"\xff\xff\xff"),
            "VALUE_NOT_STORABLE",
            "operations[1].append.messages[1]",
        ),
        (
            append(said("ok"), said("x\0")),
            "VALUE_NOT_STORABLE",
            "operations[1].append.messages[1].message_id",
        ),
        (
            append(said("ok"), expected_seq=-1),
            "VALUE_NOT_STORABLE",
            "operations[1].append.expected_seq",
        ),
        (
            append(
                said("ok"),
                supersedes=history_service_pb2.SeqRange(from_seq=5, to_seq=2),
            ),
            "VALUE_NOT_STORABLE",
            "operations[1].append.supersedes",
        ),
        (append(said("ok"), expected_seq=7), "SEQ_CONFLICT", "operations[1].append"),
        (
            append(said("ok"), conversation_id="elsewhere"),
            "CONVERSATION_NOT_FOUND",
            "operations[1].append",
        ),
        (
            checkpoint("", 1),
            "VALUE_NOT_STORABLE",
            "operations[1].put_checkpoint.agent_id",
        ),
        (
            checkpoint("A", 1, frame=b"no frame" * 20),
            "FRAME_INVALID",
            "operations[1].put_checkpoint.frame",
        ),
        (checkpoint("A", 4), "STEP_BEHIND", "operations[1].put_checkpoint.step"),
        (checkpoint("A", 5), "ID_REUSED", "operations[1].put_checkpoint.step"),
        (
            checkpoint("A", 9, read_seq=100),
            "VALUE_NOT_STORABLE",
            "operations[1].put_checkpoint.read_seq",
        ),
        (
            checkpoint("nobody", 1),
            "AGENT_NOT_FOUND",
            "operations[1].put_checkpoint",
        ),
    ],
)
async def test_a_refused_operation_is_named_and_nothing_is_written(
    wire: Wire,
    connection: asyncpg.Connection,
    name: str,
    operation: pb.Operation,
    reason: str,
    path: str,
) -> None:
    if operation.put_checkpoint.agent_id == "A":
        operation.put_checkpoint.agent_id = name
    fence = await wire.acquire(name, name)
    first = checkpoint(name, 5, frame=perdure_codec.encode("the first"))
    await commit(wire, fence, append(said("m0")), first, step=5)
    good = append(said("good", role="assistant"))

    with refused(reason) as refusal:
        await commit(wire, fence, good, operation, checkpoint(name, 10), step=10)

    assert refusal.metadata["path"].startswith(path)
    assert await counts(connection, name) == (1, 1)
    await commit(wire, fence, good, checkpoint(name, 10), step=10)


async def test_a_commit_has_a_fence_operations_and_limits(
    wire: Wire, name: str
) -> None:
    fence = await wire.acquire(name, name)
    with refused("VALUE_NOT_STORABLE") as refusal:
        await commit(wire, fence)
    assert refusal.metadata["path"] == "operations"
    with refused("LIMIT_EXCEEDED") as refusal:
        await commit(wire, fence, *(append(said(f"m{n}")) for n in range(101)))
    assert refusal.metadata["path"] == "operations"
    with refused("VALUE_NOT_STORABLE") as refusal:
        await commit(wire, agent_pb2.Fence(), append(said("m")))
    assert refusal.metadata["path"].startswith("fence.")
    large = [append(said(f"m{n}", "x" * 1_900_000)) for n in range(2)]
    with refused("LIMIT_EXCEEDED") as refusal:
        await commit(wire, fence, *large)
    assert refusal.metadata["limit"] == "3670016"


async def test_a_stale_fence_says_whether_the_commit_was_carried_out(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    fence = await wire.acquire(name, name)
    operations = (append(said("m", role="assistant")), checkpoint(name, 1))
    await commit(wire, fence, *operations)
    await connection.execute(
        "UPDATE perdure_store.agents SET epoch = epoch + 1, claim_id = $2 "
        "WHERE agent_id = $1",
        name,
        uuid.uuid4(),
    )

    with refused("STALE_FENCE") as refusal:
        await commit(wire, fence, *operations)
    assert refusal.metadata["committed"] == "true"
    with refused("STALE_FENCE") as refusal:
        await commit(wire, fence, append(said("n")), step=2)
    assert refusal.metadata["committed"] == "false"
    assert refusal.code == "FAILED_PRECONDITION"
