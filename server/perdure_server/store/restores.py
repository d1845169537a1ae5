"""What the new owner of an agent is given, read in statements after its claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from perdure_server.store.agents import Acquired, Agent, acquired_of, agent_of
from perdure_server.store.checkpoints import Checkpoint
from perdure_server.store.database import Database
from perdure_server.store.fence import Fence
from perdure_server.store.messages import StoredMessage
from perdure_server.store.queries import load_queries

_SQL = load_queries("restores")


@dataclass(frozen=True)
class Head:
    """An agent under its new claim, and where its newest chain lies."""

    agent: Agent
    fence: Fence
    keyframe_step: int
    has_checkpoint: bool
    """False: it has no step yet, or its checkpoints were dropped."""

    @property
    def chain_bytes(self) -> int:
        """Stored bytes from the newest keyframe to the head."""
        return self.agent.chain_bytes


@dataclass(frozen=True)
class Unread:
    """Which messages one agent has not read."""

    conversation_id: str
    from_seq: int
    to_seq: int
    agent_id: str
    own_step: int
    """The agent's own messages up to this step are left out; -1: none is."""
    limit_bytes: int


@dataclass(frozen=True)
class UnreadMessages:
    """The first of an agent's unread messages."""

    messages: tuple[StoredMessage, ...]
    next_seq: int
    """First seq that did not fit; the end of the range when all did."""


class Restores:
    """Reads agents for their new owners."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claimed(
        self, tenant_id: str, lease_id: UUID, after: UUID, up_to: UUID
    ) -> list[Acquired]:
        """Return the agents that a lease holds by claims of a range, in order."""
        rows = await self._database.fetch(
            _SQL["list_claimed"], tenant_id, lease_id, after, up_to
        )
        return [acquired_of(row) for row in rows]

    async def free(self, tenant_id: str, fence: Fence) -> None:
        """Free one agent whose fence is current; its subtree stays."""
        await self._database.fetch(
            _SQL["free_agent"], tenant_id, fence.agent_id, fence.epoch, fence.claim_id
        )

    async def heads(self, tenant_id: str, fences: Sequence[Fence]) -> list[Head]:
        """Return the agents that are still under these fences, in their order."""
        rows = await self._database.fetch(
            _SQL["read_heads"],
            tenant_id,
            [fence.agent_id for fence in fences],
            [fence.epoch for fence in fences],
            [fence.claim_id for fence in fences],
            self._database.connected_ms(),
        )
        return [_head(dict(row)) for row in rows]

    async def chains(
        self, tenant_id: str, heads: Sequence[Head]
    ) -> list[list[Checkpoint]]:
        """Return for each agent its newest frames, keyframe first."""
        rows = await self._database.fetch(
            _SQL["read_chains"],
            tenant_id,
            [head.agent.agent_id for head in heads],
            [head.agent.canonical_branch for head in heads],
            [head.keyframe_step for head in heads],
            [head.agent.head_step for head in heads],
        )
        chains: list[list[Checkpoint]] = [[] for _ in heads]
        for row in rows:
            place, *columns = row.values()
            chains[place - 1].append(Checkpoint(*columns))
        return chains

    async def unread(
        self, tenant_id: str, wanted: Sequence[Unread], limit: int
    ) -> list[UnreadMessages]:
        """Return for each range its first messages, less than `limit` of each."""
        rows = await self._database.fetch(
            _SQL["read_new_messages"],
            tenant_id,
            [item.conversation_id for item in wanted],
            [item.from_seq for item in wanted],
            [item.to_seq for item in wanted],
            [item.agent_id for item in wanted],
            [item.own_step for item in wanted],
            [item.limit_bytes for item in wanted],
            limit,
        )
        fitting: list[list[StoredMessage]] = [[] for _ in wanted]
        next_seqs = [item.to_seq for item in wanted]
        for row in rows:
            place, *columns = row.values()
            if row["body"] is None:
                next_seqs[place - 1] = row["seq"]
            else:
                fitting[place - 1].append(StoredMessage(*columns))
        return [
            UnreadMessages(tuple(messages), next_seq)
            for messages, next_seq in zip(fitting, next_seqs, strict=True)
        ]


def _head(row: dict[str, Any]) -> Head:
    fence = Fence(row["agent_id"], row["epoch"], row.pop("claim_id"))
    keyframe_step = row.pop("keyframe_step")
    has_checkpoint = row.pop("has_checkpoint")
    return Head(agent_of(row), fence, keyframe_step, has_checkpoint)
