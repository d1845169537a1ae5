"""What a refused append becomes; shared by appends and commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure_server.errors import (
    ConversationClosed,
    ConversationNotFound,
    Deleted,
    FenceRequired,
    IdReused,
    PerdureError,
    RangeInvalid,
    SeqConflict,
    StaleFence,
)
from perdure_server.store.append import Append


def append_error(append: Append, row: Mapping[str, Any]) -> PerdureError:
    """Return the error of an outcome of append_messages_1."""
    outcome = row.get("outcome")
    conversation_id = append.conversation_id
    if outcome == "no_conversation":
        return ConversationNotFound(
            "no such conversation", conversation_id=conversation_id
        )
    if outcome == "deleted":
        return Deleted(
            "the conversation was deleted",
            conversation_id=conversation_id,
            delete_time=row.get("event_time"),
        )
    if outcome == "stale_fence":
        assert append.fence is not None
        return StaleFence(
            "the agent has a new owner",
            agent_id=append.fence.agent_id,
            epoch=append.fence.epoch,
            current_epoch=row.get("current_epoch"),
            committed=row.get("stored_digest") is not None,
        )
    if outcome in ("fence_required", "wrong_conversation"):
        return FenceRequired(
            "only user messages may be added here without the fence of its agent",
            conversation_id=conversation_id,
        )
    return _content_error(append, row)


def _content_error(append: Append, row: Mapping[str, Any]) -> PerdureError:
    outcome = row.get("outcome")
    conversation_id = append.conversation_id
    if outcome == "differs":
        message_id = row["message_id"]
        place = [message.message_id for message in append.messages].index(message_id)
        return IdReused(
            "the message exists with other content",
            message_id=message_id,
            digest=append.messages[place].digest,
            stored_digest=row.get("stored_digest"),
            path=f"messages[{place}].message_id",
        )
    if outcome == "seq_conflict":
        return SeqConflict(
            "the conversation has grown",
            conversation_id=conversation_id,
            expected_seq=append.expected_seq,
            current_seq=row.get("message_count"),
        )
    if outcome == "closed":
        return ConversationClosed(
            "the conversation is closed",
            conversation_id=conversation_id,
            close_time=row.get("event_time"),
        )
    if outcome == "bad_range":
        return RangeInvalid(
            "the range to supersede is not in the conversation",
            path="supersedes",
            message_count=row.get("message_count"),
        )
    raise AssertionError(f"append_messages_1 answered {outcome!r}")
