"""ReadMessages with `follow`: new messages, heartbeats, and how it ends."""

import asyncio
import time
from typing import Any

import asyncpg
import grpc
import pytest

from perdure.v1 import agent_pb2, commit_service_pb2, commit_service_pb2_grpc
from perdure.v1 import history_service_pb2 as pb
from tests.support.cluster import open_folder
from tests.support.server import ServerProcess
from tests.support.wire import Wire, refused, said

POLL_INTERVAL_S = 1.0
HEARTBEAT_S = 10.0


class Following:
    """A follower in the background: what it saw, and when."""

    def __init__(self, wire: Wire, conversation_id: str, **fields: Any) -> None:
        self.ids: list[str] = []
        self.times: list[float] = []
        self.heartbeats = 0
        self.token = ""
        self.end: Any = None
        self.call = wire.stream(conversation_id, follow=True, **fields)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for response in self.call:
            if response.WhichOneof("event") == "end":
                self.end = response.end
                return
            self.token = response.batch.resume_token
            self.heartbeats += not response.batch.messages
            for message in response.batch.messages:
                self.ids.append(message.message_id)
                self.times.append(time.monotonic())

    async def until(self, count: int, timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while len(self.ids) < count:
                assert not self.task.done(), self.task
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self.call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await self.task


async def test_a_follower_gets_what_is_there_and_then_what_comes(wire: Wire) -> None:
    await wire.append("live", said("a"), said("b"))
    following = Following(wire, "live")
    await following.until(2)
    for number in range(20):
        await wire.append("live", said(f"m{number}"))
    await following.until(22)
    assert following.ids == ["a", "b", *(f"m{number}" for number in range(20))]
    await following.stop()


async def test_a_hint_is_faster_than_the_poll(wire: Wire) -> None:
    await wire.create("quick")
    following = Following(wire, "quick")
    await asyncio.sleep(0.3)
    delays = []
    for number in range(5):
        started = time.monotonic()
        await wire.append("quick", said(f"m{number}"))
        await following.until(number + 1)
        delays.append(following.times[-1] - started)
    assert sorted(delays)[2] < POLL_INTERVAL_S / 3, delays
    await following.stop()


async def test_a_follower_sees_what_another_server_stores_by_its_hints(
    wire: Wire, database_dsn: str
) -> None:
    with (
        open_folder() as folder,
        ServerProcess(folder, dsn=database_dsn) as second,
    ):
        other = Wire(second.address, second.key)
        await wire.create("elsewhere")
        following = Following(other, "elsewhere")
        await asyncio.sleep(1.0)
        delays = []
        for number in range(5):
            started = time.monotonic()
            await wire.append("elsewhere", said(f"m{number}"))
            await following.until(number + 1)
            delays.append(following.times[-1] - started)
        assert sorted(delays)[2] < POLL_INTERVAL_S / 3, delays
        await following.stop()
        await other.channel.close()


async def test_what_comes_without_a_hint_is_found_by_the_poll(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    await wire.create("unhinted")
    following = Following(wire, "unhinted")
    await asyncio.sleep(0.3)
    # A server without a listener, behind a pooler for example.
    await connection.execute(
        "INSERT INTO perdure_store.messages "
        "(tenant_id, conversation_id, seq, message_id, role, digest, body) "
        "VALUES ('default', 'unhinted', 0, 'a', 'user', '\\x00', '\\x0a0161')"
    )
    await connection.execute(
        "UPDATE perdure_store.conversations SET message_count = 1 "
        "WHERE conversation_id = 'unhinted'"
    )
    await following.until(1, 2 * POLL_INTERVAL_S + 1)
    await following.stop()


async def test_what_an_agent_commits_is_followed(wire: Wire) -> None:
    fence = await wire.acquire("talker", "talker")
    following = Following(wire, "talker")
    await asyncio.sleep(0.3)
    stub: Any = commit_service_pb2_grpc.CommitServiceStub(wire.channel)
    started = time.monotonic()
    await stub.Commit(commit_of(fence, said("a", role="assistant")), metadata=wire.key)
    await following.until(1)
    assert time.monotonic() - started < POLL_INTERVAL_S / 2
    await following.stop()


def commit_of(fence: agent_pb2.Fence, body: bytes) -> Any:
    append = commit_service_pb2.AppendOperation(messages=[body])
    operation = commit_service_pb2.Operation(append=append)
    return commit_service_pb2.CommitRequest(fence=fence, step=1, operations=[operation])


async def test_a_limit_ends_a_follower(wire: Wire) -> None:
    await wire.append("limited", said("a"))
    following = Following(wire, "limited", limit=3)
    await wire.append("limited", said("b"), said("c"), said("d"))
    await asyncio.wait_for(following.task, 10)
    assert following.ids == ["a", "b", "c"]
    assert following.end.reason == pb.STREAM_END_REASON_COMPLETE


async def test_an_idle_follower_hears_a_heartbeat_in_time(wire: Wire) -> None:
    await wire.create("idle")
    following = Following(wire, "idle")
    await asyncio.sleep(HEARTBEAT_S + 0.5)
    assert following.heartbeats >= 1
    await wire.append("idle", said("a"))
    await following.until(1)
    await following.stop()


async def test_a_follower_of_a_conversation_that_is_deleted_is_told(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    await wire.create("doomed")
    following = Following(wire, "doomed")
    await asyncio.sleep(0.2)
    await connection.execute(
        "UPDATE perdure_store.conversations SET delete_time = now() "
        "WHERE conversation_id = 'doomed'"
    )
    with refused("DELETED"):
        await asyncio.wait_for(following.task, 5)


async def test_sigterm_ends_streams_with_a_token_and_the_server_with_zero(
    database_dsn: str,
) -> None:
    with open_folder() as folder:
        process = ServerProcess(folder, dsn=database_dsn)
        process.start()
        wire = Wire(process.address, process.key)
        await wire.append("stopped", said("a"))
        following = Following(wire, "stopped")
        await following.until(1)
        started = time.monotonic()
        code = await asyncio.to_thread(process.stop)
        assert code == 0
        assert time.monotonic() - started < 5
        await asyncio.wait_for(following.task, 5)
        assert following.end.reason == pb.STREAM_END_REASON_SHUTTING_DOWN
        await wire.channel.close()

        process.start()
        wire = Wire(process.address, process.key)
        await wire.append("stopped", said("b"))
        rest = await wire.read("stopped", resume_token=following.end.resume_token)
        assert [m.message_id for m in rest] == ["b"]
        await wire.channel.close()
        assert process.stop() == 0


async def test_appends_that_were_under_way_at_sigterm_are_answered(
    database_dsn: str,
) -> None:
    with open_folder() as folder:
        process = ServerProcess(folder, dsn=database_dsn)
        process.start()
        wire = Wire(process.address, process.key)
        await wire.create("last")
        acknowledged: set[str] = set()
        refusals: list[grpc.StatusCode] = []

        async def writer(name: int) -> None:
            for number in range(10_000):
                message_id = f"{name}-{number}"
                try:
                    await wire.append("last", said(message_id))
                except grpc.aio.AioRpcError as error:
                    refusals.append(error.code())
                    return
                acknowledged.add(message_id)

        writers = asyncio.gather(*(writer(name) for name in range(8)))
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(process.stop) == 0
        await writers
        await wire.channel.close()
        assert set(refusals) == {grpc.StatusCode.UNAVAILABLE}

        process.start()
        wire = Wire(process.address, process.key)
        stored = {m.message_id for m in await wire.read("last")}
        assert acknowledged <= stored
        # Nothing was half done: each writer had at most one more under way.
        assert len(stored - acknowledged) <= 8
        await wire.channel.close()
        process.stop()
