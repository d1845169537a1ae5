"""CheckpointService on the wire: what is refused, and the four answers of a read."""

import struct
import uuid
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
import xxhash
import zstandard

import perdure_codec
from perdure.v1 import agent_pb2, checkpoint_pb2
from perdure.v1 import checkpoint_service_pb2 as pb
from tests.support.cluster import Cluster, open_folder
from tests.support.server import ServerProcess
from tests.support.wire import Wire, refused

HEADER_BYTES = 72
CHECKSUM = slice(64, 72)
STATE = {"step": 1, "text": "x" * 200, "nothing": None, "pair": (1, 2.5)}


@pytest.fixture
def name() -> str:
    return f"a-{uuid.uuid4().hex[:12]}"


async def put(
    wire: Wire, fence: agent_pb2.Fence, step: int, **fields: Any
) -> checkpoint_pb2.CheckpointReceipt:
    checkpoint = checkpoint_pb2.CheckpointWrite(
        agent_id=fence.agent_id, step=step, **fields
    )
    request = pb.PutCheckpointRequest(checkpoint=checkpoint, fence=fence)
    response = await wire.checkpoints.PutCheckpoint(request, metadata=wire.key)
    receipt: checkpoint_pb2.CheckpointReceipt = response.receipt
    return receipt


async def get(wire: Wire, agent_id: str, step: int = 0, **fields: Any) -> Any:
    request = pb.GetCheckpointRequest(agent_id=agent_id, step=step, **fields)
    return await wire.checkpoints.GetCheckpoint(request, metadata=wire.key)


async def prune(wire: Wire, *agent_ids: str, **fields: Any) -> Any:
    request = pb.PruneCheckpointsRequest(
        selector=agent_pb2.AgentSelector(agent_ids=agent_ids), **fields
    )
    return await wire.checkpoints.PruneCheckpoints(request, metadata=wire.key)


async def stored(connection: asyncpg.Connection, agent_id: str) -> list[int]:
    rows = await connection.fetch(
        "SELECT step FROM perdure_store.checkpoints WHERE agent_id = $1 ORDER BY step",
        agent_id,
    )
    return [row["step"] for row in rows]


async def execute(dsn: str, statement: str) -> None:
    database = await asyncpg.connect(dsn)
    try:
        await database.execute(statement)
    finally:
        await database.close()


def resealed(frame: bytes) -> bytes:
    """Give an altered frame a right checksum: a liar, not an accident."""
    body = frame[:64] + frame[HEADER_BYTES:]
    digest = struct.pack("<Q", xxhash.xxh64_intdigest(body))
    return frame[:64] + digest + frame[HEADER_BYTES:]


def bomb() -> bytes:
    """Return a small frame that would unpack to 1 GiB."""
    raw = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
    frame = bytearray(perdure_codec.encode("x" * 500, compress=True))
    frame = frame[:HEADER_BYTES] + raw
    frame[16:24] = struct.pack("<Q", 1 << 30)
    frame[24:32] = struct.pack("<Q", len(raw))
    return resealed(bytes(frame))


def altered(place: int, value: int) -> Callable[[bytes], bytes]:
    def alter(frame: bytes) -> bytes:
        changed = bytearray(frame)
        changed[place] = value
        return resealed(bytes(changed))

    return alter


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda frame: b"", "TRUNCATED"),
    "truncated": (lambda frame: frame[:-1], "TRUNCATED"),
    "cut in its header": (lambda frame: frame[:40], "TRUNCATED"),
    "extended": (lambda frame: frame + b"\0", "TRAILING_BYTES"),
    "two frames": (lambda frame: frame + frame, "TRAILING_BYTES"),
    "flipped": (
        lambda frame: frame[:-3] + bytes([frame[-3] ^ 1]) + frame[-2:],
        "DIGEST_MISMATCH",
    ),
    "no frame": (lambda frame: b'{"step": 1}' * 10, "BAD_MAGIC"),
    "version 2": (altered(4, 2), "UNKNOWN_VERSION"),
    "a delta": (altered(5, 1), "DELTA_NOT_SERVED"),
    "unknown kind": (altered(5, 9), "UNKNOWN_KIND"),
    "unknown compression": (altered(6, 9), "UNKNOWN_COMPRESSION"),
    "too large": (altered(21, 255), "TOO_LARGE"),
    "bomb": (lambda frame: bomb(), "TOO_LARGE"),
}


