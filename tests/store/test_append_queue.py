"""AppendQueue: what gathers, what it shields, and where it ends."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from perdure.v1 import message_pb2
from perdure_server.canonical.projection import project
from perdure_server.deadline import set_deadline
from perdure_server.errors import (
    IdReused,
    Overloaded,
    PerdureError,
    SeqConflict,
    StoreUnavailable,
)
from perdure_server.store import append_queue
from perdure_server.store.append import Append, Appended, NewMessage
from perdure_server.store.append_queue import AppendQueue
from perdure_server.store.database import Database
from perdure_server.store.messages import Messages


class CountingMessages(Messages):
    """The real store, which remembers how many appends went together."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.sizes: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def append_many(
        self, appends: Sequence[Append]
    ) -> list[Appended | PerdureError]:
        self.sizes.append(len(appends))
        await self.gate.wait()
        return await super().append_many(appends)


@pytest.fixture
async def messages(database_dsn: str) -> AsyncIterator[CountingMessages]:
    database = await Database.open(database_dsn, pool_size=3)
    yield CountingMessages(database)
    await database.close()


def new_message(message_id: str, text: str = "hello") -> NewMessage:
    message = message_pb2.Message(
        message_id=message_id,
        role=message_pb2.ROLE_USER,
        blocks=[message_pb2.Block(text=message_pb2.TextBlock(text=text))],
    )
    body = message.SerializeToString()
    return NewMessage(message_id, hashlib.sha256(body).digest(), body, project(message))


def append_of(
    conversation_id: str, *new: NewMessage, expected_seq: int | None = None
) -> Append:
    return Append("t", conversation_id, new, expected_seq, create_if_missing=True)


async def test_what_comes_during_a_statement_goes_together_in_the_next(
    messages: CountingMessages,
) -> None:
    queue = AppendQueue(messages)
    messages.gate.clear()
    tasks = [
        asyncio.create_task(queue.append(append_of("gather", new_message(f"m{n}"))))
        for n in range(50)
    ]
    await asyncio.sleep(0.05)
    messages.gate.set()
    stored = await asyncio.gather(*tasks)
    assert [answer.places[0].seq for answer in stored] == list(range(50))
    assert sum(messages.sizes) == 50
    assert len(messages.sizes) <= 2


async def test_conversations_do_not_wait_for_one_another(
    messages: CountingMessages,
) -> None:
    queue = AppendQueue(messages)
    answers = await asyncio.gather(
        *(
            queue.append(append_of(f"apart-{n % 5}", new_message(f"m{n}")))
            for n in range(25)
        )
    )
    assert sorted(answer.places[0].seq for answer in answers) == sorted(
        list(range(5)) * 5
    )
    assert len(messages.sizes) >= 5


async def test_a_refused_append_harms_no_neighbour(
    messages: CountingMessages,
) -> None:
    queue = AppendQueue(messages)
    await queue.append(append_of("mixed", new_message("a")))
    answers = await asyncio.gather(
        queue.append(append_of("mixed", new_message("b"))),
        queue.append(append_of("mixed", new_message("a", "other"))),
        queue.append(append_of("mixed", new_message("c"), expected_seq=0)),
        queue.append(append_of("mixed", new_message("d"))),
        return_exceptions=True,
    )
    kinds = [type(answer) for answer in answers]
    assert kinds == [Appended, IdReused, SeqConflict, Appended]


async def test_a_value_that_the_database_refuses_fails_alone(
    messages: CountingMessages,
) -> None:
    queue = AppendQueue(messages)
    bad = new_message("nul\0")
    messages.gate.clear()
    tasks = [
        asyncio.create_task(queue.append(append_of("poison", new)))
        for new in (new_message("first"), new_message("a"), bad, new_message("b"))
    ]
    await asyncio.sleep(0.05)
    messages.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers.pop(2), asyncpg.DataError)
    assert all(isinstance(answer, Appended) for answer in answers), answers


async def test_a_caller_who_leaves_the_queue_is_not_written(
    messages: CountingMessages,
) -> None:
    queue = AppendQueue(messages)
    messages.gate.clear()
    first = asyncio.create_task(queue.append(append_of("left", new_message("first"))))
    await asyncio.sleep(0.02)
    leaver = asyncio.create_task(queue.append(append_of("left", new_message("gone"))))
    last = asyncio.create_task(queue.append(append_of("left", new_message("last"))))
    await asyncio.sleep(0.02)
    leaver.cancel()
    await asyncio.sleep(0)
    messages.gate.set()
    await first
    assert (await last).places[0].seq == 1


async def test_the_deadline_of_the_first_caller_is_not_that_of_the_others(
    messages: CountingMessages,
) -> None:
    queue = AppendQueue(messages)

    async def hurried() -> None:
        set_deadline(0.01)
        async with asyncio.timeout(0.01):
            await queue.append(append_of("deadline", new_message("first")))

    messages.gate.clear()
    first = asyncio.create_task(hurried())
    await asyncio.sleep(0)
    second = asyncio.create_task(queue.append(append_of("deadline", new_message("b"))))
    await asyncio.sleep(0.05)
    messages.gate.set()
    with pytest.raises(TimeoutError):
        await first
    assert isinstance(await second, Appended)


async def test_a_full_queue_refuses_and_empties_again(
    messages: CountingMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_queue, "MAX_WAITING", 10)
    queue = AppendQueue(messages)
    messages.gate.clear()
    tasks = [
        asyncio.create_task(queue.append(append_of("full", new_message(f"m{n}"))))
        for n in range(20)
    ]
    await asyncio.sleep(0.05)
    messages.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert 9 <= len(refused) <= 10
    assert isinstance(await queue.append(append_of("full", new_message("z"))), Appended)


async def test_no_more_bytes_go_together_than_the_bound(
    messages: CountingMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_queue, "MAX_TOGETHER_BYTES", 10_000)
    queue = AppendQueue(messages)
    await asyncio.gather(
        *(
            queue.append(append_of("bytes", new_message(f"m{n}", "x" * 4_000)))
            for n in range(12)
        )
    )
    assert max(messages.sizes) <= 2


async def test_an_outage_is_told_to_everyone_who_waits(
    messages: CountingMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = AppendQueue(messages)
    messages.gate.clear()
    tasks = [
        asyncio.create_task(queue.append(append_of("outage", new_message(f"m{n}"))))
        for n in range(5)
    ]
    await asyncio.sleep(0.02)
    await messages._database.close()
    messages.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
