"""A start that cannot work: one line on stderr, a non-zero exit, nothing left over."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from perdure_server.embedded.postmaster import live_postmaster
from perdure_server.store.migrate import needed_versions
from tests.support.cluster import Cluster, run_in_thread
from tests.support.server import ServerProcess


def test_a_database_without_the_schema_names_the_command(
    cluster: Cluster, data_dir: Path
):
    dsn = cluster.create_database(migrated=False)

    line = refused("serve", "--data-dir", str(data_dir), dsn=dsn)
    migrated = run("db", "up", "--data-dir", str(data_dir), dsn=dsn)
    status = run("db", "status", "--data-dir", str(data_dir), dsn=dsn)

    assert "perdure db up" in line
    assert migrated.returncode == 0, migrated.stderr
    assert len(migrated.stdout.splitlines()) >= len(needed_versions())
    assert status.returncode == 0, status.stderr
    with ServerProcess(data_dir, dsn=dsn) as server:
        assert server.key.startswith("pd_")
    cluster.drop_database(dsn)


def test_db_status_names_what_is_missing_and_db_sql_prints_it(cluster: Cluster):
    dsn = cluster.create_database(migrated=False)

    status = run("db", "status", dsn=dsn)
    script = run("db", "sql")

    assert status.returncode == 1
    for version in needed_versions():
        assert version in status.stdout
    execute(dsn, script.stdout)
    assert run("db", "status", dsn=dsn).returncode == 0
    cluster.drop_database(dsn)


def test_an_unreachable_database_is_refused_without_its_password(data_dir: Path):
    dsn = "postgresql://someone:hush-hush@127.0.0.1:1/nowhere"

    line = refused("serve", "--data-dir", str(data_dir), dsn=dsn)

    assert "cannot reach Postgres" in line
    assert "hush" not in line


def test_a_port_in_use_is_refused(database_dsn: str, data_dir: Path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"

        line = refused(
            *("serve", "--listen", address, "--data-dir", str(data_dir)),
            dsn=database_dsn,
        )

    assert "--listen" in line


def test_two_servers_on_one_folder_are_refused_but_the_first_serves_on(data_dir: Path):
    with ServerProcess(data_dir) as first:
        line = refused("serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir))

        assert f"pid {first.pid}" in line
        assert run("db", "status", "--data-dir", str(data_dir)).returncode == 0
        host, _, port = first.address.rpartition(":")
        socket.create_connection((host, int(port))).close()
        assert first.stop() == 0
    assert live_postmaster(data_dir / "postgres") is None


def test_a_folder_of_another_version_is_refused(data_dir: Path):
    (data_dir / "postgres").mkdir()
    (data_dir / "postgres/PG_VERSION").write_text("16\n")

    line = refused("serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir))

    assert "made by Postgres 16" in line


def test_a_killed_server_comes_back_on_its_folder_with_its_key(data_dir: Path):
    server = ServerProcess(data_dir)
    server.start()
    key = server.key
    server.kill()
    assert live_postmaster(data_dir / "postgres") is not None

    server.start()

    assert server.key == key
    assert (data_dir / "credentials.json").stat().st_mode & 0o777 == 0o600
    assert server.stop() == 0
    assert live_postmaster(data_dir / "postgres") is None


@pytest.mark.parametrize("argument", ["--listen=nowhere", "--lease-ttl-s=-1"])
def test_a_bad_flag_is_one_line(argument: str):
    done = run("serve", argument)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def refused(*arguments: str, dsn: str | None = None) -> str:
    done = run(*arguments, dsn=dsn)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def run(*arguments: str, dsn: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PERDURE_DSN": dsn} if dsn else {})
    return subprocess.run(
        [sys.executable, "-m", "perdure_server", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def execute(dsn: str, script: str) -> None:
    async def call() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(script)
        await connection.close()

    run_in_thread(call())
