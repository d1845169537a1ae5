"""`perdure keys` and `perdure tenants`: who may do what."""

from __future__ import annotations

from typing import Any

import click

import perdure
from perdure_cli.output import Output, time_of
from perdure_cli.session import client_command

SCOPES = ["read", "write", "approve", "admin", "operator"]


@click.group()
def keys() -> None:
    """Keys of the tenant."""


@keys.command("list")
@client_command
async def list_keys(client: perdure.AsyncClient, output: Output) -> None:
    """List the keys, without secrets."""
    found: list[dict[str, Any]] = []
    async for key in client.admin.list_keys():
        found.append(
            {
                "key_id": key.key_id,
                "scopes": ",".join(_scope_names(key.scopes)),
                "display_name": key.display_name,
                "create_time": time_of(key.create_time),
                "expire_time": time_of(key.expire_time),
                "revoke_time": time_of(key.revoke_time),
            }
        )
    output.rows(
        [
            "key_id",
            "scopes",
            "display_name",
            "create_time",
            "expire_time",
            "revoke_time",
        ],
        found,
        "no keys",
    )


@keys.command("create")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES)
)
@click.option("--id", "key_id", help="Else one is made.")
@click.option("--name", "display_name", default="", help="Name for people.")
@client_command
async def create_key(
    client: perdure.AsyncClient,
    output: Output,
    scopes: Any,
    key_id: str | None,
    display_name: str,
) -> None:
    """Make a key. It is shown once and never again."""
    made = await client.admin.create_key(
        scopes=list(scopes), key_id=key_id, display_name=display_name
    )
    output.record({"key_id": made.info.key_id, "key": made.key})


@keys.command("revoke")
@click.argument("key_id")
@client_command
async def revoke_key(client: perdure.AsyncClient, output: Output, key_id: str) -> None:
    """End a key for good."""
    await client.admin.revoke_key(key_id)
    output.record({"revoked": key_id})


@click.group()
def tenants() -> None:
    """Tenants of the server."""


@tenants.command("list")
@client_command
async def list_tenants(client: perdure.AsyncClient, output: Output) -> None:
    """List the tenants."""
    found: list[dict[str, Any]] = []
    async for tenant in client.admin.list_tenants():
        found.append(
            {
                "tenant_id": tenant.tenant_id,
                "display_name": tenant.display_name,
                "create_time": time_of(tenant.create_time),
            }
        )
    output.rows(["tenant_id", "display_name", "create_time"], found, "no tenants")


@tenants.command("create")
@click.argument("tenant_id")
@click.option("--name", "display_name", default="", help="Name for people.")
@client_command
async def create_tenant(
    client: perdure.AsyncClient, output: Output, tenant_id: str, display_name: str
) -> None:
    """Make a tenant and its first key, which is shown once and never again."""
    made = await client.admin.create_tenant(tenant_id, display_name=display_name)
    output.record({"tenant_id": tenant_id, "key": made.key})


def _scope_names(numbers: Any) -> list[str]:
    """Return scopes of the wire by name."""
    return [SCOPES[number - 1] for number in numbers]
