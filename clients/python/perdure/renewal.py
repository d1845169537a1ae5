"""The thread that keeps a lease alive, whatever the event loop is busy with.

It has a connection of its own: a blocking tool call in the application must not cost
a worker its agents.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, cast

import grpc

from perdure.channel import call_metadata, channel_options
from perdure.credentials import Credentials
from perdure.errors import PerdureError
from perdure.status import FailedCall, read_failure
from perdure.v1.agent_pb2 import Fence
from perdure.v1.agent_service_pb2 import (
    AcquireAgentsRequest,
    ReleaseAgentsRequest,
    RenewLeaseRequest,
)
from perdure.v1.agent_service_pb2_grpc import AgentServiceStub

MAX_FENCES: Final = 5_000
"""Fences that one renewal tests."""

_log = logging.getLogger("perdure")


class Renewal:
    """Renews one lease every third of its ttl until stopped.

    The callbacks run in this thread.
    """

    def __init__(
        self,
        credentials: Credentials,
        lease_id: str,
        ttl_s: float,
        *,
        fences: Callable[[], Sequence[Fence]],
        on_stale: Callable[[Sequence[Fence]], None],
        on_lost: Callable[[PerdureError], None],
    ) -> None:
        """Prepare; `start` begins.

        Args:
            credentials: Where to call.
            lease_id: The lease.
            ttl_s: How long it lives after a renewal.
            fences: Gives the fences to test.
            on_stale: Told which of them are no longer current.
            on_lost: Told when the lease itself is over. Renewing ends then.
        """
        self.lease_id = lease_id
        self._credentials = credentials
        self._interval_s = ttl_s / 3
        self._fences = fences
        self._on_stale = on_stale
        self._on_lost = on_lost
        self._give_back: list[Fence] = []
        self._abandoned: list[AcquireAgentsRequest] = []
        self._channel = grpc.insecure_channel(
            credentials.target, channel_options(credentials.target)
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="perdure-lease", daemon=True
        )

    def start(self) -> None:
        """Begin renewing; the lease was just made or renewed."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; a renewal that is under way is cancelled."""
        self._stop.set()
        self._channel.close()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def release_later(self, fence: Fence) -> None:
        """Give an agent back with a later renewal: its own release did not arrive."""
        self._give_back.append(fence)

    def abandon(self, request: AcquireAgentsRequest) -> None:
        """Undo an acquire of unknown outcome: nobody here runs its agents.

        The same request, with the same claim ids, is sent again with a later renewal;
        what it claimed is then given back.
        """
        self._abandoned.append(request)

    def _run(self) -> None:
        stub = AgentServiceStub(self._channel)
        wait_s = self._interval_s
        while not self._stop.wait(wait_s):
            try:
                self._renew(stub)
                self._undo(stub)
                self._release(stub)
                wait_s = self._interval_s
            except (grpc.RpcError, ValueError) as error:
                if self._stop.is_set() or isinstance(error, ValueError):
                    return  # the channel was closed
                if self._fails(cast(FailedCall, error)):
                    return
                wait_s = min(1.0, self._interval_s / 3)

    def _fails(self, failed: FailedCall) -> bool:
        """Take note of a renewal that failed; return whether the lease is over."""
        error = read_failure(failed, self._credentials.target).error
        if self._is_over(error):
            self._on_lost(error)
            return True
        if error.reason == "LEASE_NOT_FOUND":
            return False  # a restore that waits has taken nothing yet
        _log.warning(
            "lease %s could not be renewed (%s); trying again",
            self.lease_id,
            error.reason,
        )
        return False

    def _is_over(self, error: PerdureError) -> bool:
        # Not found without agents: the first acquire has not arrived yet.
        return error.reason == "LEASE_REVOKED" or (
            error.reason == "LEASE_NOT_FOUND" and len(self._fences()) > 0
        )

    def _renew(self, stub: AgentServiceStub) -> None:
        fences = self._fences()
        for start in range(0, max(1, len(fences)), MAX_FENCES):
            group = fences[start : start + MAX_FENCES]
            response = stub.RenewLease(
                RenewLeaseRequest(lease_id=self.lease_id, fences=group),
                timeout=max(1.0, self._interval_s),
                metadata=call_metadata(self._credentials),
            )
            stale = set(response.stale_agent_ids)
            if stale:
                self._on_stale([fence for fence in group if fence.agent_id in stale])

    def _undo(self, stub: AgentServiceStub) -> None:
        while self._abandoned:
            response = stub.AcquireAgents(
                self._abandoned[0],
                timeout=max(1.0, self._interval_s),
                metadata=call_metadata(self._credentials),
            )
            # A refused agent carries no fence: the claim never was, or is void.
            self._give_back += [
                acquired.fence
                for acquired in response.agents
                if acquired.HasField("fence")
            ]
            del self._abandoned[0]

    def _release(self, stub: AgentServiceStub) -> None:
        pending = self._give_back[:MAX_FENCES]
        if not pending:
            return
        stub.ReleaseAgents(
            ReleaseAgentsRequest(fences=pending),
            timeout=max(1.0, self._interval_s),
            metadata=call_metadata(self._credentials),
        )
        del self._give_back[: len(pending)]
