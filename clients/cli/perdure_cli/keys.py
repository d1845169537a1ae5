"""`perdure keys` and `perdure tenants`: who may do what."""

from __future__ import annotations

from datetime import UTC, datetime

import click

import perdure
from perdure.admin import NewKey, ScopeName
from perdure_cli.agents import limit_option
from perdure_cli.output import Columns, Output, of
from perdure_cli.record import record_of
from perdure_cli.session import connected

KEY_COLUMNS: Columns = {
    "key": of("key_id"),
    "scopes": of("scopes"),
    "name": of("display_name"),
    "created": of("create_time"),
    "expires": of("expire_time"),
    "revoked": of("revoke_time"),
}
TENANT_COLUMNS: Columns = {
    "tenant": of("tenant_id"),
    "name": of("display_name"),
    "created": of("create_time"),
}
SCOPES = ("read", "write", "approve", "admin", "operator")


@click.group()
def keys() -> None:
    """Keys of the tenant."""


@keys.command("list")
@limit_option
@connected
async def list_keys(client: perdure.AsyncClient, output: Output, limit: int) -> None:
    """List the keys, without their secrets."""
    await output.listing(client.admin.list_keys(), KEY_COLUMNS, limit=limit)


@keys.command("create")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(SCOPES),
    help="What it may do. Repeatable.",
)
@click.option("--id", "key_id", help="Absent: made at random.")
@click.option("--name", "display_name", default="", help="Name for people.")
@click.option(
    "--expires",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="When it stops working, in UTC. Absent: never.",
)
@connected
async def create_key(
    client: perdure.AsyncClient,
    output: Output,
    scopes: tuple[ScopeName, ...],
    key_id: str | None,
    display_name: str,
    expires: datetime | None,
) -> None:
    """Make a key and print it: this is the only time that it is seen."""
    made = await client.admin.create_key(
        scopes=scopes,
        key_id=key_id,
        display_name=display_name,
        expire_time=expires and expires.replace(tzinfo=UTC),
    )
    _show_new(output, made)


@keys.command("revoke")
@click.argument("key_id")
@connected
async def revoke_key(client: perdure.AsyncClient, output: Output, key_id: str) -> None:
    """End a key for good; servers notice within 5 s."""
    revoked = await client.admin.revoke_key(key_id)
    if output.as_json:
        output.json(record_of(revoked))
    else:
        output.text(f"{key_id} is revoked")


@click.group()
def tenants() -> None:
    """Tenants of the server. Needs a key with the operator scope."""


@tenants.command("list")
@limit_option
@connected
async def list_tenants(client: perdure.AsyncClient, output: Output, limit: int) -> None:
    """List the tenants."""
    await output.listing(client.admin.list_tenants(), TENANT_COLUMNS, limit=limit)


@tenants.command("create")
@click.argument("tenant_id")
@click.option("--name", "display_name", default="", help="Name for people.")
@connected
async def create_tenant(
    client: perdure.AsyncClient, output: Output, tenant_id: str, display_name: str
) -> None:
    """Make a tenant and print its first key: the only time that it is seen."""
    made = await client.admin.create_tenant(tenant_id, display_name=display_name)
    _show_new(output, made)


def _show_new(output: Output, made: NewKey) -> None:
    if output.as_json:
        output.json({**record_of(made.info), "key": made.key})
        return
    output.text(made.key)
    output.note("keep it: it is not shown again. Workers take it as PERDURE_KEY")
