"""What a start needs besides Postgres, and the one error when it cannot work."""

from __future__ import annotations

import os
import socket
from pathlib import Path


class StartupError(Exception):
    """A start-up that cannot work.

    The message is one line that says what is wrong and what to do about it. It
    never contains a password.
    """

    def __init__(self, message: str) -> None:
        """Take the line that the operator sees."""
        super().__init__(" ".join(message.split()))


def check_port_free(host: str, port: int) -> None:
    """Refuse a port that another process listens on.

    gRPC itself shares a port silently with a server that allows it. Port 0 always
    passes.

    Raises:
        StartupError: when the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # A connection in TIME_WAIT of the server before us is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            raise StartupError(
                f"cannot listen on {host} port {port} ({exc.strerror or exc}): stop "
                "what uses it, or choose another address with --listen"
            ) from exc


def write_port_file(path: Path, address: str) -> None:
    """Write the bound address, whole or not at all: its reader polls for the file.

    Raises:
        StartupError: when the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(f"{address}\n")
        partial.replace(path)
    except OSError as exc:
        raise StartupError(
            f"cannot write --port-file {path} ({exc.strerror or exc})"
        ) from exc
