"""Finds where bytes fail to be a serialized message: the parser does not say."""

from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

MAX_NESTING: Final = 100
"""Messages inside one another, as the parser allows."""

MAX_FIELDS: Final = 100_000
"""Fields looked at; a fault behind them is reported without its path."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}


class _Fault(Exception):
    """`args` are what is wrong and the path to it."""


def find_wire_fault(body: bytes, descriptor: Descriptor, path: str) -> tuple[str, str]:
    """Return what is wrong with bytes that the parser refused, and its path.

    Args:
        body: The refused bytes.
        descriptor: Type that they should be of.
        path: Path of the whole.
    """
    try:
        _Scan().message(body, descriptor, path, MAX_NESTING)
    except _Fault as fault:
        what, where = fault.args
        return what, where
    return f"not a serialized {descriptor.name}", path


class _Scan:
    """One walk through a serialized message."""

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def message(
        self, body: bytes, descriptor: Descriptor, path: str, levels: int
    ) -> None:
        if levels == 0:
            raise _Fault("messages are nested too deep", path)
        seen: dict[int, int] = {}
        position = 0
        while position < len(body) and self._fields_left:
            self._fields_left -= 1
            tag, position = _varint(body, position, path)
            number, wire_type = tag >> 3, tag & 7
            value, position = _value(body, position, wire_type, path)
            field = descriptor.fields_by_number.get(number)
            if field is None or wire_type != _LENGTH:
                continue
            index = seen.get(number, 0)
            seen[number] = index + 1
            here = f"{path}.{field.name}" + (f"[{index}]" if field.is_repeated else "")
            self._field(value, field, here, levels)

    def _field(
        self, value: bytes, field: FieldDescriptor, path: str, levels: int
    ) -> None:
        if field.message_type is not None:
            self.message(value, field.message_type, path, levels - 1)
        elif field.type == FieldDescriptor.TYPE_STRING:
            try:
                value.decode()
            except UnicodeDecodeError as exc:
                raise _Fault("text is not UTF-8", path) from exc


def _value(body: bytes, position: int, wire_type: int, path: str) -> tuple[bytes, int]:
    """Return the bytes of a value (empty for a varint) and where it ends."""
    if wire_type == _VARINT:
        return b"", _varint(body, position, path)[1]
    if wire_type == _LENGTH:
        size_bytes, position = _varint(body, position, path)
    elif wire_type in _FIXED_BYTES:
        size_bytes = _FIXED_BYTES[wire_type]
    else:
        raise _Fault("not a serialized message", path)
    end = position + size_bytes
    if end > len(body):
        raise _Fault("the message is cut off", path)
    return body[position:end], end


def _varint(body: bytes, position: int, path: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(body):
            raise _Fault("the message is cut off", path)
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _Fault("not a serialized message", path)
