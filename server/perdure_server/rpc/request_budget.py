"""How many bytes of requests are being served at once, so that memory is bounded.

The number of calls is no bound: one call may bring 4 MiB, and wait for a locked row.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from perdure_server.errors import Overloaded

MAX_REQUEST_BYTES = 128 * 1024 * 1024
"""About a third of the memory that so many requests cost when parsed."""


class RequestBudget:
    """Counts the requests of one server process."""

    def __init__(self, limit_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0

    @contextmanager
    def taken(self, request_bytes: int) -> Iterator[None]:
        """Count a request while it is served.

        Raises:
            Overloaded: There is no room for it beside the others.
        """
        if self._taken_bytes + request_bytes > self._limit_bytes:
            raise Overloaded("too many bytes of requests are being served")
        self._taken_bytes += request_bytes
        try:
            yield
        finally:
            self._taken_bytes -= request_bytes
