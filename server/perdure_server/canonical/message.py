"""One message from its writer: read, checked, and made canonical."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from perdure.v1 import message_pb2 as pb
from perdure_server.canonical.blocks import check_blocks
from perdure_server.canonical.field import (
    MAX_METADATA_BYTES,
    check_count,
    check_enum,
    check_identifier,
    check_json_text,
    check_name,
    check_size,
    check_time,
    is_name,
)
from perdure_server.canonical.wire_fault import find_wire_fault
from perdure_server.errors import ValueNotStorable
from perdure_server.formats.derived import Derived
from perdure_server.formats.registry import find_format

MAX_MESSAGE_BYTES: Final = 3 * 1024 * 1024
"""Serialized message, native payload included."""

MAX_BLOCKS: Final = 10_000
"""Blocks of one message at its top."""

_NAMES: Final = ("author", "run_id", "group_id", "stop_reason", "model", "provider")
_COUNTS: Final = (
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
)
_ROLES: Final = {number: name for name, number in pb.Role.items()}
_STATUSES: Final = {number: name for name, number in pb.MessageStatus.items()}


def read_message(body: bytes, path: str) -> pb.Message:
    """Return the message of these bytes, checked.

    Args:
        body: A serialized Message as its writer sent it.
        path: Path of the message in its request, such as `messages[2]`.

    Raises:
        ValueNotStorable: Not a Message, or a value that cannot be kept; with the
            path of the fault.
        LimitExceeded: Something is longer than its limit.
    """
    check_size(len(body), MAX_MESSAGE_BYTES, path)
    try:
        message = pb.Message.FromString(body)
    except DecodeError as exc:
        what, where = find_wire_fault(body, pb.Message.DESCRIPTOR, path)
        raise ValueNotStorable(what, path=where) from exc
    _check_envelope(message, path)
    _check_said(message, path)
    return message


def canonicalize(message: pb.Message) -> pb.Message:
    """Return the message in blocks, without its native payload.

    What the writer stated stays. Role, author and blocks that it left out are
    derived from the native payload; the payload of an unknown format becomes one
    opaque block.

    Args:
        message: A message that `read_message` returned; it is not changed.
    """
    canonical = pb.Message()
    canonical.CopyFrom(message)
    if not message.HasField("native"):
        return canonical
    canonical.ClearField("native")
    derived = derive(message, opaque=True)
    canonical.role = derived.role
    canonical.author = derived.author
    canonical.ClearField("blocks")
    canonical.blocks.extend(derived.blocks)
    return canonical


def derive(message: pb.Message, *, opaque: bool) -> Derived:
    """Return role, author and blocks of a message that `read_message` returned.

    A native name that no author can hold stays in the native payload alone.

    Args:
        message: The message.
        opaque: Keep parts of the native payload that no other block can hold.
    """
    blocks = tuple(message.blocks)
    native = message.native
    known = find_format(native.format) if native.format else None
    if known is None:
        if opaque and native.format and not blocks:
            kept = pb.OpaqueBlock(format=native.format, payload=native.payload)
            blocks = (pb.Block(opaque=kept),)
        return Derived(message.role, message.author, blocks)
    derived = known.derive(native.payload, opaque=opaque)
    return Derived(
        message.role or derived.role,
        message.author or (derived.author if is_name(derived.author) else ""),
        blocks or derived.blocks,
    )


def _check_envelope(message: pb.Message, path: str) -> None:
    check_identifier(message.message_id, f"{path}.message_id")
    for name in _NAMES:
        check_name(getattr(message, name), f"{path}.{name}")
    check_enum(message.status, _STATUSES, f"{path}.status")
    if message.HasField("usage"):
        for name in _COUNTS:
            check_count(getattr(message.usage, name), f"{path}.usage.{name}")
    if message.HasField("create_time"):
        check_time(message.create_time, f"{path}.create_time")
    check_json_text(message.metadata_json, f"{path}.metadata_json", MAX_METADATA_BYTES)


def _check_said(message: pb.Message, path: str) -> None:
    """Check who speaks and what is said: role, blocks and native payload."""
    check_enum(message.role, _ROLES, f"{path}.role")
    check_size(len(message.blocks), MAX_BLOCKS, f"{path}.blocks")
    check_blocks(message.blocks, f"{path}.blocks")
    role = message.role
    if message.HasField("native"):
        role = _check_native(message.native, f"{path}.native") or role
    if role == pb.ROLE_UNSPECIFIED:
        raise ValueNotStorable("a role is missing", path=f"{path}.role")
    if message.role not in (pb.ROLE_UNSPECIFIED, role):
        raise ValueNotStorable(
            "the role is not that of the native payload", path=f"{path}.role"
        )


def _check_native(native: pb.NativePayload, path: str) -> pb.Role.ValueType:
    """Return the role of a native payload, unspecified for an unknown format."""
    check_identifier(native.format, f"{path}.format")
    check_name(native.version, f"{path}.version")
    known = find_format(native.format)
    if known is None:
        return pb.ROLE_UNSPECIFIED
    return known.check(native.payload, f"{path}.payload")
