"""Messages of conversations: append in one round trip, read in bounded pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from perdure_server.errors import PerdureError
from perdure_server.store.append import Append, Appended, NewMessage, Placed
from perdure_server.store.append_outcome import append_error
from perdure_server.store.database import Database
from perdure_server.store.queries import load_queries

_SQL = load_queries("messages")

_FIRST_TIME = datetime.min.replace(microsecond=1, tzinfo=UTC)
_LAST_TIME = datetime.max.replace(microsecond=999_998, tzinfo=UTC)


@dataclass(frozen=True)
class StoredMessage:
    """A message as it is kept."""

    seq: int
    message_id: str
    record_time: datetime
    agent_id: str
    step: int
    superseded_by: int | None
    digest: bytes
    body: bytes


class Messages:
    """The messages of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, append: Append) -> Appended:
        """Store one batch.

        Raises:
            PerdureError: Nothing was written; the class says why.
        """
        fence = append.fence
        supersede_from, supersede_to = append.supersedes or (None, None)
        rows = await self._database.fetch(
            _SQL["append_messages"],
            append.tenant_id,
            append.conversation_id,
            *message_arrays(append.messages),
            append.expected_seq,
            append.generation,
            supersede_from,
            supersede_to,
            append.create_if_missing,
            append.unfenced_allowed,
            fence.agent_id if fence else None,
            fence.epoch if fence else None,
            fence.claim_id if fence else None,
            append.step,
        )
        return appended_or_raise(append, rows)

    async def append_many(
        self, appends: Sequence[Append]
    ) -> list[Appended | PerdureError]:
        """Store batches for one conversation in one transaction, each on its own.

        Unfenced batches without supersedes only. A refused one harms no other.
        """
        ends: list[int] = []
        for append in appends:
            ends.append((ends[-1] if ends else 0) + len(append.messages))
        first = appends[0]
        rows = await self._database.fetch(
            _SQL["append_many"],
            first.tenant_id,
            first.conversation_id,
            ends,
            [append.expected_seq for append in appends],
            [append.generation for append in appends],
            [append.create_if_missing for append in appends],
            [append.unfenced_allowed for append in appends],
            *message_arrays([m for append in appends for m in append.messages]),
        )
        by_request: list[list[asyncpg.Record]] = [[] for _ in appends]
        for row in rows:
            by_request[row["request"] - 1].append(row)
        results: list[Appended | PerdureError] = []
        for append, own in zip(appends, by_request, strict=True):
            try:
                results.append(appended_or_raise(append, own))
            except PerdureError as error:
                results.append(error)
        return results

    async def read_forward(
        self,
        tenant_id: str,
        conversation_id: str,
        from_seq: int,
        *,
        include_superseded: bool,
        limit: int,
        limit_bytes: int,
    ) -> list[StoredMessage]:
        """Return messages from `from_seq` on, of at most `limit_bytes` or just one."""
        rows = await self._database.fetch(
            _SQL["read_forward"],
            tenant_id,
            conversation_id,
            from_seq,
            include_superseded,
            limit,
            limit_bytes,
        )
        return [_stored(row) for row in rows]

    async def read_backward(
        self,
        tenant_id: str,
        conversation_id: str,
        from_seq: int,
        *,
        include_superseded: bool,
        limit: int,
        limit_bytes: int,
    ) -> list[StoredMessage]:
        """Return messages from `from_seq` towards 0, cut likewise."""
        rows = await self._database.fetch(
            _SQL["read_backward"],
            tenant_id,
            conversation_id,
            from_seq,
            include_superseded,
            limit,
            limit_bytes,
        )
        return [_stored(row) for row in rows]

    async def newest_start(
        self,
        tenant_id: str,
        conversation_id: str,
        count: int,
        *,
        include_superseded: bool,
    ) -> int:
        """Return the seq at which the newest `count` messages begin."""
        seq: int | None = await self._database.fetchval(
            _SQL["newest_start"],
            tenant_id,
            conversation_id,
            include_superseded,
            count - 1,
        )
        return seq or 0


def message_arrays(messages: Sequence[NewMessage]) -> list[list[object]]:
    """Return the columns of messages and of their tool calls.

    In the order of the parameters p_message_ids to p_call_arguments of the SQL
    functions; a call names its message by 1-based place.
    """
    shown = [message.projection for message in messages]
    calls = [
        (place, call)
        for place, projection in enumerate(shown, start=1)
        for call in projection.tool_calls
    ]
    return [
        [message.message_id for message in messages],
        [message.digest for message in messages],
        [projection.role for projection in shown],
        [message.body for message in messages],
        [_finite(projection.create_time) for projection in shown],
        [projection.content for projection in shown],
        [projection.tool_call_id for projection in shown],
        [projection.tool_name for projection in shown],
        [projection.tool_args for projection in shown],
        [projection.tool_result for projection in shown],
        [projection.model for projection in shown],
        [projection.run_id for projection in shown],
        [projection.input_tokens for projection in shown],
        [projection.cached_tokens for projection in shown],
        [projection.output_tokens for projection in shown],
        [projection.reasoning_tokens for projection in shown],
        [place for place, _ in calls],
        [call.call_id for _, call in calls],
        [call.name for _, call in calls],
        [call.arguments for _, call in calls],
    ]


def appended_or_raise(append: Append, rows: Sequence[asyncpg.Record]) -> Appended:
    """Return what a function stored, or raise why it did not."""
    if not rows or rows[0]["outcome"] not in ("stored", "replayed"):
        raise append_error(append, dict(rows[0]) if rows else {})
    return Appended(
        places=tuple(
            Placed(row["message_id"], row["seq"], row["outcome"] == "replayed")
            for row in rows
        ),
        message_count=rows[0]["message_count"],
        generation=rows[0]["generation"],
    )


def _finite(time: datetime | None) -> datetime | None:
    # asyncpg writes the first and the last datetime as an infinity.
    if time is None:
        return None
    return min(max(time, _FIRST_TIME), _LAST_TIME)


def _stored(row: asyncpg.Record) -> StoredMessage:
    return StoredMessage(*row.values())
