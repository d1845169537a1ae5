"""`perdure serve` and `perdure db` become the server's own program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import run_command


def test_serve_says_where_it_is_and_stops_on_sigterm(data_dir: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "perdure_cli", "serve"),
            *("--data-dir", str(data_dir), "--listen", "127.0.0.1:0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "serving on 127.0.0.1:" in said
        assert str(data_dir) in said
        assert "credentials.json" in said

        # The CLI finds the local server by itself.
        found = run_command("status", "--json", PERDURE_DATA_DIR=str(data_dir))
        assert found.record["conversations"] == 0
        doctor = run_command("doctor", "--json", PERDURE_DATA_DIR=str(data_dir))
        assert doctor.status == 0
        status = run_command("db", "status", "--data-dir", str(data_dir))
        assert status.stdout.strip() == "the schema is up to date"

        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_wrong_flag_of_the_server_is_a_usage_error() -> None:
    assert run_command("serve", "--nonsense").status == 2
    assert run_command("db", "up", "--nonsense").status == 2
    assert "--listen" in run_command("serve", "--help").stdout


def test_the_ddl_is_printed_without_a_database() -> None:
    printed = run_command("db", "sql", PATH=os.environ["PATH"])
    assert printed.status == 0
    assert "CREATE TABLE perdure_store.messages" in printed.stdout
