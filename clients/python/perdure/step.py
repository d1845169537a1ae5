"""One step of an agent: gathered in memory, sent as one commit, retried as it was."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import perdure_codec
from perdure.channel import Channel
from perdure.errors import Fenced, Invalid, ServerFault, Unavailable
from perdure.messages import (
    CHAT_COMPLETIONS,
    MAX_BATCH_MESSAGES,
    Payload,
    native_message,
    serialize,
)
from perdure.state import encode_state
from perdure.v1.checkpoint_pb2 import CheckpointWrite
from perdure.v1.commit_service_pb2 import (
    AppendOperation,
    CommitRequest,
    CommitResponse,
    Operation,
)
from perdure.v1.message_pb2 import Message

if TYPE_CHECKING:
    from perdure.agent import Agent

MAX_COMMIT_BYTES: Final = 3_670_016
"""All operations of one commit: 3.5 MiB."""


@dataclass(frozen=True)
class Said:
    """A message that a step will append."""

    message_id: str
    """Its id, known before the commit."""


@dataclass(frozen=True)
class Appended:
    """A message that a step appended."""

    message_id: str
    """Its id."""
    seq: int
    """Its place in the conversation."""


@dataclass(frozen=True)
class StepResult:
    """What one acknowledged step wrote."""

    step: int
    """Its number."""
    messages: tuple[Appended, ...]
    """The messages in the order in which they were given."""
    message_count: int
    """Messages in the agent's conversation afterwards; 0: the step appended none."""
    digest: bytes
    """XXH3-128 of the agent's state; empty: the step had no checkpoint."""
    replayed: bool
    """All of it had been stored by an earlier attempt."""


@dataclass
class _Pending:
    agent: Agent
    state: Any
    schema_version: int
    metadata_json: str
    step: int = 0
    raw_bytes: int = 0


