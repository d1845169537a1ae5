"""One RestoreAgents call: take, read, send, until nothing is left to take.

The stream renews the lease that it fills. No database connection is held while the
reader is slow; agents are taken in small lots, so that many workers share a fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from perdure.v1 import history_service_pb2
from perdure.v1 import recovery_service_pb2 as pb
from perdure_server.caller import current_caller
from perdure_server.errors import (
    LeaseRevoked,
    PerdureError,
    TokenStale,
    ValueNotStorable,
)
from perdure_server.lifecycle import Lifecycle
from perdure_server.restore.manifest import Manifest
from perdure_server.rpc.agent_messages import read_lease, read_selector
from perdure_server.rpc.checks import check_count, check_uuid
from perdure_server.rpc.restored_agents import RestoredAgents
from perdure_server.store.agents import (
    Acquired,
    Agent,
    Agents,
    Selector,
    narrowed,
)
from perdure_server.store.recoveries import Recoveries
from perdure_server.token import TokenError, open_token, seal

_LOG = logging.getLogger(__name__)

LOT_AGENTS = 32
BATCH_BYTES = 256 * 1024
POLL_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 10.0
_BUSY_TRIES = 5
_BUSY_PAUSE_S = 0.1
_TOKEN_KIND = "restore"


class RestoreStream:
    """The state of one call."""

    def __init__(
        self,
        agents: Agents,
        recoveries: Recoveries,
        restored: RestoredAgents,
        lifecycle: Lifecycle,
        request: pb.RestoreAgentsRequest,
    ) -> None:
        self._agents = agents
        self._recoveries = recoveries
        self._restored = restored
        self._lifecycle = lifecycle
        self._request = request
        self._caller = current_caller()
        self._lease = read_lease(request.lease, "lease")
        self._at_most = check_count(request.at_most, "at_most")
        self._recovery_id: UUID | None = None
        self._selector: Selector | None = None
        self._read_origin()
        self._taken = 0
        self._manifest = Manifest()

    async def responses(self) -> AsyncIterator[pb.RestoreAgentsResponse]:
        """Yield batches, then the manifest."""
        if self._recovery_id is not None:
            await self._recoveries.get(self._caller.tenant_id, self._recovery_id)
        async with self._renewing():
            if self._request.resume_token:
                async for batch in self._batches(await self._resumed()):
                    yield batch
            idle_s = 0.0
            while not self._lifecycle.is_stopping:
                lot = await self._take()
                async for batch in self._batches(lot):
                    yield batch
                if self._is_full() or (not lot and not self._request.follow):
                    yield self._end(history_service_pb2.STREAM_END_REASON_COMPLETE)
                    return
                if lot:
                    idle_s = 0.0
                    continue
                await self._lifecycle.wait(POLL_INTERVAL_S)
                idle_s += POLL_INTERVAL_S
                if idle_s >= HEARTBEAT_INTERVAL_S:
                    idle_s = 0.0
                    yield self._batch([])
            yield self._end(history_service_pb2.STREAM_END_REASON_SHUTTING_DOWN)

    def _read_origin(self) -> None:
        origin = self._request.WhichOneof("origin")
        if origin == "recovery_id":
            self._recovery_id = check_uuid(self._request.recovery_id, "recovery_id")
            self._origin_digest = str(self._recovery_id)
        elif origin == "selector":
            self._selector = read_selector(self._request.selector, "selector")
            text = self._request.selector.SerializeToString(deterministic=True)
            self._origin_digest = hashlib.sha256(text).hexdigest()
        else:
            raise ValueNotStorable("an origin is missing", path="origin")

    def _is_full(self) -> bool:
        return bool(self._at_most) and self._taken >= self._at_most

    def _lot_size(self) -> int:
        if not self._at_most:
            return LOT_AGENTS
        return min(LOT_AGENTS, self._at_most - self._taken)

    async def _resumed(self) -> list[Acquired]:
        try:
            fields = open_token(
                self._caller.token_key, _TOKEN_KIND, self._request.resume_token
            )
        except TokenError as exc:
            raise TokenStale("start the stream anew", path="resume_token") from exc
        origin, lease_id, taken = fields
        if (origin, lease_id) != (self._origin_digest, str(self._lease.lease_id)):
            raise TokenStale("the token is another stream's", path="resume_token")
        # Whatever the lease holds and has not written since may have been lost on
        # the way: it comes again, under the same fence.
        held = await self._recoveries.held(
            self._caller.tenant_id, self._lease.lease_id, self._recovery_id
        )
        self._taken = max(int(str(taken)), len(held))
        return held

    async def _take(self) -> list[Acquired]:
        if self._is_full():
            return []
        if self._recovery_id is not None:
            taken = await self._recoveries.take(
                self._caller.tenant_id,
                self._recovery_id,
                self._lease,
                self._lot_size(),
            )
        else:
            taken = await self._claim()
        self._taken += len(taken)
        return taken

    async def _claim(self) -> list[Acquired]:
        assert self._selector is not None
        for _ in range(_BUSY_TRIES):
            picked = await self._agents.select(
                self._caller.tenant_id, self._selector, None, self._lot_size()
            )
            if not picked:
                return []
            claimed = await self._agents.claim(
                self._caller.tenant_id,
                self._lease,
                await self._roots(picked, self._selector),
                [uuid.uuid4() for _ in picked],
            )
            taken = [item for item in claimed if item.outcome == "acquired"]
            if taken:
                return taken
            # A writer or a rival has them all; who it was decides what comes next.
            await asyncio.sleep(_BUSY_PAUSE_S)
        return []

    async def _roots(self, picked: Sequence[Agent], selector: Selector) -> list[Agent]:
        """Leave out agents that come along with their parent."""
        parents = {agent.parent_agent_id for agent in picked if agent.parent_agent_id}
        if not parents:
            return list(picked)
        among = await self._agents.select(
            self._caller.tenant_id,
            narrowed(selector, sorted(parents)),
            None,
            len(parents),
        )
        coming = {agent.agent_id for agent in among}
        return [agent for agent in picked if agent.parent_agent_id not in coming]

    async def _batches(
        self, lot: Sequence[Acquired]
    ) -> AsyncIterator[pb.RestoreAgentsResponse]:
        batch: list[pb.RestoredAgent] = []
        batch_bytes = 0
        async for agent in self._restored.read(
            self._caller.tenant_id, lot, self._request.encoding, self._manifest
        ):
            agent_bytes = agent.ByteSize()
            if batch and batch_bytes + agent_bytes > BATCH_BYTES:
                yield self._batch(batch)
                batch, batch_bytes = [], 0
            batch.append(agent)
            batch_bytes += agent_bytes
        if batch:
            yield self._batch(batch)

    def _batch(self, agents: Sequence[pb.RestoredAgent]) -> pb.RestoreAgentsResponse:
        return pb.RestoreAgentsResponse(
            batch=pb.RestoredBatch(agents=agents, resume_token=self._token())
        )

    def _end(
        self, reason: history_service_pb2.StreamEndReason.ValueType
    ) -> pb.RestoreAgentsResponse:
        return pb.RestoreAgentsResponse(
            end=pb.RestoreManifest(
                reason=reason,
                restored_count=self._manifest.restored_count,
                rebuilt_count=self._manifest.rebuilt_count,
                failed_count=self._manifest.failed_count,
                digest=self._manifest.digest,
                resume_token=self._token(),
            )
        )

    def _token(self) -> str:
        fields: list[object] = [
            self._origin_digest,
            str(self._lease.lease_id),
            self._taken,
        ]
        return seal(self._caller.token_key, _TOKEN_KIND, fields)

    @contextlib.asynccontextmanager
    async def _renewing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._renew_for_ever())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._lease.ttl_ms / 3000)
            try:
                await self._agents.renew(self._caller.tenant_id, self._lease.lease_id)
            except LeaseRevoked:
                return  # the next take says so to the worker
            except PerdureError as error:
                _LOG.warning("a restore stream could not renew: %s", error.reason)
