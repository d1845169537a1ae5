"""Conversations: `client.history`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.channel import Channel
from perdure.errors import Invalid
from perdure.messages import (
    Payload,
    StoredMessage,
    read_stored,
    serialize_all,
)
from perdure.pages import iterate_pages
from perdure.stream import StreamEnd, resume_stream
from perdure.v1 import history_service_pb2
from perdure.v1.agent_pb2 import Fence
from perdure.v1.conversation_pb2 import Conversation
from perdure.v1.history_service_pb2 import (
    AppendMessagesRequest,
    AppendMessagesResponse,
    CreateConversationRequest,
    GetConversationRequest,
    ListConversationsRequest,
    ReadMessagesRequest,
    ReadMessagesResponse,
    SeqRange,
)
from perdure.v1.message_pb2 import Message

View = Literal["native", "canonical", "both"]

Payloads = list[Any]
"""Native payloads, parsed."""

_VIEWS: Final = {
    "native": history_service_pb2.MESSAGE_VIEW_NATIVE,
    "canonical": history_service_pb2.MESSAGE_VIEW_CANONICAL,
    "both": history_service_pb2.MESSAGE_VIEW_BOTH,
}


@dataclass(frozen=True)
class Batch:
    """Messages that arrived together; none: a sign of life."""

    messages: list[StoredMessage]
    """In the order asked for."""
    message_count: int
    """Messages in the conversation when they were read."""


class History:
    """Conversations and their messages."""

    def __init__(self, channel: Channel) -> None:
        """Use a client's connections."""
        self._channel = channel

    async def create(
        self,
        conversation_id: str,
        *,
        user_id: str = "",
        agent_slug: str = "",
        metadata_json: str = "",
        source_format: str = "",
        source_id: str = "",
    ) -> Conversation:
        """Make a conversation; the same again returns it as it is now.

        Raises:
            Invalid: It exists with other content (ID_REUSED), or a value is not
                storable.
        """
        response = await self._channel.call(
            lambda stubs: stubs.history.CreateConversation,
            CreateConversationRequest(
                conversation_id=conversation_id,
                user_id=user_id,
                agent_slug=agent_slug,
                metadata_json=metadata_json,
                source_format=source_format,
                source_id=source_id,
            ),
        )
        return response.conversation

    async def get(self, conversation_id: str) -> Conversation:
        """Return a conversation without its messages; NotFound if there is none."""
        response = await self._channel.call(
            lambda stubs: stubs.history.GetConversation,
            GetConversationRequest(conversation_id=conversation_id),
        )
        return response.conversation

    def list(
        self, *, user_id: str = "", agent_slug: str = "", page_size: int = 0
    ) -> AsyncIterator[Conversation]:
        """Yield conversations in the order of their ids.

        Args:
            user_id: Only those of this user.
            agent_slug: Only those of this kind of agent.
            page_size: How many are fetched at once; 0: the server's default.
        """
        return iterate_pages(
            lambda token: self._channel.call(
                lambda stubs: stubs.history.ListConversations,
                ListConversationsRequest(
                    user_id=user_id,
                    agent_slug=agent_slug,
                    page_size=page_size,
                    page_token=token,
                ),
            ),
            lambda page: page.conversations,
        )

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Payload | Message],
        *,
        message_ids: Sequence[str] | None = None,
        expected_seq: int | None = None,
        create: bool = True,
        supersedes: tuple[int, int] | None = None,
        generation: int | None = None,
        fence: Fence | None = None,
        step: int = 0,
    ) -> AppendMessagesResponse:
        """Append a batch, all or none.

        Args:
            conversation_id: The conversation.
            messages: Dicts of the provider, their serializations, or Message values;
                at most 1,000, together at most 3 MiB.
            message_ids: One for each message: the idempotency keys. Absent: new ones,
                so that only this call's own retries are recognised.
            expected_seq: Seq that the first new message must get.
            create: Make the conversation first if it is missing.
            supersedes: Half-open range of seqs that these messages replace.
            generation: Generation of the conversation that the caller knows.
            fence: Fence of the writing agent.
            step: Step of the writing agent.

        Raises:
            Conflict: SEQ_CONFLICT, with expected_seq and current_seq in `metadata`.
            Refused: FENCE_REQUIRED, once an agent of the conversation was acquired and
                for other messages than a user's.
            Invalid: ID_REUSED, or a message is not storable; `path` says which.
        """
        return await self._channel.call(
            lambda stubs: stubs.history.AppendMessages,
            AppendMessagesRequest(
                conversation_id=conversation_id,
                messages=serialize_all(messages, message_ids),
                expected_seq=expected_seq,
                fence=fence,
                generation=generation,
                supersedes=(
                    SeqRange(from_seq=supersedes[0], to_seq=supersedes[1])
                    if supersedes
                    else None
                ),
                create_if_missing=create,
                step=step,
            ),
        )

    async def load(self, conversation_id: str) -> Payloads:
        """Return the native payloads of all messages in force, parsed.

        Raises:
            Invalid: A message has no native payload; `read` gives its blocks.
            NotFound: There is no such conversation.
        """
        payloads = []
        async for message in self.read(conversation_id):
            payload = message.payload
            if payload is None:
                raise Invalid(
                    f"message {message.seq} has no native payload; use "
                    "client.history.read and message.message.blocks",
                    reason="VALUE_NOT_STORABLE",
                    metadata={"path": f"messages[{message.seq}].native"},
                )
            payloads.append(payload)
        return payloads

    async def read(
        self,
        conversation_id: str,
        *,
        from_seq: int | None = None,
        newest: int | None = None,
        backward: bool = False,
        follow: bool = False,
        view: View = "native",
        include_superseded: bool = False,
        limit: int = 0,
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield messages in the order of seq, across broken connections.

        Args:
            conversation_id: The conversation.
            from_seq: Begin at this seq. Absent: at 0, or backward at the newest.
            newest: So many of the newest messages, in ascending order.
            backward: Towards seq 0.
            follow: Go on with new messages as they are committed.
            view: What the messages carry.
            include_superseded: Also messages that were superseded.
            limit: End after so many; 0: no limit.

        Raises:
            NotFound: There is no such conversation, or it was deleted.
            Invalid: The range lies outside the conversation.
            Unavailable: The stream could not be resumed.
        """
        request = ReadMessagesRequest(
            conversation_id=conversation_id,
            backward=backward,
            follow=follow,
            view=_VIEWS[view],
            include_superseded=include_superseded,
            limit=limit,
        )
        if newest is not None:
            request.newest_count = newest
        elif from_seq is not None:
            request.from_seq = from_seq
        async with aclosing(read_batches(self._channel, request)) as batches:
            async for batch in batches:
                for message in batch.messages:
                    yield message


async def read_batches(
    channel: Channel, request: ReadMessagesRequest
) -> AsyncGenerator[Batch, None]:
    """Yield the batches of one read, resumed without gap or duplicate."""
    left = request.limit

    def resume(token: str) -> ReadMessagesRequest:
        if not token:
            return request
        resumed = ReadMessagesRequest()
        resumed.CopyFrom(request)
        resumed.resume_token = token
        return resumed

    events = resume_stream(
        channel,
        lambda stubs: stubs.history.ReadMessages,
        resume,
        token_of=lambda event: event.batch.resume_token,
        end_of=_end_of,
    )
    async with aclosing(events):
        async for event in events:
            if event.HasField("batch"):
                messages = [read_stored(stored) for stored in event.batch.messages]
                # The limit counts over all the streams that a read may take.
                if request.limit:
                    messages = messages[:left]
                    left -= len(messages)
                yield Batch(messages, event.batch.message_count)
                if request.limit and not left:
                    return


def _end_of(event: ReadMessagesResponse) -> StreamEnd | None:
    return event.end if event.HasField("end") else None
