"""Settings of the embedded cluster, written to perdure.conf at every cold start."""

from __future__ import annotations

from pathlib import Path

FILE_NAME = "perdure.conf"

_SETTINGS = {
    # Acknowledged means durable.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # The socket's folder has mode 0700 and is the only way in.
    "listen_addresses": "''",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    # Short queries only: the compiler costs more than it saves.
    "jit": "off",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    # One file a weekday, each overwritten after a week. No parameters and no
    # DETAIL lines: those hold users' data.
    "logging_collector": "on",
    "log_directory": "'log'",
    "log_filename": "'postgresql-%a.log'",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}


def write_settings(pgdata: Path, socket_dir: Path) -> None:
    """Write the settings file of a cluster that is not running.

    The file keeps its owner; it must exist.
    """
    quoted = str(socket_dir).replace("'", "''")
    lines = [f"{name} = {value}" for name, value in _SETTINGS.items()]
    lines.append(f"unix_socket_directories = '\"{quoted}\"'")
    text = "# Written by perdure at every start; put your own below its include.\n"
    (pgdata / FILE_NAME).write_text(text + "\n".join(lines) + "\n")
