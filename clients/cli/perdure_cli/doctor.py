"""`perdure doctor`: what would lose data or will not work, and what to do about it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

import perdure
import perdure_codec
from perdure.credentials import data_folder
from perdure_cli.errors import line_of
from perdure_cli.output import Columns, Output, of
from perdure_cli.session import Session, json_option, session_of

CHECK_TIMEOUT_S = 30.0
EMBEDDED_FOLDER = "postgres"
"""Within the data folder; without it there is no embedded Postgres yet."""

COLUMNS: Columns = {"level": of("level"), "what": of("what"), "do": of("do")}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: str
    """ok, warning or error."""
    what: str
    do: str = ""


@click.command()
@click.option("--dsn", help="Database to look at; else the embedded one.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data folder of the embedded one; else the default.",
)
@json_option
@click.pass_context
def doctor(
    context: click.Context, dsn: str | None, data_dir: Path | None, as_json: bool
) -> None:
    """Look for what would lose data or does not work.

    Exits with status 1 on an error, not on warnings. Run it where the server runs: it
    also looks at the database.
    """
    output = Output(as_json)
    with output.busy("examining"):
        findings = asyncio.run(_examine(session_of(context), dsn, data_dir))
    output.table(COLUMNS, [asdict(finding) for finding in findings])
    if any(finding.level == "error" for finding in findings):
        sys.exit(1)


async def _examine(
    session: Session, dsn: str | None, data_dir: Path | None
) -> list[Finding]:
    findings = [_codec(), await _server(session)]
    facts = await _database_facts(dsn, data_dir)
    if isinstance(facts, Finding):
        return [*findings, facts]
    return [*findings, *_database(facts)]


def _codec() -> Finding:
    if perdure_codec.BACKEND == "cython":
        return Finding("ok", "the codec is compiled")
    return Finding(
        "warning",
        "the codec runs in pure Python, many times slower",
        "install gcc and the Python headers, then reinstall perdure",
    )


async def _server(session: Session) -> Finding:
    try:
        async with session.connect() as client:
            async for _ in client.history.list(page_size=1):
                break
            return Finding("ok", f"the server at {client.target} answers")
    except perdure.Unavailable as error:
        return Finding("error", str(error), "start it with `perdure serve`")
    except perdure.PerdureError as error:
        return Finding("error", line_of(error), "check target and key")


async def _database_facts(
    dsn: str | None, data_dir: Path | None
) -> dict[str, Any] | Finding:
    if importlib.util.find_spec("perdure_server") is None:
        return Finding(
            "warning",
            "the database was not examined: the server is not installed here",
            "run `perdure doctor` where the server runs",
        )
    folder = data_dir or data_folder()
    dsn = dsn or os.environ.get("PERDURE_DSN")
    if dsn is None and not (folder / EMBEDDED_FOLDER).exists():
        return Finding(
            "warning",
            f"the database was not examined: no embedded Postgres in {folder}",
            "give --dsn or --data-dir as to `perdure serve`",
        )
    # A DSN may hold a password, which must not show in the list of processes.
    named = {"PERDURE_DSN": dsn} if dsn else {"PERDURE_DATA_DIR": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure_server", "db", "check"),
        env=os.environ | named,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            said, complained = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return Finding("error", "the database check takes too long", "look at Postgres")
    if process.returncode != 0:
        reason = complained.decode("utf-8", "replace").strip()
        return Finding("error", reason, "give --dsn as to `perdure serve`")
    facts: dict[str, Any] = json.loads(said)
    return facts


def _database(facts: dict[str, Any]) -> Iterator[Finding]:
    yield Finding("ok", f"PostgreSQL {facts['postgres_version']}")
    missing = facts["missing_migrations"]
    if missing:
        yield Finding(
            "error", f"migrations are missing: {', '.join(missing)}", "perdure db up"
        )
    for setting in ("fsync", "full_page_writes"):
        if facts[setting] != "on":
            yield Finding(
                "error",
                f"{setting} is {facts[setting]}: a crash can lose everything",
                f"ALTER SYSTEM SET {setting} = on, and reload",
            )
    if facts["synchronous_commit"] in ("off", "local"):
        yield Finding(
            "warning",
            f"synchronous_commit is {facts['synchronous_commit']} by default",
            "servers set it to on for themselves unless --pooler is given; with "
            "--pooler: ALTER ROLE ... SET synchronous_commit = on",
        )
    if not facts["synchronous_standby_names"]:
        yield Finding(
            "warning",
            "no synchronous standby: the loss of this machine loses what was "
            "acknowledged since the last backup",
            "set synchronous_standby_names, or accept it",
        )
    isolation = facts["default_transaction_isolation"]
    if isolation != "read committed":
        yield Finding(
            "error",
            f"default_transaction_isolation is {isolation}",
            "ALTER ROLE ... SET default_transaction_isolation = 'read committed'",
        )
