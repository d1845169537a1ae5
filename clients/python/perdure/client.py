"""The client: one server, one lease, and what can be done with them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import Final, Self

from perdure.admin import Admin
from perdure.agents import Agents
from perdure.channel import Channel
from perdure.checkpoints import Checkpoints
from perdure.credentials import Credentials, find_credentials
from perdure.errors import PerdureError
from perdure.history import History
from perdure.lease import Leases
from perdure.recovery import Recoveries

DEFAULT_TIMEOUT_S: Final = 10.0
DEFAULT_LEASE_TTL_S: Final = 30.0


def connect(
    target: str | None = None,
    *,
    key: str | None = None,
    owner: str | None = None,
    labels: Mapping[str, str] | None = None,
    lease_ttl_s: float = DEFAULT_LEASE_TTL_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    channels: int = 1,
) -> AsyncClient:
    """Make a client of a server: `async with perdure.connect() as client`.

    Nothing is sent before the first call. A client belongs to the process and the
    event loop that first use it.

    Args:
        target: `host:port`. Absent: PERDURE_TARGET, or the key file of a local server.
        key: Absent: PERDURE_KEY, or the key file of a local server.
        owner: Name of this process in leases. Absent: host name and process id.
        labels: Of this process, for example node and gpu; recoveries select by them.
        lease_ttl_s: How long this process may be silent before its agents are lost:
            1 to 3,600 s. Renewed every third of it.
        timeout_s: Seconds that a call may take in all, its retries included.
        channels: Connections to open; several reach several server processes.

    Raises:
        Unavailable: No server is known.
        Denied: A server is known, but no key of it.
    """
    credentials = find_credentials(target, key)
    return AsyncClient(
        credentials,
        owner=owner,
        labels=labels,
        lease_ttl_s=lease_ttl_s,
        timeout_s=timeout_s,
        channels=channels,
    )


class AsyncClient:
    """A client of one server; `perdure.connect` makes it.

    At the end of its block the lease ends too: agents that are still held are lost
    at once, so that other workers restore them without waiting.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        lease_ttl_s: float = DEFAULT_LEASE_TTL_S,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        channels: int = 1,
    ) -> None:
        """Prepare a client; the arguments are those of `connect`."""
        self._channel = Channel(credentials, timeout_s=timeout_s, channels=channels)
        self.leases = Leases(
            self._channel, owner=owner, labels=labels, ttl_s=lease_ttl_s
        )

    @property
    def target(self) -> str:
        """The server's address."""
        return self._channel.credentials.target

    @cached_property
    def agents(self) -> Agents:
        """Acquires, restores, lists and releases agents."""
        return Agents(self._channel, self.leases)

    @cached_property
    def history(self) -> History:
        """Conversations and their messages."""
        return History(self._channel)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """The states of agents, step by step."""
        return Checkpoints(self._channel)

    @cached_property
    def recovery(self) -> Recoveries:
        """Fences fleets and shows how far they have come back."""
        return Recoveries(self._channel)

    @cached_property
    def admin(self) -> Admin:
        """Tenants and keys."""
        return Admin(self._channel)

    async def close(self) -> None:
        """End the lease and every connection. Harmless when done again."""
        if self._channel.origin.forked:
            return
        try:
            # Where the server is unreachable, the lease ends by itself.
            with suppress(PerdureError):
                await self.leases.revoke()
        finally:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        """Return the client."""
        self._channel.origin.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.close()
