"""`perdure status`: one screen of truth, and the next command to type."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Any

import click

import perdure
from perdure.v1 import agent_pb2
from perdure_cli.agents import STATES
from perdure_cli.output import Output
from perdure_cli.session import client_command

MAX_COUNTED = 10_000
NODE_LABEL = "node"


@click.command()
@client_command
async def status(client: perdure.AsyncClient, output: Output) -> None:
    """Show what is held, live and lost, by node, and what to do next."""
    started = time.perf_counter()
    conversations = 0
    async for _ in client.history.list(page_size=1000):
        conversations += 1
        if conversations >= MAX_COUNTED:
            break
    answer_ms = (time.perf_counter() - started) * 1000
    by_node: dict[str, Counter[str]] = defaultdict(Counter)
    async for agent in client.agents.list(all=True, page_size=1000):
        by_node[_node_of(agent)][STATES[agent.lease_state]] += 1
    rows = [
        {
            "node": node,
            "agents": counts.total(),
            "live": counts["live"],
            "lost": counts["lost"],
            "free": counts["free"],
        }
        for node, counts in sorted(by_node.items())
    ]
    lost = {node: counts["lost"] for node, counts in by_node.items() if counts["lost"]}
    result: dict[str, Any] = {
        "server": client.target,
        "answer_ms": round(answer_ms, 1),
        "conversations": conversations,
        "agents": sum(counts.total() for counts in by_node.values()),
        "lost": sum(lost.values()),
        "next": _next_command(rows, lost),
    }
    if output.as_json:
        output.record({**result, "nodes": rows})
        return
    shown = f"{conversations:,}" + ("+" if conversations >= MAX_COUNTED else "")
    output.record({**result, "conversations": shown})
    if rows:
        output.note("")
        output.rows(["node", "agents", "live", "lost", "free"], rows, "")


def _node_of(agent: agent_pb2.Agent) -> str:
    return agent.labels.get(NODE_LABEL) or agent.owner or "-"


def _next_command(rows: list[dict[str, Any]], lost: dict[str, int]) -> str:
    if lost:
        node = max(lost, key=lambda name: lost[name])
        return f"perdure recover plan --lease lost   # most on {node}"
    if not rows:
        return "perdure import FILE.jsonl   # or acquire an agent from your worker"
    return "nothing is lost"
