"""Recoveries: plan, fence, hand out, and how far they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from perdure_server.errors import IdReused, RecoveryNotFound
from perdure_server.store.agents import (
    Acquired,
    Agents,
    LeaseSpec,
    Selector,
    lease_arguments,
    refuse_lease,
)
from perdure_server.store.checkpoints import Checkpoint
from perdure_server.store.database import Database
from perdure_server.store.fence import Fence
from perdure_server.store.messages import StoredMessage
from perdure_server.store.queries import load_queries

_SQL = load_queries("recoveries")

PLAN_PAGE = 500
FENCE_BATCH = 200
WAIT_BATCH = 1
_BUSY_PASSES = 3
_BUSY_PAUSE_S = 0.05


@dataclass(frozen=True)
class Recovery:
    """A recovery as it was started."""

    recovery_id: UUID
    even_live: bool
    create_time: datetime
    planned_time: datetime | None
    selector_digest: bytes


@dataclass(frozen=True)
class Progress:
    """How far one agent is."""

    agent_id: str
    head_step: int
    chain_bytes: int
    owner: str | None
    state: str
    """planned, fenced, moved, live, busy, restored or resumed."""


@dataclass(frozen=True)
class Chain:
    """An agent's newest frames; no links: it has no checkpoint."""

    agent_id: str
    head_step: int
    is_dropped: bool
    """It had checkpoints, and they were dropped."""
    links: tuple[Checkpoint, ...]


@dataclass(frozen=True)
class Unread:
    """Where one agent goes on reading."""

    agent_id: str
    conversation_id: str
    read_seq: int
    step: int


