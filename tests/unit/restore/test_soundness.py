"""Which stored chains are whole."""

import pytest

import perdure_codec
from perdure_server.restore.soundness import find_fault

FRAME = perdure_codec.encode({"n": 1})


def test_a_keyframe_alone_is_whole() -> None:
    assert find_fault([FRAME]) is None


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        ([], "the keyframe is missing"),
        ([None], "a frame is missing"),
        ([FRAME, FRAME], "the chain does not begin with its keyframe"),
        ([FRAME[:-1]], "a frame is not whole (TRUNCATED)"),
        ([FRAME + b"x"], "a frame is not whole (TRAILING_BYTES)"),
        ([FRAME[:-1] + b"\xff"], "a frame is not whole (DIGEST_MISMATCH)"),
    ],
)
def test_whatever_is_not_whole_is_named(frames: list[bytes | None], fault: str) -> None:
    assert find_fault(frames) == fault
