"""What a replayed conversation should look like at each point: units and state.

The state is a fold over the messages and nothing else, so that it can be computed
from the source for comparison, and from the stored messages when every checkpoint is
gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_NOTES = 12
VECTOR_SIZE = 64

State = dict[str, Any]
Payload = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """Messages that are written together: a user's, or one step of the agent."""

    first: int
    """Place of the first message in the conversation."""
    payloads: tuple[Payload, ...]
    is_step: bool
    """Written by the agent in one step; else by the user."""


def units_of(messages: list[Payload], start: int = 0) -> Iterator[Unit]:
    """Yield the units from message `start` on, which must begin one."""
    place = start
    while place < len(messages):
        end = place + 1
        if messages[place]["role"] == "user":
            while end < len(messages) and messages[end]["role"] == "user":
                end += 1
            yield Unit(place, tuple(messages[place:end]), is_step=False)
        else:
            # A tool's answer belongs to the step that called it.
            while end < len(messages) and messages[end]["role"] == "tool":
                end += 1
            yield Unit(place, tuple(messages[place:end]), is_step=True)
        place = end


def message_id_of(agent_id: str, place: int) -> str:
    """Return the id of a message: the same whoever writes it, however often."""
    return f"{agent_id}-{place:04d}"


def first_state() -> State:
    """Return the state before any message."""
    return {
        "message_count": 0,
        "digest": b"",
        "calls": {},
        "open_calls": [],
        "notes": [],
        "vector": [0.0] * VECTOR_SIZE,
    }


def fold(state: State, payloads: Iterable[Payload]) -> State:
    """Return the state after these messages. The old one is left as it is."""
    state = {**state, "calls": dict(state["calls"]), "notes": list(state["notes"])}
    for payload in payloads:
        text = json.dumps(payload, sort_keys=True, ensure_ascii=False)
        state["digest"] = hashlib.sha256(state["digest"] + text.encode()).digest()
        state["message_count"] += 1
        state["notes"] = [*state["notes"], text[:300]][-MAX_NOTES:]
        _fold_calls(state, payload)
    # Any numbers that follow from the digest: an embedding in a real agent.
    state["vector"] = [
        (state["digest"][n % 32] ^ n) / 256.0 for n in range(VECTOR_SIZE)
    ]
    return state


def final_state(messages: list[Payload]) -> State:
    """Return the state after the last step; later words of the user are unread."""
    steps = [unit for unit in units_of(messages) if unit.is_step]
    last = steps[-1]
    return fold(first_state(), messages[: last.first + len(last.payloads)])


def _fold_calls(state: State, payload: Payload) -> None:
    for call in payload.get("tool_calls") or []:
        called = call.get("function") or call.get("custom") or {}
        name = called.get("name", "")
        state["calls"][name] = state["calls"].get(name, 0) + 1
        state["open_calls"] = [*state["open_calls"], (call.get("id"), name)]
    answered = payload.get("tool_call_id")
    if answered is not None:
        state["open_calls"] = [
            (call_id, name)
            for call_id, name in state["open_calls"]
            if call_id != answered
        ]
