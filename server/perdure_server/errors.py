"""Domain errors of the server: one class for each reason, grouped by status code.

    PerdureError
    |-- Conflict         ABORTED              re-read, decide again
    |-- Refused          FAILED_PRECONDITION  stop this worker, or fix the state
    |-- Invalid          INVALID_ARGUMENT     a bug in the caller
    |-- Exists           ALREADY_EXISTS       a bug in the caller
    |-- Missing          NOT_FOUND            missing or deleted
    |-- Broken           DATA_LOSS            stored, but not as it was written
    |-- Unavailable      UNAVAILABLE          send it again
    |-- Exhausted        RESOURCE_EXHAUSTED   slow down
    |-- Unauthenticated  UNAUTHENTICATED      no valid key
    |-- Denied           PERMISSION_DENIED    the key lacks a scope
    `-- InternalFault    INTERNAL             the server's own mistake

The reasons, their causes and metadata are described in error_reason.proto.
Only the interceptor turns these into gRPC statuses.
"""

from typing import ClassVar


class PerdureError(Exception):
    """A call is refused. `code` says what to do, `reason` why.

    Args:
        message: Short ASCII text without stored content or credentials.
        **metadata: Values for the ErrorInfo; None is left out.
    """

    code: ClassVar[str]
    reason: ClassVar[str]
    retry_after_s: ClassVar[float | None] = None

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {
            name: _text(value) for name, value in metadata.items() if value is not None
        }

    def at(self, prefix: str) -> "PerdureError":
        """Return the same error with `prefix` put before its path."""
        path = self.metadata.get("path", "")
        joined = f"{prefix}.{path}" if path else prefix
        metadata: dict[str, object] = {**self.metadata, "path": joined}
        return type(self)(self.message, **metadata)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


class Conflict(PerdureError):
    """Status ABORTED."""

    code = "ABORTED"


class SeqConflict(Conflict):
    """`expected_seq` is not the seq that the first new message would get."""

    reason = "SEQ_CONFLICT"


class RevisionConflict(Conflict):
    """`expected_revision` is not the thing's revision."""

    reason = "REVISION_CONFLICT"


class WriteContention(Conflict):
    """The database broke conflicts at this call's expense until its deadline."""

    reason = "WRITE_CONTENTION"
    retry_after_s = 0.05


class Refused(PerdureError):
    """Status FAILED_PRECONDITION."""

    code = "FAILED_PRECONDITION"


class StaleFence(Refused):
    """The agent was claimed by someone else since the fence was given."""

    reason = "STALE_FENCE"


class FenceRequired(Refused):
    """The conversation is owned or the agent was acquired: a fence is needed."""

    reason = "FENCE_REQUIRED"


class LeaseHeld(Refused):
    """A live lease holds the agent."""

    reason = "LEASE_HELD"


class LeaseRevoked(Refused):
    """The lease was ended."""

    reason = "LEASE_REVOKED"


class ConversationClosed(Refused):
    """The conversation was closed."""

    reason = "CONVERSATION_CLOSED"


class StepBehind(Refused):
    """The step is not after the branch's newest step, and is not stored either."""

    reason = "STEP_BEHIND"


class BaseMismatch(Refused):
    """A delta's base is not the branch's newest state."""

    reason = "BASE_MISMATCH"


class KeyframeRequired(Refused):
    """The chain of deltas is too long, or its base was dropped."""

    reason = "KEYFRAME_REQUIRED"


class Pruned(Refused):
    """The checkpoint was removed by retention or by dropping all."""

    reason = "PRUNED"


class TokenStale(Refused):
    """A resume token is not ours, or of another tenant, thing or generation."""

    reason = "TOKEN_STALE"


class Invalid(PerdureError):
    """Status INVALID_ARGUMENT."""

    code = "INVALID_ARGUMENT"


class ValueNotStorable(Invalid):
    """A value cannot be kept as it is, or is not allowed in its field."""

    reason = "VALUE_NOT_STORABLE"


class SelectorEmpty(Invalid):
    """A selector sets nothing."""

    reason = "SELECTOR_EMPTY"


class FrameInvalid(Invalid):
    """A frame is cut, extended, altered, of an unknown version, or over a limit."""

    reason = "FRAME_INVALID"


class LimitExceeded(Invalid):
    """The request is above a limit of docs/limits.md."""

    reason = "LIMIT_EXCEEDED"


class RangeInvalid(Invalid):
    """A range or position lies outside the conversation."""

    reason = "RANGE_INVALID"


class PageTokenInvalid(Invalid):
    """A page token is not one of ours or belongs to another list."""

    reason = "PAGE_TOKEN_INVALID"


class Exists(PerdureError):
    """Status ALREADY_EXISTS."""

    code = "ALREADY_EXISTS"


class IdReused(Exists):
    """The id exists with other content."""

    reason = "ID_REUSED"


class Missing(PerdureError):
    """Status NOT_FOUND."""

    code = "NOT_FOUND"


class ConversationNotFound(Missing):
    """No such conversation."""

    reason = "CONVERSATION_NOT_FOUND"


class AgentNotFound(Missing):
    """No such agent."""

    reason = "AGENT_NOT_FOUND"


class CheckpointNotFound(Missing):
    """The agent has no such step, and never had."""

    reason = "CHECKPOINT_NOT_FOUND"


class LeaseNotFound(Missing):
    """No such lease."""

    reason = "LEASE_NOT_FOUND"


class RecoveryNotFound(Missing):
    """No such recovery."""

    reason = "RECOVERY_NOT_FOUND"


class KeyNotFound(Missing):
    """No such key."""

    reason = "KEY_NOT_FOUND"


class Deleted(Missing):
    """The thing was deleted."""

    reason = "DELETED"


class Broken(PerdureError):
    """Status DATA_LOSS."""

    code = "DATA_LOSS"


class FrameCorrupt(Broken):
    """A stored frame is not as it was written."""

    reason = "FRAME_CORRUPT"


class Unavailable(PerdureError):
    """Status UNAVAILABLE."""

    code = "UNAVAILABLE"


class StoreUnavailable(Unavailable):
    """Postgres does not answer or the connection broke."""

    reason = "STORE_UNAVAILABLE"
    retry_after_s = 0.5


class StoreReadOnly(Unavailable):
    """Postgres accepts no writes: a standby, or a full disk."""

    reason = "STORE_READ_ONLY"
    retry_after_s = 1.0


class ShuttingDown(Unavailable):
    """The server is stopping."""

    reason = "SHUTTING_DOWN"
    retry_after_s = 0.5


class Exhausted(PerdureError):
    """Status RESOURCE_EXHAUSTED."""

    code = "RESOURCE_EXHAUSTED"


class Overloaded(Exhausted):
    """Too many calls wait for a database connection."""

    reason = "OVERLOADED"
    retry_after_s = 0.5


class Unauthenticated(PerdureError):
    """Status UNAUTHENTICATED."""

    code = "UNAUTHENTICATED"


class KeyInvalid(Unauthenticated):
    """No key, an unknown, expired or revoked key."""

    reason = "KEY_INVALID"


class Denied(PerdureError):
    """Status PERMISSION_DENIED."""

    code = "PERMISSION_DENIED"


class ScopeMissing(Denied):
    """The key lacks a scope that the call needs."""

    reason = "SCOPE_MISSING"


class InternalFault(PerdureError):
    """The server made a mistake; its log has the details under the same id."""

    code = "INTERNAL"
    reason = "INTERNAL"
