"""Fixtures: one cluster a session, one database a module, one server a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cluster import Cluster, open_cluster, open_folder
from tests.support.server import ServerProcess


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The Postgres of this session: embedded, or the one of PERDURE_TEST_DSN."""
    with open_cluster() as opened:
        yield opened


@pytest.fixture(scope="module")
def database_dsn(cluster: Cluster) -> Iterator[str]:
    """A migrated, empty database for one module."""
    dsn = cluster.create_database()
    yield dsn
    cluster.drop_database(dsn)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty folder that a server, and Postgres under root, can use."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
async def connection(
    database_dsn: str,
) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A plain connection to the module's database."""
    opened = await asyncpg.connect(database_dsn)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture(scope="module")
def server(database_dsn: str) -> Iterator[ServerProcess]:
    """A server process on the module's database; `address` and `key` reach it."""
    with (
        open_folder() as folder,
        ServerProcess(folder, dsn=database_dsn) as process,
    ):
        yield process
