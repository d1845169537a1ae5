"""The key file: made at the first start, kept while it is valid."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import open_folder
from tests.support.server import ServerProcess
from tests.support.wire import Wire, said


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as opened:
        yield opened


async def use(server: ServerProcess) -> None:
    wire = Wire(server.address, server.key)
    await wire.append("key-file", said("a"))
    await wire.channel.close()


async def test_the_first_start_writes_a_file_that_only_its_owner_reads(
    folder: Path, database_dsn: str
) -> None:
    with ServerProcess(folder, dsn=database_dsn) as server:
        path = folder / "credentials.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        content = json.loads(path.read_text())
        assert set(content) == {"target", "key"}
        assert content["target"] == server.address
        assert content["key"].startswith("pd_default_")
        await use(server)
        assert content["key"] not in server.log.read_text()


async def test_a_restart_keeps_the_key_and_states_the_new_address(
    folder: Path, database_dsn: str
) -> None:
    server = ServerProcess(folder, dsn=database_dsn)
    server.start()
    first, address = server.key, server.address
    server.kill()
    server.start()
    content = json.loads((folder / "credentials.json").read_text())
    assert server.key == first
    assert content["target"] == server.address != address
    await use(server)
    assert server.stop() == 0


@pytest.mark.parametrize("damage", ["revoked", "garbage", "of another database"])
async def test_a_key_that_does_not_work_is_replaced_by_one_that_does(
    damage: str, folder: Path, database_dsn: str, connection: asyncpg.Connection
) -> None:
    server = ServerProcess(folder, dsn=database_dsn)
    server.start()
    before = server.key
    server.stop()
    path = folder / "credentials.json"
    if damage == "revoked":
        await connection.execute(
            "UPDATE perdure_store.api_keys SET revoke_time = now() WHERE key_id = $1",
            before.split("_")[2],
        )
    elif damage == "garbage":
        path.write_text("{")
    else:
        path.write_text(json.dumps({"target": "x", "key": f"pd_a_b_{'c' * 43}"}))
    server.start()
    assert server.key != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await use(server)
    assert server.stop() == 0