class Recoveries:
    """The recoveries of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._agents = Agents(database)

    async def get(self, tenant_id: str, recovery_id: UUID) -> Recovery:
        """Return a recovery.

        Raises:
            RecoveryNotFound: There is none.
        """
        row = await self._database.fetchrow(
            _SQL["get_recovery"], tenant_id, recovery_id
        )
        if row is None:
            raise RecoveryNotFound("no such recovery", recovery_id=recovery_id)
        return Recovery(*row.values())

    async def start(
        self,
        tenant_id: str,
        recovery_id: UUID,
        selector: Selector,
        selector_digest: bytes,
        *,
        even_live: bool,
    ) -> Recovery:
        """Plan and fence; go on where an earlier start of the same id stopped.

        Raises:
            IdReused: The id belongs to a recovery with another selector.
        """
        await self._database.fetchrow(
            _SQL["insert_recovery"], tenant_id, recovery_id, even_live, selector_digest
        )
        recovery = await self.get(tenant_id, recovery_id)
        if (recovery.selector_digest, recovery.even_live) != (
            selector_digest,
            even_live,
        ):
            raise IdReused(
                "the recovery exists with another selector", recovery_id=recovery_id
            )
        if recovery.planned_time is None:
            await self._plan(tenant_id, recovery_id, selector)
        await self._fence(tenant_id, recovery)
        return recovery

    async def take(
        self, tenant_id: str, recovery_id: UUID, lease: LeaseSpec, limit: int
    ) -> list[Acquired]:
        """Hand fenced agents, and those whose new worker died, to a lease.

        Raises:
            LeaseRevoked: The lease was ended.
        """
        rows = await self._database.fetch(
            _SQL["take_agents"],
            tenant_id,
            recovery_id,
            *lease_arguments(lease),
            self._database.connected_ms(),
            limit,
        )
        refuse_lease(lease, rows)
        return [_acquired(row) for row in rows]

    async def held(
        self, tenant_id: str, lease_id: UUID, recovery_id: UUID | None
    ) -> list[Acquired]:
        """Return a lease's agents that have not written since their claim."""
        rows = await self._database.fetch(
            _SQL["held_agents"], tenant_id, lease_id, recovery_id
        )
        return [
            Acquired(
                row["agent_id"],
                "acquired",
                Fence(row["agent_id"], row["epoch"], row["claim_id"]),
            )
            for row in rows
        ]

    async def chains(self, tenant_id: str, fences: Sequence[Fence]) -> dict[str, Chain]:
        """Return the newest chains of agents that are still under these fences."""
        rows = await self._database.fetch(
            _SQL["read_chains"],
            tenant_id,
            [fence.agent_id for fence in fences],
            [fence.epoch for fence in fences],
        )
        chains: dict[str, Chain] = {}
        for row in rows:
            agent_id = row["wanted_agent_id"]
            links = chains[agent_id].links if agent_id in chains else ()
            if row["step"] is not None:
                links = (*links, Checkpoint(*list(row.values())[3:]))
            head_step = row["head_step"] or 0
            is_dropped = head_step > 0 and row["head_digest"] is None
            chains[agent_id] = Chain(agent_id, head_step, is_dropped, links)
        return chains

    async def unread(
        self,
        tenant_id: str,
        wanted: Sequence[Unread],
        *,
        limit: int,
        limit_bytes: int,
    ) -> dict[str, list[StoredMessage]]:
        """Return for each agent the first of the messages that it has not read."""
        rows = await self._database.fetch(
            _SQL["read_unread"],
            tenant_id,
            [item.agent_id for item in wanted],
            [item.conversation_id for item in wanted],
            [item.read_seq for item in wanted],
            [item.step for item in wanted],
            limit,
            limit_bytes,
        )
        found: dict[str, list[StoredMessage]] = {item.agent_id: [] for item in wanted}
        for row in rows:
            found[row["wanted_agent_id"]].append(StoredMessage(*list(row.values())[1:]))
        return found

    async def progress(self, tenant_id: str, recovery_id: UUID) -> list[Progress]:
        """Return how far each agent is, in the order of the plan."""
        rows = await self._database.fetch(
            _SQL["list_progress"],
            tenant_id,
            recovery_id,
            self._database.connected_ms(),
        )
        return [Progress(*row.values()) for row in rows]

    async def _plan(
        self, tenant_id: str, recovery_id: UUID, selector: Selector
    ) -> None:
        after: str | None = await self._database.fetchval(
            _SQL["last_planned"], tenant_id, recovery_id
        )
        while page := await self._agents.select(tenant_id, selector, after, PLAN_PAGE):
            await self._database.fetchval(
                _SQL["plan_agents"],
                tenant_id,
                recovery_id,
                [agent.agent_id for agent in page],
                [agent.epoch for agent in page],
            )
            after = page[-1].agent_id
        await self._database.fetchval(_SQL["mark_planned"], tenant_id, recovery_id)

    async def _fence(self, tenant_id: str, recovery: Recovery) -> None:
        # Agents in mid-write are passed over a few times, then waited for.
        for _ in range(_BUSY_PASSES):
            while await self._fence_batch(tenant_id, recovery, FENCE_BATCH, False):
                pass
            if not await self._count_planned(tenant_id, recovery):
                return
            await asyncio.sleep(_BUSY_PAUSE_S)
        while await self._count_planned(tenant_id, recovery):
            await self._fence_batch(tenant_id, recovery, WAIT_BATCH, True)

    async def _fence_batch(
        self, tenant_id: str, recovery: Recovery, limit: int, wait: bool
    ) -> int:
        decided: int = await self._database.fetchval(
            _SQL["fence_agents"],
            tenant_id,
            recovery.recovery_id,
            limit,
            recovery.even_live,
            self._database.connected_ms(),
            wait,
        )
        return decided

    async def _count_planned(self, tenant_id: str, recovery: Recovery) -> int:
        planned: int = await self._database.fetchval(
            _SQL["count_planned"], tenant_id, recovery.recovery_id
        )
        return planned


def counted(progress: Sequence[Progress]) -> Counter[str]:
    """Return how many agents are in each state."""
    return Counter(agent.state for agent in progress)


def _acquired(row: asyncpg.Record) -> Acquired:
    fence = Fence(row["agent_id"], row["epoch"], row["claim_id"])
    return Acquired(row["agent_id"], row["outcome"], fence)
