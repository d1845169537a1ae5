"""The public views show conversations as their source tells them."""

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from perdure.v1 import message_pb2 as pb
from perdure_cli.demo.conversations import load_conversations
from perdure_server.formats.chat_completions import FORMAT
from perdure_server.rpc.new_messages import read_new_messages
from perdure_server.store.append import Append
from perdure_server.store.database import Database
from perdure_server.store.messages import Messages

TENANT = "views"


@pytest.fixture
async def messages(database_dsn: str) -> AsyncIterator[Messages]:
    database = await Database.open(database_dsn, pool_size=2)
    try:
        yield Messages(database)
    finally:
        await database.close()


async def store(
    messages: Messages, conversation_id: str, sources: list[dict[str, object]]
) -> list[bytes]:
    """Append messages of Chat Completions; return the bodies that were sent."""
    bodies = [
        pb.Message(
            message_id=f"m{place}",
            native=pb.NativePayload(format=FORMAT, payload=json.dumps(source).encode()),
        ).SerializeToString()
        for place, source in enumerate(sources)
    ]
    await messages.append(
        Append(
            tenant_id=TENANT,
            conversation_id=conversation_id,
            messages=read_new_messages(bodies, "messages"),
            create_if_missing=True,
        )
    )
    return bodies


def call(call_id: str | None, name: str) -> dict[str, object]:
    return {"id": call_id, "function": {"name": name, "arguments": "{}"}}


def calls(*made: dict[str, object]) -> dict[str, object]:
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def result(call_id: str | None, content: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


async def paired(
    connection: asyncpg.Connection, conversation_id: str
) -> list[tuple[str, str | None]]:
    rows = await connection.fetch(
        "SELECT tool_name, tool_result FROM perdure.tool_calls"
        " WHERE tenant_id = $1 AND conversation_id = $2 ORDER BY seq, ordinal",
        TENANT,
        conversation_id,
    )
    return [(row["tool_name"], row["tool_result"]) for row in rows]


async def test_every_generated_conversation_reads_the_same_in_sql(
    messages: Messages, connection: asyncpg.Connection
) -> None:
    for conversation in load_conversations(None, 25)[1]:
        name, sources = conversation.conversation_id, conversation.messages
        bodies = await store(messages, name, sources)
        rows = await connection.fetch(
            "SELECT role, coalesce(tool_result, content) AS text"
            " FROM perdure.messages"
            " WHERE tenant_id = $1 AND conversation_id = $2 ORDER BY seq",
            TENANT,
            name,
        )
        assert [(row["role"], row["text"]) for row in rows] == [
            (source["role"], source["content"]) for source in sources
        ]
        results = {s["tool_call_id"]: s["content"] for s in sources if "name" in s}
        assert await paired(connection, name) == [
            (made["function"]["name"], results[made["id"]])
            for source in sources
            for made in source.get("tool_calls", [])
        ]
        stored = await messages.read_forward(
            TENANT, name, 0, include_superseded=True, limit=1000, limit_bytes=2**30
        )
        assert [message.body for message in stored] == bodies


async def test_a_call_id_that_is_used_again_pairs_by_occurrence(
    messages: Messages, connection: asyncpg.Connection
) -> None:
    sources = [
        calls(call("c", "first"), call("c", "second")),
        result("c", "1"),
        result("c", "2"),
        calls(call("c", "third")),
        result("c", "3"),
        calls(call("c", "open")),
    ]
    await store(messages, "reused", sources)
    assert await paired(connection, "reused") == [
        ("first", "1"),
        ("second", "2"),
        ("third", "3"),
        ("open", None),
    ]


async def test_calls_without_an_id_pair_by_order(
    messages: Messages, connection: asyncpg.Connection
) -> None:
    legacy = {"name": "legacy", "arguments": "{}"}
    sources = [
        calls(call(None, "a"), call(None, "b")),
        result(None, "1"),
        result(None, "2"),
        {"role": "assistant", "content": None, "function_call": legacy},
        {"role": "function", "name": "legacy", "content": "3"},
    ]
    await store(messages, "no-ids", sources)
    assert await paired(connection, "no-ids") == [
        ("a", "1"),
        ("b", "2"),
        ("legacy", "3"),
    ]


async def test_nul_in_text_is_stored_and_shown_as_a_sign(
    messages: Messages, connection: asyncpg.Connection
) -> None:
    sources = [{"role": "user", "content": "a\0b"}, calls(call("c\0", "f\0"))]
    bodies = await store(messages, "nul", sources)
    shown = await connection.fetchval(
        "SELECT content FROM perdure.messages"
        " WHERE tenant_id = $1 AND conversation_id = 'nul' AND seq = 0",
        TENANT,
    )
    assert shown == "a\u2400b"
    stored = await messages.read_forward(
        TENANT, "nul", 0, include_superseded=True, limit=10, limit_bytes=2**30
    )
    assert [message.body for message in stored] == bodies


@pytest.mark.parametrize(
    ("seconds", "nanos", "shown"),
    [
        (-62_135_596_800, 0, "0001-01-01 00:00:00.000001"),
        (0, 1_500, "1970-01-01 00:00:00.000001"),
        (253_402_300_799, 999_999_999, "9999-12-31 23:59:59.999998"),
    ],
)
async def test_a_time_that_passes_the_edge_is_finite_in_sql(
    messages: Messages,
    connection: asyncpg.Connection,
    seconds: int,
    nanos: int,
    shown: str,
) -> None:
    sent = pb.Message(message_id="m", role=pb.ROLE_USER)
    sent.create_time.seconds, sent.create_time.nanos = seconds, nanos
    sent.usage.input_tokens = 2**63 - 1
    read = read_new_messages([sent.SerializeToString()], "messages")
    name = f"time{seconds}"
    await messages.append(Append(TENANT, name, read, create_if_missing=True))
    row = await connection.fetchrow(
        "SELECT (created_at AT TIME ZONE 'UTC')::text AS shown, in_tokens"
        " FROM perdure.messages"
        " WHERE tenant_id = $1 AND conversation_id = $2",
        TENANT,
        name,
    )
    assert row is not None
    assert row["shown"] == shown
    assert row["in_tokens"] == 2**63 - 1