@pytest.mark.parametrize("fault", list(WRONG))
async def test_a_frame_that_is_not_whole_is_refused_before_any_row(
    wire: Wire, connection: asyncpg.Connection, name: str, fault: str
) -> None:
    alter, code = WRONG[fault]
    fence = await wire.acquire(name, name)

    with refused("FRAME_INVALID") as refusal:
        await put(wire, fence, 1, frame=alter(perdure_codec.encode(STATE)))

    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.metadata == {"path": "checkpoint.frame", "code": code}
    assert await stored(connection, name) == []
    await put(wire, fence, 1, frame=perdure_codec.encode(STATE))


async def test_every_flipped_byte_of_a_frame_is_refused(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    fence = await wire.acquire(name, name)
    frame = perdure_codec.encode({"n": 1}, compress=False)
    for place in range(len(frame)):
        changed = bytearray(frame)
        changed[place] ^= 0x10
        with refused("FRAME_INVALID"):
            await put(wire, fence, 1, frame=bytes(changed))

    assert await stored(connection, name) == []


async def test_a_state_comes_back_in_the_encoding_that_is_asked_for(
    wire: Wire, name: str
) -> None:
    fence = await wire.acquire(name, name)
    frame = perdure_codec.encode({"a": [1, 2.5, None]}, schema_version=7)
    receipt = await put(wire, fence, 1, frame=frame)

    as_stored = await get(wire, name)
    as_json = await get(wire, name, encoding=checkpoint_pb2.STATE_ENCODING_JSON)
    as_msgpack = await get(wire, name, encoding=checkpoint_pb2.STATE_ENCODING_MSGPACK)

    assert list(as_stored.state.frames.frames) == [frame]
    assert as_stored.checkpoint.digest == receipt.digest
    assert as_stored.checkpoint.schema_version == 7
    assert as_json.state.json == '{"a":[1,2.5,null]}'
    assert perdure_codec.unpack(as_msgpack.state.msgpack) == {"a": [1, 2.5, None]}


async def test_json_and_msgpack_are_made_into_frames_with_the_same_identity(
    wire: Wire, name: str
) -> None:
    fence = await wire.acquire(name, name)
    state = {"n": 1, "list": ["a"]}
    first = await put(wire, fence, 1, json='{"n": 1, "list": ["a"]}', schema_version=3)
    again = await put(wire, fence, 1, msgpack=perdure_codec.pack(state))

    assert again.replayed
    assert first.digest == again.digest
    found = await get(wire, name)
    assert found.checkpoint.schema_version == 3
    assert perdure_codec.decode(found.state.frames.frames[0]) == state


# R30
@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("msgpack", b"\x91" * 200_000 + b"\xc0", "msgpack"),
        ("msgpack", b"\x81\xa1k" * 100_000 + b"\xc0", "msgpack"),
        ("json", "[" * 200_000 + "]" * 200_000, "json"),
        ("json", '{"a":' * 100_000 + "1" + "}" * 100_000, "json"),
    ],
)
async def test_deep_nesting_is_refused_and_harms_nobody(
    wire: Wire, name: str, field: str, value: bytes | str, path: str
) -> None:
    fence = await wire.acquire(name, name)

    with refused("VALUE_NOT_STORABLE") as refusal:
        await put(wire, fence, 1, **{field: value})

    assert refusal.metadata["path"].startswith(f"checkpoint.{path}")
    legal: object = None
    for _ in range(300):
        legal = [legal]
    await put(wire, fence, 1, msgpack=perdure_codec.pack(legal))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("msgpack", b"\xd4\x63\x00"),  # an extension type that nobody knows
        ("msgpack", b"\xc7\xff\x7f" + bytes(255)),
        ("msgpack", b"\x92\x01\xd4\x63\x00"),
        ("msgpack", b"\xc1"),
        ("msgpack", b"\x01\x01"),  # trailing bytes
        ("msgpack", b""),
        ("msgpack", b"\x82\xa1a\x01\xa1a\x02"),  # one key twice
        ("msgpack", b"\xa1\xff"),  # not UTF-8
        ("msgpack", b"\xdd\xff\xff\xff\xff"),  # 4 G items, none there
        ("json", ""),
        ("json", "{"),
        ("json", "NaN"),
        ("json", '{"a": 1, "a": 2}'),
        ("json", '"\\ud800"'),
        ("json", '{"a": [1, Infinity]}'),
    ],
)
async def test_a_state_that_cannot_be_kept_is_refused_before_any_row(
    wire: Wire,
    connection: asyncpg.Connection,
    name: str,
    field: str,
    value: bytes | str,
) -> None:
    fence = await wire.acquire(name, name)

    with refused("VALUE_NOT_STORABLE") as refusal:
        await put(wire, fence, 1, **{field: value})

    assert refusal.metadata["path"].startswith(f"checkpoint.{field}")
    assert await stored(connection, name) == []


