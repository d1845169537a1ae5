"""Checkpoints: put in one round trip, read as chains from keyframe to step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from perdure_server.errors import (
    AgentNotFound,
    BaseMismatch,
    CheckpointNotFound,
    Deleted,
    FenceRequired,
    IdReused,
    KeyframeRequired,
    PerdureError,
    Pruned,
    StaleFence,
    StepBehind,
    ValueNotStorable,
)
from perdure_server.store.database import Database
from perdure_server.store.fence import Fence
from perdure_server.store.queries import load_queries

_SQL = load_queries("checkpoints")


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint to store, with what its frame's header says."""

    agent_id: str
    branch: str
    step: int
    frame: bytes
    raw_digest: bytes
    raw_bytes: int
    base_digest: bytes | None
    """None: a keyframe."""
    schema_version: int
    read_seq: int
    run_id: str
    metadata: str


@dataclass(frozen=True)
class Receipt:
    """A stored checkpoint's acknowledgement."""

    agent_id: str
    branch: str
    step: int
    digest: bytes
    replayed: bool
    create_time: datetime


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it is kept; `frame` None in lists."""

    agent_id: str
    branch: str
    step: int
    parent_step: int
    base_step: int | None
    keyframe_step: int
    read_seq: int
    schema_version: int
    epoch: int
    raw_bytes: int
    frame_bytes: int
    create_time: datetime
    delete_time: datetime | None
    raw_digest: bytes
    run_id: str
    metadata: str
    frame: bytes | None


class Checkpoints:
    """The checkpoints of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(
        self, tenant_id: str, new: NewCheckpoint, fence: Fence | None
    ) -> Receipt:
        """Store a checkpoint and move the branch's head.

        Raises:
            PerdureError: Nothing was written; the class says why.
        """
        row = await self._database.fetchrow(
            _SQL["put_checkpoint"],
            tenant_id,
            new.agent_id,
            fence.epoch if fence else None,
            fence.claim_id if fence else None,
            False,
            new.branch,
            new.step,
            new.base_digest,
            new.raw_digest,
            new.raw_bytes,
            new.frame,
            new.schema_version,
            new.read_seq,
            new.run_id,
            new.metadata,
        )
        assert row is not None
        if row["outcome"] not in ("stored", "replayed"):
            raise put_error(new, fence, dict(row))
        return Receipt(
            new.agent_id,
            new.branch,
            new.step,
            row["stored_digest"],
            row["outcome"] == "replayed",
            row["event_time"],
        )

    async def head_step(self, tenant_id: str, agent_id: str, branch: str) -> int:
        """Return the newest step of a branch, 0 when it has none."""
        row = await self._database.fetchrow(
            _SQL["get_head"], tenant_id, agent_id, branch
        )
        return 0 if row is None else int(row["head_step"])

    async def chain(
        self, tenant_id: str, agent_id: str, branch: str, step: int
    ) -> list[Checkpoint]:
        """Return the checkpoints from a step's keyframe up to it; 0: the newest.

        Raises:
            CheckpointNotFound: The step was never written.
            Pruned: It was written and is gone.
        """
        head = await self.head_step(tenant_id, agent_id, branch)
        wanted = step or head
        if wanted == 0 or wanted > head:
            raise CheckpointNotFound(
                "no such step", agent_id=agent_id, branch=branch, step=wanted
            )
        rows = await self._database.fetch(
            _SQL["get_chain"], tenant_id, agent_id, branch, wanted
        )
        chain = [checkpoint_of(row) for row in rows]
        if not chain or chain[-1].step != wanted or chain[-1].delete_time is not None:
            raise Pruned(
                "the checkpoint was removed",
                agent_id=agent_id,
                branch=branch,
                step=wanted,
            )
        return chain

    async def page(
        self, tenant_id: str, agent_id: str, branch: str, before: int, limit: int
    ) -> list[Checkpoint]:
        """Return at most `limit` steps below `before`, newest first, no frames."""
        rows = await self._database.fetch(
            _SQL["list_checkpoints"], tenant_id, agent_id, branch, before, limit
        )
        return [checkpoint_of(row) for row in rows]


def checkpoint_of(row: asyncpg.Record) -> Checkpoint:
    """Return a row of the columns of Checkpoint."""
    return Checkpoint(*row.values())


def put_error(
    new: NewCheckpoint, fence: Fence | None, row: Mapping[str, Any]
) -> PerdureError:
    """Return the error of an outcome of put_checkpoint_1."""
    outcome = row.get("outcome")
    where = {"agent_id": new.agent_id, "branch": new.branch, "step": new.step}
    if outcome == "no_agent":
        return AgentNotFound("no such agent", agent_id=new.agent_id)
    if outcome == "deleted":
        return Deleted(
            "the agent was deleted",
            agent_id=new.agent_id,
            delete_time=row.get("event_time"),
        )
    if outcome == "stale_fence":
        return StaleFence(
            "the agent has a new owner",
            agent_id=new.agent_id,
            epoch=fence.epoch if fence else None,
            current_epoch=row.get("current_epoch"),
            committed=row.get("stored_digest") == new.raw_digest,
        )
    if outcome == "fence_required":
        return FenceRequired(
            "an agent that was acquired needs its fence", agent_id=new.agent_id
        )
    head = {"head_step": row.get("head_step"), **where}
    if outcome == "differs":
        return IdReused(
            "the step exists with another state",
            digest=new.raw_digest,
            stored_digest=row.get("stored_digest"),
            path="step",
            **where,
        )
    if outcome == "behind":
        return StepBehind("the step is not after the newest", path="step", **head)
    if outcome == "base_mismatch":
        return BaseMismatch("the delta's base is not the newest state", **head)
    if outcome == "keyframe_required":
        return KeyframeRequired("send a keyframe", **head)
    if outcome == "bad_read_seq":
        return ValueNotStorable(
            "more messages are read than there are", path="read_seq"
        )
    raise AssertionError(f"put_checkpoint_1 answered {outcome!r}")
