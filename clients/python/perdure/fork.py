"""Where a client was opened: process and event loop, both checked on each call."""

from __future__ import annotations

import asyncio
import os

from perdure.errors import Invalid


class Origin:
    """The process that made a client and the event loop that first used it."""

    def __init__(self) -> None:
        """Remember this process."""
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raise Invalid in another process or event loop than the client's own."""
        if os.getpid() != self._pid:
            raise Invalid(
                f"this client was opened before fork, in process {self._pid}, and "
                "gRPC does not survive a fork; call perdure.connect() in the child, "
                "started with multiprocessing's 'spawn' method",
                reason="FORKED",
            )
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise Invalid(
                "this client belongs to another event loop; call perdure.connect() "
                "once in each loop",
                reason="OTHER_LOOP",
            )

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the client."""
        return os.getpid() != self._pid
