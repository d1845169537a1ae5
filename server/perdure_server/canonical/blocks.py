"""Checks of blocks that a writer states itself."""

from collections.abc import Iterable

from perdure.v1 import message_pb2 as pb
from perdure_server.canonical.field import check_count, check_enum, check_json_text
from perdure_server.errors import ValueNotStorable

_MEDIA_KINDS = {number: name for name, number in pb.MediaKind.items()}
_RESULT_STATUSES = {number: name for name, number in pb.ToolResultStatus.items()}


def check_blocks(blocks: Iterable[pb.Block], path: str) -> None:
    """Refuse blocks without a known kind, or with a field out of its range.

    Nesting is bounded by the parser: blocks that were parsed are never deep.
    """
    for index, block in enumerate(blocks):
        kind = block.WhichOneof("kind")
        here = f"{path}[{index}]"
        if kind is None:
            raise ValueNotStorable("the block has no known kind", path=here)
        _check_block(block, kind, f"{here}.{kind}")


def _check_block(block: pb.Block, kind: str, path: str) -> None:
    if kind == "text":
        for index, citation in enumerate(block.text.citations):
            here = f"{path}.citations[{index}]"
            _check_range(citation.start_index, citation.end_index, here, "index")
    elif kind == "media":
        check_enum(block.media.media_kind, _MEDIA_KINDS, f"{path}.media_kind")
        if block.media.WhichOneof("location") is None:
            raise ValueNotStorable("the media has no location", path=path)
    elif kind == "tool_result":
        result = block.tool_result
        check_enum(result.status, _RESULT_STATUSES, f"{path}.status")
        check_blocks(result.content, f"{path}.content")
    elif kind == "compaction":
        covered = block.compaction
        _check_range(covered.from_seq, covered.to_seq, path, "seq")
    elif kind == "control":
        check_json_text(block.control.payload_json, f"{path}.payload_json")
    elif kind == "data":
        check_json_text(block.data.payload_json, f"{path}.payload_json")


def _check_range(start: int, end: int, path: str, unit: str) -> None:
    first, last = ("start", "end") if unit == "index" else ("from", "to")
    check_count(start, f"{path}.{first}_{unit}")
    if end < start:
        raise ValueNotStorable(
            "the range ends before it starts", path=f"{path}.{last}_{unit}"
        )
