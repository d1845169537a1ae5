"""Owning agents: `client.agents`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Unpack

from perdure.agent import Agent, Standing, wrote
from perdure.channel import Channel
from perdure.checkpoints import Checkpoints
from perdure.errors import (
    Fenced,
    Invalid,
    NotFound,
    PerdureError,
    Refused,
    Unavailable,
)
from perdure.history import read_batches
from perdure.lease import Leases
from perdure.messages import StoredMessage
from perdure.pages import iterate_pages
from perdure.restore import BrokenAgent, Restore, RestorePlan
from perdure.selector import Selection, make_selector
from perdure.v1 import agent_pb2, agent_service_pb2
from perdure.v1.agent_service_pb2 import (
    AcquireAgentsRequest,
    AcquiredAgent,
    AgentSpec,
    ListAgentsRequest,
)
from perdure.v1.checkpoint_pb2 import Checkpoint
from perdure.v1.history_service_pb2 import ReadMessagesRequest


class Agents:
    """Acquires, restores, lists and releases agents under this client's lease."""

    def __init__(self, channel: Channel, leases: Leases) -> None:
        """Use a client's connections and lease."""
        self._channel = channel
        self._leases = leases

    def acquire(
        self,
        agent_id: str,
        *,
        conversation_id: str | None = None,
        agent_slug: str = "",
        parent_agent_id: str = "",
        framework: str = "",
    ) -> Acquisition:
        """Own one agent: `async with client.agents.acquire(...) as agent`.

        Agent and conversation are made if they are missing. The block is cancelled
        when another worker claims the agent and then raises `Fenced`; at its end,
        however it ends, the agent is released.

        Args:
            agent_id: The caller's id of the agent.
            conversation_id: The conversation that it holds. Absent: the agent's id.
            agent_slug: Which kind of agent it is.
            parent_agent_id: The agent that made it.
            framework: Framework in which it now runs.

        Raises:
            Refused: LEASE_HELD; the message names the owner and the lease's end.
            DataLoss: Its newest checkpoint is broken.
            Invalid: It exists with another conversation (ID_REUSED).
        """
        spec = AgentSpec(
            agent_id=agent_id,
            conversation_id=conversation_id or "",
            agent_slug=agent_slug,
            parent_agent_id=parent_agent_id,
            framework=framework,
            claim_id=str(uuid.uuid4()),
        )
        return Acquisition(self._channel, self._leases, spec)

    def restore(
        self,
        *,
        recovery_id: str | None = None,
        at_most: int = 0,
        follow: bool = False,
        on_broken: Callable[[BrokenAgent], None] | None = None,
        **selection: Unpack[Selection],
    ) -> Restore:
        """Take over agents with their states: `async for agent in ...restore(...)`.

        Each agent belongs to this process from then on: run it within
        `async with agent:`. Broken agents go to `on_broken`; without it, the
        iteration raises DataLoss after all others were given.

        Args:
            recovery_id: Take agents of this recovery. Absent: those of the selection.
            at_most: Take at most so many; 0: no limit.
            follow: Go on with agents that are lost later.
            on_broken: Called with each agent that cannot be restored.
            **selection: Which agents. Absent: lease="lost".

        Raises:
            DataLoss: Agents are broken, or the stream did not match its manifest.
            Unavailable: The stream could not be resumed.
        """
        if recovery_id is None:
            selection.setdefault("lease", "lost")
        elif any(value for name, value in selection.items() if name != "lease"):
            raise Invalid(
                "a recovery has its agents selected already; leave the selection out",
                reason="VALUE_NOT_STORABLE",
                metadata={"path": "selector"},
            )
        plan = RestorePlan(
            recovery_id=recovery_id,
            selector=make_selector(selection) if recovery_id is None else None,
            at_most=at_most,
            follow=follow,
        )
        return Restore(self._channel, self._leases, plan, on_broken)

    def list(
        self, *, page_size: int = 0, **selection: Unpack[Selection]
    ) -> AsyncIterator[agent_pb2.Agent]:
        """Yield agents in the order of their ids, with who holds them.

        Args:
            page_size: How many are fetched at once; 0: the server's default.
            **selection: Which agents; `all=True` for every one.
        """
        selector = make_selector(selection)
        return iterate_pages(
            lambda token: self._channel.call(
                lambda stubs: stubs.agents.ListAgents,
                ListAgentsRequest(
                    selector=selector, page_size=page_size, page_token=token
                ),
            ),
            lambda page: page.agents,
        )

    async def release(self, *agents: Agent) -> None:
        """Give agents back; they are free at once."""
        for agent in agents:
            await agent.release()


