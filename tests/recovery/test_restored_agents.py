"""What a restore brings, what it reports, and how it is watched."""

import asyncio
import uuid

import asyncpg

from perdure.v1 import (
    agent_pb2,
    agent_service_pb2,
    checkpoint_pb2,
    checkpoint_service_pb2,
    commit_service_pb2,
    error_reason_pb2,
)
from perdure.v1 import recovery_service_pb2 as pb
from tests.support.restoring import (
    Received,
    lease,
    leave,
    lost,
    restore,
    start,
    stream,
    watch,
    write,
)
from tests.support.wire import Wire, said


async def test_batches_are_small_and_a_large_agent_travels_alone(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 12, pad_bytes=60_000)
    await leave(wire, connection, f"{name}-big", 2, pad_bytes=2_900_000)
    both = agent_pb2.AgentSelector(lease_state=agent_pb2.LEASE_STATE_LOST)

    received = await restore(wire, both, at_most=1000)

    assert set(received.ids) >= {f"{name}-big-000", f"{name}-000"}
    sizes = sorted(received.sizes)
    assert sum(size > 300_000 for size in sizes) == 2
    assert sizes[-1] < 4 * 1024 * 1024


async def test_many_unread_messages_are_cut_and_the_rest_is_read_from_there(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 2)
    many = [said(f"u{n}", "x" * 20_000) for n in range(40)]
    await wire.append(f"{name}-000", *many)
    await wire.append(f"{name}-001", said("large", "x" * 2_900_000))

    first, second = (await restore(wire, lost(name))).agents

    assert first.message_count == 42
    got = [message.seq for message in first.new_messages]
    assert got == list(range(2, first.next_message_seq))
    assert 5 < len(got) < 40
    rest = await wire.read(f"{name}-000", from_seq=first.next_message_seq)
    assert [message.seq for message in rest] == list(range(len(got) + 2, 42))
    assert (len(second.new_messages), second.next_message_seq) == (0, 2)


async def test_an_agents_own_messages_after_its_step_are_new_to_it(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    fences = await leave(wire, connection, name, 1)
    fence = fences[f"{name}-000"]
    append = commit_service_pb2.AppendOperation(
        messages=[said("said in step 2", role="assistant")]
    )
    await wire.commits.Commit(
        commit_service_pb2.CommitRequest(
            fence=fence,
            operations=[commit_service_pb2.Operation(append=append)],
            step=2,
        ),
        metadata=wire.key,
    )

    (agent,) = (await restore(wire, lost(name))).agents

    assert [each.message_id for each in agent.new_messages] == ["said in step 2"]


async def test_a_broken_agent_is_reported_freed_and_holds_up_nobody(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    fences = await leave(wire, connection, name, 6)
    broken = f"{name}-002"
    await write(wire, fences[broken], 2, "newer", read_seq=2)
    await connection.execute(
        "UPDATE perdure_store.checkpoints SET frame = substr(frame, 1, 75) "
        "WHERE agent_id = $1 AND step = 2",
        broken,
    )
    recovery_id = await start(wire, lost(name))

    received = await restore(wire, recovery_id)

    assert len(received.agents) == 6
    (report,) = [agent for agent in received.agents if agent.HasField("error")]
    assert report.agent.agent_id == broken
    assert report.error.reason == error_reason_pb2.ERROR_REASON_FRAME_CORRUPT
    assert report.error.last_good_step == 1
    assert not report.HasField("fence")
    assert not report.HasField("state")
    recovery = await watch(wire, recovery_id)
    assert (recovery.broken_count, recovery.restored_count) == (1, 6)
    row = await connection.fetchrow(
        "SELECT lease_id, claim_id FROM perdure_store.agents WHERE agent_id = $1",
        broken,
    )
    assert tuple(row.values()) == (None, None)


async def test_a_state_that_json_cannot_say_is_reported_not_dropped(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 1, pad_bytes=3)

    received = await restore(
        wire, lost(name), encoding=checkpoint_pb2.STATE_ENCODING_JSON
    )

    (agent,) = received.agents
    assert agent.error.reason == error_reason_pb2.ERROR_REASON_VALUE_NOT_STORABLE


async def test_with_every_checkpoint_dropped_all_come_back_from_their_messages(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 5)
    dropped = await wire.checkpoints.PruneCheckpoints(
        checkpoint_service_pb2.PruneCheckpointsRequest(
            selector=agent_pb2.AgentSelector(framework=name), drop_all=True
        ),
        metadata=wire.key,
    )
    assert dropped.checkpoint_count == 5

    received = await restore(wire, lost(name))

    assert received.end is not None
    assert received.end.rebuilt_count == 5
    for agent in received.agents:
        assert agent.rebuilt
        assert not agent.HasField("checkpoint")
        assert not agent.HasField("state")
        texts = [message.message_id for message in agent.new_messages]
        assert texts == ["question", "answer"]
    # The next step is a later keyframe, and then it is whole again.
    fence = received.agents[0].fence
    await write(wire, fence, 2, "rebuilt")


async def test_workers_that_pull_at_once_share_the_pool(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 120)
    recovery_id = await start(wire, lost(name))

    parts = await asyncio.gather(*(restore(wire, recovery_id) for _ in range(4)))

    together = [agent_id for part in parts for agent_id in part.ids]
    assert len(together) == len(set(together)) == 120


async def test_an_open_stream_renews_the_lease_that_it_fills(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 1)
    held_by = lease(seconds=1)
    call = stream(wire, lost(name), held_by, follow=True)
    received = Received()
    while not received.agents:
        received.add(await call.read())

    await asyncio.sleep(2.0)

    alive = "SELECT expire_time > now() FROM perdure_store.leases WHERE lease_id = $1"
    assert await connection.fetchval(alive, uuid.UUID(held_by.lease_id))
    call.cancel()
    await asyncio.sleep(1.6)
    assert not await connection.fetchval(alive, uuid.UUID(held_by.lease_id))


async def test_a_recovery_is_watched_until_nothing_is_outstanding(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 3)
    recovery_id = await start(wire, lost(name))
    states: dict[str, int] = {}
    sums: list[pb.Recovery] = []

    async def follow() -> None:
        request = pb.WatchRecoveryRequest(recovery_id=recovery_id)
        call = wire.recoveries.WatchRecovery(request, metadata=wire.key)
        async for response in call:
            for agent in response.progress.agents:
                states[agent.agent_id] = agent.state
            if response.HasField("progress"):
                sums.append(response.progress.recovery)
        assert response.HasField("end")

    watching = asyncio.create_task(follow())
    received = await restore(wire, recovery_id)
    await write(wire, received.agents[0].fence, 2, "resumed")
    await wire.append(received.ids[1], said("user", role="user"))
    append = commit_service_pb2.AppendOperation(
        messages=[said("own", role="assistant")]
    )
    await wire.commits.Commit(
        commit_service_pb2.CommitRequest(
            fence=received.agents[1].fence,
            operations=[commit_service_pb2.Operation(append=append)],
        ),
        metadata=wire.key,
    )
    await asyncio.sleep(0.6)
    assert not watching.done()
    await wire.agents.ReleaseAgents(
        agent_service_pb2.ReleaseAgentsRequest(fences=[received.agents[2].fence]),
        metadata=wire.key,
    )

    async with asyncio.timeout(10):
        await watching

    assert set(states.values()) == {pb.RECOVERY_STATE_RESUMED}
    last = sums[-1]
    assert (last.fenced_count, last.restored_count, last.resumed_count) == (3, 3, 3)
