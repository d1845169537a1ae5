"""Tenants and keys: `client.admin`."""

from __future__ import annotations

import secrets
import string
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from perdure.channel import Channel
from perdure.errors import Invalid
from perdure.pages import iterate_pages
from perdure.v1 import admin_service_pb2
from perdure.v1.admin_service_pb2 import (
    ApiKey,
    CreateKeyRequest,
    CreateTenantRequest,
    ListKeysRequest,
    ListTenantsRequest,
    RevokeKeyRequest,
    Tenant,
)

ScopeName = Literal["read", "write", "approve", "admin", "operator"]

_SECRET_CHARACTERS: Final = string.ascii_letters + string.digits
_SECRET_LENGTH: Final = 43  # 256 bits in base 62


@dataclass(frozen=True)
class NewKey:
    """A key that was just made. Only its maker ever sees `key`."""

    info: ApiKey
    """The key as the server lists it."""
    key: str = field(repr=False)
    """What `perdure.connect(key=...)` takes."""


class Admin:
    """Keeps tenants and their keys."""

    def __init__(self, channel: Channel) -> None:
        """Use a client's connections."""
        self._channel = channel

    async def create_tenant(
        self, tenant_id: str, *, display_name: str = "", key_id: str = "first"
    ) -> NewKey:
        """Make a tenant and return its first key, with all scopes but operator.

        Raises:
            Invalid: The tenant exists already (ID_REUSED), or its id is not allowed.
            Denied: The caller's key lacks the operator scope.
        """
        secret = _new_secret()
        response = await self._channel.call(
            lambda stubs: stubs.admin.CreateTenant,
            CreateTenantRequest(
                tenant_id=tenant_id,
                display_name=display_name,
                key_id=key_id,
                key_secret=secret,
            ),
        )
        return NewKey(response.key, f"pd_{tenant_id}_{key_id}_{secret}")

    def list_tenants(self) -> AsyncIterator[Tenant]:
        """Yield the tenants in the order of their ids. Needs the operator scope."""
        return iterate_pages(
            lambda token: self._channel.call(
                lambda stubs: stubs.admin.ListTenants,
                ListTenantsRequest(page_token=token),
            ),
            lambda page: page.tenants,
        )

    async def create_key(
        self,
        *,
        scopes: Sequence[ScopeName],
        key_id: str | None = None,
        display_name: str = "",
        expire_time: datetime | None = None,
    ) -> NewKey:
        """Make a key of the caller's tenant. Needs the admin scope.

        Args:
            scopes: What it may do: read, write, approve, admin, operator.
            key_id: 1 to 63 of `a-z`, `0-9` and `-`. Absent: made at random.
            display_name: Name for people.
            expire_time: When it stops working; must have a zone. Absent: never.

        Raises:
            Invalid: The id is taken, or a value is not allowed.
            Denied: The caller lacks one of the scopes.
        """
        key_id = key_id or secrets.token_hex(8)
        secret = _new_secret()
        request = CreateKeyRequest(
            key_id=key_id,
            key_secret=secret,
            scopes=[_scope(name) for name in scopes],
            display_name=display_name,
        )
        if expire_time is not None:
            if expire_time.utcoffset() is None:
                raise _invalid("expire_time", "a time without a zone")
            request.expire_time.FromDatetime(expire_time)
        response = await self._channel.call(
            lambda stubs: stubs.admin.CreateKey, request
        )
        tenant_id = self._channel.credentials.key.split("_")[1]
        return NewKey(response.key, f"pd_{tenant_id}_{key_id}_{secret}")

    def list_keys(self) -> AsyncIterator[ApiKey]:
        """Yield the keys of the caller's tenant, without secrets."""
        return iterate_pages(
            lambda token: self._channel.call(
                lambda stubs: stubs.admin.ListKeys, ListKeysRequest(page_token=token)
            ),
            lambda page: page.keys,
        )

    async def revoke_key(self, key_id: str) -> ApiKey:
        """End a key for good; servers notice within 5 s. NotFound if there is none."""
        response = await self._channel.call(
            lambda stubs: stubs.admin.RevokeKey, RevokeKeyRequest(key_id=key_id)
        )
        return response.key


def _scope(name: str) -> admin_service_pb2.Scope.ValueType:
    try:
        return admin_service_pb2.Scope.Value(f"SCOPE_{name.upper()}")
    except ValueError as error:
        raise _invalid(
            "scopes", "a scope is one of read, write, approve, admin, operator"
        ) from error


def _new_secret() -> str:
    return "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(_SECRET_LENGTH))


def _invalid(path: str, why: str) -> Invalid:
    return Invalid(why, reason="VALUE_NOT_STORABLE", metadata={"path": path})
