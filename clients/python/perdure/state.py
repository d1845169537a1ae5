"""States as frames, encoded and decoded off the event loop when they are large."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import perdure_codec
from perdure.errors import DataLoss, Invalid
from perdure_codec.errors import DecodeError, EncodeError

MAX_FRAME_BYTES: Final = 3 * 1024 * 1024
"""Largest frame that travels inline."""

THREAD_BYTES: Final = 32 * 1024
"""Raw bytes from which a state is worth a thread: below, a switch costs more."""


async def encode_state(state: Any, *, schema_version: int, hint_bytes: int) -> bytes:
    """Return the frame of a state.

    Args:
        state: What `perdure_codec` keeps exactly.
        schema_version: The application's version of the state's shape.
        hint_bytes: Size of the state before; decides on the thread.

    Raises:
        Invalid: A value cannot be kept exactly (`path` says which), or the frame is
            above MAX_FRAME_BYTES.
    """
    try:
        if hint_bytes < THREAD_BYTES:
            frame = perdure_codec.encode(state, schema_version=schema_version)
        else:
            frame = await asyncio.to_thread(
                perdure_codec.encode, state, schema_version=schema_version
            )
    except EncodeError as error:
        raise Invalid(
            error.reason, reason="VALUE_NOT_STORABLE", metadata={"path": error.path}
        ) from error
    if len(frame) > MAX_FRAME_BYTES:
        raise Invalid(
            f"the state's frame has {len(frame)} bytes; the limit is "
            f"{MAX_FRAME_BYTES}: keep large values outside of the state",
            reason="LIMIT_EXCEEDED",
            metadata={
                "path": "state",
                "limit": str(MAX_FRAME_BYTES),
                "actual": str(len(frame)),
            },
        )
    return frame


async def decode_state(agent_id: str, frames: list[bytes], raw_bytes: int) -> Any:
    """Return the state of a chain of frames.

    Raises:
        DataLoss: The frames are not what was written.
    """
    if raw_bytes < THREAD_BYTES:
        return decode_frames(agent_id, frames)
    return await asyncio.to_thread(decode_frames, agent_id, frames)


def decode_frames(agent_id: str, frames: list[bytes]) -> Any:
    """Return the state of a chain of frames; blocks while it decodes.

    Raises:
        DataLoss: The frames are not what was written.
    """
    if len(frames) != 1:
        raise _corrupt(agent_id, f"{len(frames)} frames where one keyframe is due")
    try:
        return perdure_codec.decode(frames[0])
    except DecodeError as error:
        raise _corrupt(agent_id, error.code, code=error.code) from error


def _corrupt(agent_id: str, why: str, **metadata: str) -> DataLoss:
    return DataLoss(
        f"the state of agent {agent_id} cannot be read ({why}); restore an earlier "
        "step, or rebuild the agent from its messages",
        reason="FRAME_CORRUPT",
        metadata={"agent_id": agent_id, **metadata},
    )
