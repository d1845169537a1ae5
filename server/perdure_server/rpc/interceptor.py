"""Around every call: who calls, how long he waits, and what an error becomes.

The only place that turns an exception into a status, the same for unary calls and
streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from perdure_server.caller import set_caller
from perdure_server.canonical.wire_fault import find_wire_fault
from perdure_server.deadline import set_deadline
from perdure_server.errors import (
    InternalFault,
    PerdureError,
    ScopeMissing,
    ShuttingDown,
    ValueNotStorable,
)
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.authentication import Authentication
from perdure_server.rpc.request_budget import RequestBudget
from perdure_server.rpc.scopes import OPEN_METHODS, SCOPE_OF
from perdure_server.rpc.status import DETAILS_KEY, code_of, details_of, message_of
from perdure_server.stack import stack_of

_LOG = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates, sets the deadline, and answers errors as statuses."""

    def __init__(
        self,
        authentication: Authentication,
        lifecycle: Lifecycle,
        unary_timeout_s: float,
        stream_idle_timeout_s: float,
    ) -> None:
        self._authentication = authentication
        self._lifecycle = lifecycle
        self._unary_timeout_s = unary_timeout_s
        self._stream_idle_timeout_s = stream_idle_timeout_s
        self._budget = RequestBudget()

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails],
            Awaitable[grpc.RpcMethodHandler[Any, Any] | None],
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of one call."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or method in OPEN_METHODS:
            return handler
        # Requests come as bytes and are parsed here, after the key was checked: what
        # gRPC says of bytes that are no message names neither reason nor path.
        parse = handler.request_deserializer
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(method, handler.unary_unary, parse),
                response_serializer=handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.unary_stream, parse),
                response_serializer=handler.response_serializer,
            )
        # Reflection, the one bidirectional stream, which is not ours.
        return grpc.stream_stream_rpc_method_handler(
            self._stream(method, handler.stream_stream, None),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, method: str, behavior: Any, parse: Any) -> Any:
        async def call(request: Any, context: Context) -> Any:
            try:
                await self._enter(method, context, self._unary_timeout_s)
                with self._budget.taken(len(request)):
                    return await behavior(_parsed(request, parse), context)
            except BaseException as exc:
                await _answer(exc, method, context)

        return call

    def _stream(self, method: str, behavior: Any, parse: Any) -> Any:
        async def call(request: Any, context: Context) -> None:
            try:
                await self._enter(method, context, None)
                asked = _parsed(request, parse)
                async with contextlib.aclosing(behavior(asked, context)) as responses:
                    async for response in responses:
                        # A key that was revoked meanwhile gets nothing more.
                        await self._authentication.caller_of(
                            context.invocation_metadata()
                        )
                        await self._write(response, context)
            except BaseException as exc:
                await _answer(exc, method, context)

        return call

    async def _write(self, response: Any, context: Context) -> None:
        # Flow control makes a write wait for its reader. With a limit on that wait a
        # stopped reader costs one batch of memory for a while, and nothing else.
        try:
            async with asyncio.timeout(self._stream_idle_timeout_s):
                await context.write(response)
        except TimeoutError as exc:
            raise _ReaderStalledError(self._stream_idle_timeout_s) from exc

    async def _enter(
        self, method: str, context: Context, default_timeout_s: float | None
    ) -> None:
        if self._lifecycle.is_stopping:
            raise ShuttingDown("the server is stopping; send it to another")
        left_s = context.time_remaining()
        set_deadline(default_timeout_s if left_s is None else left_s)
        caller = await self._authentication.caller_of(context.invocation_metadata())
        scope = SCOPE_OF.get(method)
        if scope is None or scope not in caller.scopes:
            raise ScopeMissing(f"the key lacks the scope {scope}", scope=scope)
        set_caller(caller)


class _ReaderStalledError(Exception):
    """The reader of a stream took nothing for so many seconds."""


async def _drop(stalled: _ReaderStalledError, context: Context) -> NoReturn:
    # The status waits behind the write that nobody takes, as long as the reader lives:
    # so whatever the stream holds has been closed before.
    try:
        await context.abort(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"the reader took nothing for {stalled.args[0]:g} s",
        )
    except grpc.aio.AbortError:
        raise
    except Exception as exc:
        raise asyncio.CancelledError from exc  # the reader is gone


def _parsed(request: Any, parse: Any) -> Any:
    if parse is None:
        return request
    try:
        return parse(request)
    except DecodeError as exc:
        message_type = parse.__self__
        what, path = find_wire_fault(request, message_type.DESCRIPTOR, "")
        raise ValueNotStorable(what, path=path.removeprefix(".")) from exc


async def _answer(exc: BaseException, method: str, context: Context) -> NoReturn:
    if isinstance(exc, grpc.aio.AbortError):
        raise exc
    if isinstance(exc, _ReaderStalledError):
        await _drop(exc, context)
    if isinstance(exc, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling() > 0:
            raise exc  # the client or the server's stop cancelled the call itself
        # Something within was cancelled: the client still waits for an answer.
        error: PerdureError = ShuttingDown("the call was interrupted; send it again")
    elif isinstance(exc, PerdureError):
        error = exc
    elif isinstance(exc, Exception):
        error_id = uuid.uuid4().hex
        _LOG.error("%s failed, error_id %s: %s", method, error_id, stack_of(exc))
        error = InternalFault("the server made a mistake", error_id=error_id)
    else:
        raise exc
    await context.abort(
        code_of(error), message_of(error), ((DETAILS_KEY, details_of(error)),)
    )
