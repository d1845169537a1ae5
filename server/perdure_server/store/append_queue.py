"""One writer at a time for each hot conversation, in this process.

While a statement for a conversation is under way, appends for it gather here and go
together in the next: no crowd waits for one row's lock with a connection each, and
everyone else's calls find free connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from perdure_server.deadline import set_deadline
from perdure_server.errors import Overloaded, PerdureError
from perdure_server.store.append import Append, Appended
from perdure_server.store.messages import Messages

MAX_WAITING = 2_000
MAX_TOGETHER = 200
MAX_TOGETHER_BYTES = 4 * 1024 * 1024


@dataclass
class _Waiting:
    append: Append
    answer: asyncio.Future[Appended]


@dataclass
class _Line:
    waiting: deque[_Waiting] = field(default_factory=deque)


class AppendQueue:
    """Appends that carry no fence go through here."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._lines: dict[tuple[str, str], _Line] = {}
        self._workers: set[asyncio.Task[None]] = set()

    async def append(self, append: Append) -> Appended:
        """Store one batch, alone or with others.

        Raises:
            Overloaded: Too many wait for this conversation already.
            PerdureError: Nothing of this batch was written.
        """
        key = (append.tenant_id, append.conversation_id)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        line = self._lines.get(key)
        if line is not None and len(line.waiting) >= MAX_WAITING:
            raise Overloaded("too many appends wait for this conversation")
        if line is None:
            line = self._lines[key] = _Line()
            line.waiting.append(_Waiting(append, answer))
            worker = asyncio.create_task(self._work(key, line))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        else:
            line.waiting.append(_Waiting(append, answer))
        return await answer

    async def _work(self, key: tuple[str, str], line: _Line) -> None:
        # The task was made by the first caller; the others have their own deadlines.
        set_deadline(None)
        try:
            while line.waiting:
                batch = _take(line)
                if batch:
                    await self._store(batch)
        finally:
            del self._lines[key]

    async def _store(self, batch: list[_Waiting]) -> None:
        results = await self._results([waiting.append for waiting in batch])
        for waiting, result in zip(batch, results, strict=True):
            if waiting.answer.done():
                continue  # its caller is gone; what was written stays written
            if isinstance(result, Appended):
                waiting.answer.set_result(result)
            else:
                waiting.answer.set_exception(result)

    async def _results(self, appends: list[Append]) -> list[Appended | Exception]:
        try:
            return [*await self._messages.append_many(appends)]
        except PerdureError as error:
            return [error] * len(appends)
        except Exception as fault:
            if len(appends) == 1:
                return [fault]
            # A value that the database refuses: whoever brought it pays alone.
            return [(await self._results([append]))[0] for append in appends]


def _take(line: _Line) -> list[_Waiting]:
    taken: list[_Waiting] = []
    taken_bytes = 0
    while line.waiting and len(taken) < MAX_TOGETHER:
        next_bytes = sum(len(m.body) for m in line.waiting[0].append.messages)
        if taken and taken_bytes + next_bytes > MAX_TOGETHER_BYTES:
            break
        waiting = line.waiting.popleft()
        if waiting.answer.cancelled():
            continue
        taken.append(waiting)
        taken_bytes += next_bytes
    return taken
