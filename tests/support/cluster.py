"""A Postgres for a test session: embedded, or the one that PERDURE_TEST_DSN names."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from perdure_server.embedded import EmbeddedPostgres
from perdure_server.startup import StartupError
from perdure_server.store.migrate import migrate_up

PREFIX = "perdure-cluster-"
_ABANDONED_AFTER_S = 60.0
_Result = TypeVar("_Result")


class Cluster:
    """Makes databases, each a copy of one migrated template."""

    def __init__(self, dsn: str) -> None:
        """Use the cluster behind `dsn`, whose role may create databases."""
        self.dsn = dsn
        self._numbers = itertools.count()
        self._prefix = f"perdure_test_{os.getpid()}"
        self._template: str | None = None

    def create_database(self, *, migrated: bool = True) -> str:
        """Return the DSN of a fresh database; `drop_database` removes it."""
        name = f"{self._prefix}_{next(self._numbers)}"
        source = self._migrated_template() if migrated else "template0"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"')
        return self.dsn_of(name)

    def drop_database(self, dsn: str) -> None:
        """Drop a database of create_database, open sessions or not."""
        name = urlsplit(dsn).path.lstrip("/")
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def dsn_of(self, name: str) -> str:
        """Return the DSN of another database of this cluster."""
        return urlsplit(self.dsn)._replace(path=f"/{name}").geturl()

    def close(self) -> None:
        """Drop the template."""
        if self._template is not None:
            self.drop_database(self.dsn_of(self._template))

    def _migrated_template(self) -> str:
        if self._template is None:
            name = f"{self._prefix}_template"
            self._execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
            migrate_up(self.dsn_of(name))
            self._template = name
        return self._template

    def _execute(self, statement: str) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(self.dsn)
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        run_in_thread(run())


def run_in_thread(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end on a loop of its own, beside pytest's."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """Give the session's cluster; an embedded one is deleted afterwards."""
    external = os.environ.get("PERDURE_TEST_DSN")
    if external:
        cluster = Cluster(external)
        try:
            yield cluster
        finally:
            cluster.close()
        return
    _reap_abandoned()
    with open_folder(PREFIX) as folder:
        postgres = EmbeddedPostgres(folder)
        cluster = Cluster(postgres.start())
        try:
            yield cluster
        finally:
            postgres.stop()


@contextmanager
def open_folder(prefix: str = "perdure-test-") -> Iterator[Path]:
    """Give an empty folder that the account of Postgres can enter, root or not.

    pytest's own temporary folders are private to root.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reap_abandoned() -> None:
    """Stop and delete the clusters of sessions that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, StartupError):
            status = folder.stat()
            young = time.time() - status.st_mtime < _ABANDONED_AFTER_S
            if young or status.st_uid != os.geteuid():
                continue
            # Refused while its session lives and holds the lock.
            postgres = EmbeddedPostgres(folder)
            postgres.start()
            postgres.stop()
            shutil.rmtree(folder, ignore_errors=True)
