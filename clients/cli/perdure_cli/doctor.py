"""`perdure doctor`: what would lose data or will not work, and what to do about it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

import perdure
import perdure_codec
from perdure_cli.output import Output

CHECK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: str
    """ok, warning or error."""
    what: str
    do: str = ""


@click.command()
@click.option("--dsn", help="Database to look at; else the embedded one.")
@click.option("--data-dir", help="Data folder of the embedded one.")
@click.option("--target", metavar="HOST:PORT")
@click.option("--key")
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
def doctor(
    dsn: str | None,
    data_dir: str | None,
    target: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Look for what would lose data or does not work; exits with 1 on an error."""
    findings = asyncio.run(_examine(dsn, data_dir, target, key))
    Output(as_json=as_json).rows(
        ["level", "what", "do"],
        [{"level": f.level, "what": f.what, "do": f.do} for f in findings],
        "",
    )
    if any(finding.level == "error" for finding in findings):
        sys.exit(1)


async def _examine(
    dsn: str | None, data_dir: str | None, target: str | None, key: str | None
) -> list[Finding]:
    findings = [_codec(), await _server(target, key)]
    facts = await _database_facts(dsn, data_dir)
    if isinstance(facts, Finding):
        return [*findings, facts]
    return [*findings, *_database(facts)]


def _codec() -> Finding:
    if perdure_codec.BACKEND == "cython":
        return Finding("ok", "the codec is compiled")
    return Finding(
        "warning",
        "the codec runs in pure Python, about 30 times slower",
        "install a wheel, or gcc and the Python headers, and reinstall",
    )


async def _server(target: str | None, key: str | None) -> Finding:
    try:
        async with perdure.connect(target, key=key, timeout_s=5.0) as client:
            async for _ in client.history.list(page_size=1):
                break
            return Finding("ok", f"the server at {client.target} answers")
    except perdure.PerdureError as error:
        return Finding("error", str(error), "start it with: perdure serve")


async def _database_facts(
    dsn: str | None, data_dir: str | None
) -> dict[str, Any] | Finding:
    flags = [*(("--dsn", dsn) if dsn else ())]
    flags += [*(("--data-dir", data_dir) if data_dir else ())]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure_server", "db", "check"),
        *flags,
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
        return Finding("error", complained.decode().strip(), "give the right --dsn")
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
