"""Checkpoints that may go: by policy, all at once, and by the sweeper."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from perdure_server.store.agents import Agents, Selector
from perdure_server.store.database import Database
from perdure_server.store.queries import load_queries

_LOG = logging.getLogger(__name__)
_SQL = load_queries("retention")

AGENTS_PER_PAGE = 200
TENANTS_PER_PAGE = 100
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Policy:
    """Which steps may go: see RetentionPolicy of the wire."""

    keep_steps: int = 50
    keep_age_ms: int = _DAY_MS
    max_age_ms: int = 30 * _DAY_MS


@dataclass(frozen=True)
class Pruned:
    """What was removed, or would be."""

    agent_count: int = 0
    checkpoint_count: int = 0
    frame_bytes: int = 0


class Retention:
    """Removes checkpoints, one agent a transaction."""

    def __init__(self, database: Database, agents: Agents) -> None:
        self._database = database
        self._agents = agents

    async def policy(self, tenant_id: str) -> Policy:
        """Return the tenant's policy."""
        row = await self._database.fetchrow(_SQL["get_policy"], tenant_id)
        if row is None:
            return Policy()
        return Policy(row["keep_steps"], row["keep_age_ms"], row["max_age_ms"])

    async def prune(
        self,
        tenant_id: str,
        selector: Selector,
        policy: Policy | None,
        *,
        dry_run: bool,
    ) -> Pruned:
        """Remove by a policy; None: every checkpoint, heads too."""
        total = Pruned()
        after: str | None = None
        while True:
            page = await self._agents.select(
                tenant_id, selector, after, AGENTS_PER_PAGE
            )
            for agent in page:
                total = await self._prune_agent(
                    tenant_id, agent.agent_id, policy, dry_run, total
                )
            if len(page) < AGENTS_PER_PAGE:
                return total
            after = page[-1].agent_id

    async def tenant_ids(self, after: str) -> list[str]:
        """Return a page of tenants."""
        rows = await self._database.fetch(
            _SQL["list_tenant_ids"], after, TENANTS_PER_PAGE
        )
        return [row["tenant_id"] for row in rows]

    async def _prune_agent(
        self,
        tenant_id: str,
        agent_id: str,
        policy: Policy | None,
        dry_run: bool,
        total: Pruned,
    ) -> Pruned:
        if policy is None:
            row = await self._database.fetchrow(
                _SQL["drop_checkpoints"], tenant_id, agent_id, dry_run
            )
        else:
            row = await self._database.fetchrow(
                _SQL["prune_agent"],
                tenant_id,
                agent_id,
                policy.keep_steps,
                policy.keep_age_ms,
                policy.max_age_ms,
                dry_run,
            )
        assert row is not None
        return Pruned(
            total.agent_count + 1,
            total.checkpoint_count + row["checkpoint_count"],
            total.frame_bytes + row["frame_bytes"],
        )


class Sweeper:
    """Prunes every tenant by its policy, again and again."""

    def __init__(self, retention: Retention, interval_s: float) -> None:
        self._retention = retention
        self._interval_s = interval_s

    async def run(self) -> None:
        """Sweep until cancelled. An error is logged and the next round tried."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                removed = await self.sweep()
            except Exception:
                _LOG.exception("the sweep failed; the next one tries again")
            else:
                if removed:
                    _LOG.info("swept %d checkpoints", removed)

    async def sweep(self) -> int:
        """Prune once; return how many checkpoints went."""
        removed = 0
        after = ""
        while page := await self._retention.tenant_ids(after):
            for tenant_id in page:
                policy = await self._retention.policy(tenant_id)
                pruned = await self._retention.prune(
                    tenant_id, Selector(), policy, dry_run=False
                )
                removed += pruned.checkpoint_count
            after = page[-1]
        return removed
