"""Owning an agent and writing its steps, on a real server."""

import asyncio
import random
from contextlib import suppress

import pytest

import perdure
from perdure.v1.agent_pb2 import LEASE_STATE_FREE, LEASE_STATE_LIVE
from tests.client.conftest import Connect, write_step


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def state_of(client: perdure.AsyncClient, name: str) -> int:
    async for agent in client.agents.list(ids=[name]):
        return agent.lease_state
    raise AssertionError("there is no such agent")


async def test_a_step_is_one_commit_and_the_next_owner_stands_there(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user("where is my order?")])
    async with client.agents.acquire(name, framework="own") as agent:
        assert agent.state_or({"done": False}) == {"done": False}
        assert not agent.has_state
        assert [each.payload for each in agent.new_messages] == [
            user("where is my order?")
        ]
        async with agent.step() as step:
            promised = step.append(said("on its way"))
            step.checkpoint({"done": True, "vector": [0.5] * 64, "n": 2**200})
        assert step.result.step == agent.last_step == 1
        assert [each.message_id for each in step.result.messages] == [
            promised.message_id
        ]
        assert [each.seq for each in step.result.messages] == [1]
        assert agent.read_seq == 2

    async with client.agents.acquire(name) as agent:
        assert agent.state == {"done": True, "vector": [0.5] * 64, "n": 2**200}
        assert agent.state_or(None) == agent.state
        assert agent.last_step == 1
        assert agent.epoch > 1
        assert agent.new_messages == []
        assert agent.read_seq == 2
    assert await client.history.load(name) == [
        user("where is my order?"),
        said("on its way"),
    ]


