"""RestoreAgents on the wire: every agent once, and a resumed stream has no gap."""

import asyncio
import uuid
from typing import Any

import asyncpg
import grpc.aio
import pytest

import perdure_codec
from perdure.v1 import (
    agent_pb2,
    agent_service_pb2,
    history_service_pb2,
)
from tests.support.cluster import open_folder
from tests.support.restoring import (
    Received,
    lease,
    leave,
    lost,
    over,
    restore,
    start,
    stream,
    watch,
)
from tests.support.server import ServerProcess
from tests.support.wire import Wire, refused, said


@pytest.mark.parametrize("orchestrated", [False, True])
async def test_every_agent_comes_once_with_its_state_and_what_it_has_not_read(
    wire: Wire, connection: asyncpg.Connection, name: str, orchestrated: bool
) -> None:
    fences = await leave(wire, connection, name, 70)
    await wire.append(f"{name}-007", said("are you there?"))
    origin: Any = lost(name)
    if orchestrated:
        origin = await start(wire, lost(name))

    received = await restore(wire, origin)

    assert sorted(received.ids) == sorted(fences)
    for agent in received.agents:
        agent_id = agent.agent.agent_id
        (frame,) = agent.state.frames.frames
        assert perdure_codec.decode(frame) == {"id": agent_id, "pad": b""}
        assert agent.fence.epoch > fences[agent_id].epoch
        assert agent.checkpoint.step == agent.agent.head_step == 1
        assert agent.next_message_seq == agent.message_count
        texts = [message.message_id for message in agent.new_messages]
        assert texts == (["are you there?"] if agent_id.endswith("-007") else [])
    assert received.end is not None
    assert received.end.reason == history_service_pb2.STREAM_END_REASON_COMPLETE
    assert (await restore(wire, origin)).ids == []


async def test_at_most_is_kept_and_the_next_worker_takes_the_rest(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 50)
    recovery_id = await start(wire, lost(name))

    first = await restore(wire, recovery_id, at_most=33)
    second = await restore(wire, recovery_id, at_most=33)

    assert len(first.agents) == 33
    assert len(second.agents) == 17
    assert not set(first.ids) & set(second.ids)


