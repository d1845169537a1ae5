"""Database: deadlines, the pool, and what a driver's error becomes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure_server.deadline import set_deadline
from perdure_server.errors import (
    PerdureError,
    StoreReadOnly,
    StoreUnavailable,
    WriteContention,
)
from perdure_server.store.database import CommitRefused, Database
from tests.support.cluster import Cluster

SLOW = "SELECT pg_sleep(0.5)"


@asynccontextmanager
async def opened(dsn: str, **options: Any) -> AsyncIterator[Database]:
    database = await Database.open(dsn, **options)
    try:
        yield database
    finally:
        async with asyncio.timeout(10):
            await database.close()


async def outcome(work: Any) -> str:
    try:
        await work
    except PerdureError as error:
        return error.reason
    except asyncio.CancelledError:
        return "CANCELLED"
    return "DONE"


# R33
async def test_callers_that_give_up_leave_every_connection_free(
    database_dsn: str, connection: asyncpg.Connection
) -> None:
    async def caller(database: Database) -> str:
        set_deadline(0.1)
        return await outcome(database.fetchval(SLOW))

    async with opened(database_dsn, pool_size=3) as database:
        started = time.monotonic()
        callers = [asyncio.create_task(caller(database)) for _ in range(50)]
        await asyncio.sleep(0.05)
        for task in callers[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*callers)
        assert time.monotonic() - started < 2.0
        assert set(outcomes) <= {"CANCELLED", "OVERLOADED", "STORE_UNAVAILABLE"}
        assert outcomes.count("OVERLOADED") >= 20

        await asyncio.sleep(1.0)
        # All three at once, and nobody waits for a connection.
        started = time.monotonic()
        await asyncio.gather(*(database.fetchval(SLOW) for _ in range(3)))
        assert time.monotonic() - started < 0.9
        idle = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'perdure' "
            "AND state LIKE 'idle in transaction%'"
        )
        assert idle == 0


# R33
async def test_without_a_deadline_a_wait_for_a_connection_still_ends(
    database_dsn: str,
) -> None:
    async with opened(database_dsn, pool_size=1, transaction_timeout_s=0.5) as database:
        started = time.monotonic()
        outcomes = await asyncio.gather(
            *(outcome(database.fetchval("SELECT pg_sleep(5)")) for _ in range(4))
        )
        assert time.monotonic() - started < 3.0
        assert set(outcomes) <= {"OVERLOADED", "STORE_UNAVAILABLE"}


async def test_a_statement_that_takes_too_long_is_unavailable(
    database_dsn: str,
) -> None:
    async with opened(database_dsn, transaction_timeout_s=0.2) as database:
        with pytest.raises(StoreUnavailable):
            await database.fetchval("SELECT pg_sleep(3)")
        assert await database.fetchval("SELECT 1") == 1


async def test_an_expired_deadline_does_not_reach_the_database(
    database_dsn: str,
) -> None:
    async with opened(database_dsn) as database:
        set_deadline(0)
        assert await outcome(database.fetchval("SELECT 1")) == "OVERLOADED"


async def test_a_broken_connection_is_replaced(
    database_dsn: str, connection: asyncpg.Connection
) -> None:
    async with opened(database_dsn, pool_size=2) as database:
        pid = await database.fetchval("SELECT pg_backend_pid()")
        work = asyncio.create_task(outcome(database.fetchval("SELECT pg_sleep(5)")))
        await asyncio.sleep(0.2)
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'perdure'"
        )
        assert await work == "STORE_UNAVAILABLE"
        assert database.connected_ms() == 0
        async with asyncio.timeout(5):
            while await outcome(database.fetchval("SELECT 1")) != "DONE":
                await asyncio.sleep(0.05)
        assert await database.fetchval("SELECT pg_backend_pid()") != pid
        await asyncio.sleep(0.05)
        assert 0 < database.connected_ms() < 5_000


class Doomed:
    """A database that can be shut and opened again."""

    def __init__(self, dsn: str, admin: "asyncpg.Connection[Any]") -> None:
        self.dsn = dsn
        self.name = urlsplit(dsn).path.lstrip("/")
        self.admin = admin

    async def shut(self) -> None:
        await self.admin.execute(
            f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS false'
        )
        await self.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
            self.name,
        )

    async def open(self) -> None:
        await self.admin.execute(f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS true')


@pytest.fixture
async def doomed(cluster: Cluster) -> AsyncIterator[Doomed]:
    dsn = cluster.create_database()
    admin = await asyncpg.connect(cluster.dsn)
    try:
        yield Doomed(dsn, admin)
    finally:
        await admin.close()
        cluster.drop_database(dsn)


async def test_a_pool_that_lost_its_database_finds_it_again(doomed: Doomed) -> None:
    async with opened(doomed.dsn, pool_size=2) as database:
        assert await database.fetchval("SELECT 1") == 1
        await doomed.shut()
        for _ in range(3):
            assert await outcome(database.fetchval("SELECT 1")) == "STORE_UNAVAILABLE"
        await doomed.open()
        # A connection that died with the outage may be lent once more.
        async with asyncio.timeout(5):
            while await outcome(database.fetchval("SELECT 1")) != "DONE":
                await asyncio.sleep(0.05)


async def test_an_idle_server_notices_an_outage_by_itself(doomed: Doomed) -> None:
    async with opened(doomed.dsn) as database:
        await database.fetchval("SELECT 1")
        await asyncio.sleep(0.1)
        assert database.connected_ms() > 0
        await doomed.shut()
        async with asyncio.timeout(5):
            while database.connected_ms() > 0:
                await asyncio.sleep(0.05)
        await doomed.open()
        async with asyncio.timeout(5):
            while database.connected_ms() == 0:
                await asyncio.sleep(0.05)
        assert database.connected_ms() < 2_000


def stand_still() -> None:
    """As by SIGSTOP or on a paused machine: nothing of this process runs meanwhile."""
    time.sleep(3.5)


async def test_a_server_that_stood_still_counts_as_connected_anew(
    database_dsn: str,
) -> None:
    async with opened(database_dsn) as database:
        await database.fetchval("SELECT 1")
        stand_still()

        assert database.connected_ms() == 0
        await database.fetchval("SELECT 1")
        assert database.connected_ms() < 1_000


async def test_a_database_that_takes_no_writes_is_named_so(doomed: Doomed) -> None:
    await doomed.admin.execute(
        f'ALTER DATABASE "{doomed.name}" SET default_transaction_read_only = on'
    )
    async with opened(doomed.dsn) as database:
        with pytest.raises(StoreReadOnly):
            await database.fetchval(
                "INSERT INTO perdure_store.tenants (tenant_id, display_name, token_key)"
                " VALUES ('a', '', '') RETURNING tenant_id"
            )
        assert await database.fetchval("SELECT 1") == 1


async def test_deadlocks_are_tried_again_and_both_writes_are_stored(
    database_dsn: str, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "CREATE TABLE pair (id int PRIMARY KEY, n int); "
        "INSERT INTO pair VALUES (1, 0), (2, 0); "
        "CREATE FUNCTION bump(a int, b int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE pair SET n = n + 1 WHERE id = a; PERFORM pg_sleep(0.2); "
        "UPDATE pair SET n = n + 1 WHERE id = b; END $$"
    )
    async with opened(database_dsn, transaction_timeout_s=10) as database:
        outcomes = await asyncio.gather(
            outcome(database.fetchval("SELECT bump(1, 2)")),
            outcome(database.fetchval("SELECT bump(2, 1)")),
        )
    assert outcomes == ["DONE", "DONE"]
    assert await connection.fetchval("SELECT array_agg(n) FROM pair") == [2, 2]


async def test_a_lock_that_stays_taken_is_contention_within_the_deadline(
    database_dsn: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("CREATE TABLE held (n int); INSERT INTO held VALUES (0)")
    async with opened(database_dsn, transaction_timeout_s=0.8) as database:
        async with connection.transaction():
            await connection.execute("UPDATE held SET n = 1")
            started = time.monotonic()
            with pytest.raises((WriteContention, StoreUnavailable)):
                await database.fetchval("UPDATE held SET n = 2 RETURNING n")
            assert time.monotonic() - started < 3.0
        assert await database.fetchval("UPDATE held SET n = 3 RETURNING n") == 3


async def test_the_refusal_of_a_function_carries_its_detail(database_dsn: str) -> None:
    async with opened(database_dsn) as database:
        await database.fetchval(
            "CREATE FUNCTION refuse() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE "
            "EXCEPTION USING ERRCODE = 'PD001', DETAIL = '{\"outcome\": \"stale\"}'; "
            "END $$"
        )
        with pytest.raises(CommitRefused) as caught:
            await database.fetchval("SELECT refuse()")
        assert caught.value.detail == {"outcome": "stale"}


async def test_an_argument_that_cannot_be_sent_is_not_taken_for_an_outage(
    database_dsn: str,
) -> None:
    async with opened(database_dsn) as database:
        await database.fetchval("SELECT 1")
        with pytest.raises(asyncpg.DataError):
            await database.fetchval("SELECT $1::bigint", 2**63)
        await asyncio.sleep(0.05)
        assert database.connected_ms() >= 50


async def test_sessions_have_the_settings_that_the_promises_rest_on(
    database_dsn: str,
) -> None:
    async with opened(database_dsn, transaction_timeout_s=5) as database:
        settings = {
            name: await database.fetchval("SELECT current_setting($1)", name)
            for name in (
                "synchronous_commit",
                "idle_in_transaction_session_timeout",
                "statement_timeout",
                "lock_timeout",
                "TimeZone",
            )
        }
    assert settings == {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": "1s",
        "statement_timeout": "5s",
        "lock_timeout": "3s",
        "TimeZone": "UTC",
    }


async def test_behind_a_pooler_no_statement_is_kept_in_a_session(
    database_dsn: str,
) -> None:
    async with opened(database_dsn, pooler=True, pool_size=1) as database:
        for _ in range(3):
            await database.fetchval("SELECT $1::int", 1)
        assert (
            await database.fetchval("SELECT count(*) FROM pg_prepared_statements") <= 1
        )


async def test_a_deadline_is_what_is_left_and_never_below_zero(
    database_dsn: str,
) -> None:
    from perdure_server.deadline import remaining_s

    clock: Callable[[float], float] = remaining_s
    assert clock(5.0) == 5.0
    set_deadline(1.0)
    assert 0.9 < clock(5.0) <= 1.0
    assert clock(0.5) == 0.5
    set_deadline(-1.0)
    assert clock(5.0) == 0.0
