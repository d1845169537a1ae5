"""Checks of the single fields of a message; every refusal names its path."""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from perdure_server.errors import LimitExceeded, ValueNotStorable
from perdure_server.formats.json_text import read_json

MAX_NAME_BYTES: Final = 255
MAX_METADATA_BYTES: Final = 64 * 1024
MAX_JSON_BYTES: Final = 256 * 1024

# 0001-01-01 and 9999-12-31T23:59:59 UTC: the range of a Timestamp, well inside
# that of Postgres.
_MIN_SECONDS: Final = -62_135_596_800
_MAX_SECONDS: Final = 253_402_300_799


def check_identifier(value: str, path: str) -> None:
    """Refuse an id that is empty, too long or holds NUL."""
    if not value:
        raise ValueNotStorable("an id is missing", path=path)
    check_name(value, path)


def check_name(value: str, path: str) -> None:
    """Refuse a name over MAX_NAME_BYTES or with NUL. Empty is allowed."""
    if "\0" in value:
        raise ValueNotStorable("text contains NUL", path=path)
    check_size(len(value.encode()), MAX_NAME_BYTES, path)


def is_name(value: str) -> bool:
    """Tell whether check_name lets a value pass."""
    return "\0" not in value and len(value.encode()) <= MAX_NAME_BYTES


def check_size(size_bytes: int, limit_bytes: int, path: str) -> None:
    """Refuse more bytes than the limit."""
    if size_bytes > limit_bytes:
        raise LimitExceeded(
            f"longer than {limit_bytes} bytes",
            path=path,
            limit=limit_bytes,
            actual=size_bytes,
        )


def check_json_text(value: str, path: str, limit_bytes: int = MAX_JSON_BYTES) -> None:
    """Refuse text that is neither empty nor strict JSON of at most `limit_bytes`."""
    payload = value.encode()
    check_size(len(payload), limit_bytes, path)
    if value:
        read_json(payload, path)


def check_count(value: int, path: str) -> None:
    """Refuse a negative count."""
    if value < 0:
        raise ValueNotStorable("not between 0 and 2^63-1", path=path)


def check_time(value: Timestamp, path: str) -> None:
    """Refuse a time outside the years 1 to 9999."""
    if not _MIN_SECONDS <= value.seconds <= _MAX_SECONDS:
        raise ValueNotStorable("not within the years 1 to 9999", path=f"{path}.seconds")
    if not 0 <= value.nanos <= 999_999_999:
        raise ValueNotStorable("not between 0 and 999999999", path=f"{path}.nanos")


def check_enum(value: int, names: Mapping[Any, str], path: str) -> None:
    """Refuse a number that this server has no name for."""
    if value not in names:
        raise ValueNotStorable("not a known value", path=path)
