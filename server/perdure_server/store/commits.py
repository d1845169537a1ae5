"""Commits: every operation of a step in one round trip, all or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure_server.errors import AgentNotFound, PerdureError, StaleFence
from perdure_server.store.append import Append, Appended, Placed
from perdure_server.store.append_outcome import append_error
from perdure_server.store.checkpoints import NewCheckpoint, Receipt, put_error
from perdure_server.store.database import CommitRefused, Database
from perdure_server.store.fence import Fence
from perdure_server.store.messages import message_arrays
from perdure_server.store.queries import load_queries

_SQL = load_queries("checkpoints")

Operation = Append | NewCheckpoint


class RefusedOperation(Exception):
    """One operation of a commit was refused; nothing was written."""

    def __init__(self, index: int, error: PerdureError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class Commits:
    """Writes commits."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(
        self,
        tenant_id: str,
        fence: Fence,
        step: int,
        operations: Sequence[Operation],
    ) -> list[Appended | Receipt]:
        """Carry out the operations under one fence.

        An append with an empty conversation id goes to the agent's own.

        Raises:
            RefusedOperation: With the place of the operation.
            PerdureError: The commit as a whole was refused.
        """
        appends = [(n, op) for n, op in enumerate(operations) if isinstance(op, Append)]
        puts = [
            (n, op) for n, op in enumerate(operations) if isinstance(op, NewCheckpoint)
        ]
        try:
            rows = await self._database.fetch(
                _SQL["commit"],
                tenant_id,
                fence.agent_id,
                fence.epoch,
                fence.claim_id,
                step,
                *_put_arrays(puts),
                *_append_arrays(appends),
                *message_arrays([m for _, op in appends for m in op.messages]),
            )
        except CommitRefused as refused:
            raise _refusal(fence, operations, refused.detail) from refused
        results: list[Appended | Receipt] = []
        for index, operation in enumerate(operations):
            own = [dict(row) for row in rows if row["operation"] == index]
            results.append(_result(operation, own))
        return results


def _put_arrays(puts: Sequence[tuple[int, NewCheckpoint]]) -> list[list[object]]:
    return [
        [index for index, _ in puts],
        [put.agent_id for _, put in puts],
        [put.branch for _, put in puts],
        [put.step for _, put in puts],
        [put.base_digest for _, put in puts],
        [put.raw_digest for _, put in puts],
        [put.raw_bytes for _, put in puts],
        [put.frame for _, put in puts],
        [put.schema_version for _, put in puts],
        [put.read_seq for _, put in puts],
        [put.run_id for _, put in puts],
        [put.metadata for _, put in puts],
    ]


def _append_arrays(appends: Sequence[tuple[int, Append]]) -> list[list[object]]:
    ends: list[object] = []
    end = 0
    for _, append in appends:
        end += len(append.messages)
        ends.append(end)
    return [
        [index for index, _ in appends],
        [append.conversation_id or None for _, append in appends],
        [append.expected_seq for _, append in appends],
        [append.supersedes[0] if append.supersedes else None for _, append in appends],
        [append.supersedes[1] if append.supersedes else None for _, append in appends],
        ends,
    ]


def _result(
    operation: Operation, rows: Sequence[Mapping[str, Any]]
) -> Appended | Receipt:
    if isinstance(operation, NewCheckpoint):
        row = rows[0]
        return Receipt(
            operation.agent_id,
            operation.branch,
            operation.step,
            row["digest"],
            row["outcome"] == "replayed",
            row["event_time"],
        )
    return Appended(
        tuple(
            Placed(row["message_id"], row["seq"], row["outcome"] == "replayed")
            for row in rows
        ),
        rows[0]["message_count"],
        rows[0]["generation"],
    )


def _refusal(
    fence: Fence, operations: Sequence[Operation], detail: dict[str, Any]
) -> Exception:
    index = detail.get("operation")
    if index is None:
        if detail.get("outcome") == "no_agent":
            return AgentNotFound("no such agent", agent_id=fence.agent_id)
        return StaleFence(
            "the agent has a new owner",
            agent_id=fence.agent_id,
            epoch=fence.epoch,
            current_epoch=detail.get("current_epoch"),
            committed=bool(detail.get("committed")),
        )
    operation = operations[index]
    if detail.get("stored_digest"):
        detail["stored_digest"] = bytes.fromhex(detail["stored_digest"])
    if isinstance(operation, NewCheckpoint):
        return RefusedOperation(index, put_error(operation, fence, detail))
    return RefusedOperation(index, append_error(operation, detail))
