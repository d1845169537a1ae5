"""AdminService: tenants and keys."""

import uuid
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from perdure.v1 import admin_service_pb2 as pb
from tests.support.wire import Wire, refused, said

SECRET = "s" * 43


async def create_tenant(wire: Wire, tenant_id: str, **fields: Any) -> Any:
    given = {"key_id": "first", "key_secret": SECRET, **fields}
    request = pb.CreateTenantRequest(tenant_id=tenant_id, **given)
    return await wire.admin.CreateTenant(request, metadata=wire.key)


async def create_key(wire: Wire, key_id: str, **fields: Any) -> Any:
    given = {"key_secret": SECRET, "scopes": [pb.SCOPE_READ], **fields}
    request = pb.CreateKeyRequest(key_id=key_id, **given)
    return (await wire.admin.CreateKey(request, metadata=wire.key)).key


async def test_a_tenant_comes_with_a_key_that_works(wire: Wire) -> None:
    made = await create_tenant(wire, "acme", display_name="Acme")
    assert made.tenant.tenant_id == "acme"
    assert made.key.scopes == [1, 2, 3, 4]
    own = Wire(wire.address, f"pd_acme_first_{SECRET}")
    await own.append("c", said("a"))
    with refused("SCOPE_MISSING") as refusal:
        await own.admin.ListTenants(pb.ListTenantsRequest(), metadata=own.key)
    assert refusal.metadata["scope"] == "operator"
    await own.channel.close()


async def test_creating_a_tenant_again_is_harmless(wire: Wire) -> None:
    first = await create_tenant(wire, "twice", display_name="Twice")
    again = await create_tenant(wire, "twice", display_name="Twice")
    assert again == first
    for other in ({"display_name": "Other"}, {"key_secret": "z" * 43}):
        with refused("ID_REUSED") as refusal:
            await create_tenant(wire, "twice", **{"display_name": "Twice", **other})
        assert refusal.code == "ALREADY_EXISTS"


async def test_tenants_are_listed_in_pages(wire: Wire) -> None:
    for name in ("list-b", "list-a", "list-c"):
        await create_tenant(wire, name)
    seen: list[str] = []
    token = ""
    for _ in range(20):
        request = pb.ListTenantsRequest(page_size=1, page_token=token)
        page = await wire.admin.ListTenants(request, metadata=wire.key)
        seen += [tenant.tenant_id for tenant in page.tenants]
        token = page.next_page_token
        if not token:
            break
    assert [name for name in seen if name.startswith("list-")] == [
        "list-a",
        "list-b",
        "list-c",
    ]
    assert "default" in seen


async def test_creating_a_key_again_is_harmless_and_other_content_is_refused(
    wire: Wire,
) -> None:
    expiry = Timestamp(seconds=4_000_000_000)
    first = await create_key(wire, "again", expire_time=expiry, display_name="n")
    again = await create_key(wire, "again", expire_time=expiry, display_name="n")
    assert first == again
    assert first.expire_time == expiry
    changes: list[dict[str, Any]] = [
        {"key_secret": "t" * 43},
        {"scopes": [pb.SCOPE_WRITE]},
        {"display_name": "other"},
        {"expire_time": None},
    ]
    for change in changes:
        given = {"expire_time": expiry, "display_name": "n", **change}
        with refused("ID_REUSED"):
            await create_key(wire, "again", **given)


async def test_nobody_gives_a_scope_that_he_lacks(wire: Wire) -> None:
    scopes = [pb.SCOPE_READ, pb.SCOPE_ADMIN]
    await create_key(wire, "sub-admin", scopes=scopes)
    admin = Wire(wire.address, f"pd_default_sub-admin_{SECRET}")
    await create_key(admin, "its-reader")
    for scope, name in ((pb.SCOPE_OPERATOR, "operator"), (pb.SCOPE_WRITE, "write")):
        with refused("SCOPE_MISSING") as refusal:
            await create_key(admin, f"its-{name}", scopes=[scope])
        assert refusal.metadata["scope"] == name
    await admin.channel.close()


async def test_keys_are_listed_without_secrets_and_revoked_for_good(
    wire: Wire,
) -> None:
    await create_key(wire, "revoked")
    revoke = pb.RevokeKeyRequest(key_id="revoked")
    first = await wire.admin.RevokeKey(revoke, metadata=wire.key)
    again = await wire.admin.RevokeKey(revoke, metadata=wire.key)
    assert first.key.HasField("revoke_time")
    assert again == first
    page = await wire.admin.ListKeys(
        pb.ListKeysRequest(page_size=1000), metadata=wire.key
    )
    listed = {key.key_id: key for key in page.keys}
    assert listed["revoked"] == first.key
    assert SECRET not in str(page)


async def test_an_unknown_key_cannot_be_revoked(wire: Wire) -> None:
    with refused("KEY_NOT_FOUND") as refusal:
        await wire.admin.RevokeKey(
            pb.RevokeKeyRequest(key_id="nobody"), metadata=wire.key
        )
    assert refusal.code == "NOT_FOUND"


async def test_bad_ids_secrets_and_scopes_are_refused_by_their_path(
    wire: Wire,
) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("key_id", {"key_id": ""}),
        ("key_id", {"key_id": "Upper"}),
        ("key_id", {"key_id": "under_score"}),
        ("key_id", {"key_id": "k" * 64}),
        ("key_secret", {"key_secret": "short"}),
        ("key_secret", {"key_secret": "s" * 129}),
        ("key_secret", {"key_secret": "_" * 43}),
        ("scopes", {"scopes": []}),
        ("scopes[0]", {"scopes": [0]}),
        ("scopes[1]", {"scopes": [1, 77]}),
        ("expire_time", {"expire_time": Timestamp(seconds=10**15)}),
    ]
    for path, fields in cases:
        with refused("VALUE_NOT_STORABLE") as refusal:
            await create_key(wire, **{"key_id": uuid.uuid4().hex, **fields})
        assert refusal.metadata["path"] == path, fields
    with refused("VALUE_NOT_STORABLE") as refusal:
        await create_tenant(wire, "Not A Slug")
    assert refusal.metadata["path"] == "tenant_id"
