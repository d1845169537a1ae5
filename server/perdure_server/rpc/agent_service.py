"""AgentService: who owns an agent."""

from perdure.v1 import agent_pb2, agent_service_pb2_grpc
from perdure.v1 import agent_service_pb2 as pb
from perdure_server.caller import current_caller
from perdure_server.errors import ValueNotStorable
from perdure_server.restore.claim_series import ClaimSeries
from perdure_server.rpc.agent_messages import (
    agent_message,
    lease_message,
    read_lease,
    read_selector,
)
from perdure_server.rpc.checks import (
    check_id,
    check_items,
    check_text,
    check_uuid,
    page_size,
)
from perdure_server.rpc.fences import fence_message, read_fence
from perdure_server.rpc.interceptor import Context
from perdure_server.rpc.page_token import open_page_token, page_token
from perdure_server.rpc.restore_origin import SelectorOrigin
from perdure_server.store.agents import (
    Acquired,
    Agents,
    AgentSpec,
    LeaseSpec,
    Selector,
)

MAX_ACQUIRED = 500
DEFAULT_ACQUIRED = 32
MAX_FENCES = 5_000

_OUTCOMES = {
    "acquired": pb.ACQUIRE_OUTCOME_ACQUIRED,
    "replayed": pb.ACQUIRE_OUTCOME_REPLAYED,
    "held": pb.ACQUIRE_OUTCOME_HELD,
    "live": pb.ACQUIRE_OUTCOME_HELD,
    "moved": pb.ACQUIRE_OUTCOME_MOVED,
    "conflict": pb.ACQUIRE_OUTCOME_CONFLICT,
    "deleted": pb.ACQUIRE_OUTCOME_DELETED,
}


class AgentService(agent_service_pb2_grpc.AgentServiceServicer):
    """Serves ownership."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def AcquireAgents(
        self, request: pb.AcquireAgentsRequest, context: Context
    ) -> pb.AcquireAgentsResponse:
        """Claim agents."""
        lease = read_lease(request.lease, "lease")
        if request.agents and request.HasField("selector"):
            raise ValueNotStorable("a selector excludes agents", path="selector")
        if request.agents:
            specs = _specs(request)
            held, outcomes = await self._agents.acquire(
                current_caller().tenant_id, lease, specs
            )
        else:
            selector = read_selector(request.selector, "selector")
            outcomes = await self._claim(lease, selector, request.at_most)
            held = (
                await self._agents.renew(current_caller().tenant_id, lease.lease_id)
            ).lease
        return pb.AcquireAgentsResponse(
            lease=lease_message(held), agents=await self._described(outcomes)
        )

    async def RenewLease(
        self, request: pb.RenewLeaseRequest, context: Context
    ) -> pb.RenewLeaseResponse:
        """Renew a lease."""
        check_items(len(request.fences), "fences", MAX_FENCES)
        fences = [
            read_fence(fence, f"fences[{n}]") for n, fence in enumerate(request.fences)
        ]
        renewal = await self._agents.renew(
            current_caller().tenant_id,
            check_uuid(request.lease_id, "lease_id"),
            fences,
        )
        return pb.RenewLeaseResponse(
            lease=lease_message(renewal.lease),
            stale_agent_ids=renewal.stale_agent_ids,
        )

    async def ReleaseAgents(
        self, request: pb.ReleaseAgentsRequest, context: Context
    ) -> pb.ReleaseAgentsResponse:
        """Give agents back."""
        check_items(len(request.fences), "fences", MAX_FENCES)
        fences = [
            read_fence(fence, f"fences[{n}]") for n, fence in enumerate(request.fences)
        ]
        revoke_lease_id = None
        if request.revoke_lease_id:
            revoke_lease_id = check_uuid(request.revoke_lease_id, "revoke_lease_id")
        released = await self._agents.release(
            current_caller().tenant_id, fences, revoke_lease_id
        )
        return pb.ReleaseAgentsResponse(
            released_agent_ids=[known for known, own in released.items() if own],
            stale_agent_ids=[known for known, own in released.items() if not own],
        )

    async def ListAgents(
        self, request: pb.ListAgentsRequest, context: Context
    ) -> pb.ListAgentsResponse:
        """Page through agents."""
        size = page_size(request.page_size)
        found = await self._agents.select(
            current_caller().tenant_id,
            read_selector(request.selector, "selector"),
            open_page_token("agents", request.page_token) or None,
            size + 1,
        )
        ids = [agent.agent_id for agent in found]
        return pb.ListAgentsResponse(
            agents=[agent_message(agent) for agent in found[:size]],
            next_page_token=page_token("agents", ids, size),
        )

    async def _claim(
        self, lease: LeaseSpec, selector: Selector, at_most: int
    ) -> list[Acquired]:
        if not 0 <= at_most <= MAX_ACQUIRED:
            raise ValueNotStorable(f"not between 0 and {MAX_ACQUIRED}", path="at_most")
        tenant_id = current_caller().tenant_id
        limit = at_most or DEFAULT_ACQUIRED
        origin = SelectorOrigin(self._agents, tenant_id, selector, lease)
        series = ClaimSeries.begin()
        taken: list[Acquired] = []
        while len(taken) < limit:
            lot = await origin.take(series, limit - len(taken))
            if not lot:
                break
            taken += lot
        if not taken:
            # Nothing to hold, yet the lease is made or renewed, or refused.
            await self._agents.claim(tenant_id, lease, [], [])
        return taken

    async def _described(self, outcomes: list[Acquired]) -> list[pb.AcquiredAgent]:
        ids = tuple(outcome.agent_id for outcome in outcomes)
        found = await self._agents.select(
            current_caller().tenant_id, Selector(agent_ids=ids), None, len(ids) or 1
        )
        by_id = {agent.agent_id: agent for agent in found}
        answers: list[pb.AcquiredAgent] = []
        for outcome in outcomes:
            agent = by_id.get(outcome.agent_id)
            answer = pb.AcquiredAgent(outcome=_OUTCOMES[outcome.outcome])
            if agent is None:
                answer.agent.CopyFrom(agent_pb2.Agent(agent_id=outcome.agent_id))
            else:
                answer.agent.CopyFrom(agent_message(agent))
                answer.message_count = agent.message_count
            if outcome.fence is not None:
                answer.fence.CopyFrom(fence_message(outcome.fence))
            answers.append(answer)
        return answers


def _specs(request: pb.AcquireAgentsRequest) -> list[AgentSpec]:
    check_items(len(request.agents), "agents", MAX_ACQUIRED)
    specs = [_spec(spec, f"agents[{n}]") for n, spec in enumerate(request.agents)]
    places: dict[str, int] = {}
    for place, spec in enumerate(specs):
        if places.setdefault(spec.agent_id, place) != place:
            raise ValueNotStorable(
                "an agent is named twice", path=f"agents[{place}].agent_id"
            )
    return specs


def _spec(message: pb.AgentSpec, path: str) -> AgentSpec:
    agent_id = check_id(message.agent_id, f"{path}.agent_id")
    conversation_id = message.conversation_id or agent_id
    parent = check_text(message.parent_agent_id, f"{path}.parent_agent_id")
    return AgentSpec(
        agent_id=agent_id,
        conversation_id=check_id(conversation_id, f"{path}.conversation_id"),
        agent_slug=check_text(message.agent_slug, f"{path}.agent_slug"),
        parent_agent_id=parent or None,
        framework=check_text(message.framework, f"{path}.framework"),
        claim_id=check_uuid(message.claim_id, f"{path}.claim_id"),
    )
