"""A server and its embedded Postgres, to be killed and started again.

Ends only processes that it started, by pid.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.support.server import ServerProcess

END_TIMEOUT_S = 60.0


class World:
    """One data folder, one address, and the server that runs there at the moment."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._server = ServerProcess(data_dir, "--log-level", "warning")

    @property
    def target(self) -> str:
        """The address of the server, the same over all its lives."""
        return self._server.address

    @property
    def key(self) -> str:
        """The key that the first start made."""
        return self._server.key

    async def start(self) -> None:
        """Start the server and wait until it serves."""
        await asyncio.to_thread(self._server.start)
        self._server.port = int(self._server.address.rpartition(":")[2])

    async def kill_server(self) -> None:
        """SIGKILL the server; its Postgres is left behind."""
        await asyncio.to_thread(self._server.kill)

    async def crash_postgres(self) -> None:
        """Stop Postgres as an immediate shutdown does: no checkpoint, no goodbye."""
        pid_file = next(self._data_dir.rglob("postmaster.pid"))
        pid = int(pid_file.read_text().split("\n", 1)[0])
        os.kill(pid, signal.SIGQUIT)
        async with asyncio.timeout(END_TIMEOUT_S):
            while _is_running(pid):
                await asyncio.sleep(0.02)

    def last_words(self) -> str:
        """The end of what the present server printed."""
        return self._server.log.read_text("utf-8", "replace")[-3000:]

    async def stop(self) -> None:
        """End server and Postgres in order."""
        await asyncio.to_thread(self._server.stop)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # The child of a killed server is nobody's to reap here: a zombie has ended too.
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False
