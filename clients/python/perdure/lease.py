"""The one lease of a client, and the agents that hang on it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from google.protobuf.duration_pb2 import Duration

from perdure.channel import Channel
from perdure.errors import Fenced, PerdureError, Unavailable
from perdure.renewal import Renewal
from perdure.v1.agent_pb2 import Fence, LeaseSpec
from perdure.v1.agent_service_pb2 import AcquireAgentsRequest, ReleaseAgentsRequest

REVOKE_TIMEOUT_S: Final = 2.0
"""A lease that cannot be ended in this time ends by itself after its ttl."""

_log = logging.getLogger("perdure")


class Holding(Protocol):
    """An agent, as far as its lease needs to know it."""

    @property
    def fence(self) -> Fence:
        """Proof of the claim."""
        ...

    def lose(self, error: Fenced, *, cancel: bool) -> None:
        """Take note that the agent is no longer held."""
        ...


class Leases:
    """Proof of life of this process: one lease, renewed in the background.

    The lease is made by the first acquire or restore. A worker that cannot renew for
    a while goes on working: its writes are accepted until somebody else claims.
    `claiming` are the claims that are under way, `open_restores` counts the streams.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        owner: str | None,
        labels: Mapping[str, str] | None,
        ttl_s: float,
    ) -> None:
        """Prepare a lease; nothing is sent.

        Args:
            channel: Where to call.
            owner: Name of this process. Absent: host name and process id.
            labels: For example node and gpu.
            ttl_s: How long the lease lives after a renewal.
        """
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}"
        self.labels = dict(labels or {})
        self.ttl_s = ttl_s
        self.lease_id = str(uuid.uuid4())
        self.claiming: set[str] = set()
        self.open_restores = 0
        self._channel = channel
        self._held: dict[str, Holding] = {}
        self._lock = threading.Lock()
        self._renewal: Renewal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def spec(self) -> LeaseSpec:
        """Return the lease as a request states it, and begin to renew it."""
        self._channel.origin.check()
        if self._renewal is None:
            self._loop = asyncio.get_running_loop()
            self._renewal = Renewal(
                self._channel.credentials,
                self.lease_id,
                self.ttl_s,
                fences=self._fences,
                on_stale=self._report_stale,
                on_lost=self._report_lost,
            )
            self._renewal.start()
        ttl = Duration()
        ttl.FromNanoseconds(int(self.ttl_s * 1e9))
        return LeaseSpec(
            lease_id=self.lease_id, owner=self.owner, labels=self.labels, ttl=ttl
        )

    def hold(self, agent: Holding) -> None:
        """Test this agent's fence with each renewal.

        An earlier claim of the same agent by this process is stale by now.
        """
        with self._lock:
            earlier = self._held.get(agent.fence.agent_id)
            self._held[agent.fence.agent_id] = agent
        if earlier is not None and earlier is not agent:
            earlier.lose(_stale(earlier.fence), cancel=True)

    def drop(self, agent: Holding) -> None:
        """Stop testing this agent's fence."""
        with self._lock:
            if self._held.get(agent.fence.agent_id) is agent:
                del self._held[agent.fence.agent_id]

    def knows(self, fence: Fence) -> bool:
        """Whether this process holds the agent, or is about to."""
        held = self._held.get(fence.agent_id)
        return fence.claim_id in self.claiming or (
            held is not None and held.fence == fence
        )

    async def release(self, fences: Sequence[Fence]) -> None:
        """Give agents back: they are free at once. Stale fences are passed over."""
        if fences:
            await self._channel.call(
                lambda stubs: stubs.agents.ReleaseAgents,
                ReleaseAgentsRequest(fences=fences),
            )

    async def give_back(self, fence: Fence) -> None:
        """Release one agent, now or with the next renewal that succeeds."""
        try:
            await self.release([fence])
        except Unavailable as error:
            self.release_later(fence)
            _log.warning(
                "agent %s could not be released yet (%s)", fence.agent_id, error.reason
            )
        except asyncio.CancelledError:
            # Nobody knows whether it arrived: else this process held it for ever.
            self.release_later(fence)
            raise

    def release_later(self, fence: Fence) -> None:
        """Release one agent with the next renewal that succeeds."""
        if self._renewal is not None:
            self._renewal.release_later(fence)

    def abandon(self, request: AcquireAgentsRequest) -> None:
        """Give back, with the next renewal that succeeds, what an acquire claimed."""
        if self._renewal is not None and request.lease.lease_id == self.lease_id:
            self._renewal.abandon(request)

    async def revoke(self) -> None:
        """End the lease: agents that are still held are lost at once.

        A later acquire makes a new lease. Harmless when there is none.
        """
        renewal, self._renewal = self._renewal, None
        if renewal is None:
            return
        renewal.stop()
        self._give_up("this process ended its lease", "GIVEN_UP", cancel=False)
        request = ReleaseAgentsRequest(revoke_lease_id=self.lease_id)
        self.lease_id = str(uuid.uuid4())
        try:
            await self._channel.call(
                lambda stubs: stubs.agents.ReleaseAgents,
                request,
                timeout_s=min(REVOKE_TIMEOUT_S, self._channel.timeout_s),
            )
        finally:
            await asyncio.to_thread(renewal.join)

    def end(self, lease_id: str, error: PerdureError) -> None:
        """Take note that the server has ended a lease: its agents are lost."""
        if lease_id != self.lease_id:
            return
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
        self.lease_id = str(uuid.uuid4())
        self._give_up(error.message, error.reason, cancel=True)

    def _fences(self) -> list[Fence]:
        with self._lock:
            return [agent.fence for agent in self._held.values()]

    def _report_stale(self, fences: Sequence[Fence]) -> None:
        self._in_loop(lambda: self._lose(fences))

    def _report_lost(self, error: PerdureError) -> None:
        lease_id = self.lease_id
        self._in_loop(lambda: self.end(lease_id, error))

    def _in_loop(self, callback: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def _lose(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            agent = self._held.get(fence.agent_id)
            # It may have been acquired anew since the fence was tested.
            if agent is None or agent.fence != fence:
                continue
            self.drop(agent)
            agent.lose(_stale(fence), cancel=True)

    def _give_up(self, why: str, reason: str, *, cancel: bool) -> None:
        with self._lock:
            held, self._held = list(self._held.values()), {}
        for agent in held:
            error = Fenced(
                f"agent {agent.fence.agent_id} is no longer held: {why}",
                reason=reason,
                metadata={"agent_id": agent.fence.agent_id},
            )
            agent.lose(error, cancel=cancel)


def _stale(fence: Fence) -> Fenced:
    return Fenced(
        f"agent {fence.agent_id} was claimed by another worker",
        reason="STALE_FENCE",
        metadata={"agent_id": fence.agent_id, "epoch": str(fence.epoch)},
    )
