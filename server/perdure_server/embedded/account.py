"""The system account that runs Postgres, which refuses to run as root."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure_server.startup import StartupError

ACCOUNT_NAME = "perdure"
FALLBACK_NAME = "nobody"


@dataclass(frozen=True)
class Account:
    """Who runs Postgres: this process' own user, or another one when that is root."""

    name: str
    uid: int
    gid: int

    def run(
        self,
        command: Sequence[str | Path],
        *,
        input_text: str = "",
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this account, from `/`, in a bare environment.

        Output is captured: a child that the command leaves behind must not hold on
        to it. Raises OSError when the command cannot be executed and
        subprocess.TimeoutExpired when it takes longer than `timeout_s`.
        """
        identity: dict[str, Any] = {}
        if self.uid != os.geteuid():
            identity = {"user": self.uid, "group": self.gid, "extra_groups": []}
        return subprocess.run(
            [str(part) for part in command],
            cwd="/",
            env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"},
            input=input_text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            **identity,
        )

    def own(self, folder: Path) -> None:
        """Give a folder to this account; nothing to do for our own user."""
        if self.uid != os.geteuid():
            os.chown(folder, self.uid, self.gid)

    def can_enter(self, folder: Path) -> bool:
        """Tell whether this account can change into the folder."""
        try:
            entered = self.run(["sh", "-c", 'cd -- "$1"', "sh", folder], timeout_s=10)
        except PermissionError as exc:
            raise StartupError(
                f"root may not become the account {self.name!r} here ({exc.strerror}): "
                "run perdure as an ordinary user, or give it a --dsn"
            ) from exc
        return entered.returncode == 0


def account_for(pgdata: Path) -> Account:
    """Choose the account for a Postgres folder.

    An ordinary user runs Postgres itself. Root takes the owner of an existing
    folder, else the account `perdure`, which is made when possible, else `nobody`.

    Raises:
        StartupError: as root, when there is no account to use.
    """
    if os.geteuid() != 0:
        name = str(os.geteuid())
        return Account(name, os.geteuid(), os.getegid())
    if pgdata.exists() and (owner := pgdata.stat()).st_uid != 0:
        return Account(str(owner.st_uid), owner.st_uid, owner.st_gid)
    found = _entry(ACCOUNT_NAME) or _created() or _entry(FALLBACK_NAME)
    if found is None:
        raise StartupError(
            "Postgres does not run as root and there is no other account: "
            f"`useradd --system {ACCOUNT_NAME}`, or give perdure a --dsn"
        )
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _created() -> pwd.struct_passwd | None:
    command = ["useradd", "--system", "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
    try:
        subprocess.run([*command, ACCOUNT_NAME], capture_output=True, check=False)
    except OSError:
        return None
    return _entry(ACCOUNT_NAME)
