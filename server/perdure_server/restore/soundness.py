"""Whether stored frames are still as they were written."""

from collections.abc import Sequence

import perdure_codec


def find_fault(frames: Sequence[bytes | None]) -> str | None:
    """Return what is wrong with a chain, None when its frames are whole.

    Lengths and digests of the frames are checked; nothing is unpacked. The state's
    own digest is checked by whoever opens it.
    """
    if not frames:
        return "the keyframe is missing"
    for place, frame in enumerate(frames):
        if frame is None:
            return "a frame is missing"
        try:
            header = perdure_codec.read_header(frame)
        except perdure_codec.FrameError as exc:
            return f"a frame is not whole ({exc.code})"
        if (header.kind == "keyframe") != (place == 0):
            return "the chain does not begin with its keyframe"
    return None
