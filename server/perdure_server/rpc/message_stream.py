"""One ReadMessages call: bounded pages until the end, or on and on.

Between two pages no database connection is held. Following looks at the conversation
after each hint and every second: seq is given under the row lock that is held to
commit, so whatever is visible is a gapless prefix.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from perdure.v1 import history_service_pb2 as pb
from perdure.v1 import message_pb2
from perdure_server.caller import current_caller
from perdure_server.canonical.message import canonicalize
from perdure_server.errors import (
    LimitExceeded,
    RangeInvalid,
    TokenStale,
    ValueNotStorable,
)
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.checks import check_count, check_id
from perdure_server.rpc.timestamps import to_timestamp
from perdure_server.store.conversations import Conversation, Conversations
from perdure_server.store.hints import Hints
from perdure_server.store.messages import Messages, StoredMessage
from perdure_server.token import TokenError, open_token, seal

PAGE_ROWS = 500
PAGE_BYTES = 256 * 1024
MAX_RESPONSE_BYTES = 4 * 1024 * 1024 - 64 * 1024
POLL_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 10.0
_FRAMING_BYTES = 8  # tag and length of one message in its batch
_TOKEN_KIND = "messages"


class MessageStream:
    """The state of one call: where it stands and how much is left."""

    def __init__(
        self,
        conversations: Conversations,
        messages: Messages,
        hints: Hints,
        lifecycle: Lifecycle,
        request: pb.ReadMessagesRequest,
    ) -> None:
        self._conversations = conversations
        self._messages = messages
        self._hints = hints
        self._lifecycle = lifecycle
        self._request = request
        self._caller = current_caller()
        self._id = check_id(request.conversation_id, "conversation_id")
        self._limit = check_count(request.limit, "limit")
        self._sent = 0
        self._next = 0
        self._generation = 0
        _check_combination(request)

    async def responses(self) -> AsyncIterator[pb.ReadMessagesResponse]:
        """Yield batches, then the end."""
        # Hints count from before the first look, so that none falls between.
        with self._hints.following(self._caller.tenant_id, self._id) as hint:
            async for response in self._responses(hint):
                yield response

    async def _responses(
        self, hint: asyncio.Event
    ) -> AsyncIterator[pb.ReadMessagesResponse]:
        conversation = await self._begin()
        heard = time.monotonic()
        while True:
            batch = await self._page(conversation.message_count)
            if batch:
                heard = time.monotonic()
                yield self._batch(batch, conversation.message_count)
            if self._is_complete(batch):
                yield self._end(pb.STREAM_END_REASON_COMPLETE)
                return
            if self._lifecycle.is_stopping:
                yield self._end(pb.STREAM_END_REASON_SHUTTING_DOWN)
                return
            if batch:
                continue
            await _wait(hint)
            if time.monotonic() - heard >= HEARTBEAT_INTERVAL_S - POLL_INTERVAL_S:
                heard = time.monotonic()
                yield self._batch([], conversation.message_count)
            conversation = await self._look()

    async def _begin(self) -> Conversation:
        conversation = await self._conversations.get(self._caller.tenant_id, self._id)
        self._generation = conversation.generation
        start = self._request.WhichOneof("start")
        count = conversation.message_count
        if start == "resume_token":
            self._resume()
        elif start == "from_seq":
            self._next = check_count(self._request.from_seq, "from_seq")
            if self._next > count:
                raise RangeInvalid(
                    "the conversation is shorter", path="from_seq", message_count=count
                )
            if self._request.backward:
                self._next = min(self._next, count - 1)
        elif start == "newest_count":
            newest = check_count(self._request.newest_count, "newest_count", minimum=1)
            self._next = await self._messages.newest_start(
                self._caller.tenant_id,
                self._id,
                newest,
                include_superseded=self._request.include_superseded,
            )
        elif self._request.backward:
            self._next = count - 1
        return conversation

    def _resume(self) -> None:
        try:
            fields = open_token(
                self._caller.token_key, _TOKEN_KIND, self._request.resume_token
            )
        except TokenError as exc:
            raise TokenStale("start the stream anew", path="resume_token") from exc
        conversation_id, generation, next_seq, sent = fields
        if (conversation_id, generation) != (self._id, self._generation):
            raise TokenStale("the token is another conversation's", path="resume_token")
        self._next = int(str(next_seq))
        self._sent = int(str(sent))

    async def _look(self) -> Conversation:
        conversation = await self._conversations.get(self._caller.tenant_id, self._id)
        if conversation.generation != self._generation:
            raise TokenStale("the conversation was made anew")
        return conversation

    async def _page(self, message_count: int) -> list[StoredMessage]:
        limit = PAGE_ROWS
        if self._limit:
            limit = min(limit, self._limit - self._sent)
        if limit <= 0 or not 0 <= self._next < max(message_count, 1):
            return []
        read = (
            self._messages.read_backward
            if self._request.backward
            else self._messages.read_forward
        )
        return await read(
            self._caller.tenant_id,
            self._id,
            self._next,
            include_superseded=self._request.include_superseded,
            limit=limit,
            limit_bytes=PAGE_BYTES,
        )

    def _is_complete(self, page: list[StoredMessage]) -> bool:
        if self._limit and self._sent >= self._limit:
            return True
        if self._request.backward and self._next < 0:
            return True
        return not page and not self._request.follow

    def _batch(
        self, page: list[StoredMessage], message_count: int
    ) -> pb.ReadMessagesResponse:
        messages = self._fitting(page)
        if messages:
            self._next = messages[-1].seq + (-1 if self._request.backward else 1)
            self._sent += len(messages)
        return pb.ReadMessagesResponse(
            batch=pb.MessageBatch(
                messages=messages,
                resume_token=self._token(),
                message_count=message_count,
            )
        )

    def _fitting(self, page: list[StoredMessage]) -> list[message_pb2.StoredMessage]:
        """Return as many messages of a page as one response holds in this view."""
        view = self._request.view or pb.MESSAGE_VIEW_NATIVE
        fitting: list[message_pb2.StoredMessage] = []
        total_bytes = 0
        for stored in page:
            message = stored_message(stored, view)
            total_bytes += message.ByteSize() + _FRAMING_BYTES
            if total_bytes > MAX_RESPONSE_BYTES:
                if fitting:
                    break
                raise LimitExceeded(
                    "a message is too large in this view: read it in the native view",
                    path="view",
                    limit=MAX_RESPONSE_BYTES,
                    actual=total_bytes,
                    seq=stored.seq,
                )
            fitting.append(message)
        return fitting

    def _end(self, reason: pb.StreamEndReason.ValueType) -> pb.ReadMessagesResponse:
        return pb.ReadMessagesResponse(
            end=pb.StreamEnd(reason=reason, resume_token=self._token())
        )

    def _token(self) -> str:
        fields: list[object] = [self._id, self._generation, self._next, self._sent]
        return seal(self._caller.token_key, _TOKEN_KIND, fields)


async def _wait(hint: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_INTERVAL_S):
            await hint.wait()
    hint.clear()


def stored_message(
    stored: StoredMessage, view: pb.MessageView.ValueType
) -> message_pb2.StoredMessage:
    """Return a stored message in a view."""
    message = message_pb2.StoredMessage(
        seq=stored.seq,
        message_id=stored.message_id,
        record_time=to_timestamp(stored.record_time),
        agent_id=stored.agent_id,
        step=stored.step,
        superseded_by=stored.superseded_by,
        digest=stored.digest,
    )
    if view != pb.MESSAGE_VIEW_CANONICAL:
        message.message = stored.body
    if view in (pb.MESSAGE_VIEW_CANONICAL, pb.MESSAGE_VIEW_BOTH):
        parsed = message_pb2.Message.FromString(stored.body)
        message.canonical.CopyFrom(canonicalize(parsed))
    return message


def _check_combination(request: pb.ReadMessagesRequest) -> None:
    if request.backward and request.follow:
        raise ValueNotStorable("backward excludes follow", path="follow")
    if request.backward and request.WhichOneof("start") == "newest_count":
        raise ValueNotStorable("backward excludes newest_count", path="newest_count")
