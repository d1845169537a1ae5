"""`perdure db`: the schema of the server's database."""

from __future__ import annotations

import click

from perdure_cli.serve import PASS_THROUGH, run_server


@click.group()
def db() -> None:
    """Schema of the database. Each command takes --dsn and --data-dir."""


def _add(name: str, text: str) -> None:
    @db.command(name, context_settings=PASS_THROUGH, add_help_option=False, help=text)
    @click.argument("flags", nargs=-1, type=click.UNPROCESSED)
    def run(flags: tuple[str, ...]) -> None:
        run_server(["db", name, *flags])


_add("status", "Say which migrations are missing; status 1 if any.")
_add("up", "Apply the migrations that are missing.")
_add("sql", "Print the DDL for a DBA who runs it by hand.")
_add("check", "Print what decides whether data is safe there, as JSON.")
