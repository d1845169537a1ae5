"""Cancels the task inside an agent's block, and turns that into an error at its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Guard:
    """One block of one task that may be cancelled from within the library.

    A cancellation from outside is told apart and passes through untouched.
    """

    def __init__(self) -> None:
        """Guard nothing yet."""
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._tripped = False

    @property
    def entered(self) -> bool:
        """Whether a block is being guarded."""
        return self._task is not None

    def enter(self) -> None:
        """Begin to guard the current task."""
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._tripped = False

    def trip(self) -> None:
        """Cancel the block, unless its own task is the one that asks."""
        task = self._task
        if task is None or self._tripped or task is asyncio.current_task():
            return
        self._tripped = True
        task.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """End the block; return whether `error` is the cancellation by `trip`."""
        task, self._task = self._task, None
        if task is None or not self._tripped:
            return False
        if not isinstance(error, asyncio.CancelledError):
            # The block ended by itself: the cancellation is still on its way.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            task.uncancel()
            return False
        return task.uncancel() <= self._cancelling
