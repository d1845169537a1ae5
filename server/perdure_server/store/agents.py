"""Agents and the leases that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from perdure_server.errors import (
    AgentNotFound,
    Deleted,
    LeaseNotFound,
    LeaseRevoked,
)
from perdure_server.store.database import Database
from perdure_server.store.fence import Fence
from perdure_server.store.queries import load_queries

_SQL = load_queries("agents")


@dataclass(frozen=True)
class LeaseSpec:
    """The lease under which agents are held; made or renewed by its use."""

    lease_id: UUID
    owner: str
    labels: Mapping[str, str]
    ttl_ms: int


@dataclass(frozen=True)
class Lease:
    """A lease as it stands."""

    lease_id: UUID
    owner: str
    labels: Mapping[str, str]
    ttl_ms: int
    expire_time: datetime


@dataclass(frozen=True)
class AgentSpec:
    """One agent to acquire."""

    agent_id: str
    conversation_id: str
    agent_slug: str
    parent_agent_id: str | None
    framework: str
    claim_id: UUID


@dataclass(frozen=True)
class Selector:
    """Which agents; None does not filter."""

    agent_ids: tuple[str, ...] | None = None
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    lease_state: str | None = None
    """live, lost or free."""
    framework: str | None = None
    agent_slug: str | None = None
    parent_agent_id: str | None = None
    max_schema_version: int | None = None


@dataclass(frozen=True)
class Agent:
    """An agent as it stands."""

    agent_id: str
    conversation_id: str
    agent_slug: str
    parent_agent_id: str | None
    framework: str
    epoch: int
    lease_id: UUID | None
    lease_state: str
    owner: str | None
    labels: Mapping[str, str]
    expire_time: datetime | None
    canonical_branch: str
    head_step: int
    schema_version: int
    chain_bytes: int
    """Stored bytes from the newest keyframe to the head; 0 when dropped."""
    message_count: int
    create_time: datetime


@dataclass(frozen=True)
class Acquired:
    """The outcome for one agent."""

    agent_id: str
    outcome: str
    """acquired, replayed, held, moved, live, conflict or deleted."""
    fence: Fence | None = None
    event_time: datetime | None = None


@dataclass(frozen=True)
class KnownAgent:
    """What a reader of an agent's checkpoints must know."""

    agent_id: str
    conversation_id: str
    canonical_branch: str
    epoch: int


@dataclass(frozen=True)
class Renewal:
    """A renewed lease, and the agents that were lost meanwhile."""

    lease: Lease
    stale_agent_ids: tuple[str, ...] = field(default=())


