"""Times of the store as protobuf timestamps, and back."""

from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from perdure_server.errors import ValueNotStorable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_timestamp(value: datetime) -> Timestamp:
    """Return an aware time as a timestamp; microseconds are kept."""
    since = value - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return Timestamp(seconds=seconds, nanos=since.microseconds * 1000)


def from_timestamp(value: Timestamp, path: str) -> datetime:
    """Return a timestamp as an aware time in UTC; nanoseconds are cut.

    Raises:
        ValueNotStorable: Outside the years 1 to 9999, or with nanos out of range.
    """
    if not 0 <= value.nanos < 1_000_000_000:
        raise ValueNotStorable("nanos out of range", path=f"{path}.nanos")
    try:
        return _EPOCH + timedelta(
            seconds=value.seconds, microseconds=value.nanos // 1000
        )
    except OverflowError as exc:
        raise ValueNotStorable("not a time of the years 1 to 9999", path=path) from exc
