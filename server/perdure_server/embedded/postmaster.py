"""What a Postgres folder says about the process that serves it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Postmaster:
    """A live postmaster of one folder, as its postmaster.pid describes it."""

    pid: int
    socket_dir: Path
    ready: bool


def socket_dir_of(pgdata: Path) -> Path | None:
    """Return the socket folder that postmaster.pid names, live process or not."""
    lines = _lines(pgdata)
    return Path(lines[4]) if len(lines) > 4 and lines[4] else None


def live_postmaster(pgdata: Path) -> Postmaster | None:
    """Return the process that serves `pgdata`; None when there is none.

    A pid that was taken over by another program counts as none: the process must
    be a Postgres whose working folder is `pgdata`.
    """
    lines = _lines(pgdata)
    if not lines or not lines[0].strip("-").isdigit():
        return None
    pid = abs(int(lines[0]))
    if not _serves(pid, pgdata):
        return None
    socket_dir = socket_dir_of(pgdata)
    if socket_dir is None:
        return Postmaster(pid, pgdata, ready=False)
    status = lines[7].strip() if len(lines) > 7 else ""
    return Postmaster(pid, socket_dir, ready=status == "ready")


def clear_stale_pid_file(pgdata: Path, *, timeout_s: float) -> bool:
    """Delete the postmaster.pid of a dead postmaster; true when none is left.

    False when a live one has it, or when its processes outlast `timeout_s`. A dead
    one's children must be gone first: Postgres itself knows them only through that
    file, and must never start beside them.
    """
    pid_file = pgdata / "postmaster.pid"
    deadline = time.monotonic() + timeout_s
    while pid_file.exists():
        if live_postmaster(pgdata) is not None:
            return False
        if not any(_serves(pid, pgdata) for pid in psutil.pids()):
            pid_file.unlink(missing_ok=True)
        elif time.monotonic() > deadline:
            return False
        else:
            time.sleep(_POLL_INTERVAL_S)
    return True


def _serves(pid: int, pgdata: Path) -> bool:
    try:
        process = psutil.Process(pid)
        return (
            process.name().startswith("postgres")
            and process.status() != psutil.STATUS_ZOMBIE
            and Path(process.cwd()).resolve() == pgdata.resolve()
        )
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def _lines(pgdata: Path) -> list[str]:
    try:
        text = (pgdata / "postmaster.pid").read_text(errors="replace")
    except OSError:
        return []
    return text.splitlines()
