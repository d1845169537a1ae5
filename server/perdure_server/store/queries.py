"""Named SQL queries, read once from ``sql/queries/*.sql``."""

import re
from importlib.resources import files

_STARTS = re.compile(r"^(?=-- name: )", re.MULTILINE)


def load_queries(stem: str) -> dict[str, str]:
    """Return the queries of one file by name.

    The ``-- name:`` line stays in the text, so a query is recognised in
    ``pg_stat_activity`` and in the database's log.
    """
    source = files("perdure_server").joinpath("sql", "queries", f"{stem}.sql")
    queries: dict[str, str] = {}
    for text in _STARTS.split(source.read_text("utf-8"))[1:]:
        name = text.split("\n", 1)[0].removeprefix("-- name: ").strip()
        if name in queries:
            raise ValueError(f"{stem}.sql defines {name} twice")
        queries[name] = text.strip()
    return queries
