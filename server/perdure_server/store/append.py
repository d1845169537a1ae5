"""What an append is, and what it becomes; shared by appends, queues and commits."""

from __future__ import annotations

from dataclasses import dataclass

from perdure_server.canonical.projection import Projection
from perdure_server.store.fence import Fence


@dataclass(frozen=True)
class NewMessage:
    """A message to append: its bytes, their SHA-256, and what people see of it."""

    message_id: str
    digest: bytes
    body: bytes
    projection: Projection


@dataclass(frozen=True)
class Append:
    """A batch for one conversation, all or none."""

    tenant_id: str
    conversation_id: str
    messages: tuple[NewMessage, ...]
    expected_seq: int | None = None
    generation: int | None = None
    supersedes: tuple[int, int] | None = None
    create_if_missing: bool = False
    unfenced_allowed: bool = False
    fence: Fence | None = None
    step: int = 0


@dataclass(frozen=True)
class Placed:
    """Where a message stands."""

    message_id: str
    seq: int
    replayed: bool


@dataclass(frozen=True)
class Appended:
    """A batch that is stored."""

    places: tuple[Placed, ...]
    message_count: int
    generation: int
