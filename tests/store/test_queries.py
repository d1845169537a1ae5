"""Every named query is prepared on a migrated database: files as safe as code."""

import re

import asyncpg
import pytest

from perdure_server.store.queries import load_queries
from tests.unit.test_repo import SERVER

STEMS = sorted(path.stem for path in (SERVER / "sql/queries").glob("*.sql"))


@pytest.mark.parametrize("stem", STEMS)
async def test_every_query_of_a_file_is_valid_and_names_its_parameters(
    stem: str, connection: asyncpg.Connection
):
    for name, text in load_queries(stem).items():
        try:
            prepared = await connection.prepare(text)
        except asyncpg.PostgresError as exc:
            raise AssertionError(f"{stem}.{name}: {exc}") from exc

        comments = "\n".join(re.findall(r"^--.*", text, re.MULTILINE))
        named = {int(number) for number in re.findall(r"\$(\d+)", comments)}
        assert max(named, default=0) == len(prepared.get_parameters()), name
