"""Fences on the wire."""

from perdure.v1 import agent_pb2
from perdure_server.rpc.checks import check_count, check_id, check_uuid
from perdure_server.store.fence import Fence


def read_fence(message: agent_pb2.Fence, path: str) -> Fence:
    """Return a checked fence."""
    return Fence(
        agent_id=check_id(message.agent_id, f"{path}.agent_id"),
        epoch=check_count(message.epoch, f"{path}.epoch"),
        claim_id=check_uuid(message.claim_id, f"{path}.claim_id"),
    )


def fence_message(fence: Fence) -> agent_pb2.Fence:
    """Return a fence as a message."""
    return agent_pb2.Fence(
        agent_id=fence.agent_id, epoch=fence.epoch, claim_id=str(fence.claim_id)
    )
