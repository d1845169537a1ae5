"""Every error says what to do in one line; status 1, or 2 for a wrong command line."""

from __future__ import annotations

import socket

import pytest

from tests.cli.conftest import Run, run_command

NO_SUCH_RECOVERY = "7b0b1f5a-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("conversations", "show", "nope"), "perdure conversations list"),
        (("conversations", "export", "nope"), "perdure conversations list"),
        (("agents", "show", "nope"), "perdure agents list"),
        (("checkpoints", "show", "nope"), "perdure agents list"),
        (("checkpoints", "list", "nope"), "perdure agents list"),
        (("recover", "plan", "--id", "nope"), "perdure agents list"),
        (("recover", "start", "--id", "nope"), "perdure agents list"),
        (("recover", "watch", NO_SUCH_RECOVERY), "perdure recover start"),
        (("keys", "revoke", "nope"), "perdure keys list"),
    ],
    ids=" ".join,
)
def test_an_unknown_id_names_the_command_that_lists_them(
    run: Run, arguments: tuple[str, ...], hint: str
) -> None:
    failed = run(*arguments)
    assert failed.status == 1
    (line,) = failed.stderr.splitlines()
    assert line.startswith("perdure: ")
    assert f"`{hint}" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("nope",),
        ("recover", "plan"),
        ("recover", "start", "--lease", "gone"),
        ("recover", "watch", "no-uuid"),
        ("checkpoints", "prune"),
        ("checkpoints", "drop-all", "--yes"),
        ("checkpoints", "prune", "--all", "--keep-age", "soon"),
        ("agents", "list", "--label", "node"),
        ("conversations", "export"),
        ("keys", "create", "--scope", "everything"),
        ("import", "no-such-file.jsonl"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_a_usage_error(
    run: Run, arguments: tuple[str, ...]
) -> None:
    failed = run(*arguments)
    assert failed.status == 2
    assert "Error: " in failed.stderr
    assert failed.stdout == ""


def test_a_wrong_key_is_refused_in_one_line_that_does_not_show_it(run: Run) -> None:
    key = "pd_default_wrong_0123456789"
    failed = run("status", PERDURE_KEY=key)
    assert failed.status == 1
    (line,) = failed.stderr.splitlines()
    assert line.startswith("perdure: KEY_INVALID")
    assert "PERDURE_KEY" in line
    assert key not in line


def test_no_server_says_how_to_start_one(tmp_path) -> None:
    unknown = run_command("status", PERDURE_DATA_DIR=str(tmp_path))
    assert unknown.status == 1
    assert "`perdure serve`" in unknown.stderr

    with socket.socket() as bound:
        # Bound and not listening: nobody else can be there.
        bound.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{bound.getsockname()[1]}"
        silent = run_command(
            *("--target", target, "--timeout-s", "0.5", "status"),
            PERDURE_KEY="pd_default_any_0",
        )
    assert silent.status == 1
    (line,) = silent.stderr.splitlines()
    assert "`perdure serve`" in line
    assert target in line


def test_doctor_without_a_server_reports_an_error(tmp_path) -> None:
    found = run_command("doctor", "--json", PERDURE_DATA_DIR=str(tmp_path))
    assert found.status == 1
    levels = {record["what"].split(":")[0]: record["level"] for record in found.records}
    assert levels["NOT_CONFIGURED"] == "error"
    assert all(record["do"] for record in found.records if record["level"] != "ok")
    # Looking must not make a database.
    assert list(tmp_path.iterdir()) == []


def test_doctor_examines_the_database_that_it_is_given(run: Run, database_dsn) -> None:
    found = run("doctor", "--json", "--dsn", database_dsn)
    told = " ".join(record["what"] for record in found.records)
    assert "PostgreSQL 1" in told
    assert "answers" in told
    assert "no synchronous standby" in told


def test_a_database_that_cannot_be_reached_is_one_line() -> None:
    failed = run_command("db", "up", "--dsn", "postgresql://127.0.0.1:1/none")
    assert failed.status == 1
    (line,) = failed.stderr.splitlines()
    assert "cannot reach Postgres" in line
