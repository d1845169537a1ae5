"""One WatchRecovery call: what stands, then what changes, until nothing is left.

Level-triggered: every round reads the whole plan, so no change can be missed. The
pause grows with the time that a round takes, so a large plan costs a bounded share.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from perdure.v1 import history_service_pb2
from perdure.v1 import recovery_service_pb2 as pb
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.recovery_messages import progress_message, recovery_message
from perdure_server.store.recoveries import Progress, Recoveries, Recovery

POLL_INTERVAL_S = 0.25
HEARTBEAT_INTERVAL_S = 10.0
AGENTS_PER_RESPONSE = 1_000
_PAUSE_PER_READ = 4

_OUTSTANDING = frozenset({"planned", "fenced", "restored"})


async def watch_responses(
    recoveries: Recoveries,
    lifecycle: Lifecycle,
    tenant_id: str,
    recovery_id: UUID,
    once: bool,
) -> AsyncGenerator[pb.WatchRecoveryResponse, None]:
    """Yield progress, then the end.

    Raises:
        RecoveryNotFound: There is none.
    """
    known: dict[str, Progress] = {}
    spoken = -HEARTBEAT_INTERVAL_S
    while True:
        started = time.monotonic()
        recovery = await recoveries.get(tenant_id, recovery_id)
        progress = await recoveries.progress(tenant_id, recovery_id)
        read_s = time.monotonic() - started
        changed = [item for item in progress if known.get(item.agent_id) != item]
        if changed or started - spoken >= HEARTBEAT_INTERVAL_S:
            spoken = started
            for response in _responses(recovery, progress, changed):
                yield response
        known = {item.agent_id: item for item in progress}
        is_planned = recovery.planned_time is not None
        if once or (is_planned and not _is_outstanding(progress)):
            yield _end(history_service_pb2.STREAM_END_REASON_COMPLETE)
            return
        pause_s = max(POLL_INTERVAL_S, _PAUSE_PER_READ * read_s)
        if await lifecycle.wait(min(pause_s, HEARTBEAT_INTERVAL_S)):
            yield _end(history_service_pb2.STREAM_END_REASON_SHUTTING_DOWN)
            return


def _is_outstanding(progress: Sequence[Progress]) -> bool:
    return any(item.state in _OUTSTANDING for item in progress)


def _responses(
    recovery: Recovery, progress: Sequence[Progress], changed: Sequence[Progress]
) -> list[pb.WatchRecoveryResponse]:
    summed = recovery_message(recovery, progress)
    starts = range(0, max(1, len(changed)), AGENTS_PER_RESPONSE)
    return [
        pb.WatchRecoveryResponse(
            progress=pb.RecoveryProgress(
                recovery=summed,
                agents=[
                    progress_message(item)
                    for item in changed[start : start + AGENTS_PER_RESPONSE]
                ],
            )
        )
        for start in starts
    ]


def _end(
    reason: history_service_pb2.StreamEndReason.ValueType,
) -> pb.WatchRecoveryResponse:
    return pb.WatchRecoveryResponse(end=history_service_pb2.StreamEnd(reason=reason))