@pytest.mark.parametrize(
    ("fields", "reason", "path"),
    [
        ({"step": 0}, "VALUE_NOT_STORABLE", "checkpoint.step"),
        ({"step": -1}, "VALUE_NOT_STORABLE", "checkpoint.step"),
        ({"agent_id": ""}, "VALUE_NOT_STORABLE", "checkpoint.agent_id"),
        ({"agent_id": "a\0"}, "VALUE_NOT_STORABLE", "checkpoint.agent_id"),
        ({"agent_id": "a" * 256}, "LIMIT_EXCEEDED", "checkpoint.agent_id"),
        ({"branch": "b" * 256}, "LIMIT_EXCEEDED", "checkpoint.branch"),
        ({"read_seq": -1}, "VALUE_NOT_STORABLE", "checkpoint.read_seq"),
        ({"read_seq": 1}, "VALUE_NOT_STORABLE", "checkpoint.read_seq"),
        ({"run_id": "r\0"}, "VALUE_NOT_STORABLE", "checkpoint.run_id"),
        ({"metadata_json": "{"}, "VALUE_NOT_STORABLE", "checkpoint.metadata_json"),
        ({"metadata_json": '"' + "x" * 65536 + '"'}, "LIMIT_EXCEEDED", None),
        ({"schema_version": 2**32}, "VALUE_NOT_STORABLE", "checkpoint.schema_version"),
        ({"json": "x" * 10, "frame": b""}, "FRAME_INVALID", "checkpoint.frame"),
        ({"json": None}, "VALUE_NOT_STORABLE", "checkpoint.state"),
    ],
)
async def test_a_field_that_cannot_be_kept_is_named(
    wire: Wire, name: str, fields: dict[str, Any], reason: str, path: str | None
) -> None:
    fence = await wire.acquire(name, name)
    given = {"agent_id": name, "step": 1, "json": "{}"} | fields
    checkpoint = checkpoint_pb2.CheckpointWrite(**given)
    fence.agent_id = checkpoint.agent_id or name

    with refused(reason) as refusal:
        await wire.checkpoints.PutCheckpoint(
            pb.PutCheckpointRequest(checkpoint=checkpoint, fence=fence),
            metadata=wire.key,
        )

    assert path is None or refusal.metadata["path"] == path


