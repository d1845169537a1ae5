"""Command line: ``python -m perdure_server serve|db ...``."""

import asyncio
import json
import os
import sys

import uvloop

from perdure_server.config import Config, load_config
from perdure_server.embedded import EmbeddedPostgres, running_dsn
from perdure_server.startup import StartupError


def main() -> int:
    """Run one command; a start that cannot work says why in one line, status 1."""
    config = load_config(sys.argv[1:], os.environ)
    try:
        if config.command == "serve":
            return _serve(config)
        if config.command == "db sql":
            return _print_ddl()
        return _with_database(config)
    except StartupError as error:
        print(f"perdure: {error}", file=sys.stderr)
        return 1


def _serve(config: Config) -> int:
    # pg_ctl is launched while gRPC runs, by exec and not as a fork that goes on: its
    # fork handlers have nothing to do, and say so on stderr.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Commands that need no server start faster without gRPC.
    from perdure_server.app import serve  # noqa: PLC0415

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config))


def _print_ddl() -> int:
    from perdure_server.store.migrate import ddl  # noqa: PLC0415

    print(ddl())
    return 0


def _with_database(config: Config) -> int:
    embedded = None
    # Beside a live server its cluster is used as it runs.
    dsn = config.dsn or running_dsn(config.data_dir)
    if dsn is None:
        embedded = EmbeddedPostgres(config.data_dir)
        dsn = embedded.start()
    try:
        if config.command == "db up":
            return asyncio.run(_migrate(dsn))
        if config.command == "db check":
            return asyncio.run(_check(dsn))
        return asyncio.run(_report(dsn))
    finally:
        if embedded is not None:
            embedded.stop()


async def _migrate(dsn: str) -> int:
    from perdure_server.store.preflight import prepare_database  # noqa: PLC0415

    applied = await prepare_database(dsn)
    for name in applied:
        print(f"applied {name}")
    print("the schema is up to date")
    return 0


async def _report(dsn: str) -> int:
    from perdure_server.store.preflight import list_pending  # noqa: PLC0415

    missing = await list_pending(dsn)
    for version in missing:
        print(f"missing {version}")
    if not missing:
        print("the schema is up to date")
    return 1 if missing else 0


async def _check(dsn: str) -> int:
    from perdure_server.store.durability import durability_facts  # noqa: PLC0415

    print(json.dumps(await durability_facts(dsn)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
