"""A TCP proxy before a server that can lose replies, cut and refuse connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65536


class Proxy:
    """Passes bytes on; `lose_replies` and `cut` are the faults."""

    def __init__(self, target: str) -> None:
        """Stand before the server at `target`."""
        host, _, port = target.rpartition(":")
        self._upstream = (host, int(port))
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.lose_replies = False
        self.accepted = 0
        self.lost_bytes = 0

    @property
    def address(self) -> str:
        """`host:port` as a gRPC target."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        for writer in list(self._connections):
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        """Listen on a port that the system chose."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        self._connections |= {writer, up_writer}
        try:
            await asyncio.gather(
                self._pump(reader, up_writer, replies=False),
                self._pump(up_reader, writer, replies=True),
            )
        except asyncio.CancelledError:
            pass
        finally:
            self._connections -= {writer, up_writer}
            self._tasks.discard(task)
            for each in (writer, up_writer):
                each.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if replies and self.lose_replies:
                    self.lost_bytes += len(data)
                    continue
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
