"""A channel a test to the module's server, and a fleet's own name."""

import uuid
from typing import Any

import pytest

from tests.support.server import ServerProcess
from tests.support.wire import Wire


@pytest.fixture
async def wire(server: ServerProcess) -> Any:
    opened = Wire(server.address, server.key)
    yield opened
    await opened.channel.close()


@pytest.fixture
def name() -> str:
    return f"f-{uuid.uuid4().hex[:10]}"
