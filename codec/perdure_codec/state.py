"""A state to a keyframe frame and back, in one call each."""

from __future__ import annotations

from perdure_codec.backend import pack, unpack
from perdure_codec.frame import Buffer, open_frame, seal


def encode(
    state: object, *, schema_version: int = 0, compress: bool = True, level: int = 1
) -> bytes:
    """Turn a state into a keyframe frame; see `pack` and `seal`.

    Raises:
        EncodeError: With the path of what cannot be kept.
        ValueError: An argument is out of range.
    """
    return seal(
        pack(state), schema_version=schema_version, compress=compress, level=level
    )


def decode(frame: Buffer) -> object:
    """Return the state of a keyframe, everything checked; see `open_frame`.

    Raises:
        FrameError: The frame is refused.
        DecodeError: The frame is whole, but its raw bytes are no state.
    """
    return unpack(open_frame(frame))
