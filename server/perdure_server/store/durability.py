"""The settings of a database that decide whether acknowledged means durable."""

from typing import Any

import asyncpg

from perdure_server.startup import StartupError
from perdure_server.store.preflight import list_pending
from perdure_server.store.queries import load_queries

_SQL = load_queries("durability")
_CONNECT_TIMEOUT_S = 10.0


async def durability_facts(dsn: str) -> dict[str, Any]:
    """Return the settings by name, and the migrations that are missing.

    Raises:
        StartupError: The database cannot be reached or used.
    """
    missing = await list_pending(dsn)
    try:
        connection = await asyncpg.connect(
            dsn, timeout=_CONNECT_TIMEOUT_S, statement_cache_size=0
        )
        try:
            row = await connection.fetchrow(_SQL["get_durability_facts"])
        finally:
            await connection.close(timeout=_CONNECT_TIMEOUT_S)
    except (OSError, asyncpg.PostgresError) as exc:
        raise StartupError(f"the database refused the check: {exc}") from exc
    assert row is not None
    return {**dict(row), "missing_migrations": missing}
