"""A restore: agents taken over in a stream, decoded off the event loop, checked."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from perdure.agent import Agent, Standing, wrote
from perdure.channel import Channel
from perdure.errors import DataLoss, Fenced, PerdureError
from perdure.history import read_batches
from perdure.lease import Leases
from perdure.messages import StoredMessage, read_stored
from perdure.state import decode_frames
from perdure.stream import StreamEnd, resume_stream
from perdure.v1 import checkpoint_pb2, error_reason_pb2
from perdure.v1.agent_pb2 import AgentSelector
from perdure.v1.history_service_pb2 import ReadMessagesRequest
from perdure.v1.recovery_service_pb2 import (
    RestoreAgentsRequest,
    RestoreAgentsResponse,
    RestoredAgent,
    RestoreManifest,
)

PREFETCH_BATCHES: Final = 4
"""Batches of about 256 KiB that are decoded ahead of the application."""

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


class _Manifest:
    """Counts one stream as it arrives, and compares it with the server's count."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._counts = [0, 0, 0]

    def add(self, restored: RestoredAgent) -> None:
        if restored.HasField("error"):
            self._counts[2] += 1
            return
        self._counts[0] += 1
        self._counts[1] += restored.rebuilt
        digest = restored.checkpoint.digest.hex()
        line = f"{restored.agent.agent_id}\0{restored.checkpoint.step}\0{digest}\n"
        self._hash.update(line.encode())

    def check(self, end: RestoreManifest) -> None:
        counts = [end.restored_count, end.rebuilt_count, end.failed_count]
        if counts != self._counts or end.digest != self._hash.digest():
            raise DataLoss(
                f"the restore is not complete: the server sent {counts} agents "
                f"(restored, rebuilt, failed), {self._counts} arrived; restore again",
                reason="MANIFEST_MISMATCH",
            )


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
        self._manifest = _Manifest()
        self._seen: set[tuple[str, int, str]] = set()
        self._queue: asyncio.Queue[list[Agent] | None] = asyncio.Queue(PREFETCH_BATCHES)

    def __aiter__(self) -> AsyncGenerator[Agent, None]:
        """Begin the stream."""
        return self._run()

    async def _run(self) -> AsyncGenerator[Agent, None]:
        producing = asyncio.create_task(self._produce())
        ready: list[Agent] = []
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
            await self._give_back(ready)

    async def _produce(self) -> None:
        lease = self._leases.spec()
        plan = self._plan

        def make_request(token: str) -> RestoreAgentsRequest:
            self._manifest = _Manifest()
            request = RestoreAgentsRequest(
                lease=lease,
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

        try:
            await self._read(make_request)
        except asyncio.CancelledError:
            raise  # nobody reads the queue any more
        except BaseException:
            await self._queue.put(None)
            raise
        await self._queue.put(None)

    async def _read(self, make_request: Callable[[str], RestoreAgentsRequest]) -> None:
        events = resume_stream(
            self._channel,
            lambda stubs: stubs.recoveries.RestoreAgents,
            make_request,
            token_of=lambda event: event.batch.resume_token,
            end_of=_end_of,
        )
        async with aclosing(events):
            async for event in events:
                if event.HasField("end"):
                    self._manifest.check(event.end)
                elif event.batch.agents:
                    await self._take(list(event.batch.agents))

    async def _take(self, batch: list[RestoredAgent]) -> None:
        fresh = []
        for restored in batch:
            self._manifest.add(restored)
            if restored.HasField("error"):
                self._report(restored)
                continue
            fence = restored.fence
            identity = (fence.agent_id, fence.epoch, fence.claim_id)
            # A resumed stream repeats what was perhaps not delivered.
            if identity not in self._seen:
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
