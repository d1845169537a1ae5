"""A reader that takes nothing: dropped after a while, harmless until then."""

import asyncio
import time
from typing import Any

import asyncpg
import grpc
import psutil
import pytest

from perdure.v1 import history_service_pb2 as pb
from tests.support.cluster import open_folder
from tests.support.server import ServerProcess
from tests.support.wire import Wire, said

IDLE_S = 2.0
STREAMS = 5
MESSAGES = 120
MESSAGE_BYTES = 250_000


# R48
async def test_stalled_readers_cost_bounded_memory_no_connection_and_are_dropped(
    database_dsn: str, connection: asyncpg.Connection
) -> None:
    flags = ("--stream-idle-timeout-s", str(IDLE_S))
    with open_folder() as folder, ServerProcess(folder, *flags, dsn=database_dsn) as s:
        wire = Wire(s.address, s.key)
        for number in range(MESSAGES):
            await wire.append("large", said(f"m{number}", "x" * MESSAGE_BYTES))
        memory = psutil.Process(s.pid).memory_info
        before_bytes = memory().rss
        readers = [Wire(s.address, s.key) for _ in range(STREAMS)]
        calls = [reader.stream("large") for reader in readers]
        firsts = [await anext(aiter(call)) for call in calls]
        assert all(first.batch.messages for first in firsts)
        await asyncio.sleep(IDLE_S / 2)

        # STREAMS x 30 MB are waiting; hardly any of it is in memory.
        assert memory().rss - before_bytes < 40_000_000
        busy = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'perdure' "
            "AND datname = current_database() AND state <> 'idle'"
        )
        assert busy == 0
        started = time.monotonic()
        await wire.append("small", said("a"))
        assert len(await wire.read("small")) == 1
        assert time.monotonic() - started < 1.0

        await asyncio.sleep(IDLE_S + 1)
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await drain(call)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        for reader in (wire, *readers):
            await reader.channel.close()


async def drain(call: Any) -> None:
    async for _ in call:
        pass


async def test_a_slow_reader_who_takes_something_is_not_dropped(
    database_dsn: str,
) -> None:
    flags = ("--stream-idle-timeout-s", str(IDLE_S))
    with open_folder() as folder, ServerProcess(folder, *flags, dsn=database_dsn) as s:
        wire = Wire(s.address, s.key)
        for number in range(12):
            await wire.append("steady", said(f"m{number}", "x" * MESSAGE_BYTES))
        seqs: list[int] = []
        async for response in wire.stream("steady"):
            if response.WhichOneof("event") == "end":
                assert response.end.reason == pb.STREAM_END_REASON_COMPLETE
                break
            seqs += [message.seq for message in response.batch.messages]
            await asyncio.sleep(IDLE_S / 8)
        assert seqs == list(range(12))
        await wire.channel.close()
