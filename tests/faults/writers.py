"""Concurrent writers that note every acknowledgement they got."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import perdure

CONVERSATION = "shared"


@dataclass
class Ledger:
    """What was acknowledged, and what was attempted without an answer."""

    appended: dict[str, int] = field(default_factory=dict)
    """message id -> seq, in the shared conversation."""
    attempted: set[str] = field(default_factory=set)
    steps: dict[str, int] = field(default_factory=dict)
    """agent id -> newest acknowledged step."""
    messages: dict[str, list[str]] = field(default_factory=dict)
    """agent id -> ids of its messages that were acknowledged, in order."""


async def append_for_ever(
    client: perdure.AsyncClient, name: str, ledger: Ledger, stop: asyncio.Event
) -> None:
    """Append one message after the other to the shared conversation."""
    number = len([known for known in ledger.attempted if known.startswith(f"{name}-")])
    while not stop.is_set():
        message_id = f"{name}-{number:06d}"
        ledger.attempted.add(message_id)
        payload = {"role": "user", "content": f"{name} says {number}"}
        placed = await client.history.append(
            CONVERSATION, [payload], message_ids=[message_id]
        )
        ledger.appended[message_id] = placed.messages[0].seq
        number += 1


async def step_for_ever(
    agent: perdure.Agent, ledger: Ledger, stop: asyncio.Event
) -> None:
    """Commit one step after the other: a message and a checkpoint."""
    written = ledger.messages.setdefault(agent.agent_id, [])
    while not stop.is_set():
        number = agent.last_step + 1
        message_id = f"{agent.agent_id}-{number:06d}"
        async with agent.step() as step:
            step.append(
                {"role": "assistant", "content": f"step {number}"},
                message_id=message_id,
            )
            step.checkpoint({"step": number, "trail": list(range(number % 50))})
        written.append(message_id)
        ledger.steps[agent.agent_id] = number


def progress(ledger: Ledger) -> int:
    """Return how many writes were acknowledged so far."""
    return len(ledger.appended) + sum(ledger.steps.values())
