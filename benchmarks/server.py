"""A server of this checkout with an embedded Postgres, for one benchmark."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.cluster import open_folder
from tests.support.server import ServerProcess


@asynccontextmanager
async def running_server() -> AsyncIterator[ServerProcess]:
    """Start a server in an empty folder; stop it and drop the folder at the end."""
    with open_folder() as folder:
        server = ServerProcess(folder, "--log-level", "warning")
        await asyncio.to_thread(server.start)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)
