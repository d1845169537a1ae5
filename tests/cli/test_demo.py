"""`perdure demo`, whole and small; and what it leaves behind when it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

AGENTS = 12
TIMEOUT_S = 110.0


def _start(*arguments: str) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if name != "PERDURE_DEMO_DATA"
    }
    return subprocess.Popen(
        [sys.executable, "-m", "perdure_cli", "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Whoever runs the tests in the background has SIGINT ignored for all below.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _started_by(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_a_small_fleet_loses_workers_and_server_and_comes_back_whole() -> None:
    process = _start("--agents", str(AGENTS))
    try:
        said, shown = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, shown
    result = json.loads(said.splitlines()[-1])
    assert result["agents"] == AGENTS
    assert result["rebuilt"] == AGENTS
    assert 0 < result["restored"] < AGENTS
    assert result["lost_acknowledged_writes"] == 0
    assert result["state_mismatches"] == 0
    assert result["stale_writes_refused"] > 0
    assert result["messages"] > result["checkpoints"] > AGENTS
    assert result["agents_per_second"] > 0
    assert result["time_to_resumed_seconds"] >= 0
    assert "generator" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demo_leaves_no_process_and_no_folder(number: signal.Signals) -> None:
    process = _start("--agents", "40")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "empty embedded Postgres" in line:
                break
        time.sleep(1.0)
        started = _started_by(process.pid)
        folders = [
            Path(argument).parent
            for child in started
            for argument in child.cmdline()
            if argument.startswith("/tmp/pd-") and argument.endswith("/data")
        ]
        assert folders
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert not [child for child in started if child.is_running()]
    assert not [folder for folder in folders if folder.exists()]


def test_a_file_that_cannot_be_used_is_one_line(tmp_path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("not json\n")
    process = _start("--data", str(file))
    said, shown = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert said == ""
    (line,) = shown.splitlines()
    assert f"{file}: line 1: not JSON" in line
