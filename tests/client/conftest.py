"""A client on the module's server, and what the tests of the client share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import perdure
from tests.support.server import ServerProcess

Connect = Callable[..., perdure.AsyncClient]


@pytest.fixture
async def connect(server: ServerProcess) -> AsyncIterator[Connect]:
    """Make clients of the module's server; all are closed at the end."""
    opened: list[perdure.AsyncClient] = []

    def make(target: str | None = None, **options: object) -> perdure.AsyncClient:
        options.setdefault("key", server.key)
        client = perdure.connect(target or server.address, **options)  # type: ignore[arg-type]
        opened.append(client)
        return client

    yield make
    for client in opened:
        await client.close()


@pytest.fixture
def client(connect: Connect) -> perdure.AsyncClient:
    """One client with the defaults."""
    return connect()


@pytest.fixture
def name() -> str:
    """An id that no other test uses."""
    return f"c-{uuid.uuid4().hex[:12]}"


async def write_step(
    agent: perdure.Agent, *payloads: dict[str, Any], state: Any = None
) -> None:
    """Take one step: append the payloads and, unless None, checkpoint the state."""
    async with agent.step() as step:
        for payload in payloads:
            step.append(payload)
        if state is not None:
            step.checkpoint(state)
