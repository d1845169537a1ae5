"""The `perdure` command as a program runs it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from tests.support.server import ServerProcess

COMMAND_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Finished:
    """What one command left behind."""

    status: int
    stdout: str
    stderr: str

    @property
    def records(self) -> list[Any]:
        """The JSON documents of stdout, one a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def record(self) -> Any:
        """The only JSON document of stdout."""
        (only,) = self.records
        return only

    @property
    def rows(self) -> list[list[str]]:
        """The tab-separated lines of stdout below their heading."""
        return [line.split("\t") for line in self.stdout.splitlines()[1:]]


Run = Callable[..., Finished]


def run_command(*arguments: str, **environment: str) -> Finished:
    """Run `perdure` to its end with these variables set."""
    done = subprocess.run(
        [sys.executable, "-m", "perdure_cli", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def run(server: ServerProcess) -> Run:
    """Run a command against the module's server, with its first key."""

    def against_server(*arguments: str, **environment: str) -> Finished:
        known = {"PERDURE_TARGET": server.address, "PERDURE_KEY": server.key}
        return run_command(*arguments, **(known | environment))

    return against_server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[perdure.AsyncClient]:
    """A worker of node `n-1` on the module's server."""
    async with perdure.connect(
        server.address, key=server.key, owner="worker-1", labels={"node": "n-1"}
    ) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """An id that no other test uses."""
    return f"c-{uuid.uuid4().hex[:12]}"


async def take_steps(client: perdure.AsyncClient, name: str, count: int) -> None:
    """Acquire an agent, and let it take steps; the client goes on holding it."""
    agent = await client.agents.acquire(name, framework="own")
    for number in range(count):
        async with agent.step() as step:
            step.append({"role": "assistant", "content": f"step {number}"})
            step.checkpoint({"number": number, "pair": (1, b"x"), 5: float("nan")})
