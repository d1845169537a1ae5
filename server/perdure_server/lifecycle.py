"""Whether this server is stopping, for streams that would go on for ever."""

import asyncio


class Lifecycle:
    """One per server; streams ask it between batches and while they wait."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """SIGTERM has arrived: end streams with a token."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Let every stream end."""
        self._stopping.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the server stops, at most so long; return whether it does."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True
