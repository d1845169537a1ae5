"""CheckpointService: the state of agents after each step."""

import perdure_codec
from perdure.v1 import checkpoint_service_pb2 as pb
from perdure.v1 import checkpoint_service_pb2_grpc
from perdure_server.caller import current_caller
from perdure_server.errors import (
    FrameCorrupt,
    PageTokenInvalid,
    PerdureError,
    ValueNotStorable,
)
from perdure_server.restore.soundness import find_fault
from perdure_server.rpc.agent_messages import read_selector
from perdure_server.rpc.checkpoint_messages import (
    checkpoint_message,
    read_checkpoint,
    receipt_message,
    state_message,
)
from perdure_server.rpc.checks import (
    MAX_COUNT,
    check_count,
    check_duration_ms,
    check_id,
    page_size,
)
from perdure_server.rpc.fences import read_fence
from perdure_server.rpc.interceptor import Context
from perdure_server.rpc.page_token import open_page_token, page_token
from perdure_server.rpc.restored_agents import last_good_step
from perdure_server.store.agents import Agents
from perdure_server.store.checkpoints import Checkpoints
from perdure_server.store.retention import Policy, Retention

_MAX_AGE_MS = 100 * 365 * 86_400_000


class CheckpointService(checkpoint_service_pb2_grpc.CheckpointServiceServicer):
    """Serves checkpoints."""

    def __init__(
        self, checkpoints: Checkpoints, retention: Retention, agents: Agents
    ) -> None:
        self._checkpoints = checkpoints
        self._retention = retention
        self._agents = agents

    async def PutCheckpoint(
        self, request: pb.PutCheckpointRequest, context: Context
    ) -> pb.PutCheckpointResponse:
        """Store a checkpoint."""
        new = await read_checkpoint(request.checkpoint, "checkpoint")
        fence = None
        if request.HasField("fence"):
            fence = read_fence(request.fence, "fence")
            if fence.agent_id != new.agent_id:
                raise ValueNotStorable(
                    "the fence is another agent's", path="fence.agent_id"
                )
        try:
            receipt = await self._checkpoints.put(
                current_caller().tenant_id, new, fence
            )
        except PerdureError as refused:
            if "path" not in refused.metadata:
                raise
            raise refused.at("checkpoint") from refused
        return pb.PutCheckpointResponse(receipt=receipt_message(receipt))

    async def GetCheckpoint(
        self, request: pb.GetCheckpointRequest, context: Context
    ) -> pb.GetCheckpointResponse:
        """Return a step with its state."""
        agent_id, branch = await self._locate(request.agent_id, request.branch)
        chain = await self._checkpoints.chain(
            current_caller().tenant_id,
            agent_id,
            branch,
            check_count(request.step, "step"),
        )
        fault = find_fault([link.frame for link in chain])
        if fault is None:
            frames = [link.frame for link in chain if link.frame is not None]
            try:
                state = await state_message(frames, request.encoding)
            except perdure_codec.CodecError as exc:
                fault = f"the state does not open ({getattr(exc, 'code', '')})"
            else:
                return pb.GetCheckpointResponse(
                    checkpoint=checkpoint_message(chain[-1]), state=state
                )
        raise FrameCorrupt(
            fault,
            agent_id=agent_id,
            branch=branch,
            step=chain[-1].step,
            last_good_step=await last_good_step(
                self._checkpoints,
                current_caller().tenant_id,
                agent_id,
                branch,
                chain[0].step,
            ),
        )

    async def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: Context
    ) -> pb.ListCheckpointsResponse:
        """Page through the steps of a branch."""
        size = page_size(request.page_size)
        agent_id, branch = await self._locate(request.agent_id, request.branch)
        kind = f"checkpoints:{agent_id}:{branch}"
        before = open_page_token(kind, request.page_token) or str(MAX_COUNT)
        if not before.isdigit():
            raise PageTokenInvalid("start at the first page", path="page_token")
        found = await self._checkpoints.page(
            current_caller().tenant_id, agent_id, branch, int(before), size + 1
        )
        steps = [str(checkpoint.step) for checkpoint in found]
        return pb.ListCheckpointsResponse(
            checkpoints=[checkpoint_message(item) for item in found[:size]],
            next_page_token=page_token(kind, steps, size),
        )

    async def PruneCheckpoints(
        self, request: pb.PruneCheckpointsRequest, context: Context
    ) -> pb.PruneCheckpointsResponse:
        """Remove checkpoints."""
        tenant_id = current_caller().tenant_id
        selector = read_selector(request.selector, "selector")
        policy: Policy | None
        what = request.WhichOneof("what")
        if what == "drop_all":
            if not request.drop_all:
                raise ValueNotStorable("say true or leave it out", path="drop_all")
            policy = None
        elif what == "policy":
            policy = _policy(request.policy)
        else:
            policy = await self._retention.policy(tenant_id)
        pruned = await self._retention.prune(
            tenant_id, selector, policy, dry_run=request.dry_run
        )
        return pb.PruneCheckpointsResponse(
            agent_count=pruned.agent_count,
            checkpoint_count=pruned.checkpoint_count,
            frame_bytes=pruned.frame_bytes,
        )

    async def _locate(self, agent_id: str, branch: str) -> tuple[str, str]:
        agent = await self._agents.get(
            current_caller().tenant_id, check_id(agent_id, "agent_id")
        )
        if branch:
            check_id(branch, "branch")
        return agent.agent_id, branch or agent.canonical_branch


def _policy(message: pb.RetentionPolicy) -> Policy:
    keep_age_ms = check_duration_ms(message.keep_age, "policy.keep_age", 0, _MAX_AGE_MS)
    return Policy(
        keep_steps=check_count(message.keep_steps, "policy.keep_steps", minimum=1),
        keep_age_ms=keep_age_ms,
        max_age_ms=check_duration_ms(
            message.max_age, "policy.max_age", keep_age_ms, _MAX_AGE_MS
        ),
    )
