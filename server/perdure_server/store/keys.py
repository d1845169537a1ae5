"""Keys of tenants. Secrets are kept as SHA-256 only: they are random, not chosen."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from perdure_server.caller import Caller
from perdure_server.store.database import Database
from perdure_server.store.queries import load_queries

_SQL = load_queries("keys")


@dataclass(frozen=True)
class ApiKey:
    """A credential without its secret."""

    key_id: str
    secret_digest: bytes
    scopes: tuple[str, ...]
    display_name: str
    create_time: datetime
    expire_time: datetime | None
    revoke_time: datetime | None


@dataclass(frozen=True)
class FoundKey:
    """A valid key's caller, and the digest that its secret must have."""

    caller: Caller
    secret_digest: bytes


def digest_secret(secret: str) -> bytes:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).digest()


class Keys:
    """The keys of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: str, key_id: str) -> FoundKey | None:
        """Return a key that is valid now."""
        row = await self._database.fetchrow(_SQL["find_key"], tenant_id, key_id)
        if row is None:
            return None
        scopes = frozenset(row["scopes"])
        caller = Caller(tenant_id, key_id, scopes, row["token_key"])
        return FoundKey(caller, row["secret_digest"])

    async def create(
        self,
        tenant_id: str,
        key_id: str,
        secret: str,
        scopes: list[str],
        display_name: str,
        expire_time: datetime | None,
    ) -> tuple[ApiKey, bool]:
        """Make a key; return it, or the one that is there, and whether it is new."""
        row = await self._database.fetchrow(
            _SQL["insert_key"],
            tenant_id,
            key_id,
            digest_secret(secret),
            scopes,
            display_name,
            expire_time,
        )
        if row is not None:
            return _key(row), True
        row = await self._database.fetchrow(_SQL["get_key"], tenant_id, key_id)
        assert row is not None
        return _key(row), False

    async def page(self, tenant_id: str, after: str, limit: int) -> list[ApiKey]:
        """Return at most `limit` keys with ids after `after`."""
        rows = await self._database.fetch(_SQL["list_keys"], tenant_id, after, limit)
        return [_key(row) for row in rows]

    async def revoke(self, tenant_id: str, key_id: str) -> ApiKey | None:
        """End a key and return it; None when there is no such key."""
        row = await self._database.fetchrow(_SQL["revoke_key"], tenant_id, key_id)
        return None if row is None else _key(row)


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        row["key_id"],
        row["secret_digest"],
        tuple(row["scopes"]),
        row["display_name"],
        row["create_time"],
        row["expire_time"],
        row["revoke_time"],
    )
