"""The pool of connections, and the one place where a driver's error is translated.

A statement whose answer was lost is not sent again here: the client does that, with
the same ids. Only deadlocks and serialization failures, after which nothing was
written, are tried again within the deadline.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

import asyncpg

from perdure_server.deadline import remaining_s
from perdure_server.errors import (
    Overloaded,
    StoreReadOnly,
    StoreUnavailable,
    WriteContention,
)

_LOG = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 3.0
IDLE_IN_TRANSACTION_TIMEOUT_S = 1.0
_ACQUIRE_TIMEOUT_S = 5.0
_MAX_BACKOFF_S = 0.1
_PROBE_INTERVAL_S = 1.0
# Nothing heard for so long is a break, whoever stood still: a frozen server, or a
# frozen Postgres while every connection waits, gets no error that would say so.
_SILENCE_S = 3.0

Connection = asyncpg.pool.PoolConnectionProxy  # what the pool lends

_CONTENTION = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    # Two first writes of one thing: the second run sees the first's row.
    asyncpg.UniqueViolationError,
)
_READ_ONLY = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DiskFullError,
)
_LOST = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)


class CommitRefused(Exception):
    """commit_1 rolled back; `detail` names the operation and its outcome."""

    def __init__(self, detail: dict[str, Any]) -> None:
        super().__init__(detail.get("outcome"))
        self.detail = detail


class Database:
    """Runs single statements, each its own transaction, within the call's deadline."""

    def __init__(
        self, pool: asyncpg.Pool[asyncpg.Record], transaction_timeout_s: float
    ) -> None:
        self._pool = pool
        self._transaction_timeout_s = transaction_timeout_s
        self._connected_since = self._heard = time.monotonic()
        self._is_connected = True
        self._probe: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        pool_size: int = 20,
        pooler: bool = False,
        transaction_timeout_s: float = 5.0,
        idle_transaction_timeout_s: float = IDLE_IN_TRANSACTION_TIMEOUT_S,
    ) -> Self:
        """Connect.

        Args:
            dsn: URL of the database.
            pool_size: Connections at most.
            pooler: A transaction pooler is in between: no statement cache, and no
                session settings; the role's own apply.
            transaction_timeout_s: Longest statement.
            idle_transaction_timeout_s: A frozen server must not hold locks longer.
        """
        settings = {
            "application_name": "perdure",
            "timezone": "UTC",
            "statement_timeout": _ms(transaction_timeout_s),
            "lock_timeout": _ms(min(LOCK_TIMEOUT_S, transaction_timeout_s)),
            "idle_in_transaction_session_timeout": _ms(idle_transaction_timeout_s),
            "synchronous_commit": "on",
        }
        pool = await asyncpg.create_pool(
            dsn,
            min_size=min(2, pool_size),
            max_size=pool_size,
            statement_cache_size=0 if pooler else 200,
            server_settings=None if pooler else settings,
            reset=_no_reset,
            timeout=_ACQUIRE_TIMEOUT_S,
        )
        database = cls(pool, transaction_timeout_s)
        database._probe = asyncio.create_task(database._watch())
        return database

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement and return its rows."""
        rows: list[asyncpg.Record] = await self._run(
            lambda c, left_s: c.fetch(sql, *args, timeout=left_s)
        )
        return rows

    async def fetchrow(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Run one statement and return its first row."""
        row: asyncpg.Record | None = await self._run(
            lambda c, left_s: c.fetchrow(sql, *args, timeout=left_s)
        )
        return row

    async def fetchval(self, sql: str, *args: object) -> Any:
        """Run one statement and return the first value of its first row."""
        return await self._run(lambda c, left_s: c.fetchval(sql, *args, timeout=left_s))

    def connected_ms(self) -> int:
        """Return for how long this server has been connected without a break."""
        now = time.monotonic()
        if not self._is_connected or now - self._heard > _SILENCE_S:
            return 0
        return int((now - self._connected_since) * 1000)

    async def close(self) -> None:
        """Close every connection; those still busy after 5 s are cut."""
        if self._probe is not None:
            self._probe.cancel()
        try:
            async with asyncio.timeout(5.0):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    async def _run(
        self, statement: Callable[[Connection, float], Awaitable[Any]]
    ) -> Any:
        backoff_s = 0.005
        while True:
            try:
                return await self._run_once(statement)
            except _CONTENTION as exc:
                left_s = remaining_s(self._transaction_timeout_s)
                if left_s <= backoff_s:
                    raise WriteContention("the write lost to others too often") from exc
                await asyncio.sleep(random.uniform(0, backoff_s))
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _run_once(
        self, statement: Callable[[Connection, float], Awaitable[Any]]
    ) -> Any:
        limit_s = remaining_s(self._transaction_timeout_s)
        started = time.monotonic()
        is_lent = False
        try:
            async with self._pool.acquire(
                timeout=min(limit_s, _ACQUIRE_TIMEOUT_S)
            ) as connection:
                is_lent = True
                left_s = max(0.001, limit_s - (time.monotonic() - started))
                try:
                    result = await statement(connection, left_s)
                except TimeoutError as exc:
                    raise StoreUnavailable(
                        "the database did not answer in time"
                    ) from exc
                except asyncpg.InternalClientError as exc:
                    # The driver's state after an idle session was ended.
                    connection.terminate()
                    self._mark_lost()
                    raise StoreUnavailable("the database connection broke") from exc
                self._mark_connected()
                return result
        except asyncpg.PostgresError as exc:
            if not is_lent:
                self._mark_lost()
                raise StoreUnavailable("the database takes no connection") from exc
            raise self._translated(exc) from exc
        except TimeoutError as exc:
            raise Overloaded("no free database connection in time") from exc
        except (OSError, asyncpg.InterfaceError) as exc:
            self._mark_lost()
            raise StoreUnavailable("the database connection broke") from exc

    def _translated(self, exc: asyncpg.PostgresError) -> Exception:
        if exc.sqlstate == "PD001":
            return CommitRefused(json.loads(exc.detail or "{}"))
        if isinstance(exc, _CONTENTION):
            return exc
        if isinstance(exc, _READ_ONLY):
            return StoreReadOnly("the database accepts no writes")
        if isinstance(exc, asyncpg.QueryCanceledError):
            return StoreUnavailable("the database did not answer in time")
        if isinstance(exc, _LOST):
            self._mark_lost()
            return StoreUnavailable("the database connection broke")
        return exc

    def _mark_connected(self) -> None:
        now = time.monotonic()
        if not self._is_connected or now - self._heard > _SILENCE_S:
            self._is_connected = True
            self._connected_since = now
        self._heard = now

    def _mark_lost(self) -> None:
        self._is_connected = False

    async def _watch(self) -> None:
        # An idle server must notice an outage too: it decides who is lost.
        while True:
            await asyncio.sleep(_PROBE_INTERVAL_S)
            try:
                await self.fetchval("SELECT 1")
            except Overloaded:
                continue
            except Exception:
                if self._is_connected:
                    _LOG.warning("the database does not answer")
                self._mark_lost()


async def _no_reset(connection: object) -> None:
    """Statements run alone and leave nothing behind: save the reset's round trip."""


def _ms(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))