async def test_an_inline_frame_has_a_limit(wire: Wire, name: str) -> None:
    fence = await wire.acquire(name, name)
    noise = "".join(chr(33 + n * 7919 % 90) for n in range(100))
    largest = noise.encode() * (3 * 1024 * 1024 // 100)
    with refused("LIMIT_EXCEEDED") as refusal:
        frame = perdure_codec.encode(largest, compress=False)
        await put(wire, fence, 1, frame=frame)
    assert refusal.metadata["limit"] == str(3 * 1024 * 1024)

    frame = perdure_codec.encode(largest[:-100], compress=False)
    await put(wire, fence, 1, frame=frame)
    found = await get(wire, name, encoding=checkpoint_pb2.STATE_ENCODING_MSGPACK)
    assert perdure_codec.unpack(found.state.msgpack) == largest[:-100]


async def test_a_state_that_unpacks_beyond_a_message_is_read_as_a_frame(
    wire: Wire, name: str
) -> None:
    fence = await wire.acquire(name, name)
    state = [f"line {n} of a long log, all much like this one" for n in range(150_000)]
    await put(wire, fence, 1, frame=perdure_codec.encode(state))

    found = await get(wire, name)
    assert perdure_codec.decode(found.state.frames.frames[0]) == state
    for encoding in (
        checkpoint_pb2.STATE_ENCODING_JSON,
        checkpoint_pb2.STATE_ENCODING_MSGPACK,
    ):
        with refused("LIMIT_EXCEEDED"):
            await get(wire, name, encoding=encoding)


async def test_a_state_that_json_cannot_say_names_the_value(
    wire: Wire, name: str
) -> None:
    fence = await wire.acquire(name, name)
    await put(wire, fence, 1, frame=perdure_codec.encode({"a": [b"bytes"]}))

    with refused("VALUE_NOT_STORABLE") as refusal:
        await get(wire, name, encoding=checkpoint_pb2.STATE_ENCODING_JSON)

    assert "a" in refusal.metadata["path"]


# R63
async def test_missing_broken_pruned_and_unreachable_are_four_answers(
    cluster: Cluster, name: str
) -> None:
    dsn = cluster.create_database()
    with open_folder() as folder, ServerProcess(folder, dsn=dsn) as server:
        wire = Wire(server.address, server.key)
        with refused("AGENT_NOT_FOUND"):
            await get(wire, name)
        fence = await wire.acquire(name, name)
        with refused("CHECKPOINT_NOT_FOUND") as refusal:
            await get(wire, name)
        assert refusal.code == "NOT_FOUND"
        for step in (1, 2, 4, 5):
            await put(wire, fence, step, frame=perdure_codec.encode({"n": step}))
        with refused("CHECKPOINT_NOT_FOUND"):
            await get(wire, name, 6)

        await execute(dsn, "DELETE FROM perdure_store.checkpoints WHERE step = 1")
        for step in (1, 3):  # removed, and never there below the head
            with refused("PRUNED") as refusal:
                await get(wire, name, step)
            assert refusal.code == "FAILED_PRECONDITION"

        await execute(
            dsn,
            "UPDATE perdure_store.checkpoints SET frame = "
            "set_byte(frame, 74, get_byte(frame, 74) # 1) WHERE step > 2",
        )
        with refused("FRAME_CORRUPT") as refusal:
            await get(wire, name)
        assert refusal.code == "DATA_LOSS"
        assert refusal.metadata["last_good_step"] == "2"
        assert (await get(wire, name, 2)).checkpoint.step == 2

        cluster.drop_database(dsn)
        with refused("STORE_UNAVAILABLE") as refusal:
            await get(wire, name, 2)
        assert refusal.code == "UNAVAILABLE"
        assert refusal.retry_after_s is not None
        await wire.channel.close()


async def test_a_list_pages_from_the_newest_step(wire: Wire, name: str) -> None:
    fence = await wire.acquire(name, name)
    for step in range(1, 8):
        await put(wire, fence, step, json=f'{{"n": {step}}}', metadata_json='{"a":1}')

    steps: list[int] = []
    token = ""
    while True:
        request = pb.ListCheckpointsRequest(
            agent_id=name, page_size=3, page_token=token
        )
        page = await wire.checkpoints.ListCheckpoints(request, metadata=wire.key)
        steps += [checkpoint.step for checkpoint in page.checkpoints]
        assert all(item.metadata_json == '{"a":1}' for item in page.checkpoints)
        token = page.next_page_token
        if not token:
            break

    assert steps == [7, 6, 5, 4, 3, 2, 1]
    with refused("PAGE_TOKEN_INVALID"):
        await wire.checkpoints.ListCheckpoints(
            pb.ListCheckpointsRequest(agent_id=name, page_token="AAAA"),
            metadata=wire.key,
        )


async def test_a_dry_run_of_pruning_says_what_the_real_one_does(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    fence = await wire.acquire(name, name)
    for step in range(1, 6):
        await put(wire, fence, step, json=f'{{"n": {step}}}')
    policy = pb.RetentionPolicy(keep_steps=2)

    said = await prune(wire, name, policy=policy, dry_run=True)
    assert await stored(connection, name) == [1, 2, 3, 4, 5]
    done = await prune(wire, name, policy=policy)

    assert said == done
    assert (done.agent_count, done.checkpoint_count) == (1, 4)
    assert await stored(connection, name) == [5]
    assert (await prune(wire, name, drop_all=True, dry_run=True)).checkpoint_count == 1
    assert (await prune(wire, name, drop_all=True)).checkpoint_count == 1
    with refused("PRUNED"):
        await get(wire, name)


async def test_an_empty_selector_and_a_senseless_policy_are_refused(
    wire: Wire, name: str
) -> None:
    with refused("SELECTOR_EMPTY"):
        await wire.checkpoints.PruneCheckpoints(
            pb.PruneCheckpointsRequest(drop_all=True), metadata=wire.key
        )
    with refused("VALUE_NOT_STORABLE") as refusal:
        await prune(wire, name, policy=pb.RetentionPolicy())
    assert refusal.metadata["path"] == "policy.keep_steps"
    with refused("VALUE_NOT_STORABLE") as refusal:
        policy = pb.RetentionPolicy(keep_steps=1)
        policy.keep_age.FromSeconds(10)
        policy.max_age.FromSeconds(5)
        await prune(wire, name, policy=policy)
    assert refusal.metadata["path"] == "policy.max_age"
