"""Recoveries on the wire."""

from collections import Counter
from collections.abc import Sequence

from perdure.v1 import recovery_service_pb2 as pb
from perdure_server.rpc.timestamps import to_timestamp
from perdure_server.store.recoveries import Progress, Recovery

_STATES = {
    "planned": pb.RECOVERY_STATE_PLANNED,
    "fenced": pb.RECOVERY_STATE_FENCED,
    "moved": pb.RECOVERY_STATE_MOVED,
    "live": pb.RECOVERY_STATE_LIVE,
    "busy": pb.RECOVERY_STATE_BUSY,
    "restored": pb.RECOVERY_STATE_RESTORED,
    "resumed": pb.RECOVERY_STATE_RESUMED,
    "broken": pb.RECOVERY_STATE_BROKEN,
}


def recovery_message(recovery: Recovery, progress: Sequence[Progress]) -> pb.Recovery:
    """Return a recovery with its sums."""
    counts = Counter(agent.state for agent in progress)
    handed_over = counts["restored"] + counts["resumed"] + counts["broken"]
    return pb.Recovery(
        recovery_id=str(recovery.recovery_id),
        create_time=to_timestamp(recovery.create_time),
        agent_count=len(progress),
        fenced_count=counts["fenced"] + handed_over,
        moved_count=counts["moved"],
        live_count=counts["live"],
        busy_count=counts["busy"],
        restored_count=handed_over,
        resumed_count=counts["resumed"],
        frame_bytes=sum(item.chain_bytes for item in progress),
        broken_count=counts["broken"],
    )


def progress_message(progress: Progress) -> pb.RecoveryAgent:
    """Return how far one agent is."""
    return pb.RecoveryAgent(
        agent_id=progress.agent_id,
        state=_STATES[progress.state],
        owner=progress.owner,
        head_step=progress.head_step,
    )
