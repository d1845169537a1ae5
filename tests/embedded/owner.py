"""A process that owns an embedded Postgres, says so, and waits to be told or killed.

    python -m tests.embedded.owner FOLDER same|ACCOUNT

Prints one JSON line when it has started or was refused; stops the cluster cleanly
when its standard input ends.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from importlib.resources import files
from pathlib import Path

from perdure_server.embedded import EmbeddedPostgres
from perdure_server.startup import StartupError


def main() -> int:
    """Start, report, wait for the end of stdin, stop."""
    folder, account = Path(sys.argv[1]), sys.argv[2]
    if account != "same":
        become(account)
    postgres = EmbeddedPostgres(folder)
    try:
        dsn = postgres.start()
    except StartupError as exc:
        print(json.dumps({"refused": str(exc)}), flush=True)
        return 1
    print(json.dumps({"dsn": dsn, "adopted": postgres.adopted}), flush=True)
    sys.stdin.read()
    postgres.stop()
    return 0


def become(account: str) -> None:
    """Drop root for an ordinary account; its environment has no home."""
    entry = pwd.getpwnam(account)
    # The standard library may lie under root's home: what loads late, loads now.
    files("perdure_server").joinpath("sql").is_dir()
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    raise SystemExit(main())
