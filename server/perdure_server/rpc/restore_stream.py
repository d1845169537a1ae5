"""One RestoreAgents call: take, read, send, until nothing is left to take.

The stream renews the lease that it fills. No database connection is held while the
reader is slow; agents are taken in small lots, so that many workers share a fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from perdure.v1 import history_service_pb2
from perdure.v1 import recovery_service_pb2 as pb
from perdure_server.caller import current_caller
from perdure_server.errors import (
    LeaseNotFound,
    LeaseRevoked,
    PerdureError,
    TokenStale,
    ValueNotStorable,
)
from perdure_server.lifecycle import Lifecycle
from perdure_server.restore.claim_series import ClaimSeries, number_of
from perdure_server.restore.manifest import Manifest
from perdure_server.rpc.agent_messages import read_lease, read_selector
from perdure_server.rpc.checks import check_count, check_uuid
from perdure_server.rpc.restore_origin import Origin, RecoveryOrigin, SelectorOrigin
from perdure_server.rpc.restored_agents import Delivery, RestoredAgents
from perdure_server.store.agents import Acquired, Agents
from perdure_server.store.recoveries import Recoveries
from perdure_server.store.restores import Restores
from perdure_server.token import TokenError, open_token, seal

_LOG = logging.getLogger(__name__)

LOT_AGENTS = 32
BATCH_BYTES = 256 * 1024
POLL_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 10.0
BUSY_INTERVAL_S = 0.1
BUSY_PATIENCE_S = 5.0
_TOKEN_KIND = "restore"


class RestoreStream:
    """The state of one call."""

    def __init__(
        self,
        agents: Agents,
        recoveries: Recoveries,
        restores: Restores,
        restored: RestoredAgents,
        lifecycle: Lifecycle,
        request: pb.RestoreAgentsRequest,
    ) -> None:
        self._agents = agents
        self._recoveries = recoveries
        self._restores = restores
        self._restored = restored
        self._lifecycle = lifecycle
        self._request = request
        self._caller = current_caller()
        self._lease = read_lease(request.lease, "lease")
        self._at_most = check_count(request.at_most, "at_most")
        self._origin, self._origin_digest = self._read_origin()
        self._series = ClaimSeries.begin()
        self._delivered_number = 0
        self._taken = 0
        self._sent_before = 0
        self._manifest = Manifest()

    async def responses(self) -> AsyncGenerator[pb.RestoreAgentsResponse, None]:
        """Yield batches, then the manifest."""
        if self._request.WhichOneof("origin") == "recovery_id":
            recovery_id = check_uuid(self._request.recovery_id, "recovery_id")
            await self._recoveries.get(self._caller.tenant_id, recovery_id)
        lot: list[Acquired] = []
        if self._request.resume_token:
            lot = await self._resumed()
        async with self._renewing():
            # The first token travels before the first claim, so whoever lost a
            # batch on the way has something to resume with.
            yield self._batch([])
            async for batch in self._batches(lot):
                yield batch
            async for batch in self._lots():
                yield batch
        if self._lifecycle.is_stopping:
            yield self._end(history_service_pb2.STREAM_END_REASON_SHUTTING_DOWN)
        else:
            yield self._end(history_service_pb2.STREAM_END_REASON_COMPLETE)

    async def _lots(self) -> AsyncIterator[pb.RestoreAgentsResponse]:
        idle_s = busy_s = 0.0
        while not self._lifecycle.is_stopping and (limit := self._lot_limit()):
            lot = await self._origin.take(self._series, limit)
            if lot:
                self._taken += len(lot)
                idle_s = busy_s = 0.0
                async for batch in self._batches(lot):
                    yield batch
                continue
            pause_s = POLL_INTERVAL_S
            if busy_s < BUSY_PATIENCE_S and await self._origin.may_come():
                pause_s = BUSY_INTERVAL_S
                busy_s += pause_s
            elif not self._request.follow:
                return
            await self._lifecycle.wait(pause_s)
            idle_s += pause_s
            if idle_s >= HEARTBEAT_INTERVAL_S:
                idle_s = 0.0
                yield self._batch([])

    def _read_origin(self) -> tuple[Origin, str]:
        tenant_id = self._caller.tenant_id
        origin = self._request.WhichOneof("origin")
        if origin == "recovery_id":
            recovery_id = check_uuid(self._request.recovery_id, "recovery_id")
            pool = RecoveryOrigin(self._recoveries, tenant_id, recovery_id, self._lease)
            return pool, str(recovery_id)
        if origin == "selector":
            selector = read_selector(self._request.selector, "selector")
            text = self._request.selector.SerializeToString(deterministic=True)
            picked = SelectorOrigin(self._agents, tenant_id, selector, self._lease)
            return picked, hashlib.sha256(text).hexdigest()
        raise ValueNotStorable("an origin is missing", path="origin")

    def _lot_limit(self) -> int:
        if not self._at_most:
            return LOT_AGENTS
        return max(0, min(LOT_AGENTS, self._at_most - self._taken))

    async def _resumed(self) -> list[Acquired]:
        """Return what this stream claimed after the token: it comes once more."""
        try:
            fields = open_token(
                self._caller.token_key, _TOKEN_KIND, self._request.resume_token
            )
        except TokenError as exc:
            raise TokenStale("start the stream anew", path="resume_token") from exc
        origin, lease_id, start, number, sent = fields
        if (origin, lease_id) != (self._origin_digest, str(self._lease.lease_id)):
            raise TokenStale("the token is another stream's", path="resume_token")
        self._delivered_number = int(str(number))
        series = ClaimSeries(int(str(start), 16))
        held = await self._restores.claimed(
            self._caller.tenant_id,
            self._lease.lease_id,
            series.claim_id(self._delivered_number),
            series.last(),
        )
        numbers = [number_of(item.fence.claim_id) for item in held if item.fence]
        newest = max([self._delivered_number, *numbers])
        self._series = ClaimSeries.resume(series.start, newest)
        self._sent_before = int(str(sent))
        self._taken = self._sent_before + len(held)
        return held

    async def _batches(
        self, lot: Sequence[Acquired]
    ) -> AsyncIterator[pb.RestoreAgentsResponse]:
        batch: list[Delivery] = []
        batch_bytes = 0
        async for delivery in self._restored.read(
            self._caller.tenant_id, lot, self._request.encoding
        ):
            delivery_bytes = delivery.message.ByteSize()
            if batch and batch_bytes + delivery_bytes > BATCH_BYTES:
                # A subtree shares a claim: it counts as delivered with its last agent.
                self._delivered_number = min(
                    number_of(batch[-1].fence.claim_id),
                    number_of(delivery.fence.claim_id) - 1,
                )
                yield self._batch(batch)
                await self._set_aside(batch)
                batch, batch_bytes = [], 0
            batch.append(delivery)
            batch_bytes += delivery_bytes
        if batch:
            self._delivered_number = number_of(batch[-1].fence.claim_id)
            yield self._batch(batch)
            await self._set_aside(batch)

    async def _set_aside(self, batch: Sequence[Delivery]) -> None:
        # Only after its report was sent, and so that an operator can take it.
        for delivery in batch:
            if delivery.message.HasField("error"):
                await self._origin.set_aside(delivery.fence)
                await self._restores.free(self._caller.tenant_id, delivery.fence)

    def _batch(self, deliveries: Sequence[Delivery]) -> pb.RestoreAgentsResponse:
        for delivery in deliveries:
            self._manifest.add(delivery.message)
        return pb.RestoreAgentsResponse(
            batch=pb.RestoredBatch(
                agents=[delivery.message for delivery in deliveries],
                resume_token=self._token(),
            )
        )

    def _end(
        self, reason: history_service_pb2.StreamEndReason.ValueType
    ) -> pb.RestoreAgentsResponse:
        is_complete = reason == history_service_pb2.STREAM_END_REASON_COMPLETE
        return pb.RestoreAgentsResponse(
            end=pb.RestoreManifest(
                reason=reason,
                restored_count=self._manifest.restored_count,
                rebuilt_count=self._manifest.rebuilt_count,
                failed_count=self._manifest.failed_count,
                digest=self._manifest.digest,
                resume_token="" if is_complete else self._token(),
            )
        )

    def _token(self) -> str:
        fields: list[object] = [
            self._origin_digest,
            str(self._lease.lease_id),
            f"{self._series.start:x}",
            self._delivered_number,
            self._sent_before
            + self._manifest.restored_count
            + self._manifest.failed_count,
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
            except LeaseNotFound:
                continue  # the first take makes it
            except PerdureError as error:
                _LOG.warning("a restore stream could not renew: %s", error.reason)
