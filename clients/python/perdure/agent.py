"""One agent in the hands of this process: its state, its inbox, its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from perdure.channel import Channel
from perdure.errors import Fenced, Invalid
from perdure.guard import Guard
from perdure.history import read_batches
from perdure.lease import Leases
from perdure.messages import StoredMessage
from perdure.step import Step, StepResult
from perdure.v1 import agent_pb2
from perdure.v1.agent_pb2 import Fence
from perdure.v1.checkpoint_pb2 import Checkpoint
from perdure.v1.history_service_pb2 import ReadMessagesRequest


@dataclass(frozen=True)
class Standing:
    """Where an agent stands when this process gets it."""

    record: agent_pb2.Agent
    """The agent as the server knows it."""
    fence: Fence
    """Proof of the claim."""
    checkpoint: Checkpoint | None = None
    """Its newest checkpoint; None: it has none."""
    state: Any = None
    """The state of that checkpoint."""
    rebuilt: bool = False
    """Its checkpoints were dropped: it comes back from its messages."""
    new_messages: tuple[StoredMessage, ...] = ()
    """Messages that it has not read."""
    read_seq: int = 0
    """Messages of the conversation that it has read with these."""


@dataclass
class _Last:
    """What the newest acknowledged step left."""

    step: int
    state: Any
    stored: bool
    raw_bytes: int
    schema_version: int = 0
    messages: list[StoredMessage] = field(default_factory=list)


class Agent:
    """An agent that this process owns until it is released or fenced.

    `new_messages` are those that it had not read when it was taken over, `read_seq`
    counts the messages read with them, `rebuilt` says that its checkpoints were
    dropped, `sub_agents` were claimed together with it.

    Inside `async with agent:` the task is cancelled when another worker claims the
    agent, and the block raises `Fenced`; at the end of the block the agent is
    released. `client.agents.acquire` enters the block by itself.
    """

    def __init__(self, channel: Channel, leases: Leases, standing: Standing) -> None:
        """Take an agent over; the lease tests its fence from now on."""
        checkpoint = standing.checkpoint
        self.record = standing.record
        self.rebuilt = standing.rebuilt
        self.new_messages = list(standing.new_messages)
        self.read_seq = standing.read_seq
        self.sub_agents: dict[str, Agent] = {}
        self._channel = channel
        self._leases = leases
        self._fence = standing.fence
        self._guard = Guard()
        self._error: Fenced | None = None
        self._released = False
        self._open_step: Step | None = None
        self._unsettled: Step | None = None
        self._last = _Last(
            step=checkpoint.step if checkpoint else standing.record.head_step,
            state=standing.state,
            stored=checkpoint is not None,
            raw_bytes=checkpoint.raw_bytes if checkpoint else 1 << 20,
            schema_version=checkpoint.schema_version if checkpoint else 0,
        )
        leases.hold(self)

    def __repr__(self) -> str:
        """Name the agent, its step and its epoch; never its content."""
        return f"<Agent {self.agent_id!r} step {self.last_step} epoch {self.epoch}>"

    @property
    def agent_id(self) -> str:
        """Its id."""
        return self._fence.agent_id

    @property
    def conversation_id(self) -> str:
        """The conversation that it holds."""
        return self.record.conversation_id

    @property
    def epoch(self) -> int:
        """Epoch of this claim; it rises with every claim."""
        return self._fence.epoch

    @property
    def fence(self) -> Fence:
        """Proof of this claim, which every write of the agent carries."""
        return self._fence

    @property
    def last_step(self) -> int:
        """Newest acknowledged step; 0: none yet. The next one gets the number after."""
        return self._last.step

    @property
    def has_state(self) -> bool:
        """Whether it has a checkpoint; `state` may be None nevertheless."""
        return self._last.stored

    @property
    def state(self) -> Any:
        """State of the newest checkpoint; None when there is none."""
        return self._last.state

    @property
    def schema_version(self) -> int:
        """The application's schema version of `state`."""
        return self._last.schema_version

    def state_or(self, default: Any) -> Any:
        """Return the state, or `default` for an agent without a checkpoint."""
        return self._last.state if self._last.stored else default

    @property
    def fenced(self) -> bool:
        """Whether the agent is known to belong to somebody else."""
        return self._error is not None

    def step(self, *, expected_seq: int | None = None) -> Step:
        """Open a step: `async with agent.step() as step`, one commit at its end.

        Args:
            expected_seq: Commit only if the first new message gets this seq, for
                example `agent.read_seq`: nobody has written since the last read.
                Otherwise the block raises `Conflict`.
        """
        return Step(self._channel, self, expected_seq=expected_seq)

    async def settle(self) -> StepResult:
        """Find out whether the last step was committed: send it again, as it was.

        After a step raised `Unavailable` or was cancelled while it was being sent,
        its outcome is unknown and no other step is let through.

        Raises:
            Unavailable: It is still unknown.
            PerdureError: The step was refused; nothing of it is stored.
        """
        if self._unsettled is None:
            raise Invalid("no step is unsettled", reason="STEP_UNSETTLED")
        return await self._unsettled.send()

    async def read_messages(self) -> list[StoredMessage]:
        """Return what others added since the last read, and count it as read.

        The agent's own messages of its steps so far are left out.
        """
        self.check_held()
        found: list[StoredMessage] = []
        request = ReadMessagesRequest(
            conversation_id=self.conversation_id, from_seq=self.read_seq
        )
        count = self.read_seq
        async for batch in read_batches(self._channel, request):
            count = max(count, batch.message_count)
            found += [message for message in batch.messages if not self._wrote(message)]
            if batch.messages:
                count = max(count, batch.messages[-1].seq + 1)
        self.read_seq = count
        return found

    async def release(self) -> None:
        """Give the agent back with its sub-agents: they are free at once.

        Harmless when done again. When the server cannot be reached, the background
        renewal tries again.
        """
        held = not self._released and self._error is None
        self._leave()
        if held:
            await self._leases.give_back(self._fence)

    def _leave(self) -> None:
        self._leases.drop(self)
        self._released = True
        for sub_agent in self.sub_agents.values():
            sub_agent._leave()

    async def __aenter__(self) -> Self:
        """Bind the agent to this task: it is cancelled when the agent is fenced."""
        self.check_held()
        if self._guard.entered:
            raise Invalid("the agent's block is entered already", reason="STEP_OPEN")
        self._guard.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the agent; raise Fenced when it was taken meanwhile."""
        cancelled_by_fence = await self._guard.leave(error)
        fenced = self._error
        if fenced is not None and fenced.reason != "GIVEN_UP":
            self._leases.drop(self)
            if error is None or cancelled_by_fence:
                raise copy_of(fenced) from None
            return
        await self.release()

    def check_held(self) -> None:
        """Raise Fenced or Invalid unless the agent is held by this object."""
        if self._error is not None:
            raise copy_of(self._error)
        if self._released:
            raise Invalid(
                f"agent {self.agent_id} was released; acquire it again",
                reason="RELEASED",
            )

    def lose(self, error: Fenced, *, cancel: bool) -> None:
        """Take note that the agent is no longer held; cancel its block."""
        if self._error is None:
            self._error = error
            self._leases.drop(self)
        if cancel:
            self._guard.trip()

    def begin(self, step: Step) -> None:
        """Let a step in; at most one is open at a time."""
        self.check_held()
        if self._open_step is not None:
            raise Invalid(
                f"agent {self.agent_id} has a step open already; steps of one agent "
                "follow each other",
                reason="STEP_OPEN",
            )
        if self._unsettled is not None:
            raise Invalid(
                f"whether step {self._unsettled.number} of agent {self.agent_id} was "
                "committed is unknown; call `await agent.settle()` first",
                reason="STEP_UNSETTLED",
            )
        self._open_step = step

    def finish(self, step: Step) -> None:
        """Let the next step in."""
        if self._open_step is step:
            self._open_step = None

    def leave_unsettled(self, step: Step | None) -> None:
        """Keep a step whose outcome is unknown; None: it is known."""
        self._unsettled = step

    def take_appended(self, seqs: list[int]) -> None:
        """Count own messages as read where they follow on what was read."""
        for seq in sorted(seqs):
            if seq == self.read_seq:
                self.read_seq += 1

    def take_step(self, number: int) -> None:
        """Take note of an acknowledged step."""
        self._last.step = max(self._last.step, number)

    def take_checkpoint(self, state: Any, schema_version: int, raw_bytes: int) -> None:
        """Take note of an acknowledged checkpoint."""
        self._last.state = state
        self._last.stored = True
        self._last.schema_version = schema_version
        self._last.raw_bytes = raw_bytes
        self.rebuilt = False

    @property
    def state_hint_bytes(self) -> int:
        """Size of the newest state, an expectation of the next one's."""
        return self._last.raw_bytes

    def _wrote(self, message: StoredMessage) -> bool:
        return wrote(self.agent_id, self.last_step, message)


def wrote(agent_id: str, step: int, message: StoredMessage) -> bool:
    """Return whether the agent wrote a message at or before a step."""
    return message.agent_id == agent_id and message.step <= step


def copy_of(error: Fenced) -> Fenced:
    """Return the same error afresh: one exception object is raised once."""
    return Fenced(
        error.message, code=error.code, reason=error.reason, metadata=error.metadata
    )
