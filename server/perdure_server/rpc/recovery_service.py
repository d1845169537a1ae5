"""RecoveryService: fence first, then stream, and watch until all have resumed."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from perdure.v1 import history_service_pb2, recovery_service_pb2_grpc
from perdure.v1 import recovery_service_pb2 as pb
from perdure_server.caller import current_caller
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.agent_messages import read_selector
from perdure_server.rpc.checks import check_uuid
from perdure_server.rpc.interceptor import Context
from perdure_server.rpc.restore_stream import RestoreStream
from perdure_server.rpc.restored_agents import RestoredAgents
from perdure_server.rpc.timestamps import to_timestamp
from perdure_server.store.agents import Agents, Selector
from perdure_server.store.recoveries import (
    PLAN_PAGE,
    Progress,
    Recoveries,
    Recovery,
    counted,
)

WATCH_INTERVAL_S = 0.25
HEARTBEAT_INTERVAL_S = 10.0
AGENTS_PER_PROGRESS = 1_000

_STATES = {
    "planned": pb.RECOVERY_STATE_PLANNED,
    "fenced": pb.RECOVERY_STATE_FENCED,
    "moved": pb.RECOVERY_STATE_MOVED,
    "live": pb.RECOVERY_STATE_LIVE,
    "busy": pb.RECOVERY_STATE_BUSY,
    "restored": pb.RECOVERY_STATE_RESTORED,
    "resumed": pb.RECOVERY_STATE_RESUMED,
}
_UNFINISHED = frozenset({"planned", "fenced", "restored"})


class RecoveryService(recovery_service_pb2_grpc.RecoveryServiceServicer):
    """Serves recoveries."""

    def __init__(
        self,
        recoveries: Recoveries,
        agents: Agents,
        restored: RestoredAgents,
        lifecycle: Lifecycle,
    ) -> None:
        self._recoveries = recoveries
        self._agents = agents
        self._restored = restored
        self._lifecycle = lifecycle

    async def StartRecovery(
        self, request: pb.StartRecoveryRequest, context: Context
    ) -> pb.StartRecoveryResponse:
        """Plan and fence."""
        tenant_id = current_caller().tenant_id
        recovery_id = check_uuid(request.recovery_id, "recovery_id")
        selector = read_selector(request.selector, "selector")
        if request.dry_run:
            plan = await self._dry_run(
                tenant_id, recovery_id, selector, request.even_live
            )
            return pb.StartRecoveryResponse(recovery=plan)
        text = request.selector.SerializeToString(deterministic=True)
        recovery = await self._recoveries.start(
            tenant_id,
            recovery_id,
            selector,
            hashlib.sha256(text).digest(),
            even_live=request.even_live,
        )
        progress = await self._recoveries.progress(tenant_id, recovery_id)
        return pb.StartRecoveryResponse(recovery=_summed(recovery, progress))

    async def RestoreAgents(
        self, request: pb.RestoreAgentsRequest, context: Context
    ) -> AsyncIterator[pb.RestoreAgentsResponse]:
        """Hand agents to a worker."""
        stream = RestoreStream(
            self._agents, self._recoveries, self._restored, self._lifecycle, request
        )
        async for response in stream.responses():
            yield response

    async def WatchRecovery(
        self, request: pb.WatchRecoveryRequest, context: Context
    ) -> AsyncIterator[pb.WatchRecoveryResponse]:
        """Stream how far a recovery is."""
        tenant_id = current_caller().tenant_id
        recovery_id = check_uuid(request.recovery_id, "recovery_id")
        recovery = await self._recoveries.get(tenant_id, recovery_id)
        known: dict[str, Progress] = {}
        idle_s = HEARTBEAT_INTERVAL_S
        while True:
            progress = await self._recoveries.progress(tenant_id, recovery_id)
            changed = [item for item in progress if known.get(item.agent_id) != item]
            if changed or idle_s >= HEARTBEAT_INTERVAL_S:
                idle_s = 0.0
                for response in _progress(recovery, progress, changed):
                    yield response
            known = {item.agent_id: item for item in progress}
            if request.once or not any(p.state in _UNFINISHED for p in progress):
                yield _end(history_service_pb2.STREAM_END_REASON_COMPLETE)
                return
            if await self._lifecycle.wait(WATCH_INTERVAL_S):
                yield _end(history_service_pb2.STREAM_END_REASON_SHUTTING_DOWN)
                return
            idle_s += WATCH_INTERVAL_S

    async def _dry_run(
        self, tenant_id: str, recovery_id: UUID, selector: Selector, even_live: bool
    ) -> pb.Recovery:
        plan = pb.Recovery(recovery_id=str(recovery_id))
        after: str | None = None
        while page := await self._agents.select(tenant_id, selector, after, PLAN_PAGE):
            for agent in page:
                plan.agent_count += 1
                if agent.lease_state == "live" and not even_live:
                    plan.live_count += 1
                else:
                    plan.fenced_count += 1
                    plan.frame_bytes += agent.chain_bytes
            after = page[-1].agent_id
        return plan


def _summed(recovery: Recovery, progress: Sequence[Progress]) -> pb.Recovery:
    counts = counted(progress)
    restored = counts["restored"] + counts["resumed"]
    return pb.Recovery(
        recovery_id=str(recovery.recovery_id),
        create_time=to_timestamp(recovery.create_time),
        agent_count=len(progress),
        fenced_count=counts["fenced"] + restored,
        moved_count=counts["moved"],
        live_count=counts["live"],
        busy_count=counts["busy"],
        restored_count=restored,
        resumed_count=counts["resumed"],
        frame_bytes=sum(item.chain_bytes for item in progress),
    )


def _progress(
    recovery: Recovery, progress: Sequence[Progress], changed: Sequence[Progress]
) -> list[pb.WatchRecoveryResponse]:
    summed = _summed(recovery, progress)
    starts = range(0, max(1, len(changed)), AGENTS_PER_PROGRESS)
    return [
        pb.WatchRecoveryResponse(
            progress=pb.RecoveryProgress(
                recovery=summed,
                agents=[
                    pb.RecoveryAgent(
                        agent_id=item.agent_id,
                        state=_STATES[item.state],
                        owner=item.owner or "",
                        head_step=item.head_step,
                    )
                    for item in changed[start : start + AGENTS_PER_PROGRESS]
                ],
            )
        )
        for start in starts
    ]


def _end(
    reason: history_service_pb2.StreamEndReason.ValueType,
) -> pb.WatchRecoveryResponse:
    return pb.WatchRecoveryResponse(end=history_service_pb2.StreamEnd(reason=reason))
