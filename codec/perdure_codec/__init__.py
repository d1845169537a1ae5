"""States of agents as frames: exact, checked, bounded; SPEC.md is normative."""

from perdure_codec.backend import BACKEND, pack, unpack
from perdure_codec.errors import (
    CodecError,
    DecodeError,
    EncodeError,
    FrameError,
    NotJson,
)
from perdure_codec.frame import (
    FrameHeader,
    open_frame,
    raw_digest,
    read_header,
    seal,
)
from perdure_codec.json_text import from_json, to_json
from perdure_codec.state import decode, encode

__all__ = [
    "BACKEND",
    "CodecError",
    "DecodeError",
    "EncodeError",
    "FrameError",
    "FrameHeader",
    "NotJson",
    "decode",
    "encode",
    "from_json",
    "open_frame",
    "pack",
    "raw_digest",
    "read_header",
    "seal",
    "to_json",
    "unpack",
]
