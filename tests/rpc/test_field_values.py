"""Values at the edges of their fields: text, ids, counters, times, sizes."""

import random
import string
from typing import Any

import asyncpg
import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from perdure.v1 import history_service_pb2 as pb
from perdure.v1 import message_pb2
from tests.support.wire import Wire, refused, said

SIZES = ("compressible", "random")
BOUNDARIES = [0, 2**31 - 1, 2**31, 2**32, 3_000_000_000, 2**53 + 1, 2**63 - 1]


def text_of(size: int, kind: str) -> str:
    if kind == "compressible":
        return "a" * size
    return "".join(random.Random(size).choices(string.ascii_letters, k=size))


# R35
async def test_nul_in_what_people_say_is_kept(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    body = said("a", "before\0after")
    await wire.append("nul", body)
    (stored,) = await wire.read("nul", view=pb.MESSAGE_VIEW_BOTH)
    assert stored.message == body
    assert stored.canonical.blocks[0].text.text == "before\0after"
    # Postgres text cannot hold it: the projection shows it.
    shown = await connection.fetchval(
        "SELECT content FROM perdure.messages WHERE conversation_id = 'nul'"
    )
    assert shown == "before\u2400after"


# R35
async def test_nul_in_a_native_payload_and_in_tool_arguments_is_kept(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    payload = (
        rb'{"role":"assistant","content":null,"tool_calls":[{"id":"c\u0000",'
        rb'"type":"function","function":{"name":"f","arguments":"{\"a\":\"\\u0000'
        rb'\u0000\"}"}}]}'
    )
    native = message_pb2.NativePayload(
        format="openai.chat_completions", payload=payload
    )
    body = message_pb2.Message(message_id="a", native=native).SerializeToString()
    await wire.append("nul-native", body)
    (stored,) = await wire.read("nul-native")
    assert stored.message == body
    row = await connection.fetchrow(
        "SELECT call_id, tool_name, tool_args FROM perdure.tool_calls "
        "WHERE conversation_id = 'nul-native'"
    )
    assert row is not None
    assert (row["tool_name"], row["call_id"]) == ("f", "c\u2400")
    assert "\u2400" in row["tool_args"]


# R35
async def test_nul_in_an_id_or_a_name_is_refused_by_its_path(wire: Wire) -> None:
    cases: list[tuple[str, dict[str, str]]] = [
        ("conversation_id", {"conversation_id": "a\0b"}),
        ("user_id", {"conversation_id": "x", "user_id": "\0"}),
        ("metadata_json", {"conversation_id": "x", "metadata_json": '{"a":"\0"}'}),
    ]
    for path, fields in cases:
        with refused("VALUE_NOT_STORABLE") as refusal:
            await wire.create(**fields)
        assert refusal.code == "INVALID_ARGUMENT"
        assert refusal.metadata["path"] == path
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.append("x", said("ok"), said("m\0"))
    assert refusal.metadata["path"] == "messages[1].message_id"
    with refused("CONVERSATION_NOT_FOUND"):
        await wire.read("x")


# R35: an escape in JSON text is not a NUL, and metadata is kept as text.
async def test_an_escaped_nul_in_metadata_is_kept_verbatim(wire: Wire) -> None:
    metadata = r'{"a\u0000":"b\u0000"}'
    made = await wire.create("nul-metadata", metadata_json=metadata)
    assert made.conversation.metadata_json == metadata


# R37
@pytest.mark.parametrize("value", BOUNDARIES)
async def test_counters_are_64_bit_all_the_way(
    value: int, wire: Wire, connection: asyncpg.Connection
) -> None:
    usage = message_pb2.Usage(
        input_tokens=value,
        cached_tokens=value,
        output_tokens=value,
        reasoning_tokens=value,
    )
    body = said("a", role="assistant", usage=usage)
    await wire.append(f"counters-{value}", body)
    (stored,) = await wire.read(f"counters-{value}", view=pb.MESSAGE_VIEW_CANONICAL)
    assert stored.canonical.usage == usage
    row = await connection.fetchrow(
        "SELECT in_tokens, cached_tokens, out_tokens, reasoning_tokens "
        "FROM perdure.messages WHERE conversation_id = $1",
        f"counters-{value}",
    )
    assert row is not None
    assert tuple(row.values()) == (value,) * 4


# R37
async def test_a_sum_of_counters_does_not_overflow(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    usage = message_pb2.Usage(input_tokens=2**63 - 1)
    await wire.append(
        "sums", *[said(f"m{n}", role="assistant", usage=usage) for n in range(3)]
    )
    total = await connection.fetchval(
        "SELECT sum(in_tokens) FROM perdure.messages WHERE conversation_id = 'sums'"
    )
    assert total == 3 * (2**63 - 1)


# R37
async def test_seqs_go_on_past_32_bits(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    await wire.create("long")
    await connection.execute(
        "UPDATE perdure_store.conversations SET message_count = $1 "
        "WHERE conversation_id = 'long'",
        2**31 - 1,
    )
    answer = await wire.append(
        "long", said("a"), said("b"), said("c"), expected_seq=2**31 - 1
    )
    expected = [2**31 - 1, 2**31, 2**31 + 1]
    assert [m.seq for m in answer.messages] == expected
    assert [m.seq for m in await wire.read("long", from_seq=2**31)] == expected[1:]
    with refused("SEQ_CONFLICT"):
        await wire.append("long", said("d"), expected_seq=2**53 + 1)


# R37
async def test_a_negative_counter_is_refused_by_its_path(wire: Wire) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        usage = message_pb2.Usage(output_tokens=-1)
        await wire.append("negative", said("a", usage=usage))
    assert refusal.metadata["path"] == "messages[0].usage.output_tokens"
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.append("negative", said("a"), expected_seq=-1)
    assert refusal.metadata["path"] == "expected_seq"


# R38
@pytest.mark.parametrize("kind", SIZES)
async def test_an_id_or_name_that_is_too_long_is_refused_whatever_it_holds(
    kind: str, wire: Wire
) -> None:
    cases: list[tuple[str, dict[str, str]]] = [
        ("conversation_id", {"conversation_id": text_of(8192, kind)}),
        ("conversation_id", {"conversation_id": text_of(256, kind)}),
        ("user_id", {"conversation_id": "x", "user_id": text_of(5120, kind)}),
        ("source_id", {"conversation_id": "x", "source_id": text_of(8192, kind)}),
        ("agent_slug", {"conversation_id": "x", "agent_slug": text_of(256, kind)}),
    ]
    for path, fields in cases:
        with refused("LIMIT_EXCEEDED") as refusal:
            await wire.create(**fields)
        assert refusal.code == "INVALID_ARGUMENT"
        assert refusal.metadata["path"] == path
    with refused("LIMIT_EXCEEDED") as refusal:
        await wire.append("x", said(text_of(4096, kind)))
    assert refusal.metadata["path"] == "messages[0].message_id"


# R38
@pytest.mark.parametrize("kind", SIZES)
async def test_the_longest_ids_and_a_title_of_60_kb_are_stored(
    kind: str, wire: Wire
) -> None:
    conversation_id = text_of(255, kind)
    title = f'{{"title":"{text_of(60_000, kind)}"}}'
    made = await wire.create(
        conversation_id, metadata_json=title, user_id=text_of(255, kind)
    )
    assert made.conversation.metadata_json == title
    await wire.append(conversation_id, said(text_of(255, kind)))
    (stored,) = await wire.read(conversation_id)
    assert stored.message_id == text_of(255, kind)
    assert stored.message == said(text_of(255, kind))


# R38
@pytest.mark.parametrize("kind", SIZES)
async def test_metadata_over_its_limit_is_refused(kind: str, wire: Wire) -> None:
    with refused("LIMIT_EXCEEDED") as refusal:
        await wire.create(
            f"metadata-{kind}", metadata_json=f'"{text_of(70_000, kind)}"'
        )
    assert refusal.metadata["path"] == "metadata_json"
    assert refusal.metadata["limit"] == str(64 * 1024)


async def test_a_limit_counts_bytes_of_utf_8(wire: Wire) -> None:
    await wire.create("é" * 127)
    with refused("LIMIT_EXCEEDED") as refusal:
        await wire.create("é" * 128)
    assert refusal.metadata["actual"] == "256"


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("{", ""),
        ("NaN", ""),
        ('{"a":Infinity}', ".a"),
        ("[1,]", "[1]"),
        ("'a'", ""),
        ("\ufeff1", ""),
        ('{"a":1,"a":2}', ".a"),
        ('["\\ud83d"]', "[0]"),
    ],
)
async def test_metadata_that_is_not_json_is_refused(
    text: str, inside: str, wire: Wire
) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.create("no-json", metadata_json=text)
    assert refusal.metadata["path"] == f"metadata_json{inside}"


async def test_metadata_nested_deeply_is_refused_and_the_server_lives(
    wire: Wire,
) -> None:
    with refused("VALUE_NOT_STORABLE"):
        await wire.create("deep", metadata_json="[" * 30_000 + "]" * 30_000)
    await wire.create("deep")


async def test_an_append_over_3_mib_or_1000_messages_is_refused(wire: Wire) -> None:
    with refused("LIMIT_EXCEEDED") as refusal:
        await wire.append("large", said("a", "x" * (3 * 1024 * 1024)))
    assert refusal.metadata["limit"] == str(3 * 1024 * 1024)
    with refused("LIMIT_EXCEEDED") as refusal:
        await wire.append("large", *[said(f"m{n}") for n in range(1001)])
    assert refusal.metadata == {"path": "messages", "limit": "1000", "actual": "1001"}
    await wire.append("large", *[said(f"m{n}") for n in range(1000)])


async def test_a_request_over_4_mib_is_refused_by_grpc_and_harms_nobody(
    wire: Wire,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await wire.append("oversized", said("a", "x" * (5 * 1024 * 1024)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await wire.append("oversized", said("a"))


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        # Lone surrogates, as some encoders write them.
        (b"\x0a\x03\xed\xa0\x80", "conversation_id"),
        (b"\x0a\x01x\x12\x03\xed\xbf\xbf", "user_id"),
        (b"\x0a\x01x\x2a\x02\xff\xfe", "source_format"),
        (b"\x0a\xff", ""),
    ],
)
async def test_a_request_that_cannot_be_parsed_is_refused_by_its_path(
    sent: bytes, path: str, wire: Wire
) -> None:
    call: Any = wire.channel.unary_unary(
        "/perdure.v1.HistoryService/CreateConversation"
    )
    with refused("VALUE_NOT_STORABLE") as refusal:
        await call(sent, metadata=wire.key)
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.metadata["path"] == path


async def test_what_an_unknown_caller_sent_is_not_even_parsed(wire: Wire) -> None:
    call: Any = wire.channel.unary_unary(
        "/perdure.v1.HistoryService/CreateConversation"
    )
    with refused("KEY_INVALID"):
        await call(b"\xff\xff")


# R36
async def test_the_time_of_a_message_is_kept_to_the_microsecond(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    times = [
        Timestamp(seconds=-62135596800),
        Timestamp(seconds=-1, nanos=999_999_000),
        Timestamp(seconds=1_700_000_000, nanos=123_456_000),
        Timestamp(seconds=253402300799, nanos=999_999_000),
    ]
    bodies = [said(f"m{n}", create_time=time) for n, time in enumerate(times)]
    await wire.append("times", *bodies)
    stored = await wire.read("times", view=pb.MESSAGE_VIEW_BOTH)
    assert [m.canonical.create_time for m in stored] == times
    rows = await connection.fetch(
        "SELECT extract(epoch FROM created_at) AS at FROM perdure.messages "
        "WHERE conversation_id = 'times' ORDER BY seq"
    )
    shown = [int(row["at"] * 1_000_000) for row in rows]
    exact = [time.seconds * 1_000_000 + time.nanos // 1000 for time in times]
    assert shown[1:3] == exact[1:3]
    # The driver knows the first and the last moment as infinities only.
    assert (shown[0], shown[3]) == (exact[0] + 1, exact[3] - 1)


@pytest.mark.parametrize(
    "time",
    [
        Timestamp(seconds=253402300800),
        Timestamp(seconds=-62135596801),
        Timestamp(nanos=-1),
        Timestamp(nanos=1_000_000_000),
    ],
)
async def test_a_time_outside_the_years_1_to_9999_is_refused(
    time: Timestamp, wire: Wire
) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await wire.append("no-time", said("a", create_time=time))
    assert refusal.metadata["path"].startswith("messages[0].create_time")
