"""Claimed agents, read in later statements and made into messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import perdure_codec
from perdure.v1 import checkpoint_pb2, error_reason_pb2, history_service_pb2
from perdure.v1 import recovery_service_pb2 as pb
from perdure_server.errors import PerdureError, Pruned
from perdure_server.restore.grouping import grouped
from perdure_server.restore.soundness import find_fault
from perdure_server.rpc.agent_messages import agent_message
from perdure_server.rpc.checkpoint_messages import checkpoint_message, state_message
from perdure_server.rpc.fences import fence_message
from perdure_server.rpc.message_stream import stored_message
from perdure_server.store.agents import Acquired
from perdure_server.store.checkpoints import Checkpoint, Checkpoints
from perdure_server.store.fence import Fence
from perdure_server.store.restores import Head, Restores, Unread, UnreadMessages

UNREAD_ROWS = 256
UNREAD_BYTES = 256 * 1024
EARLIER_STEPS_TRIED = 20

Encoding: TypeAlias = checkpoint_pb2.StateEncoding.ValueType


@dataclass(frozen=True)
class Delivery:
    """An agent for its new owner. `message.error` set: it cannot be restored."""

    fence: Fence
    message: pb.RestoredAgent


class RestoredAgents:
    """Reads what claimed agents need to go on."""

    def __init__(self, restores: Restores, checkpoints: Checkpoints) -> None:
        self._restores = restores
        self._checkpoints = checkpoints

    async def read(
        self, tenant_id: str, taken: Sequence[Acquired], encoding: Encoding
    ) -> AsyncIterator[Delivery]:
        """Yield the agents that are still under the claims of `taken`, in order."""
        fences = [item.fence for item in taken if item.fence is not None]
        if not fences:
            return
        heads = await self._restores.heads(tenant_id, fences)
        for group in grouped(heads):
            chains = await self._restores.chains(tenant_id, group)
            unread = await self._unread(tenant_id, group, chains)
            for head, chain, messages in zip(group, chains, unread, strict=True):
                yield await self._deliver(tenant_id, head, chain, messages, encoding)

    async def _unread(
        self,
        tenant_id: str,
        heads: Sequence[Head],
        chains: Sequence[Sequence[Checkpoint]],
    ) -> list[UnreadMessages]:
        wanted = [
            Unread(
                conversation_id=head.agent.conversation_id,
                from_seq=chain[-1].read_seq if chain else 0,
                to_seq=head.agent.message_count,
                agent_id=head.agent.agent_id,
                own_step=chain[-1].step if chain else -1,
                limit_bytes=UNREAD_BYTES,
            )
            for head, chain in zip(heads, chains, strict=True)
        ]
        return await self._restores.unread(tenant_id, wanted, UNREAD_ROWS)

    async def _deliver(
        self,
        tenant_id: str,
        head: Head,
        chain: Sequence[Checkpoint],
        unread: UnreadMessages,
        encoding: Encoding,
    ) -> Delivery:
        if head.has_checkpoint and not chain:
            # Dropped between the two statements, or missing: the head knows.
            again = await self._restores.heads(tenant_id, [head.fence])
            head = again[0] if again else head
        message = pb.RestoredAgent(
            agent=agent_message(head.agent), message_count=head.agent.message_count
        )
        if head.has_checkpoint:
            error = await _put_state(message, head, chain, encoding)
            if error is not None:
                error.last_good_step = await last_good_step(
                    self._checkpoints,
                    tenant_id,
                    head.agent.agent_id,
                    head.agent.canonical_branch,
                    head.agent.head_step,
                )
                message.error.CopyFrom(error)
                return Delivery(head.fence, message)
        message.rebuilt = head.agent.head_step > 0 and not head.has_checkpoint
        message.fence.CopyFrom(fence_message(head.fence))
        message.next_message_seq = unread.next_seq
        message.new_messages.extend(
            stored_message(stored, history_service_pb2.MESSAGE_VIEW_NATIVE)
            for stored in unread.messages
        )
        return Delivery(head.fence, message)


async def last_good_step(
    checkpoints: Checkpoints,
    tenant_id: str,
    agent_id: str,
    branch: str,
    broken_step: int,
) -> int:
    """Return the newest step before a broken one whose frames are whole, else 0."""
    earlier = await checkpoints.page(
        tenant_id, agent_id, branch, broken_step, EARLIER_STEPS_TRIED
    )
    for candidate in earlier:
        try:
            chain = await checkpoints.chain(tenant_id, agent_id, branch, candidate.step)
        except Pruned:
            continue  # by the sweeper, since the page was read
        if find_fault([link.frame for link in chain]) is None:
            return candidate.step
    return 0


async def _put_state(
    message: pb.RestoredAgent,
    head: Head,
    chain: Sequence[Checkpoint],
    encoding: Encoding,
) -> pb.RestoreError | None:
    corrupt = error_reason_pb2.ERROR_REASON_FRAME_CORRUPT
    fault = find_fault([link.frame for link in chain])
    if fault is None and chain[-1].step != head.agent.head_step:
        fault = "the newest step is missing"
    if fault is not None:
        return pb.RestoreError(reason=corrupt, message=fault)
    frames = [link.frame for link in chain if link.frame is not None]
    try:
        message.state.CopyFrom(await state_message(frames, encoding))
    except PerdureError as exc:
        reason = error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{exc.reason}")
        return pb.RestoreError(reason=reason, message=exc.message)
    except perdure_codec.CodecError as exc:
        code = getattr(exc, "code", "")
        return pb.RestoreError(
            reason=corrupt, message=f"the state does not open ({code})"
        )
    message.checkpoint.CopyFrom(checkpoint_message(chain[-1]))
    return None