class Step:
    """What one step writes, together or not at all.

    Nothing is sent before the end of the block, and nothing at all when the block
    raises. The commit is sent again with the same ids until it is answered or the
    call's deadline is over.
    """

    def __init__(
        self, channel: Channel, agent: Agent, *, expected_seq: int | None
    ) -> None:
        """Prepare an empty step of an agent."""
        self.number = agent.last_step + 1
        self._result: StepResult | None = None
        self._channel = channel
        self._agent = agent
        self._expected_seq = expected_seq
        self._messages: list[bytes] = []
        self._pending: dict[str, _Pending] = {}
        self._request: CommitRequest | None = None
        self._open = False

    @property
    def result(self) -> StepResult:
        """What was written; Invalid before the step is acknowledged."""
        if self._result is None:
            raise Invalid("the step is not committed", reason="STEP_UNSETTLED")
        return self._result

    @property
    def committed(self) -> bool:
        """Whether the step was acknowledged."""
        return self._result is not None

    def append(
        self,
        message: Payload | Message,
        *,
        message_id: str | None = None,
        format: str = CHAT_COMPLETIONS,
        model: str = "",
        run_id: str = "",
    ) -> Said:
        """Append a message to the agent's conversation.

        Args:
            message: The provider's dict as it is; or its serialization; or a Message,
                whose own fields count.
            message_id: The idempotency key. Absent: a new one.
            format: Name of the payload's format.
            model: Model that wrote it.
            run_id: Run during which it was made.

        Raises:
            Invalid: It cannot be kept exactly; `path` says why.
        """
        self._check_open()
        if len(self._messages) == MAX_BATCH_MESSAGES:
            raise _over_limit("messages", MAX_BATCH_MESSAGES, MAX_BATCH_MESSAGES + 1)
        if not isinstance(message, Message):
            message = native_message(
                message,
                message_id=message_id,
                format=format,
                model=model,
                run_id=run_id,
            )
        self._messages.append(serialize(message))
        return Said(message.message_id)

    def checkpoint(
        self,
        state: Any,
        *,
        agent: Agent | None = None,
        schema_version: int = 0,
        metadata_json: str = "",
    ) -> None:
        """Store a state as it is at the end of the block.

        Args:
            state: What `perdure_codec` keeps exactly: None, bool, int, float, str,
                bytes, list, tuple, dict.
            agent: A sub-agent that was claimed together with this one. Absent: the
                agent itself.
            schema_version: The application's version of the state's shape.
            metadata_json: JSON text of the writer's own.
        """
        self._check_open()
        chosen = agent or self._agent
        if chosen.fence.claim_id != self._agent.fence.claim_id:
            raise Invalid(
                f"agent {chosen.agent_id} was not claimed together with "
                f"{self._agent.agent_id}; it takes steps of its own",
                reason="VALUE_NOT_STORABLE",
                metadata={"path": "agent"},
            )
        pending = _Pending(chosen, state, schema_version, metadata_json)
        self._pending[chosen.agent_id] = pending

    async def __aenter__(self) -> Self:
        """Open the step; Invalid when another one of the agent is open."""
        if self._request is not None or self._open:
            raise Invalid("a step is used once; open a new one", reason="STEP_OPEN")
        self._agent.begin(self)
        self.number = self._agent.last_step + 1
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; or drop everything when the block raised."""
        self._open = False
        try:
            if error is None and (self._messages or self._pending):
                self._request = await self._build()
                await self.send()
        finally:
            self._agent.finish(self)

    async def send(self) -> StepResult:
        """Send the commit as it was built; again after an unknown outcome."""
        assert self._request is not None
        self._agent.check_held()
        # Cancelled or unanswered: the server may have carried it out.
        self._agent.leave_unsettled(self)
        try:
            response = await self._channel.call(
                lambda stubs: stubs.commits.Commit, self._request
            )
        except (Unavailable, ServerFault, asyncio.CancelledError):
            raise
        except Fenced as error:
            self._agent.leave_unsettled(None)
            self._agent.lose(error, cancel=True)
            raise
        except BaseException:
            self._agent.leave_unsettled(None)
            raise
        self._agent.leave_unsettled(None)
        self._result = self._take(response)
        return self._result

    async def _build(self) -> CommitRequest:
        operations = []
        if self._messages:
            append = AppendOperation(
                messages=self._messages, expected_seq=self._expected_seq
            )
            operations.append(Operation(append=append))
        elif self._expected_seq is not None:
            raise Invalid(
                "expected_seq needs a message in the step",
                reason="VALUE_NOT_STORABLE",
                metadata={"path": "expected_seq"},
            )
        for pending in self._pending.values():
            operations.append(Operation(put_checkpoint=await _write_of(pending)))
        size = sum(operation.ByteSize() for operation in operations)
        if size > MAX_COMMIT_BYTES:
            raise _over_limit("operations", MAX_COMMIT_BYTES, size)
        return CommitRequest(
            fence=self._agent.fence, operations=operations, step=self.number
        )

    def _take(self, response: CommitResponse) -> StepResult:
        agent = self._agent
        appended: list[Appended] = []
        digest, count, replayed = b"", 0, True
        for result in response.results:
            for message in result.append.messages:
                appended.append(Appended(message.message_id, message.seq))
                replayed = replayed and message.replayed
            count = max(count, result.append.message_count)
            if result.HasField("put_checkpoint"):
                replayed = replayed and result.put_checkpoint.replayed
                if result.put_checkpoint.agent_id == agent.agent_id:
                    digest = result.put_checkpoint.digest
        agent.take_appended([message.seq for message in appended])
        agent.take_step(self.number)
        for pending in self._pending.values():
            if pending.agent is not agent:
                pending.agent.take_step(pending.step)
            pending.agent.take_checkpoint(
                pending.state, pending.schema_version, pending.raw_bytes
            )
        return StepResult(self.number, tuple(appended), count, digest, replayed)

    def _check_open(self) -> None:
        if not self._open:
            raise Invalid(
                "the step is not open; write within `async with agent.step() as step`",
                reason="STEP_OPEN",
            )


async def _write_of(pending: _Pending) -> CheckpointWrite:
    agent = pending.agent
    frame = await encode_state(
        pending.state,
        schema_version=pending.schema_version,
        hint_bytes=agent.state_hint_bytes,
    )
    pending.raw_bytes = perdure_codec.read_header(frame).raw_bytes
    pending.step = agent.last_step + 1
    return CheckpointWrite(
        agent_id=agent.agent_id,
        step=pending.step,
        frame=frame,
        read_seq=agent.read_seq,
        metadata_json=pending.metadata_json,
    )


def _over_limit(path: str, limit: int, actual: int) -> Invalid:
    return Invalid(
        f"one step has {actual} in its {path}; the limit is {limit}: use more steps",
        reason="LIMIT_EXCEEDED",
        metadata={"path": path, "limit": str(limit), "actual": str(actual)},
    )
