"""What a person sees: the commands on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest

from tests.cli.conftest import take_steps
from tests.support.server import ServerProcess

TIMEOUT_S = 60.0
ROWS, COLUMNS = 40, 120


def _on_terminal(server: ServerProcess, *arguments: str, answer: str = "") -> str:
    """Run a command on a terminal of its own and return all that appeared."""
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    known = {"PERDURE_TARGET": server.address, "PERDURE_KEY": server.key}
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure_cli", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | known | {"TERM": "xterm-256color"},
    )
    os.close(terminal)
    os.write(controller, answer.encode())
    seen = b""
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            if select.select([controller], [], [], 0.1)[0]:
                try:
                    seen += os.read(controller, 65_536)
                except OSError:  # the last process left the terminal
                    break
        process.wait(TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    return seen.decode()


def test_a_list_is_a_table(server) -> None:
    seen = _on_terminal(server, "keys", "list")
    assert "─" * 20 in seen
    assert "made at first start" in seen


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J\x1b]0;title\x07", "\x9b31m", "a\x00b", "\u202eabc"]
)
async def test_stored_text_cannot_steer_the_terminal(
    server, client, name, hostile
) -> None:
    text = f"before {hostile} after"
    await client.history.append(name, [{"role": "user", "content": text}])
    seen = _on_terminal(server, "conversations", "show", name)
    assert hostile not in seen
    assert "before " in seen
    assert " after" in seen


async def test_dropping_all_is_asked_on_a_terminal(server, client, name) -> None:
    await take_steps(client, name, 1)
    drop = ("checkpoints", "drop-all", "--id", name)

    seen = _on_terminal(server, *drop, answer="n\n")
    assert "Drop 1 checkpoints of 1 agents" in seen
    assert len([_ async for _ in client.checkpoints.list(name)]) == 1

    seen = _on_terminal(server, *drop, answer="y\n")
    assert "1 checkpoints of 1 agents removed" in seen
    assert len([_ async for _ in client.checkpoints.list(name)]) == 0
