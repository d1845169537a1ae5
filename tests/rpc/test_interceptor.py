"""What the interceptor makes of whatever a handler does, on a real channel."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from perdure.v1 import history_service_pb2 as pb
from perdure.v1 import history_service_pb2_grpc
from perdure_server.errors import IdReused, LimitExceeded, Overloaded
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.authentication import Authentication
from perdure_server.rpc.interceptor import CallInterceptor
from perdure_server.store.database import Database
from perdure_server.store.keys import Keys
from perdure_server.store.tenants import Tenants
from tests.support.wire import Wire, refused

TRAILER_LIMIT_BYTES = 8 * 1024
SECRET = "s" * 40
Deed = Callable[[], Awaitable[None]]


class Misbehaving(history_service_pb2_grpc.HistoryServiceServicer):
    """A service whose handlers do what a test gives them to do."""

    def __init__(self, deed: Deed) -> None:
        self._deed = deed
        self.cancelled = asyncio.Event()

    async def GetConversation(self, request: Any, context: Any) -> Any:
        try:
            await self._deed()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return pb.GetConversationResponse()

    async def ReadMessages(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.ReadMessagesResponse(batch=pb.MessageBatch(message_count=1))
        try:
            await self._deed()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def serving(dsn: str, deed: Deed) -> AsyncIterator[tuple[Wire, Misbehaving]]:
    database = await Database.open(dsn, pool_size=2)
    keys = Keys(database)
    await Tenants(database).create("t", "", b"k" * 32)
    await keys.create("t", "k", SECRET, ["read"], "", None)
    server = grpc.aio.server(
        interceptors=[CallInterceptor(Authentication(keys), Lifecycle(), 10.0, 30.0)]
    )
    service = Misbehaving(deed)
    history_service_pb2_grpc.add_HistoryServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    wire = Wire(f"127.0.0.1:{port}", f"pd_t_k_{SECRET}")
    try:
        yield wire, service
    finally:
        await wire.channel.close()
        await server.stop(1)
        await database.close()


async def unary(wire: Wire) -> None:
    request = pb.GetConversationRequest(conversation_id="c")
    await wire.history.GetConversation(request, metadata=wire.key)


async def stream(wire: Wire) -> None:
    async for _ in wire.stream("c"):
        pass


SHAPES = pytest.mark.parametrize("shape", [unary, stream])


# R45
@SHAPES
async def test_a_cancellation_inside_a_handler_is_answered_as_unavailable(
    shape: Callable[[Wire], Awaitable[None]], database_dsn: str
) -> None:
    async def deed() -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    async with serving(database_dsn, deed) as (wire, _):
        async with asyncio.timeout(5):
            with refused("SHUTTING_DOWN") as refusal:
                await shape(wire)
        assert refusal.code == "UNAVAILABLE"
        assert refusal.retry_after_s is not None


# R45
@SHAPES
async def test_a_failed_task_group_inside_a_handler_is_answered(
    shape: Callable[[Wire], Awaitable[None]], database_dsn: str
) -> None:
    async def fail() -> None:
        raise RuntimeError("of a task")

    async def deed() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(60)

    async with serving(database_dsn, deed) as (wire, _), asyncio.timeout(5):
        with refused("INTERNAL"):
            await shape(wire)


# R45
@pytest.mark.parametrize("method", ["GetConversation", "ReadMessages"])
async def test_a_client_that_cancels_cancels_the_handler(
    method: str, database_dsn: str
) -> None:
    entered = asyncio.Event()

    async def deed() -> None:
        entered.set()
        await asyncio.sleep(60)

    async with serving(database_dsn, deed) as (wire, service), asyncio.timeout(5):
        request = (
            pb.GetConversationRequest(conversation_id="c")
            if method == "GetConversation"
            else pb.ReadMessagesRequest(conversation_id="c")
        )
        call = getattr(wire.history, method)(request, metadata=wire.key)
        await entered.wait()
        call.cancel()
        await service.cancelled.wait()
        assert await call.code() is grpc.StatusCode.CANCELLED


# R50
@SHAPES
async def test_a_fault_says_an_id_and_nothing_of_what_failed(
    shape: Callable[[Wire], Awaitable[None]],
    database_dsn: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = "the stored prompt é\n" * 1000

    async def deed() -> None:
        raise RuntimeError(words)

    async with serving(database_dsn, deed) as (wire, _):
        with (
            caplog.at_level(logging.ERROR, "perdure_server"),
            refused("INTERNAL") as refusal,
        ):
            await shape(wire)
    assert refusal.code == "INTERNAL"
    assert "prompt" not in refusal.message
    logged = [r for r in caplog.records if refusal.metadata["error_id"] in r.message]
    assert len(logged) == 1
    assert "RuntimeError" in logged[0].message
    assert "prompt" not in caplog.text


# R50
@SHAPES
async def test_a_long_error_reaches_the_client_with_its_code_and_reason(
    shape: Callable[[Wire], Awaitable[None]], database_dsn: str
) -> None:
    async def deed() -> None:
        many = {f"entry_{number}": "é\n\r\0" * 500 for number in range(200)}
        raise IdReused("é\nline\r\n" * 3000, message_id="m" * 255, **many)

    async with serving(database_dsn, deed) as (wire, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await shape(wire)
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    message = caught.value.details() or ""
    assert message.isascii()
    assert "\n" not in message
    assert len(message) <= 300
    trailers = dict(caught.value.trailing_metadata() or ())
    details = trailers["grpc-status-details-bin"]
    assert len(details) * 4 / 3 + len(message) < TRAILER_LIMIT_BYTES
    status = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == "ID_REUSED"
    assert info.metadata["message_id"] == "m" * 255


async def test_retryable_errors_say_when(database_dsn: str) -> None:
    async def deed() -> None:
        raise Overloaded("too many")

    async with serving(database_dsn, deed) as (wire, _):
        with refused("OVERLOADED") as refusal:
            await unary(wire)
    assert refusal.code == "RESOURCE_EXHAUSTED"
    assert refusal.retry_after_s == 0.5


async def test_other_errors_do_not_ask_for_a_retry(database_dsn: str) -> None:
    async def deed() -> None:
        raise LimitExceeded("too long", path="a", limit=1)

    async with serving(database_dsn, deed) as (wire, _):
        with refused("LIMIT_EXCEEDED") as refusal:
            await unary(wire)
    assert refusal.retry_after_s is None
