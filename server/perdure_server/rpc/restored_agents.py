"""Claimed agents, read in later statements and made into messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import perdure_codec
from perdure.v1 import (
    checkpoint_pb2,
    error_reason_pb2,
    history_service_pb2,
)
from perdure.v1 import recovery_service_pb2 as pb
from perdure_server.errors import PerdureError
from perdure_server.restore.grouping import grouped
from perdure_server.restore.manifest import Manifest
from perdure_server.restore.soundness import find_fault
from perdure_server.rpc.agent_messages import agent_message
from perdure_server.rpc.checkpoint_messages import checkpoint_message, state_message
from perdure_server.rpc.fences import fence_message
from perdure_server.rpc.message_stream import stored_message
from perdure_server.store.agents import Acquired, Agent, Agents, Selector
from perdure_server.store.checkpoints import Checkpoint, Checkpoints
from perdure_server.store.fence import Fence
from perdure_server.store.messages import StoredMessage
from perdure_server.store.recoveries import Chain, Recoveries, Unread

UNREAD_ROWS = 200
UNREAD_BYTES = 512 * 1024
EARLIER_STEPS_TRIED = 20


class RestoredAgents:
    """Reads what claimed agents need to go on."""

    def __init__(
        self, agents: Agents, recoveries: Recoveries, checkpoints: Checkpoints
    ) -> None:
        self._agents = agents
        self._recoveries = recoveries
        self._checkpoints = checkpoints

    async def read(
        self,
        tenant_id: str,
        taken: Sequence[Acquired],
        encoding: checkpoint_pb2.StateEncoding.ValueType,
        manifest: Manifest,
    ) -> AsyncIterator[pb.RestoredAgent]:
        """Yield the agents that are still under the claims of `taken`."""
        fences = {item.agent_id: item.fence for item in taken if item.fence}
        found = await self._agents.select(
            tenant_id, Selector(agent_ids=tuple(fences)), None, max(1, len(fences))
        )
        by_id = {agent.agent_id: agent for agent in found}
        ordered = [by_id[agent_id] for agent_id in fences if agent_id in by_id]
        for group in grouped(ordered):
            chains = await self._recoveries.chains(
                tenant_id, [fences[agent.agent_id] for agent in group]
            )
            present = [agent for agent in group if agent.agent_id in chains]
            unread = await self._unread(tenant_id, present, chains)
            for agent in present:
                yield await self._restored(
                    tenant_id,
                    agent,
                    fences[agent.agent_id],
                    chains[agent.agent_id],
                    unread[agent.agent_id],
                    encoding,
                    manifest,
                )

    async def _unread(
        self, tenant_id: str, agents: Sequence[Agent], chains: Mapping[str, Chain]
    ) -> dict[str, list[StoredMessage]]:
        wanted = []
        for agent in agents:
            links = chains[agent.agent_id].links
            read_seq, step = (links[-1].read_seq, links[-1].step) if links else (0, 0)
            wanted.append(Unread(agent.agent_id, agent.conversation_id, read_seq, step))
        return await self._recoveries.unread(
            tenant_id, wanted, limit=UNREAD_ROWS, limit_bytes=UNREAD_BYTES
        )

    async def _restored(
        self,
        tenant_id: str,
        agent: Agent,
        fence: Fence,
        chain: Chain,
        unread: Sequence[StoredMessage],
        encoding: checkpoint_pb2.StateEncoding.ValueType,
        manifest: Manifest,
    ) -> pb.RestoredAgent:
        message = pb.RestoredAgent(
            agent=agent_message(agent), message_count=agent.message_count
        )
        fault = None
        if chain.links or (chain.head_step > 0 and not chain.is_dropped):
            fault = await self._put_state(message, chain, encoding)
        if fault is not None:
            manifest.add_failed()
            message.error.CopyFrom(fault)
            message.error.last_good_step = await self._last_good_step(
                tenant_id, agent, chain.head_step
            )
            return message
        message.fence.CopyFrom(fence_message(fence))
        message.rebuilt = chain.is_dropped and not chain.links
        _put_messages(message, agent, unread)
        newest = chain.links[-1] if chain.links else None
        manifest.add_restored(
            agent.agent_id,
            newest.step if newest else 0,
            newest.raw_digest if newest else b"",
            rebuilt=message.rebuilt,
        )
        return message

    async def _put_state(
        self,
        message: pb.RestoredAgent,
        chain: Chain,
        encoding: checkpoint_pb2.StateEncoding.ValueType,
    ) -> pb.RestoreError | None:
        fault = find_fault([link.frame for link in chain.links])
        if fault is None and chain.links[-1].step != chain.head_step:
            fault = "the newest step is missing"
        if fault is not None:
            return pb.RestoreError(
                reason=error_reason_pb2.ERROR_REASON_FRAME_CORRUPT, message=fault
            )
        frames = [link.frame for link in chain.links if link.frame is not None]
        try:
            message.state.CopyFrom(await state_message(frames, encoding))
        except PerdureError as exc:
            reason = error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{exc.reason}")
            return pb.RestoreError(reason=reason, message=exc.message)
        except perdure_codec.CodecError as exc:
            return pb.RestoreError(
                reason=error_reason_pb2.ERROR_REASON_FRAME_CORRUPT,
                message=f"the state does not open ({getattr(exc, 'code', '')})",
            )
        message.checkpoint.CopyFrom(checkpoint_message(chain.links[-1]))
        return None

    async def _last_good_step(
        self, tenant_id: str, agent: Agent, broken_step: int
    ) -> int:
        return await last_good_step(
            self._checkpoints,
            tenant_id,
            agent.agent_id,
            agent.canonical_branch,
            broken_step,
        )


async def last_good_step(
    checkpoints: Checkpoints,
    tenant_id: str,
    agent_id: str,
    branch: str,
    broken_step: int,
) -> int:
    """Return the newest step before a broken one whose frames are whole, else 0."""
    earlier: list[Checkpoint] = await checkpoints.page(
        tenant_id, agent_id, branch, broken_step, EARLIER_STEPS_TRIED
    )
    for candidate in earlier:
        chain = await checkpoints.chain(tenant_id, agent_id, branch, candidate.step)
        if find_fault([link.frame for link in chain]) is None:
            return candidate.step
    return 0


def _put_messages(
    message: pb.RestoredAgent, agent: Agent, unread: Sequence[StoredMessage]
) -> None:
    message.new_messages.extend(
        stored_message(stored, history_service_pb2.MESSAGE_VIEW_NATIVE)
        for stored in unread
    )
    cut = len(unread) == UNREAD_ROWS or _is_short(unread, agent, message)
    if not cut:
        message.next_message_seq = agent.message_count
    elif unread:
        message.next_message_seq = unread[-1].seq + 1
    else:
        message.next_message_seq = message.checkpoint.read_seq


def _is_short(
    unread: Sequence[StoredMessage], agent: Agent, message: pb.RestoredAgent
) -> bool:
    # Whether a message was left out for its bytes cannot be seen from the rows that
    # came: the reader is sent on unless the last message of the conversation is
    # among them, or nothing was left to read.
    last_seq = unread[-1].seq if unread else message.checkpoint.read_seq - 1
    return last_seq < agent.message_count - 1
