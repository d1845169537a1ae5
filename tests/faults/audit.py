"""Holds what the store has against what was acknowledged."""

from __future__ import annotations

import perdure
from tests.faults.writers import CONVERSATION, Ledger


async def faults(client: perdure.AsyncClient, ledger: Ledger) -> list[str]:
    """Return every broken promise in words; an empty list is what we want."""
    found = await _conversation_faults(client, ledger)
    for agent_id in ledger.steps:
        found += await _agent_faults(client, agent_id, ledger)
    return found


async def _conversation_faults(
    client: perdure.AsyncClient, ledger: Ledger
) -> list[str]:
    found: list[str] = []
    stored: dict[str, int] = {}
    expected_seq = 0
    last_of: dict[str, str] = {}
    async for message in client.history.read(CONVERSATION):
        if message.seq != expected_seq:
            found.append(f"seq {message.seq} stands where {expected_seq} is due")
        expected_seq = message.seq + 1
        if message.message_id in stored:
            found.append(f"{message.message_id} is there twice")
        stored[message.message_id] = message.seq
        writer = message.message_id.rsplit("-", 1)[0]
        if message.message_id <= last_of.get(writer, ""):
            found.append(f"{message.message_id} came before its predecessor")
        last_of[writer] = message.message_id
    for message_id, seq in ledger.appended.items():
        if stored.get(message_id) != seq:
            found.append(
                f"{message_id}: acknowledged at {seq}, stored {stored.get(message_id)}"
            )
    found += [f"{known} was never sent" for known in stored.keys() - ledger.attempted]
    return found


async def _agent_faults(
    client: perdure.AsyncClient, agent_id: str, ledger: Ledger
) -> list[str]:
    found: list[str] = []
    stored_state = await client.checkpoints.get(agent_id)
    checkpoint, state = stored_state.checkpoint, stored_state.state
    acknowledged = ledger.steps[agent_id]
    # One step more may have been stored without its answer arriving.
    if checkpoint.step not in (acknowledged, acknowledged + 1):
        found.append(
            f"{agent_id}: step {acknowledged} acknowledged, head {checkpoint.step}"
        )
    if state["step"] != checkpoint.step:
        found.append(f"{agent_id}: the state of step {checkpoint.step} is another's")
    stored = [message.message_id async for message in client.history.read(agent_id)]
    due = ledger.messages[agent_id]
    if stored[: len(due)] != due or len(stored) > len(due) + 1:
        found.append(
            f"{agent_id}: {len(due)} messages acknowledged, {len(stored)} stored"
        )
    if len(stored) != checkpoint.step:
        found.append(
            f"{agent_id}: {len(stored)} messages beside step {checkpoint.step}"
        )
    return found
