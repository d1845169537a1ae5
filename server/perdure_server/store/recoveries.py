"""Recoveries: plan, fence, hand out, and how far they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from perdure_server.errors import IdReused, RecoveryNotFound
from perdure_server.store.agents import (
    Acquired,
    Agents,
    LeaseSpec,
    Selector,
    acquired_of,
    lease_arguments,
    narrowed,
    refuse_lease,
    selector_arguments,
)
from perdure_server.store.database import Database
from perdure_server.store.fence import Fence
from perdure_server.store.queries import load_queries

_SQL = load_queries("recoveries")

PLAN_PAGE = 500
FENCE_BATCH = 200
PROGRESS_PAGE = 1_000
_BUSY_PATIENCE_S = 1.0
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
class Plan:
    """What a dry run counts."""

    agent_count: int = 0
    fenced_count: int = 0
    live_count: int = 0
    frame_bytes: int = 0


@dataclass(frozen=True)
class Progress:
    """How far one agent is."""

    agent_id: str
    parent_agent_id: str | None
    owner: str
    head_step: int
    chain_bytes: int
    state: str
    """planned, fenced, moved, live, busy, restored, resumed or broken."""


class Recoveries:
    """The recoveries of the store."""

    def __init__(self, database: Database, agents: Agents) -> None:
        self._database = database
        self._agents = agents

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
        await self._database.fetch(
            _SQL["insert_recovery"], tenant_id, recovery_id, even_live, selector_digest
        )
        recovery = await self.get(tenant_id, recovery_id)
        wanted = (selector_digest, even_live)
        if (recovery.selector_digest, recovery.even_live) != wanted:
            raise IdReused(
                "the recovery exists with another selector",
                recovery_id=recovery_id,
                digest=selector_digest,
                stored_digest=recovery.selector_digest,
                path="recovery_id",
            )
        while not await self._plan_page(tenant_id, recovery_id, selector):
            pass
        await self._fence(tenant_id, recovery)
        return recovery

    async def dry_run(
        self, tenant_id: str, selector: Selector, *, even_live: bool
    ) -> Plan:
        """Count what a start would do, and write nothing."""
        plan = Plan()
        selected: list[str] = []
        after: str | None = None
        while page := await self._agents.select(tenant_id, selector, after, PLAN_PAGE):
            for agent in page:
                is_live = agent.lease_state == "live" and not even_live
                plan = _counted(plan, agent.chain_bytes, is_live)
                selected.append(agent.agent_id)
            after = page[-1].agent_id
        return await self._add_descendants(tenant_id, plan, selected, even_live)

    async def take(
        self,
        tenant_id: str,
        recovery_id: UUID,
        lease: LeaseSpec,
        claim_ids: Sequence[UUID],
    ) -> list[Acquired]:
        """Hand agents of the pool to a lease, a subtree for each claim id.

        First those that were fenced, then those whose new worker died.

        Raises:
            LeaseRevoked: The lease was ended.
        """
        for again in (False, True):
            rows = await self._database.fetch(
                _SQL["take_agents"],
                tenant_id,
                recovery_id,
                *lease_arguments(lease),
                self._database.connected_ms(),
                again,
                list(claim_ids),
            )
            refuse_lease(lease, rows)
            if rows:
                return [acquired_of(row) for row in rows]
        return []

    async def has_waiting(self, tenant_id: str, recovery_id: UUID) -> bool:
        """Return whether agents wait for a worker, or still for their fence."""
        waiting: bool = await self._database.fetchval(
            _SQL["has_waiting"], tenant_id, recovery_id
        )
        return waiting

    async def mark_broken(
        self, tenant_id: str, recovery_id: UUID, fence: Fence
    ) -> None:
        """Take an agent that cannot be restored out of the pool."""
        await self._database.fetch(
            _SQL["mark_broken"], tenant_id, recovery_id, fence.agent_id, fence.epoch
        )

    async def progress(self, tenant_id: str, recovery_id: UUID) -> list[Progress]:
        """Return how far each agent is, in the order of ids.

        A sub-agent has resumed when its parent has: one owner writes for both.
        """
        found: list[Progress] = []
        after = ""
        while True:
            rows = await self._database.fetch(
                _SQL["list_progress"],
                tenant_id,
                recovery_id,
                after,
                PROGRESS_PAGE,
                self._database.connected_ms(),
            )
            found += [Progress(*row.values()) for row in rows]
            if len(rows) < PROGRESS_PAGE:
                return _with_subtrees(found)
            after = found[-1].agent_id

    async def _add_descendants(
        self, tenant_id: str, plan: Plan, selected: Sequence[str], even_live: bool
    ) -> Plan:
        rows = await self._database.fetch(
            _SQL["list_descendants"], tenant_id, list(selected)
        )
        below = [row["agent_id"] for row in rows]
        for start in range(0, len(below), PLAN_PAGE):
            page = narrowed(Selector(), below[start : start + PLAN_PAGE])
            more = await self._agents.select(tenant_id, page, None, PLAN_PAGE)
            for agent in more:
                is_live = agent.lease_state == "live" and not even_live
                plan = _counted(plan, agent.chain_bytes, is_live)
        return plan

    async def _plan_page(
        self, tenant_id: str, recovery_id: UUID, selector: Selector
    ) -> bool:
        is_complete: bool = await self._database.fetchval(
            _SQL["plan_agents"],
            tenant_id,
            recovery_id,
            *selector_arguments(selector),
            self._database.connected_ms(),
            PLAN_PAGE,
        )
        return is_complete

    async def _fence(self, tenant_id: str, recovery: Recovery) -> None:
        # Agents in mid-write are passed over for a while, then waited for one by one.
        patience = time.monotonic() + _BUSY_PATIENCE_S
        while True:
            while await self._fence_batch(tenant_id, recovery, FENCE_BATCH, wait=False):
                pass
            if not await self._has_planned(tenant_id, recovery):
                return
            if time.monotonic() > patience:
                break
            await asyncio.sleep(_BUSY_PAUSE_S)
        while await self._has_planned(tenant_id, recovery):
            if not await self._fence_batch(tenant_id, recovery, 1, wait=True):
                await asyncio.sleep(_BUSY_PAUSE_S)

    async def _fence_batch(
        self, tenant_id: str, recovery: Recovery, limit: int, *, wait: bool
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

    async def _has_planned(self, tenant_id: str, recovery: Recovery) -> bool:
        planned: bool = await self._database.fetchval(
            _SQL["has_planned"], tenant_id, recovery.recovery_id
        )
        return planned


def _counted(plan: Plan, chain_bytes: int, is_live: bool) -> Plan:
    if is_live:
        return replace(
            plan, agent_count=plan.agent_count + 1, live_count=plan.live_count + 1
        )
    return replace(
        plan,
        agent_count=plan.agent_count + 1,
        fenced_count=plan.fenced_count + 1,
        frame_bytes=plan.frame_bytes + chain_bytes,
    )


def _with_subtrees(found: list[Progress]) -> list[Progress]:
    by_id = {item.agent_id: item for item in found}

    def has_resumed(item: Progress) -> bool:
        # Bounded like the subtrees themselves: parents may name each other.
        above: Progress | None = item
        for _ in range(100):
            if above is None or above.state not in ("restored", "resumed"):
                return False
            if above.state == "resumed":
                return True
            above = by_id.get(above.parent_agent_id or "")
        return False

    return [
        replace(item, state="resumed")
        if item.state == "restored" and has_resumed(item)
        else item
        for item in found
    ]
