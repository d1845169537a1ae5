"""Lost replies, cut connections, a killed server: work goes on, nothing twice."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import pytest

import perdure
from tests.client.conftest import Connect, write_step
from tests.support.cluster import open_folder
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
async def proxy(server: ServerProcess) -> AsyncIterator[Proxy]:
    async with Proxy(server.address) as running:
        yield running


async def until_stored(client: perdure.AsyncClient, name: str, count: int) -> None:
    async with asyncio.timeout(20):
        while (await client.history.get(name)).message_count < count:
            await asyncio.sleep(0.02)


async def test_a_commit_whose_reply_was_lost_is_no_conflict_and_no_duplicate(
    client: perdure.AsyncClient, connect: Connect, proxy: Proxy, name: str
) -> None:
    # R56: the same ids are sent again and answered as the first time.
    worker = connect(proxy.address)
    async with worker.agents.acquire(name) as agent:
        await write_step(agent, said("one"), state=1)
        proxy.lose_replies = True
        writing = asyncio.create_task(write_step(agent, said("two"), state=2))
        await until_stored(client, name, 2)
        assert not writing.done()
        proxy.lose_replies = False
        proxy.cut()
        await writing
        await write_step(agent, said("three"), state=3)

    assert proxy.lost_bytes > 0
    assert await client.history.load(name) == [said("one"), said("two"), said("three")]
    steps = [each.step async for each in client.checkpoints.list(name)]
    assert steps == [3, 2, 1]


@pytest.mark.parametrize("ending", ["its deadline", "a cancellation"])
async def test_an_acquire_of_unknown_outcome_leaves_the_agent_free(
    client: perdure.AsyncClient, connect: Connect, proxy: Proxy, name: str, ending: str
) -> None:
    worker = connect(proxy.address, timeout_s=2.0, lease_ttl_s=3.0)
    await worker.history.append(name, [said("one")])
    proxy.lose_replies = True
    acquiring = asyncio.ensure_future(worker.agents.acquire(name))
    async with asyncio.timeout(2):
        while not [each async for each in client.agents.list(ids=[name])]:
            await asyncio.sleep(0.02)
    if ending == "a cancellation":
        acquiring.cancel()
    with pytest.raises((perdure.Unavailable, asyncio.CancelledError)):
        await acquiring
    proxy.lose_replies = False
    proxy.cut()

    async with asyncio.timeout(20):
        while True:
            with suppress(perdure.PerdureError):
                agent = await worker.agents.acquire(name)
                break
            await asyncio.sleep(0.1)
    await agent.release()


async def test_a_worker_fenced_before_its_retry_learns_that_it_was_committed(
    client: perdure.AsyncClient, connect: Connect, proxy: Proxy, name: str
) -> None:
    agent = await connect(proxy.address).agents.acquire(name)
    proxy.lose_replies = True
    writing = asyncio.create_task(write_step(agent, said("one"), state=1))
    await until_stored(client, name, 1)
    await client.recovery.start(ids=[name], even_live=True)
    proxy.lose_replies = False
    proxy.cut()

    with pytest.raises(perdure.Fenced) as caught:
        await writing
    assert caught.value.committed
    assert await client.history.load(name) == [said("one")]


async def test_several_channels_are_several_connections(
    connect: Connect, proxy: Proxy, name: str
) -> None:
    async with connect(proxy.address, channels=3) as client:
        for n in range(6):
            await client.history.append(name, [said(str(n))])

    assert proxy.accepted == 3


async def test_an_append_whose_reply_was_lost_keeps_its_seqs(
    client: perdure.AsyncClient, connect: Connect, proxy: Proxy, name: str
) -> None:
    writer = connect(proxy.address)
    await writer.history.append(name, [said("zero")])
    proxy.lose_replies = True
    writing = asyncio.create_task(
        writer.history.append(name, [said("one"), said("two")], expected_seq=1)
    )
    await until_stored(client, name, 3)
    await client.history.append(name, [{"role": "user", "content": "meanwhile"}])
    proxy.lose_replies = False
    proxy.cut()

    answer = await writing
    assert [each.seq for each in answer.messages] == [1, 2]
    assert all(each.replayed for each in answer.messages)
    assert len(await client.history.load(name)) == 4


async def test_cut_connections_neither_lose_nor_repeat_a_message_of_a_read(
    client: perdure.AsyncClient, connect: Connect, proxy: Proxy, name: str
) -> None:
    reader = connect(proxy.address)
    for start in range(0, 300, 100):
        batch = [said(f"{n} " + "x" * 4000) for n in range(start, start + 100)]
        await client.history.append(name, batch)
    seen: list[int] = []

    async with asyncio.timeout(60), aclosing(reader.history.read(name)) as messages:
        async for message in messages:
            seen.append(message.seq)
            if message.seq % 90 == 89:
                proxy.cut()
                await asyncio.sleep(0)

    assert seen == list(range(300))
    assert proxy.accepted > 1


async def test_a_step_of_unknown_outcome_is_settled_before_the_next(
    client: perdure.AsyncClient, connect: Connect, proxy: Proxy, name: str
) -> None:
    worker = connect(proxy.address, timeout_s=1.0)
    agent = await worker.agents.acquire(name)
    proxy.lose_replies = True
    with pytest.raises(perdure.Unavailable):
        await write_step(agent, said("one"), state=1)
    with pytest.raises(perdure.Invalid) as caught:
        await write_step(agent, said("two"), state=2)
    assert caught.value.reason == "STEP_UNSETTLED"
    proxy.lose_replies = False
    proxy.cut()

    settled = await agent.settle()
    assert settled.step == 1
    assert settled.replayed
    assert agent.state == 1
    await write_step(agent, said("two"), state=2)
    await agent.release()
    assert await client.history.load(name) == [said("one"), said("two")]


async def test_a_step_cancelled_in_flight_is_settled_before_the_next(
    client: perdure.AsyncClient, connect: Connect, proxy: Proxy, name: str
) -> None:
    worker = connect(proxy.address)
    agent = await worker.agents.acquire(name)
    proxy.lose_replies = True
    writing = asyncio.create_task(write_step(agent, said("one"), state=1))
    await until_stored(client, name, 1)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    proxy.lose_replies = False
    proxy.cut()

    assert (await agent.settle()).replayed
    assert agent.last_step == 1
    await agent.release()


async def test_a_killed_server_costs_no_acknowledged_step_and_no_agent(
    database_dsn: str, name: str
) -> None:
    with open_folder() as folder, ServerProcess(folder, dsn=database_dsn) as server:
        client = perdure.connect(
            server.address, key=server.key, lease_ttl_s=3.0, timeout_s=30.0
        )
        async with client, client.agents.acquire(name) as agent:
            acknowledged = 0
            for n in range(60):
                if n in (15, 40):
                    server.kill()
                    server.port = int(server.address.rpartition(":")[2])
                    starting = asyncio.create_task(asyncio.to_thread(server.start))
                await write_step(agent, said(str(n)), state={"n": n})
                acknowledged += 1
            await starting
            assert not agent.fenced
            loaded = await client.history.load(name)
            assert loaded == [said(str(n)) for n in range(acknowledged)]
            assert (await client.checkpoints.get(name)).state == {"n": 59}


async def test_a_following_reader_survives_a_restart_of_the_server(
    database_dsn: str, name: str
) -> None:
    with open_folder() as folder, ServerProcess(folder, dsn=database_dsn) as server:
        client = perdure.connect(server.address, key=server.key, timeout_s=30.0)
        seen: list[int] = []
        async with client:
            await client.history.append(name, [said("0")])
            async with aclosing(client.history.read(name, follow=True)) as messages:
                async for message in messages:
                    seen.append(message.seq)
                    if len(seen) == 6:
                        break
                    if len(seen) in (2, 4):
                        # Once with a word of farewell, once without.
                        stop = server.stop if len(seen) == 2 else server.kill
                        await asyncio.to_thread(stop)
                        server.port = int(server.address.rpartition(":")[2])
                        await asyncio.to_thread(server.start)
                    await client.history.append(name, [said(str(len(seen)))])
        assert seen == list(range(6))


def test_clients_of_several_event_loops_live_side_by_side(
    server: ServerProcess, name: str
) -> None:
    # R49: each loop has its own client; nothing is shared between them.
    failures: list[BaseException] = []

    async def work(number: int) -> None:
        own = f"{name}-{number}"
        async with perdure.connect(server.address, key=server.key) as client:
            async with client.agents.acquire(own) as agent:
                for n in range(10):
                    await write_step(agent, said(str(n)), state=n)
            assert len(await client.history.load(own)) == 10

    def run(number: int) -> None:
        try:
            asyncio.run(work(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


async def test_a_client_used_in_another_loop_says_so(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [said("x")])

    def elsewhere() -> None:
        with pytest.raises(perdure.Invalid) as caught:
            asyncio.run(client.history.load(name))
        assert caught.value.reason == "OTHER_LOOP"

    await asyncio.to_thread(elsewhere)


_FORKING = """
import asyncio, os, sys
import perdure

async def main():
    client = perdure.connect()
    await client.history.append("forked", [{"role": "user", "content": "x"}])
    child = os.fork()
    if child == 0:
        try:
            call = client.history.get("forked")
            call.send(None)
        except perdure.Invalid as error:
            os.write(1, str(error).encode())
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    await client.history.get("forked")
    await client.close()
    return os.waitstatus_to_exitcode(status)

sys.exit(asyncio.run(main()))
"""


async def test_a_forked_child_is_told_to_connect_itself(server: ServerProcess) -> None:
    # R47: gRPC does not survive a fork; the parent must not notice it.
    environment = os.environ | {
        "PERDURE_TARGET": server.address,
        "PERDURE_KEY": server.key,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _FORKING,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)

    assert process.returncode == 7, errors.decode()
    assert b"opened before fork" in out
    assert b"perdure.connect() in the child" in out
