"""Content of a Chat Completions message as blocks.

null is no block, "" one empty text block, [] one opaque block: three different
things stay different.
"""

import base64
import binascii
from typing import Final

from perdure.v1 import message_pb2 as pb
from perdure_server.formats.json_reader import JsonReader, JsonValue

_AUDIO_TYPES: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}


class OpaqueParts:
    """Makes opaque blocks that hold a part in its own words.

    Args:
        format_name: Format that the parts come from.
        payload: The whole payload, UTF-8 and checked.
    """

    def __init__(self, format_name: str, payload: bytes) -> None:
        self._format = format_name
        self._text = payload.decode()
        self._spans: dict[tuple[str | int, ...], tuple[int, int]] | None = None

    def block(self, place: tuple[str | int, ...], kind: str) -> pb.Block:
        """Return the part at a place, byte for byte, as an opaque block."""
        if self._spans is None:
            reader = JsonReader(self._text)
            reader.read()
            self._spans = reader.spans
        start, end = self._spans[place]
        part = self._text[start:end].encode()
        opaque = pb.OpaqueBlock(format=self._format, type=kind, payload=part)
        return pb.Block(opaque=opaque)


def content_blocks(
    content: JsonValue, kept: OpaqueParts | None, role: str
) -> list[pb.Block]:
    """Return the blocks of a checked `content` member.

    Args:
        content: null, text or a list of parts.
        kept: Makes blocks of unknown parts; None leaves them out.
        role: The role in the format's word; a developer's text is an instruction.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [_text_block(content, role)]
    assert isinstance(content, list)
    if not content:
        return [kept.block(("content",), "content")] if kept else []
    blocks = []
    for index, part in enumerate(content):
        assert isinstance(part, dict)
        block = _part_block(part, role)
        if block is not None:
            blocks.append(block)
        elif kept is not None:
            blocks.append(kept.block(("content", index), str(part["type"])))
    return blocks


def _text_block(text: str, role: str) -> pb.Block:
    if role == "developer":
        return pb.Block(instruction=pb.InstructionBlock(text=text, origin=role))
    return pb.Block(text=pb.TextBlock(text=text))


def _part_block(part: dict[str, JsonValue], role: str) -> pb.Block | None:
    """Return the block of a part, None when only an opaque block can hold it."""
    kind = part["type"]
    if kind == "text":
        return _text_block(str(part["text"]), role)
    if kind == "refusal":
        return pb.Block(refusal=pb.RefusalBlock(text=str(part["refusal"])))
    held = part.get(str(kind))
    if not isinstance(held, dict):
        return None
    media: pb.MediaBlock | None = None
    if kind == "image_url":
        media = _image(held)
    elif kind == "input_audio":
        media = _audio(held)
    elif kind == "file":
        media = _file(held)
    return pb.Block(media=media) if media is not None else None


def _image(held: dict[str, JsonValue]) -> pb.MediaBlock | None:
    url, detail = held.get("url"), held.get("detail")
    if not isinstance(url, str):
        return None
    return pb.MediaBlock(
        media_kind=pb.MEDIA_KIND_IMAGE,
        detail=detail if isinstance(detail, str) else "",
        url=url,
    )


def _audio(held: dict[str, JsonValue]) -> pb.MediaBlock | None:
    data = _decoded(held.get("data"))
    if data is None:
        return None
    return pb.MediaBlock(
        media_kind=pb.MEDIA_KIND_AUDIO,
        media_type=_AUDIO_TYPES.get(str(held.get("format")), ""),
        inline=data,
    )


def _file(held: dict[str, JsonValue]) -> pb.MediaBlock | None:
    name, file_id, data = (held.get(m) for m in ("filename", "file_id", "file_data"))
    media = pb.MediaBlock(
        media_kind=pb.MEDIA_KIND_FILE, filename=name if isinstance(name, str) else ""
    )
    if isinstance(file_id, str):
        media.provider_file_id = file_id
    elif isinstance(data, str) and data.startswith("data:"):
        media.url = data
    elif (inline := _decoded(data)) is not None:
        media.inline = inline
    else:
        return None
    return media


def _decoded(data: JsonValue) -> bytes | None:
    if not isinstance(data, str):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
