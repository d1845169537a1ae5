"""The processes of the demo: a server and its workers. Ended by pid, never by name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

Report = Callable[[dict[str, Any]], None]


class DemoError(Exception):
    """The demo itself cannot go on; the message says why."""


class DemoServer:
    """A server on one port and one data folder, over several lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.target = f"127.0.0.1:{_free_port()}"

    @property
    def key(self) -> str:
        """The key that the first start made."""
        text = (self._folder / "data" / "credentials.json").read_text("utf-8")
        return str(json.loads(text)["key"])

    @property
    def pid(self) -> int:
        """Pid of the present life."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Start, wait until it serves, and return how many seconds that took."""
        started = time.monotonic()
        port_file = self._folder / "port"
        port_file.unlink(missing_ok=True)
        with (self._folder / "server.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "perdure_server", "serve"),
                *("--data-dir", str(self._folder / "data")),
                *("--listen", self.target),
                *("--port-file", str(port_file)),
                *("--log-level", "warning"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the demo, which then stops the server in order.
                start_new_session=True,
            )
        while not port_file.exists():
            late = time.monotonic() - started > START_TIMEOUT_S
            if late or self._process.returncode is not None:
                raise DemoError(f"the server did not start:\n{self._last_words()}")
            await asyncio.sleep(0.02)
        return time.monotonic() - started

    async def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, and with it the embedded Postgres."""
        if self._process is None:
            return
        if self._process.returncode is not None:
            # Killed for good in mid-demo: a new life stops the orphaned Postgres.
            await self.start()
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    def _last_words(self) -> str:
        log = self._folder / "server.log"
        return log.read_text("utf-8", "replace")[-2000:] if log.exists() else ""


class DemoWorker:
    """One worker process; its reports go to the parent line by line."""

    def __init__(self, name: str, order: dict[str, Any], report: Report) -> None:
        self.name = name
        self.agent_ids: list[str] = list(order.get("agent_ids", ()))
        self.condition = "runs"
        """runs, killed, frozen, thawed or done."""
        self._order = {**order, "name": name}
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and read its reports from now on."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure_cli.demo.worker"),
            json.dumps(self._order),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=2**20,
        )
        self._reader = asyncio.create_task(self._read())

    async def kill(self) -> None:
        """SIGKILL; what it had reported is still read."""
        self.condition = "killed"
        self._signal(signal.SIGKILL)
        await self.wait()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.condition = "frozen"
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.condition = "thawed"
        self._signal(signal.SIGCONT)

    async def wait(self) -> None:
        """Wait until it ended and all its reports are read."""
        assert self._process is not None
        assert self._reader is not None
        await self._reader
        status = await self._process.wait()
        if self.condition == "runs":
            self.condition = "done"
            if status != 0:
                self._report(
                    {"kind": "fault", "what": f"{self.name} ended with status {status}"}
                )

    async def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process is not None and self._process.returncode is None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGKILL)
            await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            # The last line of a killed worker may be torn: it acknowledged nothing.
            if line.endswith(b"\n"):
                report = json.loads(line)
                if report["kind"] == "restored":
                    self.agent_ids.append(report["agent"])
                self._report(report)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
