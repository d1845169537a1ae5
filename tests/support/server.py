"""A real server process, as a user starts it: `python -m perdure_server serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.02


class ServerProcess:
    """One server on a port that the system chose.

    With a DSN it uses that database, which must be migrated; without one it starts
    the embedded Postgres in its data folder. The same object may be started again
    after a kill, and servers may share a data folder when they have a DSN.
    """

    def __init__(
        self, data_dir: Path, *flags: str, dsn: str | None = None, port: int = 0
    ) -> None:
        """Keep its settings; `start` runs it."""
        self.data_dir = data_dir
        self.dsn = dsn
        self.flags = flags
        self.port = port
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        """`host:port` as a gRPC target."""
        return self._address

    @property
    def key(self) -> str:
        """The key that the first start on the data folder made."""
        credentials = json.loads((self.data_dir / "credentials.json").read_text())
        return str(credentials["key"])

    @property
    def log(self) -> Path:
        """The file with everything the current process printed."""
        return self.data_dir / f"server-{os.getpid()}-{id(self)}-{self._number}.log"

    def start(self) -> None:
        """Run the server and wait until it serves; AssertionError with its log."""
        assert self._process is None, "the server runs already"
        self._number += 1
        self.data_dir.mkdir(parents=True, exist_ok=True)
        port_file = self.log.with_suffix(".port")
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "perdure_server", "serve", *self.flags]
        command += ["--data-dir", str(self.data_dir), "--port-file", str(port_file)]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        # The password of a DSN must not show in the list of processes.
        environment = os.environ | ({"PERDURE_DSN": self.dsn} if self.dsn else {})
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not port_file.exists():
            late = time.monotonic() > deadline
            if late or self._process.poll() is not None:
                self.kill()
                said = self.log.read_text(errors="replace")[-4000:]
                raise AssertionError(f"the server did not start:\n{said}")
            time.sleep(_POLL_INTERVAL_S)
        self._address = port_file.read_text().strip()

    def kill(self) -> None:
        """SIGKILL the process and wait for its end; harmless when it has none."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """SIGTERM the process and return its exit code; SIGKILL when it is late."""
        assert self._process is not None, "the server does not run"
        self._process.terminate()
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        finally:
            self.kill()

    def freeze(self) -> None:
        """SIGSTOP the process."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT the process."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server if it still runs; an embedded Postgres stops with it."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.thaw()
            self.stop()
        else:
            self.kill()