class Agents:
    """The agents of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant_id: str, agent_id: str) -> KnownAgent:
        """Return an agent.

        Raises:
            AgentNotFound: There is none.
            Deleted: It was deleted.
        """
        row = await self._database.fetchrow(_SQL["get_agent"], tenant_id, agent_id)
        if row is None:
            raise AgentNotFound("no such agent", agent_id=agent_id)
        if row["delete_time"] is not None:
            raise Deleted(
                "the agent was deleted",
                agent_id=agent_id,
                delete_time=row["delete_time"],
            )
        return KnownAgent(
            row["agent_id"],
            row["conversation_id"],
            row["canonical_branch"],
            row["epoch"],
        )

    async def select(
        self, tenant_id: str, selector: Selector, after: str | None, limit: int
    ) -> list[Agent]:
        """Return at most `limit` agents with ids after `after`, in order."""
        rows = await self._database.fetch(
            _SQL["select_agents"],
            tenant_id,
            *selector_arguments(selector),
            self._database.connected_ms(),
            after,
            limit,
        )
        return [agent_of(row) for row in rows]

    async def acquire(
        self, tenant_id: str, lease: LeaseSpec, specs: Sequence[AgentSpec]
    ) -> tuple[Lease, list[Acquired]]:
        """Claim agents by id and make what is missing.

        Returns one outcome per spec in their order, then one per sub-agent.

        Raises:
            LeaseRevoked: The lease was ended.
        """
        rows = await self._database.fetch(
            _SQL["acquire_agents"],
            tenant_id,
            *lease_arguments(lease),
            self._database.connected_ms(),
            [spec.agent_id for spec in specs],
            [spec.conversation_id for spec in specs],
            [spec.agent_slug for spec in specs],
            [spec.parent_agent_id for spec in specs],
            [spec.framework for spec in specs],
            [spec.claim_id for spec in specs],
        )
        refuse_lease(lease, rows)
        rows.sort(key=lambda row: (row["request"] is None, row["request"] or 0))
        return await self.lease(tenant_id, lease.lease_id), [
            Acquired(row["agent_id"], row["outcome"], _fence(row), row["event_time"])
            for row in rows
        ]

    async def claim(
        self,
        tenant_id: str,
        lease: LeaseSpec,
        picked: Sequence[Agent],
        claim_ids: Sequence[UUID],
    ) -> list[Acquired]:
        """Claim agents that a selector picked, by the epoch that was seen.

        An agent that a writer or a rival has locked is left out of the answer.

        Raises:
            LeaseRevoked: The lease was ended.
        """
        rows = await self._database.fetch(
            _SQL["claim_agents"],
            tenant_id,
            *lease_arguments(lease),
            self._database.connected_ms(),
            [agent.agent_id for agent in picked],
            [agent.epoch for agent in picked],
            list(claim_ids),
        )
        refuse_lease(lease, rows)
        return [acquired_of(row) for row in rows]

    async def lease(self, tenant_id: str, lease_id: UUID) -> Lease:
        """Return a lease.

        Raises:
            LeaseNotFound: There is none.
        """
        row = await self._database.fetchrow(_SQL["get_lease"], tenant_id, lease_id)
        if row is None:
            raise LeaseNotFound("no such lease", lease_id=lease_id)
        return _lease(lease_id, row)

    async def renew(
        self, tenant_id: str, lease_id: UUID, fences: Sequence[Fence] = ()
    ) -> Renewal:
        """Renew a lease.

        Raises:
            LeaseNotFound: There is none.
            LeaseRevoked: It was ended.
        """
        row = await self._database.fetchrow(
            _SQL["renew_lease"], tenant_id, lease_id, *fence_arrays(fences)
        )
        assert row is not None
        if row["outcome"] == "no_lease":
            raise LeaseNotFound("no such lease", lease_id=lease_id)
        if row["outcome"] == "revoked":
            raise LeaseRevoked("the lease was ended", lease_id=lease_id)
        return Renewal(_lease(lease_id, row), tuple(row["stale_agents"]))

    async def release(
        self, tenant_id: str, fences: Sequence[Fence], revoke_lease_id: UUID | None
    ) -> dict[str, bool]:
        """Free agents; return for each whether it was the caller's."""
        rows = await self._database.fetch(
            _SQL["release_agents"], tenant_id, *fence_arrays(fences), revoke_lease_id
        )
        return {row["agent_id"]: row["released"] for row in rows}


def narrowed(selector: Selector, agent_ids: Sequence[str]) -> Selector:
    """Return the selector for just these ids."""
    return replace(selector, agent_ids=tuple(agent_ids))


def selector_arguments(selector: Selector) -> list[object]:
    """Return a selector as the parameters p_agents to p_max_schema_version."""
    return [
        None if selector.agent_ids is None else list(selector.agent_ids),
        selector.owner,
        None if selector.labels is None else json.dumps(dict(selector.labels)),
        selector.lease_state,
        selector.framework,
        selector.agent_slug,
        selector.parent_agent_id,
        selector.max_schema_version,
    ]


def lease_arguments(lease: LeaseSpec) -> list[object]:
    """Return a lease as the parameters p_lease to p_ttl_ms."""
    labels = json.dumps(dict(lease.labels))
    return [lease.lease_id, lease.owner, labels, lease.ttl_ms]


def refuse_lease(lease: LeaseSpec, rows: Sequence[asyncpg.Record]) -> None:
    """Raise when a function refused the lease itself."""
    if rows and rows[0]["outcome"] == "revoked":
        raise LeaseRevoked("the lease was ended", lease_id=lease.lease_id)


def fence_arrays(fences: Sequence[Fence]) -> list[list[object]]:
    """Return fences as columns."""
    return [
        [fence.agent_id for fence in fences],
        [fence.epoch for fence in fences],
        [fence.claim_id for fence in fences],
    ]


def _fence(row: asyncpg.Record) -> Fence | None:
    if row["claim_id"] is None:
        return None
    return Fence(row["agent_id"], row["epoch"], row["claim_id"])


def _lease(lease_id: UUID, row: asyncpg.Record) -> Lease:
    return Lease(
        lease_id,
        row["owner"],
        json.loads(row["labels"]),
        row["ttl_ms"],
        row["expire_time"],
    )


def acquired_of(row: asyncpg.Record) -> Acquired:
    """Return a row of a claiming function."""
    return Acquired(row["agent_id"], row["outcome"], _fence(row))


def agent_of(row: asyncpg.Record | dict[str, Any]) -> Agent:
    """Return a row of select_agents_1."""
    values: dict[str, Any] = dict(row)
    values["labels"] = json.loads(values["labels"] or "{}")
    return Agent(**values)
