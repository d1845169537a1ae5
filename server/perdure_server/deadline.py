"""How much time the call that is being served has left."""

import time
from contextvars import ContextVar

_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)


def set_deadline(timeout_s: float | None) -> None:
    """Let the current call end `timeout_s` from now; None: whenever it likes."""
    _DEADLINE.set(None if timeout_s is None else time.monotonic() + timeout_s)


def remaining_s(limit_s: float) -> float:
    """Return the time left, at most `limit_s`, never below 0."""
    deadline = _DEADLINE.get()
    if deadline is None:
        return limit_s
    return max(0.0, min(limit_s, deadline - time.monotonic()))