class Acquisition:
    """An agent to be acquired: by `async with`, or by `await` without a block."""

    def __init__(self, channel: Channel, leases: Leases, spec: AgentSpec) -> None:
        """Keep what to acquire; nothing is sent."""
        self._channel = channel
        self._leases = leases
        self._spec = spec
        self._agent: Agent | None = None

    def __await__(self) -> Generator[Any, None, Agent]:
        """Acquire without a block: nothing is cancelled, release it yourself."""
        return self._acquire().__await__()

    async def __aenter__(self) -> Agent:
        """Acquire the agent and enter its block."""
        self._agent = await self._acquire()
        return await self._agent.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the agent's block."""
        assert self._agent is not None
        await self._agent.__aexit__(kind, error, trace)

    async def _acquire(self) -> Agent:
        self._leases.claiming.add(self._spec.claim_id)
        try:
            return await self._claim_and_load()
        finally:
            self._leases.claiming.discard(self._spec.claim_id)

    async def _claim_and_load(self) -> Agent:
        acquired, *below = await self._claim()
        refusal = _refusal(acquired)
        if refusal is not None:
            raise refusal
        try:
            standing = await _load(self._channel, acquired)
            subtree = [await _load(self._channel, each) for each in below]
        except BaseException:
            # Claimed, but not usable here: others may try.
            await self._leases.give_back(acquired.fence)
            raise
        agent = Agent(self._channel, self._leases, standing)
        for each in subtree:
            sub_agent = Agent(self._channel, self._leases, each)
            agent.sub_agents[sub_agent.agent_id] = sub_agent
        return agent

    async def _claim(self) -> Sequence[AcquiredAgent]:
        request = AcquireAgentsRequest(lease=self._leases.spec(), agents=[self._spec])
        try:
            return await self._send(request)
        except Fenced as error:
            # Somebody ended this process's lease: begin another one, once.
            self._leases.end(request.lease.lease_id, error)
            request.lease.CopyFrom(self._leases.spec())
            return await self._send(request)

    async def _send(self, request: AcquireAgentsRequest) -> Sequence[AcquiredAgent]:
        try:
            response = await self._channel.call(
                lambda stubs: stubs.agents.AcquireAgents, request
            )
        except (Unavailable, asyncio.CancelledError):
            # It may have arrived: else this process held the agent for ever.
            self._leases.abandon(request)
            raise
        return response.agents


@dataclass(frozen=True)
class _Loaded:
    checkpoint: Checkpoint | None
    state: Any
    rebuilt: bool


async def _load(channel: Channel, acquired: AcquiredAgent) -> Standing:
    record = acquired.agent
    loaded = await _load_state(channel, record)
    last_step = loaded.checkpoint.step if loaded.checkpoint else 0
    read_seq = loaded.checkpoint.read_seq if loaded.checkpoint else 0
    found: list[StoredMessage] = []
    if read_seq < acquired.message_count:
        request = ReadMessagesRequest(
            conversation_id=record.conversation_id, from_seq=read_seq
        )
        async for batch in read_batches(channel, request):
            found += batch.messages
            read_seq = max(read_seq, batch.message_count)
            if batch.messages:
                read_seq = max(read_seq, batch.messages[-1].seq + 1)
    new = [
        message for message in found if not wrote(record.agent_id, last_step, message)
    ]
    return Standing(
        record=record,
        fence=acquired.fence,
        checkpoint=loaded.checkpoint,
        state=loaded.state,
        rebuilt=loaded.rebuilt,
        new_messages=tuple(found if loaded.checkpoint is None else new),
        read_seq=read_seq,
    )


async def _load_state(channel: Channel, record: agent_pb2.Agent) -> _Loaded:
    try:
        stored = await Checkpoints(channel).get(record.agent_id)
    except NotFound as error:
        if error.reason != "CHECKPOINT_NOT_FOUND":
            raise
        return _Loaded(None, None, False)
    except Refused as error:
        if error.reason != "PRUNED":
            raise
        return _Loaded(None, None, True)
    return _Loaded(stored.checkpoint, stored.state, False)


def _refusal(acquired: AcquiredAgent) -> PerdureError | None:
    agent = acquired.agent
    metadata = {"agent_id": agent.agent_id}
    match acquired.outcome:
        case (
            agent_service_pb2.ACQUIRE_OUTCOME_ACQUIRED
            | agent_service_pb2.ACQUIRE_OUTCOME_REPLAYED
        ):
            return None
        case agent_service_pb2.ACQUIRE_OUTCOME_CONFLICT:
            return Invalid(
                f"agent {agent.agent_id} holds conversation {agent.conversation_id}; "
                "an agent keeps its conversation",
                reason="ID_REUSED",
                metadata=metadata | {"path": "conversation_id"},
            )
        case agent_service_pb2.ACQUIRE_OUTCOME_DELETED:
            return NotFound(
                f"agent {agent.agent_id} or its conversation was deleted",
                reason="DELETED",
                metadata=metadata,
            )
        case _:
            return _held_elsewhere(agent, metadata)


def _held_elsewhere(agent: agent_pb2.Agent, metadata: dict[str, str]) -> Refused:
    expires = agent.lease_expire_time.ToJsonString()
    return Refused(
        f"agent {agent.agent_id} is held by {agent.owner or 'another worker'} under "
        f"a lease until {expires}; wait, or let an operator start a recovery",
        reason="LEASE_HELD",
        metadata=metadata | {"owner": agent.owner, "expire_time": expires},
    )
