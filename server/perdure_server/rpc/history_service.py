"""HistoryService: conversations and their messages."""

import hashlib
from collections.abc import AsyncIterator

from perdure.v1 import conversation_pb2, history_service_pb2_grpc
from perdure.v1 import history_service_pb2 as pb
from perdure_server.caller import current_caller
from perdure_server.errors import IdReused, ValueNotStorable
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.checks import (
    check_count,
    check_id,
    check_json,
    check_text,
    page_size,
)
from perdure_server.rpc.fences import read_fence
from perdure_server.rpc.interceptor import Context
from perdure_server.rpc.message_stream import MessageStream
from perdure_server.rpc.new_messages import read_new_messages
from perdure_server.rpc.page_token import open_page_token, page_token
from perdure_server.rpc.timestamps import to_timestamp
from perdure_server.store.append import Append, Appended
from perdure_server.store.append_queue import AppendQueue
from perdure_server.store.conversations import (
    Conversation,
    Conversations,
    NewConversation,
)
from perdure_server.store.hints import Hints
from perdure_server.store.messages import Messages


class HistoryService(history_service_pb2_grpc.HistoryServiceServicer):
    """Serves conversations."""

    def __init__(
        self,
        conversations: Conversations,
        messages: Messages,
        queue: AppendQueue,
        hints: Hints,
        lifecycle: Lifecycle,
    ) -> None:
        self._conversations = conversations
        self._messages = messages
        self._queue = queue
        self._hints = hints
        self._lifecycle = lifecycle

    async def CreateConversation(
        self, request: pb.CreateConversationRequest, context: Context
    ) -> pb.CreateConversationResponse:
        """Make a conversation."""
        new = NewConversation(
            conversation_id=check_id(request.conversation_id, "conversation_id"),
            user_id=check_text(request.user_id, "user_id"),
            agent_slug=check_text(request.agent_slug, "agent_slug"),
            metadata=check_json(request.metadata_json, "metadata_json"),
            source_format=check_text(request.source_format, "source_format"),
            source_id=check_text(request.source_id, "source_id"),
            content_digest=_digest(request),
        )
        found, created = await self._conversations.create(
            current_caller().tenant_id, new
        )
        if not created and found.content_digest != new.content_digest:
            raise IdReused(
                "the conversation exists with other content",
                conversation_id=new.conversation_id,
                digest=new.content_digest,
                stored_digest=found.content_digest,
            )
        return pb.CreateConversationResponse(
            conversation=_conversation(found), replayed=not created
        )

    async def GetConversation(
        self, request: pb.GetConversationRequest, context: Context
    ) -> pb.GetConversationResponse:
        """Return a conversation."""
        found = await self._conversations.get(
            current_caller().tenant_id,
            check_id(request.conversation_id, "conversation_id"),
        )
        return pb.GetConversationResponse(conversation=_conversation(found))

    async def ListConversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        """Page through conversations."""
        size = page_size(request.page_size)
        found = await self._conversations.page(
            current_caller().tenant_id,
            open_page_token("conversations", request.page_token),
            size + 1,
            user_id=check_text(request.user_id, "user_id") or None,
            agent_slug=check_text(request.agent_slug, "agent_slug") or None,
        )
        ids = [conversation.conversation_id for conversation in found]
        return pb.ListConversationsResponse(
            conversations=[_conversation(item) for item in found[:size]],
            next_page_token=page_token("conversations", ids, size),
        )

    async def AppendMessages(
        self, request: pb.AppendMessagesRequest, context: Context
    ) -> pb.AppendMessagesResponse:
        """Append a batch."""
        append = _append(request)
        if append.fence is None and append.supersedes is None:
            stored = await self._queue.append(append)
        else:
            stored = await self._messages.append(append)
        self._hints.tell(append.tenant_id, append.conversation_id)
        return append_response(stored)

    async def ReadMessages(
        self, request: pb.ReadMessagesRequest, context: Context
    ) -> AsyncIterator[pb.ReadMessagesResponse]:
        """Stream messages."""
        stream = MessageStream(
            self._conversations,
            self._messages,
            self._hints,
            self._lifecycle,
            request,
        )
        async for response in stream.responses():
            yield response


def append_response(stored: Appended) -> pb.AppendMessagesResponse:
    """Return the answer to a stored batch."""
    return pb.AppendMessagesResponse(
        messages=[
            pb.AppendedMessage(
                message_id=placed.message_id, seq=placed.seq, replayed=placed.replayed
            )
            for placed in stored.places
        ],
        message_count=stored.message_count,
        generation=stored.generation,
    )


def read_supersedes(message: pb.SeqRange, path: str) -> tuple[int, int]:
    """Return a checked, half-open range of seqs."""
    first = check_count(message.from_seq, f"{path}.from_seq")
    end = check_count(message.to_seq, f"{path}.to_seq")
    if end <= first:
        raise ValueNotStorable("the range is empty", path=f"{path}.to_seq")
    return first, end


def _append(request: pb.AppendMessagesRequest) -> Append:
    caller = current_caller()
    fence = None
    if request.HasField("fence"):
        fence = read_fence(request.fence, "fence")
    elif request.step:
        raise ValueNotStorable("a step needs a fence", path="step")
    expected_seq = generation = supersedes = None
    if request.HasField("expected_seq"):
        expected_seq = check_count(request.expected_seq, "expected_seq")
    if request.HasField("generation"):
        generation = check_count(request.generation, "generation", minimum=1)
    if request.HasField("supersedes"):
        supersedes = read_supersedes(request.supersedes, "supersedes")
    return Append(
        tenant_id=caller.tenant_id,
        conversation_id=check_id(request.conversation_id, "conversation_id"),
        messages=read_new_messages(request.messages, "messages"),
        expected_seq=expected_seq,
        generation=generation,
        supersedes=supersedes,
        create_if_missing=request.create_if_missing,
        unfenced_allowed="admin" in caller.scopes,
        fence=fence,
        step=check_count(request.step, "step"),
    )


def _digest(request: pb.CreateConversationRequest) -> bytes:
    # Deterministic within one server version is not enough: the digest is stored.
    fields = (
        request.user_id,
        request.agent_slug,
        request.metadata_json,
        request.source_format,
        request.source_id,
    )
    digest = hashlib.sha256()
    for field in fields:
        data = field.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def _conversation(found: Conversation) -> conversation_pb2.Conversation:
    message = conversation_pb2.Conversation(
        conversation_id=found.conversation_id,
        user_id=found.user_id,
        agent_slug=found.agent_slug,
        message_count=found.message_count,
        revision=found.revision,
        generation=found.generation,
        owned=found.owned,
        metadata_json=found.metadata,
        source_format=found.source_format,
        source_id=found.source_id,
        create_time=to_timestamp(found.create_time),
    )
    if found.close_time is not None:
        message.close_time.CopyFrom(to_timestamp(found.close_time))
    return message
