"""Keys: the same answer for every call shape, scopes, revocation, expiry."""

import asyncio
import time
import uuid
from typing import Any

import asyncpg
import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from perdure.v1 import admin_service_pb2 as admin_pb
from perdure.v1 import history_service_pb2 as pb
from tests.support.server import ServerProcess
from tests.support.wire import Metadata, Refusal, Wire, bearer, refused, said

REVOKED_WITHIN_S = 5.0


async def make_key(wire: Wire, *scopes: int, **fields: Any) -> str:
    key_id, secret = uuid.uuid4().hex, "k" * 40
    request = admin_pb.CreateKeyRequest(
        key_id=key_id, key_secret=secret, scopes=scopes, **fields
    )
    await wire.admin.CreateKey(request, metadata=wire.key)
    return f"pd_default_{key_id}_{secret}"


async def answers(wire: Wire, metadata: Metadata, reason: str) -> list[Refusal]:
    """Refuse a unary call, a stream and reflection with the same key."""
    with refused(reason) as unary:
        request = pb.GetConversationRequest(conversation_id="c")
        await wire.history.GetConversation(request, metadata=metadata)
    with refused(reason) as stream:
        asked = pb.ReadMessagesRequest(conversation_id="c")
        async for _ in wire.history.ReadMessages(asked, metadata=metadata):
            pass
    with refused(reason) as reflected:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
        # Nothing is sent: a write that meets the refusal fails on its own.
        await stub.ServerReflectionInfo(metadata=metadata).read()
    return [unary, stream, reflected]


BAD = {
    "none": (),
    "another kind": (("authorization", "Basic cGVyZHVyZQ=="),),
    "empty": bearer(""),
    "not ours": bearer("sk-" + "x" * 40),
    "unknown key": bearer(f"pd_default_nobody_{'x' * 40}"),
    "unknown tenant": bearer(f"pd_nowhere_nobody_{'x' * 40}"),
    "long": bearer("pd_" + "x" * 5000),
    "sql": bearer(f"pd_default_x' OR 'a'='a_{'x' * 40}"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_key_is_answered_alike_for_every_call_shape(
    name: str, wire: Wire
) -> None:
    unary, *others = await answers(wire, BAD[name], "KEY_INVALID")
    assert unary.code == "UNAUTHENTICATED"
    assert [other.code for other in others] == [unary.code] * 2
    assert [other.message for other in others] == [unary.message] * 2
    assert "x" * 20 not in unary.message


async def test_the_right_id_with_a_wrong_secret_is_no_key(wire: Wire) -> None:
    key = await make_key(wire, admin_pb.SCOPE_READ)
    await answers(wire, bearer(key[:-1] + "Z"), "KEY_INVALID")
    await answers(wire, bearer(key.replace("_default_", "_other_")), "KEY_INVALID")


async def test_a_missing_scope_is_answered_alike_and_named(wire: Wire) -> None:
    key = await make_key(wire, admin_pb.SCOPE_APPROVE)
    for refusal in await answers(wire, bearer(key), "SCOPE_MISSING"):
        assert refusal.code == "PERMISSION_DENIED"
        assert refusal.metadata["scope"] == "read"


async def test_a_reader_cannot_write(wire: Wire) -> None:
    reader = Wire(wire.address, await make_key(wire, admin_pb.SCOPE_READ))
    with refused("SCOPE_MISSING") as refusal:
        await reader.append("read-only", said("a"))
    assert refusal.metadata["scope"] == "write"
    with refused("CONVERSATION_NOT_FOUND"):
        await reader.read("read-only")
    await reader.channel.close()


async def test_a_revoked_key_is_refused_within_five_seconds(wire: Wire) -> None:
    key = await make_key(wire, admin_pb.SCOPE_READ)
    holder = Wire(wire.address, key)
    with refused("CONVERSATION_NOT_FOUND"):
        await holder.read("c")
    revoke = admin_pb.RevokeKeyRequest(key_id=key.split("_")[2])
    await wire.admin.RevokeKey(revoke, metadata=wire.key)
    started = time.monotonic()
    for _ in range(200):
        try:
            await holder.read("c")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the revoked key still works")
    assert time.monotonic() - started < REVOKED_WITHIN_S + 0.5
    await holder.channel.close()


async def test_a_stream_ends_when_its_key_is_revoked(wire: Wire) -> None:
    key = await make_key(wire, admin_pb.SCOPE_READ)
    holder = Wire(wire.address, key)
    await wire.append("watched", said("a"))
    call = holder.stream("watched", follow=True)
    assert (await call.read()).batch.messages
    revoke = admin_pb.RevokeKeyRequest(key_id=key.split("_")[2])
    await wire.admin.RevokeKey(revoke, metadata=wire.key)
    await asyncio.sleep(REVOKED_WITHIN_S + 0.2)
    await wire.append("watched", said("secret"))
    with refused("KEY_INVALID"):
        await call.read()
    await holder.channel.close()


async def test_a_key_ends_at_its_expiry_by_the_clock_of_the_database(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    now = await connection.fetchval("SELECT extract(epoch FROM now())::float8")
    past = Timestamp(seconds=int(now) - 1)
    key = await make_key(wire, admin_pb.SCOPE_READ, expire_time=past)
    await answers(wire, bearer(key), "KEY_INVALID")
    future = Timestamp(seconds=int(now) + 3600)
    key = await make_key(wire, admin_pb.SCOPE_READ, expire_time=future)
    holder = Wire(wire.address, key)
    with refused("CONVERSATION_NOT_FOUND"):
        await holder.read("c")
    await holder.channel.close()


async def test_only_the_digest_of_a_secret_is_stored(
    wire: Wire, connection: asyncpg.Connection
) -> None:
    key = await make_key(wire, admin_pb.SCOPE_READ)
    rows = await connection.fetch("SELECT k::text FROM perdure_store.api_keys k")
    assert rows
    for row in rows:
        assert key.split("_")[3] not in row[0]


async def test_health_needs_no_key(wire: Wire) -> None:
    stub: Any = health_pb2_grpc.HealthStub(wire.channel)
    for name in ("", "perdure.v1.HistoryService", "perdure.v1.CommitService"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_names_every_service_to_a_reader(wire: Wire) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    names: set[str] = set()
    async for response in stub.ServerReflectionInfo(iter([listing]), metadata=wire.key):
        names |= {service.name for service in response.list_services_response.service}
    assert {"perdure.v1.HistoryService", "perdure.v1.AdminService"} <= names


async def test_an_unknown_method_is_unimplemented(wire: Wire) -> None:
    call: Any = wire.channel.unary_unary("/perdure.v1.HistoryService/NotThere")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", metadata=wire.key)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_flood_of_one_bad_key_does_not_reach_the_database(
    wire: Wire, server: ServerProcess, connection: asyncpg.Connection
) -> None:
    counted = "SELECT calls FROM (SELECT sum(idx_scan + seq_scan) AS calls FROM "
    counted += "pg_stat_user_tables WHERE relname = 'api_keys') c"
    bad = bearer(f"pd_default_flood_{'x' * 40}")
    request = pb.GetConversationRequest(conversation_id="c")
    with refused("KEY_INVALID"):
        await wire.history.GetConversation(request, metadata=bad)
    await asyncio.sleep(1.5)  # statistics are sent at most once a second
    before = await connection.fetchval(counted)
    for _ in range(200):
        with refused("KEY_INVALID"):
            await wire.history.GetConversation(request, metadata=bad)
    await asyncio.sleep(1.5)
    # Not 0: sessions report what they did for the tests before with a delay.
    assert await connection.fetchval(counted) - before < 20
