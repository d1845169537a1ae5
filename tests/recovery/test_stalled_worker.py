"""A worker that stops reading: dropped, and what it took comes back to the pool."""

import asyncio

import asyncpg

from tests.support.cluster import open_folder
from tests.support.restoring import lease, leave, lost, restore, stream
from tests.support.server import ServerProcess
from tests.support.wire import Wire


# R48
async def test_a_stalled_worker_is_dropped_and_its_agents_are_lost_again(
    database_dsn: str, connection: asyncpg.Connection, name: str
) -> None:
    flags = ("--stream-idle-timeout-s", "1")
    with open_folder() as folder, ServerProcess(folder, *flags, dsn=database_dsn) as s:
        wire = Wire(s.address, s.key)
        fences = await leave(wire, connection, name, 24, pad_bytes=1_500_000)
        stalled = Wire(s.address, s.key)
        call = stream(stalled, lost(name), lease(seconds=2))
        await call.read()
        first = await call.read()
        assert first.batch.agents

        # It holds its lot while its stream is open, and for a lease's time after.
        assert (await restore(wire, lost(name))).agents == []
        back: list[str] = []
        async with asyncio.timeout(30):
            while len(back) < len(fences):
                await asyncio.sleep(0.5)
                back += (await restore(wire, lost(name))).ids

        assert sorted(back) == sorted(fences)
        await stalled.channel.close()
        await wire.channel.close()
