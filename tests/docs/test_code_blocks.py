"""Every Python and SQL block of README and docs/ runs as it stands."""

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

import perdure

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(python|sql)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class StopExample(Exception):
    """Ends a block that would go on for ever."""


@dataclass(frozen=True)
class Block:
    language: str
    source: str
    place: str


def _blocks() -> Iterator[Block]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text("utf-8")
        for found in _FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            place = f"{path.relative_to(ROOT)}:{line}"
            yield Block(found.group(1), found.group(2), place)


BLOCKS = list(_blocks())


async def _think(state: dict) -> tuple[dict, dict]:
    return {"role": "assistant", "content": "It has shipped."}, {"done": True}


def _start(agent: perdure.Agent) -> None:
    assert agent.agent_id == "order-814"
    assert agent.state == {"done": True}
    raise StopExample


async def _abandon_an_agent(server) -> None:
    """Leave one agent with a checkpoint under a lease that is over."""
    async with perdure.connect(server.address, key=server.key) as client:
        agent = await client.agents.acquire("order-814", framework="own")
        async with agent.step() as step:
            step.append({"role": "assistant", "content": "It has shipped."})
            step.checkpoint({"done": True})


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.place) for block in BLOCKS]
)
async def test_the_block_runs(block: Block, server, monkeypatch) -> None:
    if block.language == "sql":
        connection = await asyncpg.connect(server.dsn)
        try:
            await connection.fetch(block.source)
        finally:
            await connection.close()
        return
    monkeypatch.setenv("PERDURE_TARGET", server.address)
    monkeypatch.setenv("PERDURE_KEY", server.key)
    names = {"think": _think, "start": _start}
    if "restore(" in block.source:
        await _abandon_an_agent(server)
    code = compile(
        block.source, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    with contextlib.suppress(StopExample):
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


def test_the_readme_fits_on_one_screen() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 90


def test_every_file_that_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    named = re.findall(r"\]\(([^)#]+)\)", text)
    assert named
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []
