"""The bare wire: calls on one channel with one key, and what a refusal says."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from perdure.v1 import (
    admin_service_pb2_grpc,
    agent_pb2,
    agent_service_pb2,
    agent_service_pb2_grpc,
    checkpoint_service_pb2_grpc,
    commit_service_pb2_grpc,
    history_service_pb2_grpc,
    message_pb2,
    recovery_service_pb2_grpc,
)
from perdure.v1 import history_service_pb2 as pb

Metadata = tuple[tuple[str, str], ...]


class Wire:
    """Stubs of one channel, and the most frequent calls in short."""

    def __init__(self, address: str, key: str, **options: int) -> None:
        """Open a channel; nothing is sent before the first call."""
        self.address = address
        self.channel = grpc.aio.insecure_channel(
            address,
            options=[(f"grpc.{name}", value) for name, value in options.items()],
        )
        self.key = bearer(key)
        self.history: Any = history_service_pb2_grpc.HistoryServiceStub(self.channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(self.channel)
        self.agents: Any = agent_service_pb2_grpc.AgentServiceStub(self.channel)
        self.checkpoints: Any = checkpoint_service_pb2_grpc.CheckpointServiceStub(
            self.channel
        )
        self.commits: Any = commit_service_pb2_grpc.CommitServiceStub(self.channel)
        self.recoveries: Any = recovery_service_pb2_grpc.RecoveryServiceStub(
            self.channel
        )

    async def create(self, conversation_id: str, **fields: Any) -> Any:
        """CreateConversation."""
        request = pb.CreateConversationRequest(
            conversation_id=conversation_id, **fields
        )
        return await self.history.CreateConversation(request, metadata=self.key)

    async def append(self, conversation_id: str, *bodies: bytes, **fields: Any) -> Any:
        """AppendMessages, which makes the conversation if it is missing."""
        fields.setdefault("create_if_missing", True)
        request = pb.AppendMessagesRequest(
            conversation_id=conversation_id, messages=bodies, **fields
        )
        return await self.history.AppendMessages(request, metadata=self.key)

    def stream(self, conversation_id: str, **fields: Any) -> Any:
        """ReadMessages as the call itself."""
        request = pb.ReadMessagesRequest(conversation_id=conversation_id, **fields)
        return self.history.ReadMessages(request, metadata=self.key)

    async def batches(self, conversation_id: str, **fields: Any) -> list[Any]:
        """ReadMessages to its end: its batches."""
        batches, ended = [], False
        async for response in self.stream(conversation_id, **fields):
            assert not ended, "something came after the end"
            if response.WhichOneof("event") == "end":
                assert response.end.reason == pb.STREAM_END_REASON_COMPLETE
                ended = True
            else:
                batches.append(response.batch)
        assert ended, "the stream broke off"
        return batches

    async def read(self, conversation_id: str, **fields: Any) -> list[Any]:
        """ReadMessages to its end: its messages."""
        batches = await self.batches(conversation_id, **fields)
        return [message for batch in batches for message in batch.messages]

    async def acquire(self, agent_id: str, conversation_id: str) -> agent_pb2.Fence:
        """AcquireAgents for one agent under a lease of its own."""
        request = agent_service_pb2.AcquireAgentsRequest(
            lease=agent_pb2.LeaseSpec(lease_id=str(uuid.uuid4()), owner="tests"),
            agents=[
                agent_service_pb2.AgentSpec(
                    agent_id=agent_id,
                    conversation_id=conversation_id,
                    claim_id=str(uuid.uuid4()),
                )
            ],
        )
        response = await self.agents.AcquireAgents(request, metadata=self.key)
        fence: agent_pb2.Fence = response.agents[0].fence
        return fence


def bearer(key: str) -> Metadata:
    """Return the metadata that carries a key."""
    return (("authorization", f"Bearer {key}"),)


def said(
    message_id: str, text: str = "hello", role: str = "user", **fields: Any
) -> bytes:
    """Return a serialized message of one text block."""
    message = message_pb2.Message(
        message_id=message_id,
        role=message_pb2.Role.Value(f"ROLE_{role.upper()}"),
        blocks=[message_pb2.Block(text=message_pb2.TextBlock(text=text))],
        **fields,
    )
    return message.SerializeToString()


@dataclass
class Refusal:
    """What an error status carried; filled when the block of `refused` ends."""

    code: str = ""
    reason: str = ""
    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None


@contextmanager
def refused(reason: str) -> Iterator[Refusal]:
    """Expect a call to end with this reason."""
    refusal = Refusal()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield refusal
    _read_details(caught.value, refusal)
    assert refusal.reason == reason, (refusal, caught.value)


def _read_details(error: grpc.aio.AioRpcError, refusal: Refusal) -> None:
    refusal.code = error.code().name
    refusal.message = error.details() or ""
    for name, value in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        status = status_pb2.Status.FromString(value)
        for packed in status.details:
            info = error_details_pb2.ErrorInfo()
            retry = error_details_pb2.RetryInfo()
            if packed.Unpack(info):
                assert info.domain == "perdure"
                refusal.reason = info.reason
                refusal.metadata = dict(info.metadata)
            elif packed.Unpack(retry):
                refusal.retry_after_s = retry.retry_delay.ToMicroseconds() / 1e6
