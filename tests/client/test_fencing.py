"""What a worker learns when another one takes its agent."""

import asyncio

import pytest

import perdure
from tests.client.conftest import Connect, write_step


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def fence(operator: perdure.AsyncClient, name: str) -> None:
    started = await operator.recovery.start(ids=[name], even_live=True)
    assert started.fenced_count == 1


async def test_a_stale_write_is_refused_and_ends_the_block(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:

    async def work() -> None:
        async with connect().agents.acquire(name) as agent:
            await write_step(agent, said("mine"), state=1)
            await fence(client, name)
            await write_step(agent, said("not mine"), state=2)

    with pytest.raises(perdure.Fenced) as caught:
        await work()
    assert caught.value.reason == "STALE_FENCE"
    assert not caught.value.committed
    assert await client.history.load(name) == [said("mine")]
    assert (await client.checkpoints.get(name)).state == 1


async def test_the_renewal_finds_the_stale_fence_and_cancels_the_block(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    worker = connect(lease_ttl_s=1.0)

    async def work() -> None:
        async with asyncio.timeout(20), worker.agents.acquire(name):
            await fence(client, name)
            await asyncio.sleep(60)
            raise AssertionError("the block was not cancelled")

    with pytest.raises(perdure.Fenced) as caught:
        await work()
    assert caught.value.metadata["agent_id"] == name
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_stale_write_in_a_child_task_cancels_the_block(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    worker = connect()
    results: list[BaseException | None] = []

    async def tool(agent: perdure.Agent) -> None:
        try:
            await write_step(agent, said("late"))
        except perdure.Fenced as error:
            results.append(error)

    async def work() -> None:
        async with worker.agents.acquire(name) as agent, asyncio.TaskGroup() as group:
            await fence(client, name)
            group.create_task(tool(agent))
            await asyncio.sleep(60)

    with pytest.raises(perdure.Fenced):
        await asyncio.wait_for(work(), 20)
    assert len(results) == 1


async def test_a_fenced_agent_lets_no_step_in(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    agent = await connect().agents.acquire(name)
    await fence(client, name)
    for _ in range(2):
        with pytest.raises(perdure.Fenced):
            await write_step(agent, said("x"))
    await agent.release()

    other = await client.agents.acquire(name)
    assert other.epoch > agent.epoch
    await other.release()


async def test_a_worker_that_missed_its_renewals_still_writes(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    worker = connect(lease_ttl_s=1.0)
    agent = await worker.agents.acquire(name)
    renewal = worker.leases._renewal
    assert renewal is not None
    renewal.stop()
    await asyncio.sleep(2.5)

    lost = [
        each.agent_id async for each in client.agents.list(ids=[name], lease="lost")
    ]
    await write_step(agent, said("late but mine"), state=1)

    assert lost == [name]
    assert await client.history.load(name) == [said("late but mine")]


async def test_a_blocked_event_loop_does_not_cost_the_lease(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    import time

    worker = connect(lease_ttl_s=1.0)
    agent = await worker.agents.acquire(name)
    time.sleep(2.5)  # noqa: ASYNC251 - a tool that blocks is the point

    live = [
        each.agent_id async for each in client.agents.list(ids=[name], lease="live")
    ]
    assert live == [name]
    await agent.release()


async def test_an_ended_lease_fences_its_agents_and_a_new_one_is_made(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    from perdure.v1.agent_service_pb2 import ReleaseAgentsRequest

    worker = connect(lease_ttl_s=1.0)
    first = worker.leases.lease_id

    async def work() -> None:
        async with asyncio.timeout(20), worker.agents.acquire(name):
            await client._channel.call(
                lambda stubs: stubs.agents.ReleaseAgents,
                ReleaseAgentsRequest(revoke_lease_id=first),
            )
            await asyncio.sleep(60)

    with pytest.raises(perdure.Fenced) as caught:
        await work()
    assert caught.value.reason == "LEASE_REVOKED"

    async with worker.agents.acquire(name) as agent:
        await write_step(agent, said("again"))
    assert worker.leases.lease_id != first


async def test_a_second_claim_of_the_same_worker_fences_its_first(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    # R55: ownership is a claim, never the worker's name.
    worker = connect(owner="w1")
    first = await worker.agents.acquire(name)
    await fence(client, name)
    second = await worker.agents.acquire(name)

    assert first.fenced
    with pytest.raises(perdure.Fenced):
        await write_step(first, said("old attempt"))
    await write_step(second, said("new attempt"))
    await first.release()

    assert await client.history.load(name) == [said("new attempt")]
    await write_step(second, said("still mine"))
    await second.release()
