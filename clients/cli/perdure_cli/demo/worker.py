"""A worker process of the demo: owns agents and replays their conversations.

    python -m perdure_cli.demo.worker '{"target": ..., ...}'

Reports every acknowledgement as a line of JSON on stdout before the next step.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import perdure
from perdure_cli.demo.conversations import load_conversations
from perdure_cli.demo.replay import (
    Payload,
    Unit,
    first_state,
    fold,
    message_id_of,
    units_of,
)

ANSWER_TIMEOUT_S = 60.0


class Worker:
    """Replays agents until their conversations end."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        path = order["source"]
        _, conversations = load_conversations(
            Path(path) if path else None, order["agents"]
        )
        self._source = {item.conversation_id: item.messages for item in conversations}

    async def run(self) -> None:
        """Acquire or restore, then replay."""
        async with (
            perdure.connect(
                self._order["target"],
                key=self._order["key"],
                owner=self._order["name"],
                labels=self._order["labels"],
                timeout_s=ANSWER_TIMEOUT_S,
            ) as client,
            asyncio.TaskGroup() as tasks,
        ):
            if "recovery_id" in self._order:
                await self._restore(client, tasks)
            else:
                for agent_id in self._order["agent_ids"]:
                    tasks.create_task(self._acquire(client, agent_id))

    async def _acquire(self, client: perdure.AsyncClient, agent_id: str) -> None:
        agent = await client.agents.acquire(agent_id, framework="demo")
        await self._own(client, agent)

    async def _restore(
        self, client: perdure.AsyncClient, tasks: asyncio.TaskGroup
    ) -> None:
        agents = client.agents.restore(
            recovery_id=self._order["recovery_id"], at_most=self._order["at_most"]
        )
        async for agent in agents:
            _report(kind="restored", agent=agent.agent_id, step=agent.last_step)
            tasks.create_task(self._own(client, agent))

    async def _own(self, client: perdure.AsyncClient, agent: perdure.Agent) -> None:
        try:
            async with agent:
                await self._replay(client, agent)
        except perdure.Fenced:
            await self._write_stale(client, agent)
        else:
            _report(kind="finished", agent=agent.agent_id)

    async def _replay(self, client: perdure.AsyncClient, agent: perdure.Agent) -> None:
        messages = self._source[agent.agent_id]
        state = agent.state_or(first_state())
        for unit in units_of(messages, start=state["message_count"]):
            if unit.is_step:
                state = fold(state, unit.payloads)
                await self._step(agent, unit, state)
            else:
                await self._say(client, agent, unit)
                state = fold(state, unit.payloads)

    async def _say(
        self, client: perdure.AsyncClient, agent: perdure.Agent, unit: Unit
    ) -> None:
        """Append what the user says, as an outsider would, and let the agent read."""
        ids = _ids(agent.agent_id, unit)
        placed = await client.history.append(
            agent.conversation_id, list(unit.payloads), message_ids=ids, create=False
        )
        _report(
            kind="messages",
            agent=agent.agent_id,
            places=_places(unit),
            seqs=[message.seq for message in placed.messages],
        )
        await agent.read_messages()

    async def _step(
        self, agent: perdure.Agent, unit: Unit, state: dict[str, Any]
    ) -> None:
        async with agent.step() as step:
            for message_id, payload in zip(
                _ids(agent.agent_id, unit), unit.payloads, strict=True
            ):
                step.append(payload, message_id=message_id)
            step.checkpoint(state)
        _report(
            kind="step",
            agent=agent.agent_id,
            step=agent.last_step,
            places=_places(unit),
            seqs=[message.seq for message in step.result.messages],
        )

    async def _write_stale(
        self, client: perdure.AsyncClient, agent: perdure.Agent
    ) -> None:
        """Try to write a new step with the fence that was lost: it must be refused."""
        try:
            await client.checkpoints.put(
                agent.agent_id,
                {"written by": "a worker that was thawed"},
                step=agent.last_step + 1_000,
                fence=agent.fence,
            )
        except perdure.Fenced:
            _report(kind="stale", agent=agent.agent_id, refused=True)
        else:
            _report(kind="stale", agent=agent.agent_id, refused=False)


def _ids(agent_id: str, unit: Unit) -> list[str]:
    return [message_id_of(agent_id, place) for place in _places(unit)]


def _places(unit: Unit) -> list[int]:
    payloads: Sequence[Payload] = unit.payloads
    return list(range(unit.first, unit.first + len(payloads)))


def _report(**report: Any) -> None:
    # One write: the line is in the pipe, whole, before anything else happens.
    os.write(sys.stdout.fileno(), json.dumps(report).encode() + b"\n")


def main() -> None:
    """Carry out the order given as the first argument."""
    order = json.loads(sys.argv[1])
    try:
        asyncio.run(Worker(order).run())
    except BaseExceptionGroup as group:
        for error in group.exceptions:
            _report(kind="fault", what=f"{order['name']}: {error!r}"[:300])
        sys.exit(1)


if __name__ == "__main__":
    main()
