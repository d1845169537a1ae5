"""AdminService: tenants and their keys."""

import re
import secrets

from perdure.v1 import admin_service_pb2 as pb
from perdure.v1 import admin_service_pb2_grpc
from perdure_server.caller import current_caller
from perdure_server.errors import IdReused, KeyNotFound, ScopeMissing, ValueNotStorable
from perdure_server.rpc.checks import check_text, page_size
from perdure_server.rpc.interceptor import Context
from perdure_server.rpc.page_token import open_page_token, page_token
from perdure_server.rpc.timestamps import from_timestamp, to_timestamp
from perdure_server.store.keys import ApiKey, Keys, digest_secret
from perdure_server.store.tenants import Tenant, Tenants

TOKEN_KEY_BYTES = 32

_SLUG = re.compile(r"[a-z0-9-]{1,63}")
_SECRET = re.compile(r"[A-Za-z0-9]{32,128}")
_SCOPES = {
    pb.SCOPE_READ: "read",
    pb.SCOPE_WRITE: "write",
    pb.SCOPE_APPROVE: "approve",
    pb.SCOPE_ADMIN: "admin",
    pb.SCOPE_OPERATOR: "operator",
}
_SCOPE_NUMBERS = {name: number for number, name in _SCOPES.items()}
FIRST_KEY_SCOPES = ["read", "write", "approve", "admin"]


class AdminService(admin_service_pb2_grpc.AdminServiceServicer):
    """Serves tenants and keys."""

    def __init__(self, tenants: Tenants, keys: Keys) -> None:
        self._tenants = tenants
        self._keys = keys

    async def CreateTenant(
        self, request: pb.CreateTenantRequest, context: Context
    ) -> pb.CreateTenantResponse:
        """Make a tenant and its first key."""
        tenant_id = _check_slug(request.tenant_id, "tenant_id")
        display_name = check_text(request.display_name, "display_name")
        key_id = _check_slug(request.key_id, "key_id")
        secret = _check_secret(request.key_secret, "key_secret")
        tenant = await self._tenants.create(
            tenant_id, display_name, secrets.token_bytes(TOKEN_KEY_BYTES)
        )
        if tenant.display_name != display_name:
            raise IdReused("the tenant exists with another name", tenant_id=tenant_id)
        key = await self._create_key(tenant_id, key_id, secret, FIRST_KEY_SCOPES)
        return pb.CreateTenantResponse(tenant=_tenant(tenant), key=_key(key))

    async def ListTenants(
        self, request: pb.ListTenantsRequest, context: Context
    ) -> pb.ListTenantsResponse:
        """Page through tenants."""
        size = page_size(request.page_size)
        after = open_page_token("tenants", request.page_token)
        found = await self._tenants.page(after, size + 1)
        return pb.ListTenantsResponse(
            tenants=[_tenant(tenant) for tenant in found[:size]],
            next_page_token=page_token(
                "tenants", [tenant.tenant_id for tenant in found], size
            ),
        )

    async def CreateKey(
        self, request: pb.CreateKeyRequest, context: Context
    ) -> pb.CreateKeyResponse:
        """Make a key of the caller's tenant."""
        caller = current_caller()
        scopes = _check_scopes(list(request.scopes))
        for scope in scopes:
            if scope not in caller.scopes:
                raise ScopeMissing(f"the key lacks the scope {scope}", scope=scope)
        expire_time = None
        if request.HasField("expire_time"):
            expire_time = from_timestamp(request.expire_time, "expire_time")
        key_id = _check_slug(request.key_id, "key_id")
        secret = _check_secret(request.key_secret, "key_secret")
        key, created = await self._keys.create(
            caller.tenant_id,
            key_id,
            secret,
            scopes,
            check_text(request.display_name, "display_name"),
            expire_time,
        )
        same = (key.secret_digest, list(key.scopes), key.display_name, key.expire_time)
        if not created and same != (
            digest_secret(secret),
            scopes,
            request.display_name,
            expire_time,
        ):
            raise IdReused("the key exists with other content", key_id=key_id)
        return pb.CreateKeyResponse(key=_key(key))

    async def ListKeys(
        self, request: pb.ListKeysRequest, context: Context
    ) -> pb.ListKeysResponse:
        """Page through the keys of the caller's tenant."""
        size = page_size(request.page_size)
        after = open_page_token("keys", request.page_token)
        found = await self._keys.page(current_caller().tenant_id, after, size + 1)
        return pb.ListKeysResponse(
            keys=[_key(key) for key in found[:size]],
            next_page_token=page_token("keys", [key.key_id for key in found], size),
        )

    async def RevokeKey(
        self, request: pb.RevokeKeyRequest, context: Context
    ) -> pb.RevokeKeyResponse:
        """End a key."""
        key_id = _check_slug(request.key_id, "key_id")
        key = await self._keys.revoke(current_caller().tenant_id, key_id)
        if key is None:
            raise KeyNotFound("no such key", key_id=key_id)
        return pb.RevokeKeyResponse(key=_key(key))

    async def _create_key(
        self, tenant_id: str, key_id: str, secret: str, scopes: list[str]
    ) -> ApiKey:
        key, created = await self._keys.create(
            tenant_id, key_id, secret, scopes, "", None
        )
        if not created and key.secret_digest != digest_secret(secret):
            raise IdReused("the key exists with another secret", key_id=key_id)
        return key


def _check_slug(value: str, path: str) -> str:
    if not _SLUG.fullmatch(value):
        raise ValueNotStorable("not 1 to 63 of a-z, 0-9 and -", path=path)
    return value


def _check_secret(value: str, path: str) -> str:
    if not _SECRET.fullmatch(value):
        raise ValueNotStorable("not 32 to 128 of A-Z, a-z and 0-9", path=path)
    return value


def _check_scopes(numbers: list[pb.Scope.ValueType]) -> list[str]:
    if not numbers:
        raise ValueNotStorable("a key needs at least one scope", path="scopes")
    for place, number in enumerate(numbers):
        if number not in _SCOPES:
            raise ValueNotStorable("an unknown scope", path=f"scopes[{place}]")
    return sorted({_SCOPES[number] for number in numbers})


def _tenant(tenant: Tenant) -> pb.Tenant:
    return pb.Tenant(
        tenant_id=tenant.tenant_id,
        display_name=tenant.display_name,
        create_time=to_timestamp(tenant.create_time),
    )


def _key(key: ApiKey) -> pb.ApiKey:
    message = pb.ApiKey(
        key_id=key.key_id,
        scopes=[_SCOPE_NUMBERS[name] for name in key.scopes],
        display_name=key.display_name,
        create_time=to_timestamp(key.create_time),
    )
    if key.expire_time is not None:
        message.expire_time.CopyFrom(to_timestamp(key.expire_time))
    if key.revoke_time is not None:
        message.revoke_time.CopyFrom(to_timestamp(key.revoke_time))
    return message
