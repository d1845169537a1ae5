"""Messages of the wire as plain values: what `--json` prints and tables show."""

from __future__ import annotations

import base64
import math
import re
from datetime import UTC, datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

Record = dict[str, Any]


def record_of(message: Message) -> Record:
    """Return every field by its name in the proto; absent messages are None.

    Integers stay integers, times are ISO 8601 in UTC, durations seconds, bytes hex,
    enum values the lower-case name without the enum's own.
    """
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_value(item, field) for item in value]
    if kind is not None and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if isinstance(value, Timestamp):
        return iso(value.ToDatetime(UTC))
    if isinstance(value, Duration):
        return value.ToTimedelta().total_seconds()
    if isinstance(value, Message):
        return record_of(value)
    if field.enum_type is not None:
        prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", field.enum_type.name).upper()
        known = field.enum_type.values_by_number.get(value)
        return known.name.removeprefix(f"{prefix}_").lower() if known else value
    return value.hex() if isinstance(value, bytes) else value


def iso(moment: datetime) -> str:
    """Return a time in UTC, to the millisecond."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def readable(value: Any) -> Any:
    """Return a state as JSON can say it, for reading: not meant to come back.

    Tuples become lists, bytes `{"$bytes": base64}`, other keys than text their
    Python notation, NaN and infinities text.
    """
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else repr(key): readable(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [readable(item) for item in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)
