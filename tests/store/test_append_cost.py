"""An append reads as much of a long conversation as of a short one."""

from __future__ import annotations

import hashlib
from typing import Any

import asyncpg

from perdure.v1 import message_pb2 as pb
from perdure_server.canonical.projection import project
from perdure_server.store.append import NewMessage
from perdure_server.store.messages import message_arrays
from perdure_server.store.queries import load_queries

LONG = 5_000
ROWS_READ_AT_MOST = 40


def _message(name: str) -> NewMessage:
    native = pb.NativePayload(
        format="openai.chat_completions",
        payload=b'{"role":"assistant","content":null,"tool_calls":'
        b'[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}',
    )
    message = pb.Message(message_id=name, native=native)
    body = message.SerializeToString()
    return NewMessage(name, hashlib.sha256(body).digest(), body, project(message))


async def _append(connection: asyncpg.Connection[Any], names: list[str]) -> list[Any]:
    return await connection.fetch(
        load_queries("messages")["append_messages"],
        *("t", "long"),
        *message_arrays([_message(name) for name in names]),
        *(None, None, None, None, True, False, None, None, None, 0),
    )


async def _rows_read(connection: asyncpg.Connection[Any]) -> int:
    rows: int = await connection.fetchval(
        "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint "
        "FROM pg_stat_xact_user_tables "
        "WHERE relname IN ('messages', 'message_keys', 'message_tool_calls')"
    )
    return rows


async def test_an_append_reads_few_rows_of_a_long_conversation(
    connection: asyncpg.Connection[Any],
) -> None:
    for start in range(0, LONG, 500):
        await _append(connection, [f"m{n}" for n in range(start, start + 500)])

    # Often enough for the function's statements to be planned generically.
    for number in range(8):
        async with connection.transaction():
            before = await _rows_read(connection)
            rows = await _append(connection, [f"new-{number}"])
            read = await _rows_read(connection) - before
        assert rows[0]["outcome"] == "stored"
        assert read <= ROWS_READ_AT_MOST

    async with connection.transaction():
        before = await _rows_read(connection)
        rows = await _append(connection, ["m17", "m4000"])
        assert await _rows_read(connection) - before <= ROWS_READ_AT_MOST
    assert [(row["outcome"], row["seq"]) for row in rows] == [
        ("replayed", 17),
        ("replayed", 4000),
    ]
