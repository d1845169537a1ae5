"""A server and a database in odd time zones mean the same instants."""

import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import asyncpg
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from perdure.v1 import history_service_pb2 as pb
from tests.support.cluster import Cluster, open_folder, run_in_thread
from tests.support.server import ServerProcess
from tests.support.wire import Wire, said

SERVER_ZONE = "Asia/Kolkata"
DATABASE_ZONE = "America/St_Johns"
# The hour that St. John's had twice in 2023.
INSTANTS = [
    datetime(2023, 11, 5, 3, 45, tzinfo=UTC),
    datetime(2023, 11, 5, 4, 45, 0, 123456, tzinfo=UTC),
]


@pytest.fixture(scope="module")
def odd_dsn(cluster: Cluster) -> Iterator[str]:
    dsn = cluster.create_database()

    async def set_zone() -> None:
        connection = await asyncpg.connect(dsn)
        name = urlsplit(dsn).path.lstrip("/")
        await connection.execute(
            f"ALTER DATABASE \"{name}\" SET TimeZone = '{DATABASE_ZONE}'"
        )
        await connection.close()

    run_in_thread(set_zone())
    yield dsn
    cluster.drop_database(dsn)


@pytest.fixture
async def odd_wire(odd_dsn: str) -> AsyncIterator[Wire]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = SERVER_ZONE
    try:
        with open_folder() as folder, ServerProcess(folder, dsn=odd_dsn) as server:
            wire = Wire(server.address, server.key)
            yield wire
            await wire.channel.close()
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before


# R36
async def test_instants_come_back_whatever_the_zones(
    odd_wire: Wire, odd_dsn: str
) -> None:
    sent = [Timestamp() for _ in INSTANTS]
    for time, instant in zip(sent, INSTANTS, strict=True):
        time.FromDatetime(instant)
    bodies = [said(f"m{n}", create_time=time) for n, time in enumerate(sent)]
    await odd_wire.append("zones", *bodies)
    stored = await odd_wire.read("zones", view=pb.MESSAGE_VIEW_BOTH)
    assert [m.canonical.create_time for m in stored] == sent
    connection = await asyncpg.connect(odd_dsn)
    try:
        assert await connection.fetchval("SHOW TimeZone") == DATABASE_ZONE
        shown = await connection.fetch(
            "SELECT created_at FROM perdure.messages WHERE conversation_id = 'zones' "
            "ORDER BY seq"
        )
        assert [row["created_at"] for row in shown] == INSTANTS
        now = await connection.fetchval("SELECT now()")
    finally:
        await connection.close()
    recorded = stored[0].record_time.ToDatetime(tzinfo=UTC)
    assert abs((now - recorded).total_seconds()) < 60


# R36
async def test_every_time_of_the_schema_has_a_zone(
    connection: asyncpg.Connection,
) -> None:
    naive = await connection.fetch(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema IN ('perdure', 'perdure_store') "
        "AND data_type IN ('timestamp without time zone', 'date', "
        "'time without time zone')"
    )
    assert [tuple(row.values()) for row in naive] == []


# R37
async def test_every_number_of_the_schema_is_a_bigint(
    connection: asyncpg.Connection,
) -> None:
    narrow = await connection.fetch(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = 'perdure_store' AND data_type IN ('integer', 'smallint')"
    )
    assert [tuple(row.values()) for row in narrow] == []


# R36
async def test_a_lease_expires_by_the_clock_of_the_database(
    odd_wire: Wire, odd_dsn: str
) -> None:
    await odd_wire.acquire("zoned", "zoned")
    connection = await asyncpg.connect(odd_dsn)
    try:
        left = await connection.fetchval(
            "SELECT extract(epoch FROM expire_time - now())::float8 "
            "FROM perdure_store.leases"
        )
    finally:
        await connection.close()
    assert 20 < left <= 30
