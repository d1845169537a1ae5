"""Messages on their way in and out: native payloads, ids, stored messages."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from perdure.errors import Invalid
from perdure.payload import dump_json
from perdure.v1 import message_pb2
from perdure.v1.message_pb2 import Message

CHAT_COMPLETIONS: Final = "openai.chat_completions"
"""The default format of native payloads."""

MAX_MESSAGE_BYTES: Final = 3 * 1024 * 1024
MAX_BATCH_MESSAGES: Final = 1_000

Payload = Mapping[str, Any] | str | bytes
"""A provider's object as a dict, or its serialization, which is kept as given."""


def new_message_id() -> str:
    """Return a fresh id: a UUID of version 7, so that ids sort by time made."""
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def native_message(
    payload: Payload,
    *,
    message_id: str | None = None,
    format: str = CHAT_COMPLETIONS,
    version: str = "",
    author: str = "",
    run_id: str = "",
    group_id: str = "",
    model: str = "",
    provider: str = "",
    create_time: datetime | None = None,
    metadata_json: str = "",
) -> Message:
    """Build a message around a provider's object.

    Args:
        payload: A dict is written as JSON; text and bytes are kept as given.
        message_id: The idempotency key. Absent: a new one.
        format: Name of the payload's format.
        version: Version of the format, in its owner's notation.
        author: Speaker among several with one role.
        run_id: Run during which it was made.
        group_id: Groups the messages of one turn.
        model: Model that wrote it.
        provider: Provider that served the model.
        create_time: Time at its source; must have a zone. Never decides order.
        metadata_json: JSON text of the writer's own.

    Raises:
        Invalid: The payload is not JSON, or the time has no zone; `path` says where.
    """
    if isinstance(payload, Mapping):
        payload = dump_json(payload, "payload")
    elif isinstance(payload, str):
        payload = _encode_text(payload, "payload")
    elif not isinstance(payload, bytes):
        kind = type(payload).__name__
        raise _not_storable(
            "payload", f"a {kind} is no payload; pass a dict, its JSON text or bytes"
        )
    message = Message(
        message_id=message_id if message_id is not None else new_message_id(),
        native=message_pb2.NativePayload(
            format=format, version=version, payload=payload
        ),
        author=author,
        run_id=run_id,
        group_id=group_id,
        model=model,
        provider=provider,
        metadata_json=metadata_json,
    )
    if create_time is not None:
        if create_time.utcoffset() is None:
            raise _not_storable("create_time", "a time without a zone")
        message.create_time.FromDatetime(create_time)
    return message


def serialize(message: Payload | Message, message_id: str | None = None) -> bytes:
    """Return the bytes of a message, ready to append."""
    if not isinstance(message, Message):
        message = native_message(message, message_id=message_id)
    body = message.SerializeToString()
    if len(body) > MAX_MESSAGE_BYTES:
        raise Invalid(
            f"a message of {len(body)} bytes; the limit is {MAX_MESSAGE_BYTES}",
            reason="LIMIT_EXCEEDED",
            metadata={"limit": str(MAX_MESSAGE_BYTES), "actual": str(len(body))},
        )
    return body


def serialize_all(
    messages: Sequence[Payload | Message], message_ids: Sequence[str] | None = None
) -> list[bytes]:
    """Return the bytes of a batch; an Invalid names the message in its path."""
    if isinstance(messages, (Mapping, str, bytes)):
        raise _not_storable("messages", "one message; pass a list of messages")
    if message_ids is not None and len(message_ids) != len(messages):
        raise _not_storable("message_ids", "there must be one id for each message")
    bodies = []
    for index, message in enumerate(messages):
        chosen = message_ids[index] if message_ids is not None else None
        try:
            bodies.append(serialize(message, chosen))
        except Invalid as error:
            inner = f".{error.path}" if error.path else ""
            error.metadata["path"] = f"messages[{index}]{inner}"
            raise
    return bodies


@dataclass(frozen=True)
class StoredMessage:
    """A message as it stands in its conversation."""

    seq: int
    """Place in the conversation: dense, from 0."""
    message_id: str
    """The id that its writer gave it."""
    record_time: datetime
    """Time of the commit, by the database's clock."""
    agent_id: str
    """Agent that wrote it under a fence; empty: not an agent."""
    step: int
    """Step of that agent; 0: outside a step."""
    superseded_by: int | None
    """Seq of the message that replaced it; None: it is in force."""
    body: bytes
    """The bytes of the Message as its writer sent them; empty: not asked for."""
    canonical: Message | None
    """Role and blocks as the server derived them, when asked for."""

    @cached_property
    def message(self) -> Message:
        """The parsed Message."""
        return Message.FromString(self.body)

    @cached_property
    def payload(self) -> Any:
        """The native object: parsed JSON, or bytes when it is not JSON.

        None when the message has no native payload; read `message.blocks` then.
        """
        if not self.message.HasField("native"):
            return None
        try:
            return json.loads(self.message.native.payload)
        except ValueError:
            return self.message.native.payload

    @property
    def role(self) -> str:
        """Who speaks: user, assistant, tool, system, or what the payload says."""
        for message in (self.canonical, self.message):
            if message is not None and message.role:
                return message_pb2.Role.Name(message.role)[5:].lower()
        role = self.payload.get("role") if isinstance(self.payload, dict) else None
        return role if isinstance(role, str) else ""


def read_stored(stored: message_pb2.StoredMessage) -> StoredMessage:
    """Return a message of the wire."""
    return StoredMessage(
        seq=stored.seq,
        message_id=stored.message_id,
        record_time=stored.record_time.ToDatetime(UTC),
        agent_id=stored.agent_id,
        step=stored.step,
        superseded_by=(
            stored.superseded_by if stored.HasField("superseded_by") else None
        ),
        body=stored.message,
        canonical=stored.canonical if stored.HasField("canonical") else None,
    )


def _encode_text(text: str, path: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _not_storable(path, "text with a lone surrogate") from error


def _not_storable(path: str, why: str) -> Invalid:
    return Invalid(why, reason="VALUE_NOT_STORABLE", metadata={"path": path})
