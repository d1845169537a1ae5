"""Holds the store against the source and against what was acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import perdure
from perdure_cli.conversation_file import SourceConversation
from perdure_cli.demo.ledger import Ledger
from perdure_cli.demo.replay import (
    Payload,
    final_state,
    first_state,
    fold,
    message_id_of,
    units_of,
)


@dataclass
class Verdict:
    """Counts of the last comparison; `faults` says what was found, in words."""

    message_count: int = 0
    checkpoint_count: int = 0
    rebuilt_count: int = 0
    lost_count: int = 0
    mismatch_count: int = 0
    faults: list[str] = field(default_factory=list)

    def take_dropped(self, count: int, ledger: Ledger) -> None:
        """Hold the checkpoints that were there against those acknowledged."""
        self.checkpoint_count = count
        missing = ledger.step_count - count
        if missing > 0:
            self.lost_count += missing
            self.faults.append(f"{missing} acknowledged checkpoints are lost")


async def compare(
    client: perdure.AsyncClient,
    conversations: Sequence[SourceConversation],
    ledger: Ledger,
    verdict: Verdict,
) -> None:
    """Compare every conversation and every state."""
    for conversation in conversations:
        await _compare_messages(client, conversation, ledger, verdict)
        await _compare_state(client, conversation, ledger, verdict)


async def rebuild(
    client: perdure.AsyncClient,
    conversations: Sequence[SourceConversation],
    verdict: Verdict,
) -> None:
    """Take every agent, now without a checkpoint, and build it from its messages."""
    expected = {
        item.conversation_id: final_state(item.messages) for item in conversations
    }
    async for agent in client.agents.restore(lease="free", framework="demo"):
        payloads = [message.payload for message in agent.new_messages]
        state = fold(first_state(), _up_to_last_step(payloads))
        if not agent.rebuilt:
            verdict.faults.append(f"{agent.agent_id}: not marked rebuilt")
        elif state != expected[agent.agent_id]:
            verdict.mismatch_count += 1
            verdict.faults.append(f"{agent.agent_id}: rebuilt to another state")
        else:
            verdict.rebuilt_count += 1
        # Not released in between: a free agent would be given out again.


async def _compare_messages(
    client: perdure.AsyncClient,
    conversation: SourceConversation,
    ledger: Ledger,
    verdict: Verdict,
) -> None:
    agent_id = conversation.conversation_id
    stored = [message async for message in client.history.read(agent_id)]
    verdict.message_count += len(stored)
    seqs = {message.message_id: message.seq for message in stored}
    for place in range(len(conversation.messages)):
        acknowledged = ledger.message_seqs.get((agent_id, place))
        if acknowledged is None:
            continue
        if seqs.get(message_id_of(agent_id, place)) != acknowledged:
            verdict.lost_count += 1
            verdict.faults.append(f"{agent_id}: message {place} is not where it was")
    kept = [message.message.native.payload for message in stored]
    if kept != [_native_bytes(payload) for payload in conversation.messages]:
        verdict.mismatch_count += 1
        verdict.faults.append(f"{agent_id}: the messages are not those of the source")


async def _compare_state(
    client: perdure.AsyncClient,
    conversation: SourceConversation,
    ledger: Ledger,
    verdict: Verdict,
) -> None:
    agent_id = conversation.conversation_id
    found = await client.checkpoints.get(agent_id)
    if found.checkpoint.step < ledger.steps.get(agent_id, 0):
        verdict.lost_count += 1
        verdict.faults.append(f"{agent_id}: its newest step is lost")
    if found.state != final_state(conversation.messages):
        verdict.mismatch_count += 1
        verdict.faults.append(f"{agent_id}: the state is not that of the source")


def _native_bytes(payload: Payload) -> bytes:
    """Return what a worker sent for a message of the source, byte for byte."""
    return perdure.native_message(payload, message_id="any").native.payload


def _up_to_last_step(payloads: list[Payload]) -> list[Payload]:
    steps = [unit for unit in units_of(payloads) if unit.is_step]
    return payloads[: steps[-1].first + len(steps[-1].payloads)] if steps else []
