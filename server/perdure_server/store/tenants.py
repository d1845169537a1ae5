"""Tenants."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from perdure_server.store.database import Database
from perdure_server.store.queries import load_queries

_SQL = load_queries("tenants")


@dataclass(frozen=True)
class Tenant:
    """A customer, team or product."""

    tenant_id: str
    display_name: str
    create_time: datetime


class Tenants:
    """The tenants of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, tenant_id: str, display_name: str, token_key: bytes
    ) -> Tenant:
        """Make a tenant, or return the one that is there."""
        row = await self._database.fetchrow(
            _SQL["insert_tenant"], tenant_id, display_name, token_key
        )
        row = row or await self._database.fetchrow(_SQL["get_tenant"], tenant_id)
        assert row is not None
        return _tenant(row)

    async def page(self, after: str, limit: int) -> list[Tenant]:
        """Return at most `limit` tenants with ids after `after`."""
        rows = await self._database.fetch(_SQL["list_tenants"], after, limit)
        return [_tenant(row) for row in rows]


def _tenant(row: asyncpg.Record) -> Tenant:
    return Tenant(row["tenant_id"], row["display_name"], row["create_time"])
