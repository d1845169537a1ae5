"""What the client raises, grouped by what the caller should do.

    PerdureError
    |-- Conflict      somebody else wrote: re-read, decide again
    |-- Fenced        the agent is not yours any more: stop it, never retry
    |-- Refused       the state does not allow it: fix the state
    |-- Invalid       the request is wrong: fix the caller
    |-- NotFound      missing or deleted
    |-- DataLoss      stored, but not as it was written
    |-- Unavailable   retried until the deadline in vain: try again later
    |-- Denied        no valid key, or a scope is missing
    `-- ServerFault   the server's own mistake: report its error_id

`reason` is the name of an ErrorReason without its prefix (error_reason.proto), or one
of LOCAL_REASONS where no server was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

LOCAL_REASONS = frozenset(
    {
        "BROKEN_STREAM",
        "CLIENT_CLOSED",
        "DEADLINE_EXCEEDED",
        "FORKED",
        "GIVEN_UP",
        "MANIFEST_MISMATCH",
        "NOT_CONFIGURED",
        "OTHER_LOOP",
        "RELEASED",
        "STEP_OPEN",
        "STEP_UNSETTLED",
        "UNIMPLEMENTED",
        "UNKNOWN",
        "UNREACHABLE",
    }
)
"""Reasons that the client gives itself."""


class PerdureError(Exception):
    """A call failed.

    Args:
        message: What happened and what to do. Without stored content.
        code: Name of the gRPC status code, empty when no server was asked.
        reason: Why, in UPPER_SNAKE.
        metadata: What else the server said, by key.
    """

    default_code: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        reason: str = "UNKNOWN",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.reason = reason
        self.metadata = dict(metadata or {})

    @property
    def path(self) -> str:
        """Where in the request or the state the fault is; empty: not stated."""
        return self.metadata.get("path", "")

    def __str__(self) -> str:
        """Return reason, path and message in one line."""
        where = f" at {self.path}" if self.path else ""
        return f"{self.reason}{where}: {self.message}"


class Conflict(PerdureError):
    """Somebody else wrote meanwhile. Re-read and decide again."""

    default_code = "ABORTED"


class Fenced(PerdureError):
    """The agent belongs to another worker now. Stop it; never retry."""

    default_code = "FAILED_PRECONDITION"

    @property
    def committed(self) -> bool:
        """Whether the refused write had in fact been committed before."""
        return self.metadata.get("committed") == "true"


class Refused(PerdureError):
    """The state of the thing does not allow the call."""

    default_code = "FAILED_PRECONDITION"


class Invalid(PerdureError):
    """The request is wrong; `path` says where. Sending it again does not help."""

    default_code = "INVALID_ARGUMENT"


class NotFound(PerdureError):
    """The thing is missing, or was deleted (reason DELETED)."""

    default_code = "NOT_FOUND"


class DataLoss(PerdureError):
    """What is stored is not what was written. Never to be read as "none".

    Attributes:
        agents: When raised by a restore: the agents that are broken.
    """

    default_code = "DATA_LOSS"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        reason: str = "UNKNOWN",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, code=code, reason=reason, metadata=metadata)
        self.agents: tuple[object, ...] = ()

    @property
    def last_good_step(self) -> int:
        """Newest whole step before the broken one; 0: none or not stated."""
        return int(self.metadata.get("last_good_step", "0"))


class Unavailable(PerdureError):
    """The call was retried until its deadline. It may or may not have happened.

    Sending it again with the same ids is harmless.
    """

    default_code = "UNAVAILABLE"


class Denied(PerdureError):
    """The key is missing, not valid, or lacks a scope."""

    default_code = "PERMISSION_DENIED"


class ServerFault(PerdureError):
    """The server made a mistake. Its log has the details under `error_id`."""

    default_code = "INTERNAL"

    @property
    def error_id(self) -> str:
        """Id to search for in the server's log."""
        return self.metadata.get("error_id", "")
