"""Start, adopt and stop the embedded PostgreSQL of one data folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

from perdure_server.embedded import settings
from perdure_server.embedded.account import Account, account_for
from perdure_server.embedded.binaries import binaries_for
from perdure_server.embedded.folder import (
    DataFolder,
    clear_socket_dir,
    discard_socket_dir,
)
from perdure_server.embedded.postmaster import (
    Postmaster,
    clear_stale_pid_file,
    live_postmaster,
    socket_dir_of,
)
from perdure_server.startup import StartupError

SUPERUSER = "postgres"
DATABASE = "perdure"
_INITDB_TIMEOUT_S = 120
# Long enough for the replay of max_wal_size after a crash.
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 60
_POLL_INTERVAL_S = 0.05


class EmbeddedPostgres:
    """A private cluster in `<data_dir>/postgres`.

    Exactly one live process holds a data folder. The cluster runs in a session of
    its own: it outlives a SIGKILL of its server with everything acknowledged, and
    the next `start` on the folder takes it over. Both methods block.
    """

    def __init__(self, data_dir: Path) -> None:
        """Name the data folder; nothing is touched before `start`."""
        self.data_dir = data_dir
        self.adopted = False
        self._folder: DataFolder | None = None
        self._account: Account | None = None
        self._bin: Path | None = None
        self._socket_dir: Path | None = None
        # A revival in another thread must not cross a stop.
        self._turn = threading.Lock()

    def start(self) -> str:
        """Return the DSN of a running cluster, made and started as needed.

        Takes about a second with a new folder, less with an old one. A cluster that
        a killed server left running is adopted (`adopted` is then true).

        Raises:
            StartupError: when the folder cannot be used; its lock is then released.
        """
        self._folder = DataFolder.hold(self.data_dir)
        try:
            return self._start(self._folder)
        except BaseException:
            self._folder.release()
            self._folder = None
            raise

    def revive(self) -> bool:
        """Start the cluster again where it was, if its process is gone.

        For a server that watches its cluster: the DSN of `start` stays right.
        Returns whether it had to. Costs about 1 ms when it had not. Blocks.

        Raises:
            StartupError: when the cluster does not come back.
        """
        with self._turn:
            folder = self._folder
            if folder is None or self._socket_dir is None:
                return False
            if live_postmaster(folder.pgdata) is not None:
                return False
            self._launch(folder, self._socket_dir)
            return True

    def stop(self) -> None:
        """Stop the cluster cleanly and release the folder.

        Open sessions are ended. Does nothing when `start` has not succeeded.
        """
        with self._turn:
            if self._folder is None:
                return
            pgdata = self._folder.pgdata
            socket_dir = socket_dir_of(pgdata)
            if live_postmaster(pgdata) is not None:
                self._pg_ctl("stop", "-m", "fast", "-t", str(_STOP_TIMEOUT_S))
                self._end(pgdata)
            discard_socket_dir(socket_dir)
            self._folder.release()
            self._folder = None

    def _start(self, folder: DataFolder) -> str:
        self._account = account_for(folder.pgdata)
        folder.check(self._account)
        self._bin = binaries_for(self._account, folder.path)
        if not folder.pgdata.exists():
            self._initialise(folder)
        if (adopted := self._adopt(folder.pgdata)) is not None:
            return adopted
        discard_socket_dir(socket_dir_of(folder.pgdata))
        self._socket_dir = folder.socket_dir(self._account)
        try:
            self._launch(folder, self._socket_dir)
        except StartupError:
            # A start that lost its server half-way may have been faster than ours.
            if (adopted := self._adopt(folder.pgdata)) is not None:
                return adopted
            raise
        if not self._ensure_database(self._socket_dir):
            raise self._failure(folder.pgdata, "does not answer")
        return dsn_of(self._socket_dir)

    def _adopt(self, pgdata: Path) -> str | None:
        """Take over a running cluster, or end one that is out of reach."""
        found = self._settled(pgdata)
        if found is None:
            return None
        if self._ensure_database(found.socket_dir):
            self.adopted = True
            self._socket_dir = found.socket_dir
            return dsn_of(found.socket_dir)
        # Its socket was deleted, or it hangs.
        self._end(pgdata)
        return None

    def _initialise(self, folder: DataFolder) -> None:
        for left_over in folder.path.glob("postgres.partial-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        partial = Path(mkdtemp(prefix="postgres.partial-", dir=folder.path))
        account, programs = self._tools()
        account.own(partial)
        command: list[str | Path] = [programs / "initdb", "-D", partial]
        command += ["-U", SUPERUSER, "--encoding=UTF8", "--no-locale"]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        command += ["--auth-local=trust", "--auth-host=reject", "--no-instructions"]
        done = account.run(command, timeout_s=_INITDB_TIMEOUT_S)
        if done.returncode != 0:
            raise StartupError(f"initdb failed in {partial}: {_last_line(done.stderr)}")
        with (partial / "postgresql.conf").open("a") as configuration:
            configuration.write(f"\ninclude '{settings.FILE_NAME}'\n")
        (partial / settings.FILE_NAME).touch(mode=0o600)
        account.own(partial / settings.FILE_NAME)
        # Renamed when whole: a start that was killed half-way leaves no half cluster.
        partial.rename(folder.pgdata)

    def _settled(self, pgdata: Path) -> Postmaster | None:
        """Wait until a running postmaster is ready or gone."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        found = live_postmaster(pgdata)
        while found is not None and not found.ready and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
            found = live_postmaster(pgdata)
        return found

    def _launch(self, folder: DataFolder, socket_dir: Path) -> None:
        if not clear_stale_pid_file(folder.pgdata, timeout_s=_STOP_TIMEOUT_S):
            raise StartupError(
                f"processes of a dead Postgres still use {folder.pgdata}: end them "
                "(SIGQUIT), then start again"
            )
        clear_socket_dir(socket_dir)
        settings.write_settings(folder.pgdata, socket_dir)
        log = folder.pgdata / "start.log"
        log.unlink(missing_ok=True)
        timeout_s = str(_START_TIMEOUT_S)
        done = self._pg_ctl("start", "-w", "-t", timeout_s, "-l", str(log))
        if done.returncode != 0:
            raise self._failure(folder.pgdata, "does not start")

    def _ensure_database(self, socket_dir: Path) -> bool:
        """Make our database where missing; false when the cluster does not answer."""
        account, programs = self._tools()
        script = files("perdure_server") / "sql" / "embedded" / "ensure_database.sql"
        command: list[str | Path] = [programs / "psql", "-X", "-q", "-h", socket_dir]
        command += ["-v", "ON_ERROR_STOP=1", "-U", SUPERUSER, "-d", "postgres"]
        try:
            done = account.run(
                command, input_text=script.read_text("utf-8"), timeout_s=60
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _end(self, pgdata: Path) -> None:
        """Make sure that no process serves the folder: SIGQUIT, then SIGKILL."""
        for signal_number in (signal.SIGQUIT, signal.SIGKILL):
            found = live_postmaster(pgdata)
            if found is None:
                return
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal_number)
            deadline = time.monotonic() + 10
            while live_postmaster(pgdata) and time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL_S)

    def _pg_ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        account, programs = self._tools()
        assert self._folder is not None
        return account.run(
            [programs / "pg_ctl", "-D", self._folder.pgdata, *arguments],
            timeout_s=_START_TIMEOUT_S + 10,
        )

    def _tools(self) -> tuple[Account, Path]:
        assert self._account is not None
        assert self._bin is not None
        return self._account, self._bin

    def _failure(self, pgdata: Path, what: str) -> StartupError:
        logs = [pgdata / "start.log", *(pgdata / "log").glob("*.log")]
        newest = max(logs, key=lambda log: log.stat().st_mtime if log.exists() else 0)
        text = newest.read_text(errors="replace") if newest.exists() else ""
        reason = _last_line(text, containing="FATAL")
        return StartupError(
            f"the embedded Postgres in {pgdata} {what}: {reason} (see {newest})"
        )


def running_dsn(data_dir: Path) -> str | None:
    """Return the DSN of the cluster that runs in the folder; None: none does.

    For reading beside a live server. Only root and the server's user get in.
    """
    found = live_postmaster(data_dir.expanduser().absolute() / "postgres")
    return dsn_of(found.socket_dir) if found is not None and found.ready else None


def dsn_of(socket_dir: Path, database: str = DATABASE) -> str:
    """Return the DSN of a database behind the socket in `socket_dir`."""
    return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(socket_dir))}"


def _last_line(text: str, containing: str = "") -> str:
    lines = [line for line in text.splitlines() if containing in line and line.strip()]
    return lines[-1].strip() if lines else "no reason given"
