"""Who makes the call that is being served."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """The owner of a valid key. The tenant comes from here and nowhere else."""

    tenant_id: str
    key_id: str
    scopes: frozenset[str]
    """Of read, write, approve, admin, operator."""
    token_key: bytes
    """Signs the tenant's page and resume tokens."""


_CALLER: ContextVar[Caller] = ContextVar("caller")


def set_caller(caller: Caller) -> None:
    """Set the caller of the current call."""
    _CALLER.set(caller)


def current_caller() -> Caller:
    """Return the caller of the current call.

    Raises:
        LookupError: Outside a call: a fault of the server, answered as INTERNAL.
    """
    return _CALLER.get()
