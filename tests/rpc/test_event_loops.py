"""Several event loops and gRPC in one process."""

import asyncio
import logging
import threading

import pytest

from tests.support.server import ServerProcess
from tests.support.wire import Wire, said

THREADS = 3
EACH = 40


# R49
async def test_clients_in_loops_of_several_threads_disturb_nobody(
    server: ServerProcess, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[BaseException] = []

    async def work(name: int) -> None:
        own = Wire(server.address, server.key)
        for number in range(EACH):
            await own.append(f"loop-{name}", said(f"m{number}"))
        assert len(await own.read(f"loop-{name}")) == EACH
        await own.channel.close()

    def run(name: int) -> None:
        try:
            asyncio.run(work(name))
        except BaseException as error:
            failures.append(error)

    with caplog.at_level(logging.DEBUG):
        threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for number in range(EACH):
            await wire.append("loop-main", said(f"m{number}"))
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert failures == []
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    # The one exception is gRPC's own poller, which several loops wake for the same
    # event: all but the first find nothing to read, and say so as an error.
    assert [r for r in errors if not is_harmless_poller_message(r)] == []


def is_harmless_poller_message(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return (
        record.name == "asyncio"
        and isinstance(error, BlockingIOError)
        and "PollerCompletionQueue._handle_events" in record.getMessage()
    )
