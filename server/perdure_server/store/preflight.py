"""Whether a database can be used at all; asked once, before a server serves."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from perdure_server.startup import StartupError
from perdure_server.store.migrate import migrate_up, pending
from perdure_server.store.queries import load_queries

MIN_VERSION = 15
_CONNECT_TIMEOUT_S = 10.0
_QUERIES = load_queries("startup")


async def check_database(dsn: str) -> None:
    """Refuse a database that cannot hold agents' state.

    Raises:
        StartupError: when it cannot be reached, is older than Postgres 15, is not
            UTF-8, cannot be written, or lacks a migration.
    """
    connection = await _connect(dsn)
    try:
        facts = await _check_facts(connection)
        missing = await pending(connection, is_migrated=facts["is_migrated"])
    except asyncpg.PostgresError as exc:
        raise StartupError(f"the database refused the check: {exc}") from exc
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)
    if missing:
        raise StartupError(
            f"the database lacks the migrations {', '.join(missing)}: run "
            "`perdure db up` with the same --dsn, then start again"
        )


async def prepare_database(dsn: str) -> list[str]:
    """Migrate a database that can hold agents' state; return the files applied.

    For the embedded cluster at every start, and for `db up`.

    Raises:
        StartupError: as for check_database, or when a migration fails.
    """
    await check_migratable(dsn)
    applied = await asyncio.to_thread(migrate_up, dsn)
    await check_database(dsn)
    return applied


async def check_migratable(dsn: str) -> None:
    """Refuse a database for a reason that migrating it does not change.

    Raises:
        StartupError: as for check_database, missing migrations aside.
    """
    connection = await _connect(dsn)
    try:
        await _check_facts(connection)
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


async def list_pending(dsn: str) -> list[str]:
    """Return the versions that the database lacks, oldest first.

    Raises:
        StartupError: when the database cannot be reached or used.
    """
    connection = await _connect(dsn)
    try:
        facts = await connection.fetchrow(_QUERIES["get_database_facts"])
        assert facts is not None
        return await pending(connection, is_migrated=facts["is_migrated"])
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


async def _connect(dsn: str) -> asyncpg.Connection[Any]:
    try:
        # No statement cache: a pooler may be in between.
        return await asyncpg.connect(
            dsn, timeout=_CONNECT_TIMEOUT_S, statement_cache_size=0
        )
    except OSError as exc:
        reason = getattr(exc, "strerror", None) or str(exc) or "no answer"
        raise StartupError(
            f"cannot reach Postgres ({reason}): is it running, and is --dsn right?"
        ) from exc
    except asyncpg.PostgresError as exc:
        raise StartupError(f"Postgres refused the connection: {exc}") from exc
    except (asyncpg.InterfaceError, ValueError) as exc:
        raise StartupError(f"--dsn cannot be used: {exc}") from exc


async def _check_facts(connection: asyncpg.Connection[Any]) -> asyncpg.Record:
    facts: asyncpg.Record | None = await connection.fetchrow(
        _QUERIES["get_database_facts"]
    )
    assert facts is not None
    if facts["version_number"] < MIN_VERSION * 10_000:
        raise StartupError(
            f"this is Postgres {facts['version']}, perdure needs {MIN_VERSION} or "
            "newer: upgrade it, or start without --dsn for the embedded one"
        )
    if facts["encoding"] != "UTF8":
        raise StartupError(
            f"the database is encoded in {facts['encoding']}: make one with "
            "ENCODING 'UTF8' and name it in --dsn"
        )
    if facts["is_standby"] or facts["is_read_only"]:
        what = "a read-only standby" if facts["is_standby"] else "read-only"
        raise StartupError(f"the database is {what}: point --dsn at the primary")
    return facts
