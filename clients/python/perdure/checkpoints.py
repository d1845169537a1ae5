"""Checkpoints outside of an agent's steps: `client.checkpoints`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Unpack

from perdure.channel import Channel
from perdure.pages import iterate_pages
from perdure.selector import Selection, make_selector
from perdure.state import THREAD_BYTES, decode_state, encode_state
from perdure.v1 import checkpoint_pb2, checkpoint_service_pb2
from perdure.v1.agent_pb2 import Fence
from perdure.v1.checkpoint_pb2 import Checkpoint, CheckpointReceipt, CheckpointWrite
from perdure.v1.checkpoint_service_pb2 import (
    GetCheckpointRequest,
    ListCheckpointsRequest,
    PruneCheckpointsRequest,
    PruneCheckpointsResponse,
    PutCheckpointRequest,
    RetentionPolicy,
)

PRUNE_TIMEOUT_S: Final = 300.0
"""A prune of a whole tenant works in short transactions and may take this long."""


@dataclass(frozen=True)
class StoredState:
    """A checkpoint with its state."""

    checkpoint: Checkpoint
    """What is known of it."""
    state: Any
    """The state."""


class Checkpoints:
    """The states of agents, step by step."""

    def __init__(self, channel: Channel) -> None:
        """Use a client's connections."""
        self._channel = channel

    async def put(
        self,
        agent_id: str,
        state: Any,
        *,
        step: int,
        read_seq: int = 0,
        branch: str = "",
        schema_version: int = 0,
        run_id: str = "",
        metadata_json: str = "",
        fence: Fence | None = None,
    ) -> CheckpointReceipt:
        """Store the state after a step; the same again is answered as before.

        Args:
            agent_id: The agent.
            state: What `perdure_codec` keeps exactly.
            step: Greater than the branch's newest step.
            read_seq: How many messages of the conversation the agent had read.
            branch: Its branch. Empty: `main`.
            schema_version: The application's version of the state's shape.
            run_id: Run in which it is written.
            metadata_json: JSON text of the writer's own.
            fence: Fence of the agent. Absent: only if it was never acquired.

        Raises:
            Fenced: The agent belongs to somebody else.
            Refused: FENCE_REQUIRED or STEP_BEHIND.
            Invalid: The state is not storable, or the step holds another (ID_REUSED).
        """
        frame = await encode_state(
            state, schema_version=schema_version, hint_bytes=THREAD_BYTES
        )
        response = await self._channel.call(
            lambda stubs: stubs.checkpoints.PutCheckpoint,
            PutCheckpointRequest(
                checkpoint=CheckpointWrite(
                    agent_id=agent_id,
                    branch=branch,
                    step=step,
                    frame=frame,
                    read_seq=read_seq,
                    run_id=run_id,
                    metadata_json=metadata_json,
                ),
                fence=fence,
            ),
        )
        return response.receipt

    async def get(
        self, agent_id: str, *, step: int = 0, branch: str = ""
    ) -> StoredState:
        """Return a step with its state.

        Args:
            agent_id: The agent.
            step: The step; 0: the newest.
            branch: Its branch. Empty: the canonical one.

        Raises:
            NotFound: There is no such step, agent, or it was deleted.
            Refused: PRUNED: the step was there and was dropped.
            DataLoss: The stored frame is not what was written.
        """
        response = await self._channel.call(
            lambda stubs: stubs.checkpoints.GetCheckpoint,
            GetCheckpointRequest(
                agent_id=agent_id,
                branch=branch,
                step=step,
                encoding=checkpoint_pb2.STATE_ENCODING_FRAMES,
            ),
        )
        state = await decode_state(
            agent_id,
            list(response.state.frames.frames),
            response.checkpoint.raw_bytes,
        )
        return StoredState(response.checkpoint, state)

    def list(
        self, agent_id: str, *, branch: str = "", page_size: int = 0
    ) -> AsyncIterator[Checkpoint]:
        """Yield the steps of a branch without their states, newest first."""
        return iterate_pages(
            lambda token: self._channel.call(
                lambda stubs: stubs.checkpoints.ListCheckpoints,
                ListCheckpointsRequest(
                    agent_id=agent_id,
                    branch=branch,
                    page_size=page_size,
                    page_token=token,
                ),
            ),
            lambda page: page.checkpoints,
        )

    async def prune(
        self,
        *,
        keep_steps: int | None = None,
        keep_age: timedelta | None = None,
        max_age: timedelta | None = None,
        drop_all: bool = False,
        dry_run: bool = False,
        **selection: Unpack[Selection],
    ) -> PruneCheckpointsResponse:
        """Remove old steps, never a head; or everything with `drop_all`.

        Without a policy of its own the tenant's is used. It may be repeated.

        Args:
            keep_steps: Newest steps of each branch that stay whatever their age.
            keep_age: Steps younger than this stay.
            max_age: Steps older than this go even within `keep_steps`.
            drop_all: Every checkpoint, heads too; the agents come back from their
                messages.
            dry_run: Only count.
            **selection: Which agents; `all=True` for every one.

        Raises:
            Invalid: SELECTOR_EMPTY, or a policy that cannot be.
        """
        request = PruneCheckpointsRequest(
            selector=make_selector(selection), dry_run=dry_run
        )
        if drop_all:
            request.drop_all = True
        elif (keep_steps, keep_age, max_age) != (None, None, None):
            request.policy.CopyFrom(_policy(keep_steps, keep_age, max_age))
        return await self._channel.call(
            lambda stubs: stubs.checkpoints.PruneCheckpoints,
            request,
            timeout_s=max(PRUNE_TIMEOUT_S, self._channel.timeout_s),
        )


def _policy(
    keep_steps: int | None, keep_age: timedelta | None, max_age: timedelta | None
) -> RetentionPolicy:
    policy = checkpoint_service_pb2.RetentionPolicy(keep_steps=keep_steps or 1)
    policy.keep_age.FromTimedelta(keep_age or timedelta())
    policy.max_age.FromTimedelta(max_age or timedelta(days=36_500))
    return policy
