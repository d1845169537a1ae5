"""Server streams that survive breaks: resumed by token, over only at their `end`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio

from perdure.channel import Channel, SizedMessage, StreamMethod
from perdure.errors import Unavailable
from perdure.retry import Backoff
from perdure.status import Failure
from perdure.v1.history_service_pb2 import STREAM_END_REASON_SHUTTING_DOWN

IDLE_TIMEOUT_S: Final = 30.0
"""A stream that is silent for so long is broken: heartbeats come every 10 s."""

PATIENCE_S: Final = 60.0
"""A stream that cannot be resumed for so long raises Unavailable."""


class StreamEnd(Protocol):
    """The last event of a stream, as far as resuming needs to know it."""

    @property
    def reason(self) -> int:
        """A StreamEndReason."""
        ...

    @property
    def resume_token(self) -> str:
        """Resumes after what was sent."""
        ...


_Request = TypeVar("_Request", bound=SizedMessage)
_Response = TypeVar("_Response")


async def resume_stream(
    channel: Channel,
    method: StreamMethod[_Request, _Response],
    make_request: Callable[[str], _Request],
    *,
    token_of: Callable[[_Response], str],
    end_of: Callable[[_Response], StreamEnd | None],
) -> AsyncGenerator[_Response, None]:
    """Yield the events of a stream up to and with its end, across breaks.

    Args:
        channel: Where to call.
        method: Picks the method from the stubs.
        make_request: The request that resumes after a token; "" begins. Called once
            for each stream that is opened.
        token_of: The token of an event; "" keeps the one before.
        end_of: The end, when the event is one.

    Raises:
        PerdureError: The answer of the server; `Unavailable` when the stream could
            not be resumed for PATIENCE_S.
    """
    token = ""
    patience_s = max(PATIENCE_S, channel.timeout_s)
    backoff = Backoff(patience_s)
    while True:
        call = channel.open_stream(method, make_request(token))
        failure = Failure(_broken("the stream stopped without its end"), retry=True)
        try:
            while (response := await _read(call)) is not None:
                backoff.reset(patience_s)
                end = end_of(response)
                if end is not None and end.reason == STREAM_END_REASON_SHUTTING_DOWN:
                    token = end.resume_token or token
                    break
                yield response
                if end is not None:
                    return
                token = token_of(response) or token
        except grpc.aio.AioRpcError as error:
            failure = channel.read_failure(error)
            if failure.error.reason == "DEADLINE_EXCEEDED":
                failure = Failure(failure.error, retry=True)
        except TimeoutError:
            failure = Failure(_broken(f"silent for {IDLE_TIMEOUT_S:g} s"), retry=True)
        finally:
            call.cancel()
        delay_s = backoff.next_delay_s(failure)
        if delay_s is None:
            raise failure.error
        await asyncio.sleep(delay_s)


def _broken(message: str) -> Unavailable:
    return Unavailable(message, reason="BROKEN_STREAM")


async def _read(
    call: grpc.aio.UnaryStreamCall[_Request, _Response],
) -> _Response | None:
    """Return the next event; None at a bare end."""
    reading = asyncio.ensure_future(call.read())
    try:
        done, _ = await asyncio.wait({reading}, timeout=IDLE_TIMEOUT_S)
    except asyncio.CancelledError:
        call.cancel()
        with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await reading
        raise
    if not done:
        call.cancel()
        with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await reading
        raise TimeoutError
    if reading.cancelled():
        # Not by this task: the client was closed meanwhile, as the next call says.
        raise TimeoutError
    response = reading.result()
    return None if response is grpc.aio.EOF else response  # type: ignore[return-value]
