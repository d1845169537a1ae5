"""Message bytes of a request, checked and projected, ready for the store."""

import hashlib
from collections.abc import Sequence

from perdure_server.canonical.message import read_message
from perdure_server.canonical.projection import project
from perdure_server.errors import LimitExceeded, ValueNotStorable
from perdure_server.rpc.checks import check_items
from perdure_server.store.append import NewMessage

MAX_MESSAGES = 1_000
MAX_BATCH_BYTES = 3 * 1024 * 1024


def read_new_messages(bodies: Sequence[bytes], path: str) -> tuple[NewMessage, ...]:
    """Return the messages of one batch.

    Raises:
        ValueNotStorable: With the path of the value that cannot be kept.
        LimitExceeded: Too many, or too large together.
    """
    if not bodies:
        raise ValueNotStorable("a batch needs at least one message", path=path)
    check_items(len(bodies), path, MAX_MESSAGES)
    total_bytes = sum(len(body) for body in bodies)
    if total_bytes > MAX_BATCH_BYTES:
        raise LimitExceeded(
            f"messages are larger than {MAX_BATCH_BYTES} bytes together",
            path=path,
            limit=MAX_BATCH_BYTES,
            actual=total_bytes,
        )
    messages = tuple(
        _read(body, f"{path}[{place}]") for place, body in enumerate(bodies)
    )
    places: dict[str, int] = {}
    for place, message in enumerate(messages):
        if places.setdefault(message.message_id, place) != place:
            raise ValueNotStorable(
                "two messages of one batch share an id",
                path=f"{path}[{place}].message_id",
            )
    return messages


def _read(body: bytes, path: str) -> NewMessage:
    message = read_message(body, path)
    return NewMessage(
        message_id=message.message_id,
        digest=hashlib.sha256(body).digest(),
        body=body,
        projection=project(message),
    )
