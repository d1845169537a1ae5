"""A restore: agents taken over in a stream, decoded off the event loop, checked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from perdure.agent import Agent, Standing, wrote
from perdure.channel import Channel
from perdure.errors import DataLoss, Fenced, Invalid, PerdureError
from perdure.history import read_batches
from perdure.lease import Leases
from perdure.manifest import Manifest
from perdure.messages import StoredMessage, read_stored
from perdure.state import decode_frames
from perdure.stream import StreamEnd, resume_stream
from perdure.v1 import checkpoint_pb2, error_reason_pb2
from perdure.v1.agent_pb2 import AgentSelector, Fence, LeaseSpec
from perdure.v1.history_service_pb2 import ReadMessagesRequest
from perdure.v1.recovery_service_pb2 import (
    RestoreAgentsRequest,
    RestoreAgentsResponse,
    RestoredAgent,
)

PREFETCH_BATCHES: Final = 4
"""Batches of about 256 KiB that are decoded ahead of the application."""

RECLAIM_TIMEOUT_S: Final = 10.0
"""Time to give back what was claimed ahead of a reader who stopped early."""

_log = logging.getLogger("perdure")


@dataclass(frozen=True)
class BrokenAgent:
    """An agent that could not be restored."""

    agent_id: str
    """Its id."""
    conversation_id: str
    """Its conversation, which is whole."""
    reason: str
    """Why, as in an error."""
    message: str
    """What is wrong."""
    last_good_step: int
    """Newest step before the broken one that is whole; 0: none."""


@dataclass(frozen=True)
class RestorePlan:
    """What a restore asks for."""

    recovery_id: str | None
    """The recovery; None: the selector."""
    selector: AgentSelector | None
    """The selector; None: the recovery."""
    at_most: int
    """Agents in all; 0: no limit."""
    follow: bool
    """Go on with agents that are lost later."""


class Restore:
    """Agents that come back: iterate over it once."""

    def __init__(
        self,
        channel: Channel,
        leases: Leases,
        plan: RestorePlan,
        on_broken: Callable[[BrokenAgent], None] | None,
    ) -> None:
        """Prepare; the iteration begins the stream."""
        self.broken: list[BrokenAgent] = []
        self._channel = channel
        self._leases = leases
        self._plan = plan
        self._on_broken = on_broken
        self._manifest = Manifest()
        self._seen: set[tuple[str, int, str]] = set()
        self._queue: asyncio.Queue[list[Agent] | None] = asyncio.Queue(PREFETCH_BATCHES)
        self._lease: LeaseSpec | None = None
        self._token = ""
        self._begun = False
        self._complete = False

    def __aiter__(self) -> AsyncGenerator[Agent, None]:
        """Begin the stream; Invalid when it was begun before."""
        if self._begun:
            raise Invalid(
                "a restore is iterated over once; call restore again",
                reason="BROKEN_STREAM",
            )
        self._begun = True
        return self._run()

    async def _run(self) -> AsyncGenerator[Agent, None]:
        producing = asyncio.create_task(self._produce())
        ready: list[Agent] = []
        self._leases.open_restores += 1
        try:
            while (batch := await self._queue.get()) is not None:
                ready = batch[::-1]
                while ready:
                    yield ready.pop()
            await producing
            if self.broken and self._on_broken is None:
                raise self._broken_error()
        finally:
            producing.cancel()
            with suppress(asyncio.CancelledError, PerdureError):
                await producing
            self._leases.open_restores -= 1
            await self._give_back(ready)
            if not self._complete:
                await self._reclaim()

    async def _produce(self) -> None:
        self._lease = self._leases.spec()
        try:
            async with aclosing(self._events(self._request)) as events:
                async for event in events:
                    if event.HasField("end"):
                        self._manifest.check(event.end)
                        self._complete = True
                    elif event.batch.agents:
                        await self._take(list(event.batch.agents))
        except asyncio.CancelledError:
            raise  # nobody reads the queue any more
        except BaseException:
            await self._queue.put(None)
            raise
        await self._queue.put(None)

    def _request(self, token: str) -> RestoreAgentsRequest:
        """Return the request that begins or resumes the stream."""
        self._manifest = Manifest()
        plan = self._plan
        request = RestoreAgentsRequest(
            lease=self._lease,
            at_most=plan.at_most,
            follow=plan.follow,
            encoding=checkpoint_pb2.STATE_ENCODING_FRAMES,
            resume_token=token,
        )
        if plan.recovery_id is not None:
            request.recovery_id = plan.recovery_id
        elif plan.selector is not None:
            request.selector.CopyFrom(plan.selector)
        return request

    def _events(
        self, make_request: Callable[[str], RestoreAgentsRequest]
    ) -> AsyncGenerator[RestoreAgentsResponse, None]:
        return resume_stream(
            self._channel,
            lambda stubs: stubs.recoveries.RestoreAgents,
            make_request,
            token_of=self._token_of,
            end_of=_end_of,
        )

    def _token_of(self, event: RestoreAgentsResponse) -> str:
        self._token = event.batch.resume_token or self._token
        return event.batch.resume_token

    async def _reclaim(self) -> None:
        """Release what the server claimed ahead of a reader who stopped early.

        The stream is resumed once, without taking more: it repeats what the lease
        holds, and what nobody here knows was never delivered.
        """
        token = self._token
        over = self._lease is None or self._lease.lease_id != self._leases.lease_id
        if over or not token or self._leases.open_restores:
            return

        def make_request(later: str) -> RestoreAgentsRequest:
            request = self._request(later or token)
            request.at_most = 1
            request.follow = False
            return request

        unknown: list[Fence] = []
        try:
            async with asyncio.timeout(RECLAIM_TIMEOUT_S):
                async with aclosing(self._events(make_request)) as events:
                    async for event in events:
                        for restored in event.batch.agents:
                            fence = restored.fence
                            if fence.claim_id and not self._leases.knows(fence):
                                unknown.append(fence)
                await self._leases.release(unknown)
        except (PerdureError, TimeoutError) as error:
            _log.warning(
                "agents that were claimed ahead stay held until the lease ends (%s)",
                type(error).__name__,
            )

    async def _take(self, batch: list[RestoredAgent]) -> None:
        fresh = []
        for restored in batch:
            self._manifest.add(restored)
            if restored.HasField("error"):
                self._report(restored)
                continue
            fence = restored.fence
            identity = (fence.agent_id, fence.epoch, fence.claim_id)
            # A resumed stream repeats whatever the lease holds, from here or not.
            if identity not in self._seen and not self._leases.knows(fence):
                self._seen.add(identity)
                fresh.append(restored)
        decoded = await asyncio.to_thread(_decode_all, fresh)
        agents = []
        for restored, state in zip(fresh, decoded, strict=True):
            if isinstance(state, DataLoss):
                self._report_unreadable(restored, state)
                continue
            standing = await self._standing_of(restored, state)
            agents.append(Agent(self._channel, self._leases, standing))
        _join_subtrees(agents)
        if agents:
            try:
                await self._queue.put(agents)
            except asyncio.CancelledError:
                await self._give_back(agents)
                raise

    async def _standing_of(self, restored: RestoredAgent, state: Any) -> Standing:
        checkpoint = restored.checkpoint if restored.HasField("checkpoint") else None
        messages = [read_stored(stored) for stored in restored.new_messages]
        read_seq = restored.message_count
        if restored.next_message_seq < restored.message_count:
            step = checkpoint.step if checkpoint else 0
            more, read_seq = await self._read_rest(restored, step)
            messages += more
        return Standing(
            record=restored.agent,
            fence=restored.fence,
            checkpoint=checkpoint,
            state=state,
            rebuilt=restored.rebuilt,
            new_messages=tuple(messages),
            read_seq=read_seq,
        )

    async def _read_rest(
        self, restored: RestoredAgent, step: int
    ) -> tuple[list[StoredMessage], int]:
        found: list[StoredMessage] = []
        read_seq = restored.message_count
        request = ReadMessagesRequest(
            conversation_id=restored.agent.conversation_id,
            from_seq=restored.next_message_seq,
        )
        async for batch in read_batches(self._channel, request):
            found += batch.messages
            read_seq = max(read_seq, batch.message_count)
        if restored.HasField("checkpoint"):
            agent_id = restored.agent.agent_id
            found = [message for message in found if not wrote(agent_id, step, message)]
        return found, read_seq

    def _report(self, restored: RestoredAgent) -> None:
        error = restored.error
        reason = error_reason_pb2.ErrorReason.Name(error.reason)
        self._add_broken(
            BrokenAgent(
                agent_id=restored.agent.agent_id,
                conversation_id=restored.agent.conversation_id,
                reason=reason.removeprefix("ERROR_REASON_"),
                message=error.message,
                last_good_step=error.last_good_step,
            )
        )

    def _report_unreadable(self, restored: RestoredAgent, error: DataLoss) -> None:
        # This process cannot use it: others may try.
        self._leases.release_later(restored.fence)
        self._add_broken(
            BrokenAgent(
                agent_id=restored.agent.agent_id,
                conversation_id=restored.agent.conversation_id,
                reason=error.reason,
                message=error.message,
                last_good_step=0,
            )
        )

    def _add_broken(self, broken: BrokenAgent) -> None:
        if any(known.agent_id == broken.agent_id for known in self.broken):
            return
        self.broken.append(broken)
        _log.error(
            "agent %s is broken (%s), last good step %d",
            broken.agent_id,
            broken.reason,
            broken.last_good_step,
        )
        if self._on_broken is not None:
            self._on_broken(broken)

    def _broken_error(self) -> DataLoss:
        names = ", ".join(broken.agent_id for broken in self.broken[:5])
        error = DataLoss(
            f"{len(self.broken)} agents are broken ({names}); all others were "
            "restored. Roll them back to their last good step, or rebuild them from "
            "their messages",
            reason=self.broken[0].reason,
            metadata={"last_good_step": str(self.broken[0].last_good_step)},
        )
        error.agents = tuple(self.broken)
        return error

    async def _give_back(self, agents: list[Agent]) -> None:
        """Release what was taken over and not handed to the application."""
        while not self._queue.empty():
            agents += self._queue.get_nowait() or []
        for agent in agents:
            with suppress(Fenced):
                await agent.release()
        agents.clear()


def _join_subtrees(agents: list[Agent]) -> None:
    """Tell parents of their children: a subtree is claimed and sent together."""
    by_id = {agent.agent_id: agent for agent in agents}
    for agent in agents:
        parent = by_id.get(agent.record.parent_agent_id)
        if parent is not None and parent.fence.claim_id == agent.fence.claim_id:
            parent.sub_agents[agent.agent_id] = agent


def _decode_all(batch: list[RestoredAgent]) -> list[Any]:
    return [_decode(restored) for restored in batch]


def _decode(restored: RestoredAgent) -> Any:
    if not restored.HasField("checkpoint"):
        return None
    try:
        return decode_frames(
            restored.agent.agent_id, list(restored.state.frames.frames)
        )
    except DataLoss as error:
        return error


def _end_of(event: RestoreAgentsResponse) -> StreamEnd | None:
    return event.end if event.HasField("end") else None
