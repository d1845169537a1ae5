"""The embedded Postgres across the deaths of its owner, and its refusals."""

import os
import signal
import stat
import time
from pathlib import Path

import asyncpg
import pytest

from perdure_server.embedded import EmbeddedPostgres, running_dsn
from perdure_server.embedded.postmaster import live_postmaster, socket_dir_of
from perdure_server.startup import StartupError
from tests.embedded.conftest import Owners
from tests.support.cluster import open_folder, run_in_thread


def test_a_killed_owner_leaves_its_cluster_to_the_next_with_all_data(
    any_owners: Owners,
):
    first = any_owners.start()
    execute(first.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    pid = postmaster_pid(any_owners.folder)
    first.kill()

    second = any_owners.start()

    assert second.report == {"dsn": first.dsn, "adopted": True}
    assert postmaster_pid(any_owners.folder) == pid
    assert fetch(second.dsn, "SELECT answer FROM kept") == 42
    second.stop()
    assert live_postmaster(any_owners.folder / "postgres") is None


def test_a_clean_stop_leaves_no_process_and_the_data(owners: Owners):
    first = owners.start()
    execute(first.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    first.stop()
    assert not (owners.folder / "postgres/postmaster.pid").exists()

    second = owners.start()

    assert second.report["adopted"] is False
    assert fetch(second.dsn, "SELECT answer FROM kept") == 42
    second.stop()


@pytest.mark.parametrize("signal_number", [signal.SIGQUIT, signal.SIGKILL])
def test_a_crashed_cluster_comes_back_with_what_was_committed(
    owners: Owners, signal_number: int
):
    first = owners.start()
    execute(first.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    first.kill()
    os.kill(postmaster_pid(owners.folder), signal_number)

    second = owners.start()

    assert fetch(second.dsn, "SELECT answer FROM kept") == 42
    second.stop()


def test_a_pid_file_that_names_another_program_is_stale(owners: Owners):
    first = owners.start()
    execute(first.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    pid_file = owners.folder / "postgres/postmaster.pid"
    lines = pid_file.read_text().splitlines(keepends=True)
    owner = pid_file.stat()
    first.stop()
    # A process that lives and belongs to the same user: Postgres would refuse.
    pid_file.write_text("".join([f"{os.getpid()}\n", *lines[1:]]))
    os.chown(pid_file, owner.st_uid, owner.st_gid)

    second = owners.start()

    assert second.report["adopted"] is False
    assert fetch(second.dsn, "SELECT answer FROM kept") == 42
    second.stop()


def test_a_second_live_server_is_refused_and_the_first_goes_on(any_owners: Owners):
    first = any_owners.start()

    second = any_owners.start()

    assert f"pid {first.process.pid}" in str(second.report["refused"])
    assert "--data-dir" in str(second.report["refused"])
    assert fetch(first.dsn, "SELECT 1") == 1


def test_the_cluster_is_reached_by_its_socket_alone(owners: Owners):
    assert running_dsn(owners.folder) is None
    first = owners.start()

    assert running_dsn(owners.folder) == first.dsn
    assert fetch(first.dsn, "SHOW listen_addresses") == ""
    assert fetch(first.dsn, "SHOW fsync") == "on"
    assert fetch(first.dsn, "SHOW synchronous_commit") == "on"
    assert fetch(first.dsn, "SHOW server_encoding") == "UTF8"
    socket_dir = socket_dir_of(owners.folder / "postgres")
    assert socket_dir is not None
    assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700


def test_a_path_too_long_for_a_socket_works_and_leaves_nothing_in_tmp(owners: Owners):
    folder = owners.folder / ("x" * 120)
    first = owners.start(folder)
    execute(first.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    short = socket_dir_of(folder / "postgres")
    first.kill()

    second = owners.start(folder)

    assert second.report["adopted"] is True
    assert fetch(second.dsn, "SELECT answer FROM kept") == 42
    second.stop()
    assert short is not None
    assert short.parent == Path("/tmp")
    assert not short.exists()


def test_a_socket_that_was_deleted_does_not_lock_the_data_away(owners: Owners):
    first = owners.start()
    execute(first.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    first.kill()
    (owners.folder / "socket/.s.PGSQL.5432").unlink()

    second = owners.start()

    assert fetch(second.dsn, "SELECT answer FROM kept") == 42
    second.stop()


def test_a_crashed_cluster_is_revived_at_the_same_address(data_dir: Path):
    postgres = EmbeddedPostgres(data_dir)
    dsn = postgres.start()
    execute(dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert postgres.revive() is False
    os.kill(postmaster_pid(data_dir), signal.SIGQUIT)
    wait_for_end(data_dir)

    assert postgres.revive() is True

    assert fetch(dsn, "SELECT answer FROM kept") == 42
    postgres.stop()


def test_a_start_killed_half_way_is_finished_by_the_next(owners: Owners):
    owners.start().stop()
    for delay_s in (0.25, 0.35, 0.45):
        half_way = owners.launch()
        time.sleep(delay_s)
        half_way.kill()

        owner = owners.start()

        assert fetch(owner.dsn, "SELECT 1") == 1
        owner.stop()


def test_a_start_killed_during_initdb_leaves_nothing_in_the_way(data_dir: Path):
    left_over = data_dir / "postgres.partial-killed"
    left_over.mkdir()
    (left_over / "PG_VERSION").write_text("18\n")

    postgres = EmbeddedPostgres(data_dir)
    assert fetch(postgres.start(), "SELECT 1") == 1
    postgres.stop()

    assert not left_over.exists()


def test_a_folder_of_another_version_is_refused_and_kept(data_dir: Path):
    pgdata = data_dir / "postgres"
    pgdata.mkdir()
    (pgdata / "PG_VERSION").write_text("16\n")

    refusal = refused(data_dir)

    assert "made by Postgres 16" in refusal
    assert [path.name for path in pgdata.iterdir()] == ["PG_VERSION"]


def test_a_folder_that_is_no_cluster_is_refused_and_kept(data_dir: Path):
    pgdata = data_dir / "postgres"
    pgdata.mkdir()
    (pgdata / "thesis.txt").write_text("ten years of work")

    assert "is not a Postgres folder" in refused(data_dir)
    assert (pgdata / "thesis.txt").exists()


def test_a_folder_that_cannot_be_made_is_refused(data_dir: Path):
    (data_dir / "file").write_text("")

    assert "cannot write the data folder" in refused(data_dir / "file" / "below")


def test_a_folder_that_may_not_be_written_is_refused(any_owners: Owners):
    if any_owners.account == "same" and os.geteuid() == 0:
        # Root writes everywhere but to a kernel's file system.
        any_owners.folder = Path("/proc/perdure")
    else:
        any_owners.folder.chmod(0o500)

    report = any_owners.start().report

    assert "cannot write the data folder" in str(report["refused"])
    if any_owners.folder.is_dir():
        any_owners.folder.chmod(0o700)


def test_a_private_home_is_refused_to_root_and_its_mode_is_kept():
    with open_folder() as home:
        home.chmod(0o700)
        folder = home / "state"
        if os.geteuid() == 0:
            assert "choose a folder outside of private homes" in refused(folder)
        else:
            postgres = EmbeddedPostgres(folder)
            postgres.start()
            postgres.stop()
        assert stat.S_IMODE(home.stat().st_mode) == 0o700


def refused(folder: Path) -> str:
    with pytest.raises(StartupError) as caught:
        EmbeddedPostgres(folder).start()
    message = str(caught.value)
    assert "\n" not in message
    return message


def postmaster_pid(folder: Path) -> int:
    found = live_postmaster(folder / "postgres")
    assert found is not None
    return found.pid


def wait_for_end(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while live_postmaster(folder / "postgres") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def execute(dsn: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(statement)
        await connection.close()

    run_in_thread(run())


def fetch(dsn: str, query: str) -> object:
    async def run() -> object:
        connection = await asyncpg.connect(dsn)
        value = await connection.fetchval(query)
        await connection.close()
        return value

    return run_in_thread(run())
