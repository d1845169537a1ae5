"""A channel a test to the module's server."""

from collections.abc import AsyncIterator

import pytest

from tests.support.server import ServerProcess
from tests.support.wire import Wire


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    """Calls with the server's own key, which has every scope."""
    opened = Wire(server.address, server.key)
    yield opened
    await opened.channel.close()
