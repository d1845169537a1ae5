"""Hints that a conversation has grown, for followers at this and other servers.

A hint may be lost and none carries data: whoever follows polls besides. NOTIFY takes
one lock for the whole cluster when it commits, so it never rides in a write's
transaction: what gathers in 10 ms goes out together, on a connection of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from perdure_server.store.queries import load_queries

_LOG = logging.getLogger(__name__)
_SQL = load_queries("hints")

CHANNEL = "perdure_hints"
GATHER_S = 0.01
RECONNECT_S = 1.0
_KEYS_PER_NOTIFY = 400  # a payload holds 8000 bytes
_KEY_BYTES = 8


class Hints:
    """One per server. Without `dsn` (a pooler is in between) only this server's own."""

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn
        self._server_id = uuid.uuid4().hex
        self._followers: dict[str, set[asyncio.Event]] = {}
        self._untold: set[str] = set()
        self._has_untold = asyncio.Event()

    def tell(self, tenant_id: str, conversation_id: str) -> None:
        """Say that a conversation may have grown; never waits, never fails."""
        key = _key(tenant_id, conversation_id)
        self._wake(key)
        if self._dsn is not None:
            self._untold.add(key)
            self._has_untold.set()

    @contextmanager
    def following(
        self, tenant_id: str, conversation_id: str
    ) -> Iterator[asyncio.Event]:
        """Give an event that each hint sets; its holder clears it."""
        key = _key(tenant_id, conversation_id)
        event = asyncio.Event()
        self._followers.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            others = self._followers[key]
            others.discard(event)
            if not others:
                del self._followers[key]

    def wake_all(self) -> None:
        """Wake every follower: the server stops."""
        for events in self._followers.values():
            for event in events:
                event.set()

    async def run(self) -> None:
        """Exchange hints with other servers, for ever."""
        while self._dsn is not None:
            try:
                await self._exchange(self._dsn)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
                _LOG.info("hints pause: %s", type(exc).__name__)
            await asyncio.sleep(RECONNECT_S)

    async def _exchange(self, dsn: str) -> None:
        connection = await asyncpg.connect(
            dsn,
            timeout=5.0,
            server_settings={
                "application_name": "perdure hints",
                # A lost hint costs a poll; waiting for the disk costs every write.
                "synchronous_commit": "off",
            },
        )
        try:
            await connection.add_listener(CHANNEL, self._on_notify)
            while True:
                async with asyncio.timeout(5.0):
                    await self._send(connection)
                await self._has_untold.wait()
                await asyncio.sleep(GATHER_S)
        finally:
            connection.terminate()

    async def _send(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        keys = list(self._untold)
        self._untold.clear()
        self._has_untold.clear()
        for start in range(0, len(keys), _KEYS_PER_NOTIFY):
            told = " ".join([self._server_id, *keys[start : start + _KEYS_PER_NOTIFY]])
            await connection.execute(_SQL["notify"], CHANNEL, told)

    def _on_notify(
        self, connection: object, process_id: int, channel: str, payload: object
    ) -> None:
        server_id, *keys = str(payload).split(" ")
        if server_id != self._server_id:
            for key in keys:
                self._wake(key)

    def _wake(self, key: str) -> None:
        for event in self._followers.get(key, ()):
            event.set()


def _key(tenant_id: str, conversation_id: str) -> str:
    name = f"{tenant_id}\0{conversation_id}".encode()
    return hashlib.blake2b(name, digest_size=_KEY_BYTES).hexdigest()
