"""Checks of single values at the edge. Pure; every refusal names its path."""

import uuid

from google.protobuf.duration_pb2 import Duration

from perdure_server.errors import LimitExceeded, ValueNotStorable
from perdure_server.formats.json_text import read_json

MAX_ID_BYTES = 255
MAX_NAME_BYTES = 255
MAX_METADATA_BYTES = 64 * 1024
MAX_COUNT = 2**63 - 1
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


def check_id(value: str, path: str) -> str:
    """Return an id of 1 to 255 bytes without NUL."""
    if not value:
        raise ValueNotStorable("an id is missing", path=path)
    return check_text(value, path, MAX_ID_BYTES)


def check_text(value: str, path: str, limit_bytes: int = MAX_NAME_BYTES) -> str:
    """Return text without NUL of at most `limit_bytes` bytes of UTF-8."""
    if "\0" in value:
        raise ValueNotStorable("text contains NUL", path=path)
    size_bytes = len(value.encode())
    if size_bytes > limit_bytes:
        raise LimitExceeded(
            f"text is longer than {limit_bytes} bytes",
            path=path,
            limit=limit_bytes,
            actual=size_bytes,
        )
    return value


def check_uuid(value: str, path: str) -> uuid.UUID:
    """Return a UUID given as text."""
    try:
        return uuid.UUID(value)
    except ValueError as exc:
        raise ValueNotStorable("not a UUID", path=path) from exc


def check_json(value: str, path: str, limit_bytes: int = MAX_METADATA_BYTES) -> str:
    """Return JSON text as it is, or the empty string for none."""
    check_text(value, path, limit_bytes)
    if value:
        read_json(value.encode(), path)
    return value


def check_count(value: int, path: str, minimum: int = 0) -> int:
    """Return a whole number that a bigint holds, at least `minimum`."""
    if not minimum <= value <= MAX_COUNT:
        raise ValueNotStorable(f"not between {minimum} and 2^63-1", path=path)
    return value


def check_duration_ms(
    value: Duration, path: str, minimum_ms: int, maximum_ms: int
) -> int:
    """Return a duration in milliseconds, within the bounds."""
    milliseconds = value.seconds * 1000 + value.nanos // 1_000_000
    if not minimum_ms <= milliseconds <= maximum_ms:
        raise ValueNotStorable(
            f"not between {minimum_ms} and {maximum_ms} ms", path=path
        )
    return milliseconds


def check_items(count: int, path: str, limit: int) -> None:
    """Refuse a list with more than `limit` entries."""
    if count > limit:
        raise LimitExceeded(
            f"more than {limit} entries", path=path, limit=limit, actual=count
        )


def page_size(value: int) -> int:
    """Return the size of a page: 0 is the default, too many is cut."""
    if value < 0:
        raise ValueNotStorable("a page size is negative", path="page_size")
    return min(value or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
