"""Two server processes on one database are one store."""

import asyncio
from collections.abc import Iterator

import pytest

import perdure
from tests.support.cluster import open_folder
from tests.support.server import ServerProcess

APPENDERS = 64
EACH = 25


@pytest.fixture(scope="module")
def two_servers(database_dsn: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with (
        open_folder() as one,
        open_folder() as other,
        ServerProcess(one, dsn=database_dsn) as first,
        ServerProcess(other, dsn=database_dsn) as second,
    ):
        yield first, second


async def test_64_appenders_through_two_servers_leave_a_dense_sequence(
    two_servers: tuple[ServerProcess, ServerProcess],
) -> None:
    acknowledged: dict[str, int] = {}

    async def append(client: perdure.AsyncClient, writer: int) -> None:
        for number in range(EACH):
            message_id = f"{writer}-{number}"
            placed = await client.history.append(
                "hot",
                [{"role": "user", "content": message_id}],
                message_ids=[message_id],
            )
            acknowledged[message_id] = placed.messages[0].seq

    first, second = two_servers
    async with (
        perdure.connect(first.address, key=first.key, timeout_s=60) as one,
        perdure.connect(second.address, key=second.key, timeout_s=60) as other,
    ):
        await one.history.create("hot")
        async with asyncio.TaskGroup() as writers:
            for writer in range(APPENDERS):
                client = one if writer % 2 else other
                writers.create_task(append(client, writer))
        stored = [(m.seq, m.message_id) async for m in one.history.read("hot")]

    assert [seq for seq, _ in stored] == list(range(APPENDERS * EACH))
    assert {message_id: seq for seq, message_id in stored} == acknowledged
    for writer in range(APPENDERS):
        own = [acknowledged[f"{writer}-{number}"] for number in range(EACH)]
        assert own == sorted(own)


async def test_a_follower_sees_what_another_server_stores(
    two_servers: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = two_servers
    async with (
        perdure.connect(first.address, key=first.key) as writer,
        perdure.connect(second.address, key=second.key) as reader,
    ):
        await writer.history.create("followed")

        async def follow() -> list[str]:
            seen: list[str] = []
            async for message in reader.history.read("followed", follow=True):
                seen.append(message.message_id)
                if len(seen) == 3:
                    return seen
            return seen

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            following = group.create_task(follow())
            for name in ("a", "b", "c"):
                payload = {"role": "user", "content": name}
                await writer.history.append("followed", [payload], message_ids=[name])
                await asyncio.sleep(0.3)

    assert following.result() == ["a", "b", "c"]
