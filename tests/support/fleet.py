"""Agents at the level of the store: the real functions, without the wire."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import perdure_codec
from perdure.v1 import message_pb2
from perdure_server.rpc.new_messages import read_new_messages
from perdure_server.store.agents import (
    Acquired,
    Agents,
    AgentSpec,
    LeaseSpec,
    Selector,
)
from perdure_server.store.append import Append, NewMessage
from perdure_server.store.checkpoints import Checkpoints, NewCheckpoint, Receipt
from perdure_server.store.commits import Commits
from perdure_server.store.database import Database
from perdure_server.store.fence import Fence
from perdure_server.store.messages import Messages
from perdure_server.store.recoveries import Recoveries
from perdure_server.store.restores import Restores
from perdure_server.store.retention import Retention


class Fleet:
    """One tenant of a database, and the most frequent calls in short."""

    def __init__(self, database: Database, tenant_id: str) -> None:
        self.database = database
        self.tenant_id = tenant_id
        self.agents = Agents(database)
        self.checkpoints = Checkpoints(database)
        self.commits = Commits(database)
        self.messages = Messages(database)
        self.recoveries = Recoveries(database, self.agents)
        self.restores = Restores(database)
        self.retention = Retention(database, self.agents)

    async def acquire(
        self,
        agent_id: str,
        lease: LeaseSpec | None = None,
        parent_agent_id: str | None = None,
    ) -> Fence:
        """Claim an agent, made if missing; it must not be held."""
        outcome = await self.try_acquire(agent_id, lease, parent_agent_id)
        assert outcome.outcome == "acquired", outcome
        assert outcome.fence is not None
        return outcome.fence

    async def try_acquire(
        self,
        agent_id: str,
        lease: LeaseSpec | None = None,
        parent_agent_id: str | None = None,
    ) -> Acquired:
        """Claim an agent, or hear why not."""
        spec = AgentSpec(agent_id, agent_id, "", parent_agent_id, "", uuid.uuid4())
        _, outcomes = await self.agents.acquire(
            self.tenant_id, lease or make_lease(), [spec]
        )
        return outcomes[0]

    async def put(
        self, fence: Fence | None, step: int, state: object, **fields: Any
    ) -> Receipt:
        """Store a state under a fence."""
        agent_id = fields.pop("agent_id", None) or (fence.agent_id if fence else "")
        new = make_checkpoint(agent_id, step, state, **fields)
        return await self.checkpoints.put(self.tenant_id, new, fence)

    async def say(self, conversation_id: str, *texts: str) -> None:
        """Append user messages without a fence."""
        messages = tuple(make_message(text) for text in texts)
        await self.messages.append(
            Append(self.tenant_id, conversation_id, messages, create_if_missing=True)
        )

    async def expire(self, lease: LeaseSpec) -> None:
        """Let a lease have expired; its times are judged by the database."""
        await self.database.fetch(
            "UPDATE perdure_store.leases SET expire_time = now() - interval '1 s' "
            "WHERE tenant_id = $1 AND lease_id = $2",
            self.tenant_id,
            lease.lease_id,
        )

    async def head_step(self, agent_id: str) -> int:
        """Return the newest step of an agent."""
        return await self.checkpoints.head_step(self.tenant_id, agent_id, "main")

    async def rows(self, sql: str, *args: object) -> list[dict[str, Any]]:
        """Look into the tables; $1 is the tenant."""
        found = await self.database.fetch(sql, self.tenant_id, *args)
        return [dict(row) for row in found]


@asynccontextmanager
async def open_fleet(dsn: str, **options: Any) -> AsyncIterator[Fleet]:
    """Give a tenant of its own in a database."""
    database = await Database.open(dsn, **options)
    try:
        # A server that has only just connected calls no lease lost.
        database._connected_since -= 1_000_000.0
        yield Fleet(database, f"tenant-{uuid.uuid4().hex[:12]}")
    finally:
        await database.close()


def make_lease(ttl_ms: int = 600_000, **labels: str) -> LeaseSpec:
    """Return a lease that nobody has used."""
    return LeaseSpec(uuid.uuid4(), "worker", labels, ttl_ms)


def make_message(text: str, role: str = "user", message_id: str = "") -> NewMessage:
    """Return a message of one text block."""
    body = message_pb2.Message(
        message_id=message_id or uuid.uuid4().hex,
        role=message_pb2.Role.Value(f"ROLE_{role.upper()}"),
        blocks=[message_pb2.Block(text=message_pb2.TextBlock(text=text))],
    ).SerializeToString()
    return read_new_messages([body], "messages")[0]


def make_checkpoint(
    agent_id: str,
    step: int,
    state: object,
    *,
    branch: str = "main",
    read_seq: int = 0,
    base_digest: bytes | None = None,
) -> NewCheckpoint:
    """Return a state as a keyframe, or passed off as a delta against a base."""
    frame = perdure_codec.encode(state)
    header = perdure_codec.read_header(frame)
    return NewCheckpoint(
        agent_id=agent_id,
        branch=branch,
        step=step,
        frame=frame,
        raw_digest=header.raw_digest,
        raw_bytes=header.raw_bytes,
        base_digest=base_digest,
        schema_version=header.schema_version,
        read_seq=read_seq,
        run_id="",
        metadata="",
    )


def only(*agent_ids: str) -> Selector:
    """Return a selector for just these agents."""
    return Selector(agent_ids=agent_ids)


def new_id() -> UUID:
    """Return a recovery or lease id."""
    return uuid.uuid4()
