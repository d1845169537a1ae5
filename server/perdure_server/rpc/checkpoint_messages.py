"""Checkpoints and states on the wire."""

import asyncio
from collections.abc import Sequence

import perdure_codec
from perdure.v1 import checkpoint_pb2 as pb
from perdure_server.errors import FrameInvalid, LimitExceeded, ValueNotStorable
from perdure_server.rpc.checks import (
    MAX_COUNT,
    check_count,
    check_id,
    check_json,
    check_text,
)
from perdure_server.rpc.timestamps import to_timestamp
from perdure_server.store.checkpoints import Checkpoint, NewCheckpoint, Receipt

MAX_INLINE_FRAME_BYTES = 3 * 1024 * 1024
MAX_SCHEMA_VERSION = 2**32 - 1
DEFAULT_BRANCH = "main"


async def read_checkpoint(message: pb.CheckpointWrite, path: str) -> NewCheckpoint:
    """Return a checked checkpoint; JSON and MessagePack become a frame.

    Raises:
        FrameInvalid: The frame is not whole; `code` is that of codec/SPEC.md.
        ValueNotStorable: A value cannot be kept; `path` says which.
        LimitExceeded: The frame is too large to travel inline.
    """
    branch = message.branch or DEFAULT_BRANCH
    check_id(message.agent_id, f"{path}.agent_id")
    check_id(branch, f"{path}.branch")
    check_count(message.step, f"{path}.step", minimum=1)
    frame = await _frame_of(message, path)
    header = read_frame_header(frame, f"{path}.frame")
    return NewCheckpoint(
        agent_id=message.agent_id,
        branch=branch,
        step=message.step,
        frame=frame,
        raw_digest=header.raw_digest,
        raw_bytes=header.raw_bytes,
        base_digest=None,
        schema_version=header.schema_version,
        read_seq=check_count(message.read_seq, f"{path}.read_seq"),
        run_id=check_text(message.run_id, f"{path}.run_id"),
        metadata=check_json(message.metadata_json, f"{path}.metadata_json"),
    )


def read_frame_header(frame: bytes, path: str) -> perdure_codec.FrameHeader:
    """Return the header of a frame that may be stored.

    Raises:
        FrameInvalid: Truncated, extended, altered, unknown, or a delta.
        LimitExceeded: Larger than 3 MiB.
    """
    if len(frame) > MAX_INLINE_FRAME_BYTES:
        raise LimitExceeded(
            f"the frame is larger than {MAX_INLINE_FRAME_BYTES} bytes",
            path=path,
            limit=MAX_INLINE_FRAME_BYTES,
            actual=len(frame),
        )
    try:
        header = perdure_codec.read_header(frame)
    except perdure_codec.FrameError as exc:
        raise FrameInvalid("the frame is not whole", path=path, code=exc.code) from exc
    if header.kind != "keyframe":
        raise FrameInvalid(
            "deltas are not served yet; send a keyframe",
            path=path,
            code="DELTA_NOT_SERVED",
        )
    return header


async def state_message(
    frames: Sequence[bytes], encoding: pb.StateEncoding.ValueType
) -> pb.State:
    """Return a state in the encoding that was asked for.

    Raises:
        ValueNotStorable: JSON cannot say it; `path` is that of the value.
        perdure_codec.CodecError: The frame does not open.
    """
    if encoding in (
        pb.STATE_ENCODING_UNSPECIFIED,
        pb.STATE_ENCODING_FRAMES,
    ):
        return pb.State(frames=pb.FrameChain(frames=frames))
    raw = await asyncio.to_thread(perdure_codec.open_frame, frames[-1])
    if encoding == pb.STATE_ENCODING_MSGPACK:
        _check_returnable(len(raw))
        return pb.State(msgpack=raw)
    if encoding != pb.STATE_ENCODING_JSON:
        raise ValueNotStorable("an unknown encoding", path="encoding")
    try:
        text = await asyncio.to_thread(perdure_codec.to_json, raw)
        _check_returnable(len(text.encode()))
        return pb.State(json=text)
    except perdure_codec.NotJson as exc:
        raise ValueNotStorable(
            "JSON cannot say this value; ask for frames or MessagePack", path=exc.path
        ) from exc


def receipt_message(receipt: Receipt) -> pb.CheckpointReceipt:
    """Return a receipt as a message."""
    return pb.CheckpointReceipt(
        agent_id=receipt.agent_id,
        branch=receipt.branch,
        step=receipt.step,
        digest=receipt.digest,
        replayed=receipt.replayed,
        create_time=to_timestamp(receipt.create_time),
    )


def checkpoint_message(found: Checkpoint) -> pb.Checkpoint:
    """Return a checkpoint as a message."""
    return pb.Checkpoint(
        agent_id=found.agent_id,
        branch=found.branch,
        step=found.step,
        parent_step=found.parent_step,
        base_step=found.base_step or 0,
        keyframe_step=found.keyframe_step,
        read_seq=found.read_seq,
        schema_version=found.schema_version,
        digest=found.raw_digest,
        raw_bytes=found.raw_bytes,
        frame_bytes=found.frame_bytes,
        run_id=found.run_id,
        epoch=found.epoch,
        metadata_json=found.metadata,
        create_time=to_timestamp(found.create_time),
    )


def _check_returnable(size_bytes: int) -> None:
    if size_bytes > MAX_INLINE_FRAME_BYTES:
        raise LimitExceeded(
            "the state is too large in this encoding; ask for frames",
            path="encoding",
            limit=MAX_INLINE_FRAME_BYTES,
            actual=size_bytes,
        )


async def _frame_of(message: pb.CheckpointWrite, path: str) -> bytes:
    kind = message.WhichOneof("state")
    if kind == "frame":
        return message.frame
    if kind is None:
        raise ValueNotStorable("a state is missing", path=f"{path}.state")
    schema_version = message.schema_version
    if not 0 <= schema_version <= min(MAX_SCHEMA_VERSION, MAX_COUNT):
        raise ValueNotStorable(
            "not between 0 and 2^32-1", path=f"{path}.schema_version"
        )
    return await asyncio.to_thread(_encode, message, path)


def _encode(message: pb.CheckpointWrite, path: str) -> bytes:
    kind = message.WhichOneof("state")
    try:
        if kind == "json":
            raw = perdure_codec.from_json(message.json)
        else:
            raw = bytes(message.msgpack)
            perdure_codec.unpack(raw)
    except perdure_codec.CodecError as exc:
        raise ValueNotStorable(
            "the state cannot be kept",
            path=f"{path}.{kind}{getattr(exc, 'path', '') or ''}",
            code=getattr(exc, "code", None),
        ) from exc
    return perdure_codec.seal(raw, schema_version=message.schema_version)
