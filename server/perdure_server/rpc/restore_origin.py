"""Where a restore stream takes its agents from: a recovery's pool, or a selector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from perdure_server.restore.claim_series import ClaimSeries
from perdure_server.store.agents import (
    Acquired,
    Agent,
    Agents,
    LeaseSpec,
    Selector,
    narrowed,
)
from perdure_server.store.fence import Fence
from perdure_server.store.recoveries import Recoveries

PAGE_AGENTS = 200


class Origin(Protocol):
    """Hands out agents under claims of one series."""

    async def take(self, series: ClaimSeries, limit: int) -> list[Acquired]:
        """Claim at most `limit` agents with their subtrees; none: nothing just now."""

    async def may_come(self) -> bool:
        """Return whether agents were passed over that may be free in a moment."""

    async def set_aside(self, fence: Fence) -> None:
        """Do not hand out again an agent that cannot be restored."""


class RecoveryOrigin:
    """The pool of a recovery."""

    def __init__(
        self,
        recoveries: Recoveries,
        tenant_id: str,
        recovery_id: UUID,
        lease: LeaseSpec,
    ) -> None:
        self._recoveries = recoveries
        self._tenant_id = tenant_id
        self._recovery_id = recovery_id
        self._lease = lease

    async def take(self, series: ClaimSeries, limit: int) -> list[Acquired]:
        """Take fenced agents, then those whose new worker died."""
        return await self._recoveries.take(
            self._tenant_id, self._recovery_id, self._lease, series.take(limit)
        )

    async def may_come(self) -> bool:
        """Return whether agents wait: locked just now, or still to be fenced."""
        return await self._recoveries.has_waiting(self._tenant_id, self._recovery_id)

    async def set_aside(self, fence: Fence) -> None:
        """Mark the agent broken in the recovery."""
        await self._recoveries.mark_broken(self._tenant_id, self._recovery_id, fence)


class SelectorOrigin:
    """Agents that a selector picks, in passes over their ids."""

    def __init__(
        self, agents: Agents, tenant_id: str, selector: Selector, lease: LeaseSpec
    ) -> None:
        self._agents = agents
        self._tenant_id = tenant_id
        self._selector = selector
        self._lease = lease
        self._after: str | None = None
        self._passed_over = False
        self._set_aside: set[str] = set()

    async def take(self, series: ClaimSeries, limit: int) -> list[Acquired]:
        """Claim the next agents of the pass; none at its end, then a new one begins."""
        if self._after is None:
            self._passed_over = False
        while True:
            page = await self._agents.select(
                self._tenant_id, self._selector, self._after, PAGE_AGENTS
            )
            picked = (await self._candidates(page))[:limit]
            if len(picked) == limit:
                self._after = picked[-1].agent_id
            elif page:
                self._after = page[-1].agent_id
            taken = await self._claim(picked, series)
            if taken:
                return taken
            if len(page) < PAGE_AGENTS and len(picked) < limit:
                self._end_pass()
                return []

    async def may_come(self) -> bool:
        """Return whether a writer or a rival had an agent locked."""
        return self._passed_over

    async def set_aside(self, fence: Fence) -> None:
        """Leave the agent out of later passes."""
        self._set_aside.add(fence.agent_id)

    def _end_pass(self) -> None:
        self._after = None
        if self._selector.lease_state is None and not self._passed_over:
            # What a worker gave back in the meantime is not to be restored again.
            self._selector = replace(self._selector, lease_state="lost")

    async def _candidates(self, page: Sequence[Agent]) -> list[Agent]:
        candidates = [
            agent
            for agent in page
            if agent.lease_state != "live" and agent.agent_id not in self._set_aside
        ]
        parents = sorted({agent.parent_agent_id or "" for agent in candidates} - {""})
        if not parents:
            return candidates
        wanted = parents
        if self._selector.agent_ids is not None:
            wanted = sorted(set(parents) & set(self._selector.agent_ids))
        among = await self._agents.select(
            self._tenant_id, narrowed(self._selector, wanted), None, len(parents)
        )
        # A child comes along with its parent.
        coming = {agent.agent_id for agent in among if agent.lease_state != "live"}
        return [
            agent
            for agent in candidates
            if agent.parent_agent_id not in coming
            or agent.parent_agent_id == agent.agent_id
        ]

    async def _claim(
        self, picked: Sequence[Agent], series: ClaimSeries
    ) -> list[Acquired]:
        if not picked:
            return []
        answers = await self._agents.claim(
            self._tenant_id, self._lease, picked, series.take(len(picked))
        )
        answered = {answer.agent_id for answer in answers}
        if any(agent.agent_id not in answered for agent in picked):
            self._passed_over = True
        return [answer for answer in answers if answer.outcome == "acquired"]
