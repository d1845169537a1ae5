"""RecoveryService: fence first, then stream, and watch until all have resumed."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing

from perdure.v1 import recovery_service_pb2 as pb
from perdure.v1 import recovery_service_pb2_grpc
from perdure_server.caller import current_caller
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.agent_messages import read_selector
from perdure_server.rpc.checks import check_uuid
from perdure_server.rpc.interceptor import Context
from perdure_server.rpc.recovery_messages import recovery_message
from perdure_server.rpc.recovery_watch import watch_responses
from perdure_server.rpc.restore_stream import RestoreStream
from perdure_server.rpc.restored_agents import RestoredAgents
from perdure_server.store.agents import Agents
from perdure_server.store.recoveries import Recoveries
from perdure_server.store.restores import Restores


class RecoveryService(recovery_service_pb2_grpc.RecoveryServiceServicer):
    """Serves recoveries."""

    def __init__(
        self,
        recoveries: Recoveries,
        agents: Agents,
        restores: Restores,
        restored: RestoredAgents,
        lifecycle: Lifecycle,
    ) -> None:
        self._recoveries = recoveries
        self._agents = agents
        self._restores = restores
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
            plan = await self._recoveries.dry_run(
                tenant_id, selector, even_live=request.even_live
            )
            counted = pb.Recovery(
                recovery_id=str(recovery_id),
                agent_count=plan.agent_count,
                fenced_count=plan.fenced_count,
                live_count=plan.live_count,
                frame_bytes=plan.frame_bytes,
            )
            return pb.StartRecoveryResponse(recovery=counted)
        text = request.selector.SerializeToString(deterministic=True)
        recovery = await self._recoveries.start(
            tenant_id,
            recovery_id,
            selector,
            hashlib.sha256(text).digest(),
            even_live=request.even_live,
        )
        progress = await self._recoveries.progress(tenant_id, recovery_id)
        return pb.StartRecoveryResponse(recovery=recovery_message(recovery, progress))

    async def RestoreAgents(
        self, request: pb.RestoreAgentsRequest, context: Context
    ) -> AsyncIterator[pb.RestoreAgentsResponse]:
        """Hand agents to a worker."""
        stream = RestoreStream(
            self._agents,
            self._recoveries,
            self._restores,
            self._restored,
            self._lifecycle,
            request,
        )
        # Closed with the call: what it holds, a renewal among it, must not outlive it.
        async with aclosing(stream.responses()) as responses:
            async for response in responses:
                yield response

    async def WatchRecovery(
        self, request: pb.WatchRecoveryRequest, context: Context
    ) -> AsyncIterator[pb.WatchRecoveryResponse]:
        """Stream how far a recovery is."""
        tenant_id = current_caller().tenant_id
        recovery_id = check_uuid(request.recovery_id, "recovery_id")
        watching = watch_responses(
            self._recoveries, self._lifecycle, tenant_id, recovery_id, request.once
        )
        async with aclosing(watching) as responses:
            async for response in responses:
                yield response
