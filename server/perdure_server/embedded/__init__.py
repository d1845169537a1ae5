"""A private PostgreSQL 18 in one folder, for a server without a DSN.

It listens on a Unix socket only, survives the SIGKILL of the server that started
it, and is adopted by the next one.
"""

from __future__ import annotations

from perdure_server.embedded.postgres import EmbeddedPostgres, running_dsn

__all__ = ["EmbeddedPostgres", "running_dsn"]