async def test_live_agents_before_lost_ones_hide_none(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    for n in range(3):
        await leave(wire, connection, f"{name}-{n}", 1)
    held = [
        agent_service_pb2.AgentSpec(
            agent_id=f"{name}-0-held-{n:03}", claim_id=str(uuid.uuid4())
        )
        for n in range(250)
    ]
    await wire.agents.AcquireAgents(
        agent_service_pb2.AcquireAgentsRequest(lease=lease(), agents=held),
        metadata=wire.key,
    )

    received = await restore(wire, agent_pb2.AgentSelector(all=True))

    assert set(received.ids) >= {f"{name}-{n}-000" for n in range(3)}
    assert not {agent_id for agent_id in received.ids if "held" in agent_id}


async def test_a_stream_that_broke_is_resumed_without_gap_under_the_same_fences(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    fences = await leave(wire, connection, name, 60, pad_bytes=30_000)
    for agent_id in list(fences)[:8]:
        await leave(wire, connection, f"{agent_id}-sub", 1, parent=agent_id)
    selector = agent_pb2.AgentSelector(lease_state=agent_pb2.LEASE_STATE_LOST)
    held_by = lease()
    seen: dict[str, tuple[int, str]] = {}
    token = ""
    for cut in (1, 2, 3, 1, 4, 2, 100):
        received = Received()
        call = stream(wire, selector, held_by, resume_token=token)
        for _ in range(cut):
            response = await call.read()
            if response is grpc.aio.EOF:
                break
            received.add(response)
        call.cancel()
        for agent in received.agents:
            fence = (agent.fence.epoch, agent.fence.claim_id)
            assert seen.setdefault(agent.agent.agent_id, fence) == fence
        token = received.tokens[-1] if received.tokens else token
        await asyncio.sleep(0.05)

    assert received.end is not None
    own = {agent_id for agent_id in seen if agent_id.startswith(name)}
    assert own == set(fences) | {f"{each}-sub-000" for each in list(fences)[:8]}


async def test_a_token_repeats_nothing_that_was_delivered_before_it(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 40)
    held_by = lease()
    received = await restore(wire, lost(name), held_by)

    again = await restore(wire, lost(name), held_by, resume_token=received.tokens[-1])
    whole = await restore(wire, lost(name), held_by, resume_token=received.tokens[0])

    assert again.ids == []
    assert whole.ids == received.ids
    assert [agent.fence for agent in whole.agents] == [
        agent.fence for agent in received.agents
    ]


async def test_a_new_stream_of_a_worker_repeats_nothing_that_it_holds(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 10)
    held_by = lease()
    first = await restore(wire, lost(name), held_by, at_most=4)

    second = await restore(wire, lost(name), held_by)
    resumed = await restore(wire, lost(name), held_by, resume_token=second.tokens[0])

    assert not set(first.ids) & set(second.ids)
    assert resumed.ids == second.ids


async def test_a_token_is_of_its_lease_and_its_origin(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 1)
    held_by = lease()
    token = (await restore(wire, lost(name), held_by)).tokens[-1]

    for origin, other, text in (
        (lost(name), lease(), token),
        (lost("other"), held_by, token),
        (lost(name), held_by, token[:-4] + "AAAA"),
        (lost(name), held_by, "no token"),
    ):
        with refused("TOKEN_STALE"):
            await restore(wire, origin, other, resume_token=text)


async def test_a_follower_gets_what_is_lost_later_but_not_what_was_given_back(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    await leave(wire, connection, name, 1)
    call = stream(wire, agent_pb2.AgentSelector(framework=name), follow=True)
    received = Received()
    while not received.agents:
        received.add(await call.read())
    fence = received.agents[0].fence
    await wire.agents.ReleaseAgents(
        agent_service_pb2.ReleaseAgentsRequest(fences=[fence]), metadata=wire.key
    )
    held_by = lease()
    spec = agent_service_pb2.AgentSpec(
        agent_id=f"{name}-later", framework=name, claim_id=str(uuid.uuid4())
    )
    await wire.agents.AcquireAgents(
        agent_service_pb2.AcquireAgentsRequest(lease=held_by, agents=[spec]),
        metadata=wire.key,
    )
    await asyncio.sleep(1.2)
    await over(connection, held_by)

    async with asyncio.timeout(10):
        while len(received.agents) < 2:
            received.add(await call.read())
    call.cancel()

    assert received.ids == [f"{name}-000", f"{name}-later"]
    assert not received.agents[1].HasField("checkpoint")


async def test_a_stopping_server_ends_the_stream_with_a_token(
    database_dsn: str, connection: asyncpg.Connection, wire: Wire, name: str
) -> None:
    await leave(wire, connection, name, 3)
    held_by = lease()
    with open_folder() as folder, ServerProcess(folder, dsn=database_dsn) as other:
        near = Wire(other.address, other.key)
        received = Received()
        call = stream(near, lost(name), held_by, follow=True)
        while not received.agents:
            received.add(await call.read())
        stopping = asyncio.create_task(asyncio.to_thread(other.stop))
        while received.end is None:
            received.add(await call.read())
        await stopping
        await near.channel.close()
    reason = history_service_pb2.STREAM_END_REASON_SHUTTING_DOWN
    assert received.end.reason == reason

    again = await restore(
        wire, lost(name), held_by, resume_token=received.end.resume_token
    )

    assert again.ids == []


async def test_what_a_restore_needs_is_checked_first(wire: Wire, name: str) -> None:
    with refused("RECOVERY_NOT_FOUND"):
        await restore(wire, str(uuid.uuid4()))
    with refused("RECOVERY_NOT_FOUND"):
        await watch(wire, str(uuid.uuid4()))
    with refused("SELECTOR_EMPTY"):
        await restore(wire, agent_pb2.AgentSelector())
    with refused("SELECTOR_EMPTY"):
        await start(wire, agent_pb2.AgentSelector())
    with refused("VALUE_NOT_STORABLE"):
        await restore(wire, "no uuid")
    with refused("VALUE_NOT_STORABLE"):
        await restore(wire, lost(name), agent_pb2.LeaseSpec())
    with refused("VALUE_NOT_STORABLE"):
        await restore(wire, lost(name), at_most=-1)
