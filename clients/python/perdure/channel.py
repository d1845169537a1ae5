"""Connections to a server: credentials, deadlines and retries of every call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio

from perdure.credentials import Credentials
from perdure.errors import Invalid
from perdure.fork import Origin
from perdure.retry import Backoff
from perdure.status import Failure, read_failure
from perdure.v1.admin_service_pb2_grpc import AdminServiceStub
from perdure.v1.agent_service_pb2_grpc import AgentServiceStub
from perdure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from perdure.v1.commit_service_pb2_grpc import CommitServiceStub
from perdure.v1.history_service_pb2_grpc import HistoryServiceStub
from perdure.v1.recovery_service_pb2_grpc import RecoveryServiceStub

MAX_WIRE_BYTES: Final = 4 * 1024 * 1024
"""No message on the wire reaches this size."""

STREAM_LIFE_S: Final = 3600.0
"""Deadline of one stream; a longer one is resumed by its token."""

_LOOPBACK: Final = ("127.", "localhost:", "[::1]")


class SizedMessage(Protocol):
    """A protobuf message, as far as calls need to know it."""

    def ByteSize(self) -> int:
        """Return the serialized size in bytes."""
        ...


_Request = TypeVar("_Request", bound=SizedMessage)
_Response = TypeVar("_Response")


class Stubs:
    """The stubs of all services on one connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Make the stubs; nothing is sent."""
        self.admin = AdminServiceStub(channel)
        self.agents = AgentServiceStub(channel)
        self.checkpoints = CheckpointServiceStub(channel)
        self.commits = CommitServiceStub(channel)
        self.history = HistoryServiceStub(channel)
        self.recoveries = RecoveryServiceStub(channel)


UnaryMethod = Callable[[Stubs], "grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]"]
StreamMethod = Callable[
    [Stubs], "grpc.aio.UnaryStreamMultiCallable[_Request, _Response]"
]


def channel_options(target: str) -> list[tuple[str, Any]]:
    """Return the gRPC options of every connection to `target`."""
    options: list[tuple[str, Any]] = [
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.max_receive_message_length", MAX_WIRE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if target.startswith(_LOOPBACK):
        # An http_proxy of the environment is not meant for a local server.
        options.append(("grpc.enable_http_proxy", 0))
    return options


def call_metadata(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    """Return the metadata entries of every call."""
    return (("authorization", f"Bearer {credentials.key}"),)


class Channel:
    """All connections of one client.

    Opened by the first call, in its event loop, and used by that loop alone.
    """

    def __init__(
        self, credentials: Credentials, *, timeout_s: float, channels: int = 1
    ) -> None:
        """Prepare `channels` connections; calls get `timeout_s` in all."""
        self.credentials = credentials
        self.timeout_s = timeout_s
        self.origin = Origin()
        self._metadata = call_metadata(credentials)
        self._count = channels
        self._next = 0
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: list[Stubs] = []
        self._closed = False

    async def call(
        self,
        method: UnaryMethod[_Request, _Response],
        request: _Request,
        *,
        timeout_s: float | None = None,
    ) -> _Response:
        """Make a unary call, retried until it is answered or its time is over.

        Args:
            method: Picks the method from the stubs.
            request: Sent as it is on each attempt.
            timeout_s: Seconds in all. Absent: the client's default.

        Raises:
            PerdureError: The answer of the server, or `Unavailable`.
        """
        self._check_size(request)
        backoff = Backoff(self.timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                return await method(self._pick())(
                    request, timeout=backoff.remaining_s(), metadata=self._metadata
                )
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if self._closed and task is not None and not task.cancelling():
                    raise _closed() from error
                raise
            except grpc.aio.AioRpcError as error:
                failure = self.read_failure(error)
                delay_s = backoff.next_delay_s(failure)
                if delay_s is None:
                    raise failure.error from error
            await asyncio.sleep(delay_s)

    def open_stream(
        self, method: StreamMethod[_Request, _Response], request: _Request
    ) -> grpc.aio.UnaryStreamCall[_Request, _Response]:
        """Start one server stream; `perdure.stream` reads and resumes it."""
        self._check_size(request)
        return method(self._pick())(
            request, timeout=STREAM_LIFE_S, metadata=self._metadata
        )

    def read_failure(self, error: grpc.aio.AioRpcError) -> Failure:
        """Return what a failed attempt means."""
        return read_failure(error, self.credentials.target)

    async def close(self) -> None:
        """End every call and connection. Harmless when done again."""
        self._closed = True
        if self.origin.forked:
            return
        for channel in self._channels:
            await channel.close()
        self._channels.clear()
        self._stubs.clear()

    def _pick(self) -> Stubs:
        self.origin.check()
        if self._closed:
            raise _closed()
        if not self._stubs:
            self._open()
        self._next = (self._next + 1) % len(self._stubs)
        return self._stubs[self._next]

    def _open(self) -> None:
        target = self.credentials.target
        for _ in range(max(1, self._count)):
            channel = grpc.aio.insecure_channel(target, options=channel_options(target))
            self._channels.append(channel)
            self._stubs.append(Stubs(channel))

    def _check_size(self, request: SizedMessage) -> None:
        size = request.ByteSize()
        if size >= MAX_WIRE_BYTES:
            raise Invalid(
                f"the request has {size} bytes; the limit is {MAX_WIRE_BYTES}: send "
                "less at once",
                reason="LIMIT_EXCEEDED",
                metadata={"limit": str(MAX_WIRE_BYTES), "actual": str(size)},
            )


def _closed() -> Invalid:
    return Invalid("this client was closed", reason="CLIENT_CLOSED")
