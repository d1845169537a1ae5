"""Turns gRPC failures into the errors of `perdure.errors`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from perdure.errors import (
    Conflict,
    DataLoss,
    Denied,
    Fenced,
    Invalid,
    NotFound,
    PerdureError,
    Refused,
    ServerFault,
    Unavailable,
)

DOMAIN: Final = "perdure"
_DETAILS_KEY: Final = "grpc-status-details-bin"

GROUPS: Final[dict[str, type[PerdureError]]] = {
    "SEQ_CONFLICT": Conflict,
    "REVISION_CONFLICT": Conflict,
    "WRITE_CONTENTION": Unavailable,
    "STALE_FENCE": Fenced,
    "FENCE_REQUIRED": Refused,
    "LEASE_HELD": Refused,
    "LEASE_REVOKED": Fenced,
    "CONVERSATION_CLOSED": Refused,
    "STEP_BEHIND": Refused,
    "BASE_MISMATCH": Refused,
    "KEYFRAME_REQUIRED": Refused,
    "PRUNED": Refused,
    "TOKEN_STALE": Refused,
    "VALUE_NOT_STORABLE": Invalid,
    "SELECTOR_EMPTY": Invalid,
    "FRAME_INVALID": Invalid,
    "LIMIT_EXCEEDED": Invalid,
    "RANGE_INVALID": Invalid,
    "PAGE_TOKEN_INVALID": Invalid,
    "ID_REUSED": Invalid,
    "CONVERSATION_NOT_FOUND": NotFound,
    "AGENT_NOT_FOUND": NotFound,
    "CHECKPOINT_NOT_FOUND": NotFound,
    "LEASE_NOT_FOUND": NotFound,
    "RECOVERY_NOT_FOUND": NotFound,
    "KEY_NOT_FOUND": NotFound,
    "DELETED": NotFound,
    "FRAME_CORRUPT": DataLoss,
    "STORE_UNAVAILABLE": Unavailable,
    "STORE_READ_ONLY": Unavailable,
    "SHUTTING_DOWN": Unavailable,
    "OVERLOADED": Unavailable,
    "KEY_INVALID": Denied,
    "SCOPE_MISSING": Denied,
    "INTERNAL": ServerFault,
}
"""The one group of each reason of error_reason.proto."""

# Statuses that carry no reason of ours: from gRPC itself, or a proxy between.
_BARE: Final[dict[str, tuple[type[PerdureError], str]]] = {
    "UNAVAILABLE": (Unavailable, "UNREACHABLE"),
    "DEADLINE_EXCEEDED": (Unavailable, "DEADLINE_EXCEEDED"),
    "CANCELLED": (Unavailable, "UNREACHABLE"),
    "ABORTED": (Conflict, "UNKNOWN"),
    "FAILED_PRECONDITION": (Refused, "UNKNOWN"),
    "INVALID_ARGUMENT": (Invalid, "UNKNOWN"),
    "OUT_OF_RANGE": (Invalid, "UNKNOWN"),
    "ALREADY_EXISTS": (Invalid, "UNKNOWN"),
    "RESOURCE_EXHAUSTED": (Invalid, "LIMIT_EXCEEDED"),
    "NOT_FOUND": (NotFound, "UNKNOWN"),
    "DATA_LOSS": (DataLoss, "UNKNOWN"),
    "UNAUTHENTICATED": (Denied, "KEY_INVALID"),
    "PERMISSION_DENIED": (Denied, "SCOPE_MISSING"),
    "UNIMPLEMENTED": (Refused, "UNIMPLEMENTED"),
}

_RETRIED_REASONS: Final = frozenset(
    {
        "WRITE_CONTENTION",
        "STORE_UNAVAILABLE",
        "STORE_READ_ONLY",
        "SHUTTING_DOWN",
        "OVERLOADED",
        "UNREACHABLE",
    }
)


@dataclass(frozen=True)
class Failure:
    """A failed attempt: the error, and whether another attempt makes sense."""

    error: PerdureError
    retry: bool
    retry_after_s: float = 0.0


@dataclass
class _Details:
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float = 0.0


class FailedCall(Protocol):
    """An error of gRPC, from an asynchronous call or a blocking one."""

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        ...

    def details(self) -> str | None:
        """Return the status message."""
        ...

    def trailing_metadata(self) -> Any:
        """Return the metadata sent with the status."""
        ...


def read_failure(error: FailedCall, target: str) -> Failure:
    """Return what a failed gRPC call means."""
    code = error.code().name
    said = error.details() or ""
    details = _read_details(error)
    if details.reason:
        kind = GROUPS.get(details.reason) or _BARE.get(code, (PerdureError, ""))[0]
        retry = details.reason in _RETRIED_REASONS
        failed = kind(said, code=code, reason=details.reason, metadata=details.metadata)
        return Failure(failed, retry, details.retry_after_s)
    kind, reason = _BARE.get(code, (ServerFault, "UNKNOWN"))
    if code == "RESOURCE_EXHAUSTED" and "larger than max" not in said:
        # Too many calls at once, at the server or a proxy; the rest is of gRPC's size.
        kind, reason = Unavailable, "OVERLOADED"
    # A stream that was cut by a dying server can surface as INTERNAL or UNKNOWN.
    cut = code in ("INTERNAL", "UNKNOWN")
    message = _bare_message(reason, said, target)
    retry = cut or reason in _RETRIED_REASONS
    return Failure(kind(message, code=code, reason=reason), retry)


def _bare_message(reason: str, said: str, target: str) -> str:
    if reason == "UNREACHABLE":
        return (
            f"no server answers at {target}; start one with `perdure serve`, or set "
            f"PERDURE_TARGET to its address ({said[:200]})"
        )
    if reason == "DEADLINE_EXCEEDED":
        return f"{target} did not answer within the call's deadline"
    if reason == "UNIMPLEMENTED":
        return f"the server at {target} does not serve this call; update the server"
    return said[:500]


def _read_details(error: FailedCall) -> _Details:
    details = _Details()
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            _read_status(status_pb2.Status.FromString(value), details)
        except DecodeError:
            continue
    return details


def _read_status(status: status_pb2.Status, details: _Details) -> None:
    info = error_details_pb2.ErrorInfo()
    wait = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            details.reason = info.reason
            details.metadata = dict(info.metadata)
        elif detail.Unpack(wait):
            seconds = wait.retry_delay.seconds + wait.retry_delay.nanos / 1e9
            details.retry_after_s = max(0.0, seconds)
