from importlib.resources import files

import asyncpg
import pytest

from perdure_server.startup import StartupError
from perdure_server.store.migrate import ddl, migrate_up, needed_versions
from perdure_server.store.preflight import (
    check_database,
    list_pending,
    prepare_database,
)
from tests.support.cluster import Cluster


@pytest.fixture
def empty_dsn(cluster: Cluster):
    dsn = cluster.create_database(migrated=False)
    yield dsn
    cluster.drop_database(dsn)


async def test_an_empty_database_lacks_every_migration_until_migrated(empty_dsn):
    assert await list_pending(empty_dsn) == needed_versions()

    with pytest.raises(StartupError, match="perdure db up"):
        await check_database(empty_dsn)
    applied = await prepare_database(empty_dsn)

    assert len(applied) == len(needed_versions())
    assert await list_pending(empty_dsn) == []
    assert await prepare_database(empty_dsn) == []


async def test_one_missing_migration_is_named(empty_dsn):
    migrate_up(empty_dsn)
    last = needed_versions()[-1]
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute(
        "DELETE FROM perdure_store.schema_migrations WHERE version = $1", last
    )
    await connection.close()

    with pytest.raises(StartupError, match=last):
        await check_database(empty_dsn)


async def test_the_ddl_for_a_dba_leaves_what_migrating_leaves(empty_dsn, cluster):
    other = cluster.create_database(migrated=False)
    migrate_up(other)
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute(ddl())
    await connection.close()

    await check_database(empty_dsn)
    assert await _columns(empty_dsn) == await _columns(other)
    cluster.drop_database(other)


async def test_every_migration_goes_down_and_up_again(empty_dsn):
    migrate_up(empty_dsn)
    before = await _columns(empty_dsn)
    folder = files("perdure_server") / "sql" / "migrations"
    migrations = sorted(folder.iterdir(), key=lambda file: file.name)
    connection = await asyncpg.connect(empty_dsn)
    for migration in reversed(migrations):
        await connection.execute(migration.read_text().split("-- migrate:down")[1])
    left = await connection.fetchval(
        "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'v') AND"
        " relnamespace = 'perdure_store'::regnamespace"
    )
    await connection.execute("TRUNCATE perdure_store.schema_migrations")
    await connection.close()

    migrate_up(empty_dsn)

    assert left == 1, "more than the table of migrations was left"
    assert await _columns(empty_dsn) == before


async def test_a_migrated_database_is_a_good_guest(empty_dsn):
    migrate_up(empty_dsn)
    connection = await asyncpg.connect(empty_dsn)
    schemas = await connection.fetch(
        "SELECT nspname FROM pg_namespace"
        " WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
    )
    in_public = await connection.fetchval(
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    )
    extensions = await connection.fetch("SELECT extname FROM pg_extension")
    await connection.close()

    assert {row[0] for row in schemas} == {"public", "perdure", "perdure_store"}
    assert in_public == 0
    assert [row[0] for row in extensions] == ["plpgsql"]


async def test_a_database_that_is_not_utf8_is_refused(cluster: Cluster):
    name = "perdure_test_latin"
    dsn = cluster.dsn_of(name)
    admin = await asyncpg.connect(cluster.dsn)
    await admin.execute(f"DROP DATABASE IF EXISTS {name}")
    await admin.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1'"
        " LOCALE_PROVIDER libc LOCALE 'C'"
    )

    with pytest.raises(StartupError, match="encoded in LATIN1"):
        await prepare_database(dsn)

    await admin.execute(f"DROP DATABASE {name}")
    await admin.close()


async def test_a_read_only_database_is_refused(empty_dsn):
    separator = "&" if "?" in empty_dsn else "?"
    option = f"{separator}default_transaction_read_only=on"

    with pytest.raises(StartupError, match="read-only"):
        await prepare_database(empty_dsn + option)


async def test_an_unreachable_database_is_one_line_without_the_password():
    dsn = "postgresql://someone:hush-hush@127.0.0.1:1/nowhere"

    with pytest.raises(StartupError, match="cannot reach Postgres") as caught:
        await check_database(dsn)
    with pytest.raises(StartupError) as migrating:
        migrate_up(dsn)

    for message in (str(caught.value), str(migrating.value)):
        assert "\n" not in message
        assert "hush" not in message


async def _columns(dsn: str) -> list[tuple]:
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch(
        "SELECT table_schema, table_name, column_name, data_type, is_nullable,"
        " column_default FROM information_schema.columns"
        " WHERE table_schema IN ('perdure', 'perdure_store') ORDER BY 1, 2, 3"
    )
    functions = await connection.fetch(
        "SELECT proname, md5(prosrc) FROM pg_proc"
        " WHERE pronamespace = 'perdure_store'::regnamespace ORDER BY 1, 2"
    )
    await connection.close()
    return [tuple(row) for row in (*rows, *functions)]
