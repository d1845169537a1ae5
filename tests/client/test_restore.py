"""A fleet comes back through the client, on a real server."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pytest

import perdure
from perdure.restore import BrokenAgent
from tests.client.conftest import Connect, write_step
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def leave_fleet(
    connect: Connect, name: str, count: int, *, pad_bytes: int = 0
) -> list[str]:
    """Make agents with two steps each, and leave them lost."""
    pad = random.Random(1).randbytes(pad_bytes)
    async with connect(labels={"node": name}) as worker:
        ids = [f"{name}-{n:03}" for n in range(count)]
        for each in ids:
            await worker.history.append(each, [user(f"to {each}")])
            agent = await worker.agents.acquire(each, framework=name)
            await write_step(agent, said("1"), state={"n": 1, "id": each, "pad": pad})
            await write_step(agent, said("2"), state={"n": 2, "id": each, "pad": pad})
    return ids


async def test_a_lost_fleet_comes_back_where_it_stood(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    ids = await leave_fleet(connect, name, 40)
    await client.history.append(ids[7], [user("are you there?")])

    back = {}
    async for agent in client.agents.restore(framework=name):
        back[agent.agent_id] = agent

    assert sorted(back) == ids
    for each, agent in back.items():
        assert agent.state == {"n": 2, "id": each, "pad": b""}
        assert agent.last_step == 2
        assert not agent.rebuilt
    assert [m.payload for m in back[ids[7]].new_messages] == [user("are you there?")]
    assert all(not back[each].new_messages for each in ids if each != ids[7])
    async with back[ids[7]] as agent:
        await write_step(agent, said("yes"), state={"n": 3})
        assert agent.last_step == 3


async def test_an_orchestrated_recovery_is_watched_until_all_have_resumed(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    worker = connect(labels={"node": name}, lease_ttl_s=600)
    ids = [f"{name}-{n}" for n in range(5)]
    old = [await worker.agents.acquire(each) for each in ids]
    for agent in old:
        await write_step(agent, said("1"), state=1)
    plan = await client.recovery.start(
        labels={"node": name}, even_live=True, dry_run=True
    )
    started = await client.recovery.start(labels={"node": name}, even_live=True)
    assert plan.fenced_count == started.fenced_count == 5

    async def watch() -> Any:
        async for progress in client.recovery.watch(started.recovery_id):
            last = progress.recovery
        return last

    watching = asyncio.create_task(watch())
    new = connect(labels={"node": "new"})
    async for agent in new.agents.restore(recovery_id=started.recovery_id):
        async with agent:
            await write_step(agent, said("2"), state=2)
    last = await asyncio.wait_for(watching, 30)
    assert last.resumed_count == 5

    with pytest.raises(perdure.Fenced):
        await write_step(old[0], said("late"), state=9)
    assert await client.history.load(ids[0]) == [said("1"), said("2")]


async def test_a_subtree_comes_back_together(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    child_id = f"{name}-child"
    async with connect() as worker:
        await worker.agents.acquire(name, agent_slug=name)
        child = await worker.agents.acquire(child_id, parent_agent_id=name)
        await write_step(child, state="child")

    back = [agent async for agent in client.agents.restore(agent_slug=name)]

    assert [agent.agent_id for agent in back] == [name, child_id]
    parent = back[0]
    async with parent, parent.step() as step:
        step.checkpoint("parent")
        step.checkpoint("child, again", agent=parent.sub_agents[child_id])
    assert (await client.checkpoints.get(child_id)).state == "child, again"


async def test_at_most_bounds_what_a_worker_takes(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    ids = await leave_fleet(connect, name, 6)

    taken = [a.agent_id async for a in client.agents.restore(framework=name, at_most=4)]

    assert len(taken) == 4
    lost = [a.agent_id async for a in client.agents.list(framework=name, lease="lost")]
    assert sorted(taken + lost) == ids


async def test_following_takes_agents_that_are_lost_later(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    first = await leave_fleet(connect, f"{name}-a", 2)
    got = []
    restore = client.agents.restore(agent_slug=name, follow=True)
    async with connect() as worker:
        await worker.agents.acquire(f"{name}-x", agent_slug=name)
    async with asyncio.timeout(30):
        async for agent in restore:
            got.append(agent.agent_id)
            await agent.release()
            if len(got) == 2:
                break
            async with connect() as worker:
                await worker.agents.acquire(f"{name}-y", agent_slug=name)
    assert got == [f"{name}-x", f"{name}-y"]
    assert len(first) == 2


async def test_a_worker_that_waits_for_its_first_agent_warns_of_nothing(
    connect: Connect, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = connect(lease_ttl_s=1.0).agents.restore(agent_slug=name, follow=True)
    async with aclosing(aiter(waiting)) as agents:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await anext(agents)

    assert [record.getMessage() for record in caplog.records] == []


async def test_agents_without_checkpoints_come_back_rebuilt(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    ids = await leave_fleet(connect, name, 3)
    await client.checkpoints.prune(framework=name, drop_all=True)

    back = [agent async for agent in client.agents.restore(framework=name)]

    assert sorted(agent.agent_id for agent in back) == ids
    for agent in back:
        assert agent.rebuilt
        assert not agent.has_state
        assert [each.payload for each in agent.new_messages] == [
            user(f"to {agent.agent_id}"),
            said("1"),
            said("2"),
        ]
        async with agent:
            await write_step(agent, state="rebuilt")
            assert agent.last_step == 3


async def test_a_broken_agent_is_reported_and_harms_no_other(
    client: perdure.AsyncClient, connect: Connect, name: str, connection: Any
) -> None:
    ids = await leave_fleet(connect, name, 4)
    await connection.execute(
        "UPDATE perdure_store.checkpoints"
        " SET frame = set_byte(frame, 73, get_byte(frame, 73) # 1)"
        " WHERE agent_id = $1 AND step = 2",
        ids[1],
    )
    back = []

    async def restore(**options: Any) -> None:
        async for agent in client.agents.restore(framework=name, **options):
            back.append(agent)

    with pytest.raises(perdure.DataLoss, match=ids[1]) as caught:
        await restore()
    assert sorted(agent.agent_id for agent in back) == [ids[0], ids[2], ids[3]]
    assert caught.value.reason == "FRAME_CORRUPT"
    assert caught.value.last_good_step == 1
    assert isinstance(caught.value.agents[0], BrokenAgent)


async def test_a_broken_agent_goes_to_the_callback_when_there_is_one(
    client: perdure.AsyncClient, connect: Connect, name: str, connection: Any
) -> None:
    ids = await leave_fleet(connect, name, 1)
    await connection.execute(
        "UPDATE perdure_store.checkpoints SET frame = 'x' WHERE agent_id = $1", ids[0]
    )
    broken: list[BrokenAgent] = []

    restore = client.agents.restore(framework=name, on_broken=broken.append)
    assert [agent async for agent in restore] == []

    assert [each.agent_id for each in broken] == ids
    assert broken[0].last_good_step == 0


@pytest.mark.parametrize("pad_bytes", [0, 200_000])
async def test_what_was_not_taken_from_a_restore_is_free_again(
    client: perdure.AsyncClient, connect: Connect, name: str, pad_bytes: int
) -> None:
    ids = await leave_fleet(connect, name, 20, pad_bytes=pad_bytes)
    worker = connect()

    async with aclosing(aiter(worker.agents.restore(framework=name))) as agents:
        async for agent in agents:
            kept = agent
            break
        await asyncio.sleep(0.5)

    live = [each.agent_id async for each in client.agents.list(ids=ids, lease="live")]
    assert live == [kept.agent_id]
    async with kept:
        await write_step(kept, said("still mine"))


async def test_many_unread_messages_are_filled_up_by_reading(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    ids = await leave_fleet(connect, name, 1)
    for n in range(20):
        await client.history.append(ids[0], [user(f"{n} " + "x" * 200_000)])

    back = [agent async for agent in client.agents.restore(framework=name)]

    texts = [each.payload["content"].split()[0] for each in back[0].new_messages]
    assert texts == [str(n) for n in range(20)]
    assert back[0].read_seq == 23


async def test_cut_connections_neither_lose_nor_repeat_an_agent(
    client: perdure.AsyncClient, connect: Connect, server: ServerProcess, name: str
) -> None:
    # R53: the stream is resumed after what arrived.
    ids = await leave_fleet(connect, name, 60, pad_bytes=60_000)
    got: list[str] = []
    async with Proxy(server.address) as proxy:
        worker = connect(proxy.address)
        async for agent in worker.agents.restore(framework=name):
            got.append(agent.agent_id)
            if len(got) in (5, 20, 35):
                proxy.cut()
                await asyncio.sleep(0.05)
        await worker.close()

    assert sorted(got) == ids
    assert proxy.accepted > 1


async def test_a_recovery_takes_no_selection_of_its_own(
    client: perdure.AsyncClient,
) -> None:
    with pytest.raises(perdure.Invalid, match="leave the selection out"):
        client.agents.restore(recovery_id="x", framework="own")
    with pytest.raises(perdure.NotFound):
        async for _ in client.agents.restore(
            recovery_id="00000000-0000-4000-8000-000000000000"
        ):
            pass


async def test_closing_the_client_ends_a_restore_that_follows(
    connect: Connect, name: str
) -> None:
    client = connect()

    async def follow() -> None:
        async for _ in client.agents.restore(framework=name, follow=True):
            pass

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.5)
    await client.close()

    with pytest.raises(perdure.PerdureError) as caught:
        await asyncio.wait_for(following, 10)
    assert caught.value.reason in ("CLIENT_CLOSED", "LEASE_REVOKED")


async def test_an_abandoned_iteration_leaves_nothing_behind(
    connect: Connect, name: str
) -> None:
    await leave_fleet(connect, name, 2)

    async with connect() as client:
        async for agent in client.agents.restore(framework=name, follow=True):
            assert agent.has_state
            break
    await asyncio.sleep(0.1)
    others = [
        task.get_coro().__qualname__  # type: ignore[union-attr]
        for task in asyncio.all_tasks()
        if task is not asyncio.current_task()
    ]
    assert [each for each in others if "Restore" in each] == []
