"""Owners of embedded clusters: as the user of the tests and, under root, another."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure_server.embedded.account import Account
from perdure_server.embedded.postmaster import live_postmaster

ORDINARY = "nobody"
ACCOUNTS = ["same"]
if os.geteuid() == 0:
    entry = pwd.getpwnam(ORDINARY)
    # A checkout under root's home is out of an ordinary account's reach.
    if Account(ORDINARY, entry.pw_uid, entry.pw_gid).can_enter(Path(sys.prefix)):
        ACCOUNTS.append(ORDINARY)


class Owner:
    """One owner process of a data folder."""

    def __init__(self, folder: Path, account: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.embedded.owner", str(folder), account],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.report: dict[str, str | bool] = {}

    def wait(self) -> None:
        """Wait until it has started or was refused."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the owner died"
        self.report = json.loads(line)

    @property
    def dsn(self) -> str:
        return str(self.report["dsn"])

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """End its standard input and wait for the clean stop; once is enough."""
        if self.process.returncode is not None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == ("refused" in self.report)
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Owners:
    """Starts owners on one folder, and leaves no process behind."""

    def __init__(self, folder: Path, account: str) -> None:
        self.folder = folder
        self.account = account
        self._started: list[Owner] = []

    def start(self, folder: Path | None = None) -> Owner:
        owner = self.launch(folder)
        owner.wait()
        return owner

    def launch(self, folder: Path | None = None) -> Owner:
        """Start an owner and do not wait for its report."""
        owner = Owner(folder or self.folder, self.account)
        self._started.append(owner)
        return owner

    def close(self) -> None:
        for owner in self._started:
            owner.stop()
        if live_postmaster(self.folder / "postgres") is not None:
            self.start().stop()


@pytest.fixture
def owners(data_dir: Path) -> Iterator[Owners]:
    """Owners of `data_dir` as the user of this session."""
    opened = Owners(data_dir, "same")
    yield opened
    opened.close()


@pytest.fixture(params=ACCOUNTS)
def any_owners(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Owners]:
    """Owners as this user and, when that is root, as an ordinary account too."""
    if request.param != "same":
        entry = pwd.getpwnam(request.param)
        os.chown(data_dir, entry.pw_uid, entry.pw_gid)
    opened = Owners(data_dir, request.param)
    yield opened
    opened.close()