async def test_nothing_is_written_when_the_block_raises(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        with suppress(ZeroDivisionError):
            async with agent.step() as step:
                step.append(said("half a thought"))
                step.checkpoint({"n": 1})
                raise ZeroDivisionError
        assert agent.last_step == 0
        assert not step.committed
        async with agent.step() as step:
            step.append(said("a whole one"))

    assert await client.history.load(name) == [said("a whole one")]


async def test_an_empty_step_writes_nothing(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        async with agent.step():
            pass
        assert agent.last_step == 0


async def test_a_state_that_cannot_be_kept_is_refused_with_its_path(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        with pytest.raises(perdure.Invalid) as caught:
            await write_step(agent, said("x"), state={"tools": [1, object()]})
        assert caught.value.path == "$.tools[1]"
        assert agent.last_step == 0
        async with agent.step() as step:
            step.checkpoint({"tools": [1]})
        assert agent.last_step == 1

    assert await client.history.load(name) == []


async def test_a_state_above_the_limit_is_refused_before_it_is_sent(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        with pytest.raises(perdure.Invalid) as caught:
            async with agent.step() as step:
                step.checkpoint(random.Random(2).randbytes(3_200_000))
    assert caught.value.reason == "LIMIT_EXCEEDED"
    assert caught.value.metadata["limit"] == str(3 * 1024 * 1024)


async def test_a_step_above_the_limit_names_the_limit(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        with pytest.raises(perdure.Invalid) as caught:
            await write_step(agent, said("x" * 2_000_000), said("y" * 2_000_000))
    assert caught.value.reason == "LIMIT_EXCEEDED"


async def test_steps_of_one_agent_do_not_overlap(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        async with agent.step() as outer:
            outer.append(said("outer"))
            with pytest.raises(perdure.Invalid) as caught:
                async with agent.step():
                    pass
        assert caught.value.reason == "STEP_OPEN"
        assert agent.last_step == 1
        with pytest.raises(perdure.Invalid, match="not open"):
            outer.append(said("too late"))


async def test_input_between_read_and_commit_stays_unread(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user("first")])
    async with client.agents.acquire(name) as agent:
        async with agent.step() as step:
            await client.history.append(name, [user("second")])
            step.append(said("answer to first"))
            step.checkpoint({"read": 1})
        assert agent.read_seq == 1

    async with client.agents.acquire(name) as agent:
        assert [each.payload for each in agent.new_messages] == [user("second")]
        assert agent.read_seq == 3


async def test_read_messages_gives_what_others_added_once(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        assert await agent.read_messages() == []
        async with agent.step() as step:
            step.append(said("hello?"))
            step.checkpoint(1)
        await client.history.append(name, [user("yes"), user("I am here")])
        got = await agent.read_messages()
        assert [each.payload for each in got] == [user("yes"), user("I am here")]
        assert await agent.read_messages() == []
        assert agent.read_seq == 3


async def test_expected_seq_refuses_to_answer_over_unread_input(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        await client.history.append(name, [user("wait")])
        with pytest.raises(perdure.Conflict):
            async with agent.step(expected_seq=agent.read_seq) as step:
                step.append(said("answer"))
        await agent.read_messages()
        async with agent.step(expected_seq=agent.read_seq) as step:
            step.append(said("better answer"))
        assert agent.last_step == 1


async def test_a_held_agent_is_refused_naming_owner_and_end(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    holder = connect(owner="worker-7")
    async with holder.agents.acquire(name):
        with pytest.raises(perdure.Refused, match="worker-7") as caught:
            async with client.agents.acquire(name):
                pass
    assert caught.value.reason == "LEASE_HELD"
    assert caught.value.metadata["owner"] == "worker-7"
    assert caught.value.metadata["expire_time"].startswith("20")


async def test_an_agent_keeps_its_conversation(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name, conversation_id=f"{name}-a") as agent:
        assert agent.conversation_id == f"{name}-a"

    with pytest.raises(perdure.Invalid) as caught:
        async with client.agents.acquire(name, conversation_id=f"{name}-b"):
            pass
    assert caught.value.reason == "ID_REUSED"


async def test_an_agent_is_free_after_its_block_however_it_ends(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name):
        assert await state_of(client, name) == LEASE_STATE_LIVE
    assert await state_of(client, name) == LEASE_STATE_FREE

    with pytest.raises(ZeroDivisionError):
        async with client.agents.acquire(name):
            raise ZeroDivisionError
    assert await state_of(client, name) == LEASE_STATE_FREE

    async def hang() -> None:
        async with client.agents.acquire(name):
            acquired.set()
            await asyncio.sleep(60)

    acquired = asyncio.Event()
    task = asyncio.create_task(hang())
    await acquired.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await state_of(client, name) == LEASE_STATE_FREE


async def test_a_release_that_is_cancelled_is_made_up_for(
    connect: Connect, name: str
) -> None:
    worker = connect(lease_ttl_s=1.0)
    entered = asyncio.Event()

    async def hold() -> None:
        async with worker.agents.acquire(name):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    async with asyncio.timeout(10):
        while not [a async for a in worker.agents.list(ids=[name], lease="free")]:
            await asyncio.sleep(0.05)


async def test_a_released_agent_writes_no_more(
    client: perdure.AsyncClient, name: str
) -> None:
    agent = await client.agents.acquire(name)
    await agent.release()
    await agent.release()

    with pytest.raises(perdure.Invalid) as caught:
        async with agent.step() as step:
            step.append(said("x"))
    assert caught.value.reason == "RELEASED"


async def test_agents_still_held_at_the_clients_end_are_lost_at_once(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    async with connect(lease_ttl_s=600) as worker:
        await worker.agents.acquire(name)

    lost = [
        agent.agent_id async for agent in client.agents.list(lease="lost", all=True)
    ]
    assert name in lost


async def test_an_owned_conversation_needs_the_agents_fence(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    made = await client.admin.create_key(scopes=["read", "write"])
    outsider = connect(key=made.key)
    async with client.agents.acquire(name):
        await outsider.history.append(name, [user("allowed")])
        with pytest.raises(perdure.Refused) as caught:
            await outsider.history.append(name, [said("not allowed")])
    assert caught.value.reason == "FENCE_REQUIRED"


async def test_an_empty_selection_is_refused(client: perdure.AsyncClient) -> None:
    with pytest.raises(perdure.Invalid) as caught:
        await client.agents.list().__anext__()
    assert caught.value.reason == "SELECTOR_EMPTY"
    with pytest.raises(perdure.Invalid) as caught:
        await client.agents.list(ids=[]).__anext__()
    assert caught.value.reason == "SELECTOR_EMPTY"


async def test_a_sub_agents_state_is_part_of_the_parents_commit(
    client: perdure.AsyncClient, name: str
) -> None:
    child_id = f"{name}-child"
    async with client.agents.acquire(name):
        pass
    async with client.agents.acquire(child_id, parent_agent_id=name):
        pass

    async with client.agents.acquire(name) as parent:
        child = parent.sub_agents[child_id]
        async with parent.step() as step:
            step.append(said("both"))
            step.checkpoint("parent")
            step.checkpoint("child", agent=child)
        assert child.last_step == parent.last_step == 1

    assert (await client.checkpoints.get(child_id)).state == "child"
    assert await state_of(client, child_id) == LEASE_STATE_FREE
    with pytest.raises(perdure.Invalid) as caught:
        child.check_held()
    assert caught.value.reason == "RELEASED"


async def test_an_agent_claimed_by_itself_takes_steps_of_its_own(
    client: perdure.AsyncClient, name: str
) -> None:
    async with (
        client.agents.acquire(name) as parent,
        client.agents.acquire(f"{name}-child", parent_agent_id=name) as child,
    ):
        with pytest.raises(perdure.Invalid, match="steps of its own"):
            async with parent.step() as step:
                step.checkpoint(1, agent=child)


async def test_checkpoints_are_read_listed_and_pruned_outside_of_steps(
    client: perdure.AsyncClient, name: str
) -> None:
    async with client.agents.acquire(name) as agent:
        for n in range(3):
            async with agent.step() as step:
                step.checkpoint({"n": n})

    listed = [each.step async for each in client.checkpoints.list(name, page_size=2)]
    assert listed == [3, 2, 1]
    assert (await client.checkpoints.get(name)).state == {"n": 2}
    assert (await client.checkpoints.get(name, step=1)).state == {"n": 0}
    with pytest.raises(perdure.NotFound) as missing:
        await client.checkpoints.get(name, step=9)
    assert missing.value.reason == "CHECKPOINT_NOT_FOUND"

    plan = await client.checkpoints.prune(ids=[name], drop_all=True, dry_run=True)
    done = await client.checkpoints.prune(ids=[name], drop_all=True)
    assert plan.checkpoint_count == done.checkpoint_count == 3
    with pytest.raises(perdure.Refused) as pruned:
        await client.checkpoints.get(name)
    assert pruned.value.reason == "PRUNED"


async def test_an_agent_without_its_checkpoints_is_rebuilt_from_its_messages(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user("1")])
    async with client.agents.acquire(name) as agent, agent.step() as step:
        step.append(said("2"))
        step.checkpoint({"n": 1})
    await client.checkpoints.prune(ids=[name], drop_all=True)

    async with client.agents.acquire(name) as agent:
        assert agent.rebuilt
        assert agent.state_or("none") == "none"
        assert [each.payload for each in agent.new_messages] == [user("1"), said("2")]
        assert agent.last_step == 1
        async with agent.step() as step:
            step.checkpoint({"n": 2})
        assert agent.last_step == 2
        assert not agent.rebuilt


async def test_a_broken_checkpoint_raises_and_is_not_none(
    client: perdure.AsyncClient, name: str, connection: object
) -> None:
    async with client.agents.acquire(name) as agent:
        for n in range(2):
            async with agent.step() as step:
                step.checkpoint({"n": n})
    changed = await connection.execute(  # type: ignore[attr-defined]
        "UPDATE perdure_store.checkpoints"
        " SET frame = set_byte(frame, 73, get_byte(frame, 73) # 1)"
        " WHERE agent_id = $1 AND step = 2",
        name,
    )
    assert changed == "UPDATE 1"

    with pytest.raises(perdure.DataLoss) as caught:
        async with client.agents.acquire(name) as agent:
            pass
    assert caught.value.reason == "FRAME_CORRUPT"
    assert caught.value.last_good_step == 1
    assert await state_of(client, name) == LEASE_STATE_FREE
