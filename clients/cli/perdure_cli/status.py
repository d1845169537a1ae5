"""`perdure status`: one screen of truth, and the next command to type."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import click

import perdure
from perdure_cli.output import Columns, Output, of
from perdure_cli.record import Record, record_of
from perdure_cli.session import connected

NODE_LABEL = "node"
PAGE = 1000

NODE_COLUMNS: Columns = {
    "node": of("node"),
    "live": of("live"),
    "lost": of("lost"),
    "lease until": of("lease_expire_time"),
}


@dataclass
class _Fleet:
    """Agents by lease and by where they run or ran."""

    leases: Counter[str] = field(default_factory=Counter)
    nodes: dict[str, Counter[str]] = field(default_factory=dict)
    expire_times: dict[str, str] = field(default_factory=dict)

    def take(self, agent: Record) -> None:
        lease = agent["lease_state"]
        self.leases[lease] += 1
        if lease == "free":
            return
        node = agent["labels"].get(NODE_LABEL) or agent["owner"] or "unnamed"
        self.nodes.setdefault(node, Counter())[lease] += 1
        expires = agent["lease_expire_time"] or ""
        self.expire_times[node] = max(expires, self.expire_times.get(node, ""))

    def rows(self) -> list[Record]:
        return [
            {
                "node": node,
                "live": counts["live"],
                "lost": counts["lost"],
                "lease_expire_time": self.expire_times[node],
            }
            for node, counts in sorted(self.nodes.items())
        ]


@click.command()
@connected
async def status(client: perdure.AsyncClient, output: Output) -> None:
    """Show server, store, and agents held, live and lost, by node.

    Counts everything of the tenant, a page at a time.
    """
    started = time.monotonic()
    first = client.history.list(page_size=1)
    async for _ in first:
        break
    answer_ms = (time.monotonic() - started) * 1000
    with output.busy("counting") as tell:
        fleet = _Fleet()
        async for agent in client.agents.list(page_size=PAGE, all=True):
            fleet.take(record_of(agent))
            tell(f"agents: {fleet.leases.total()}")
        conversation_count, message_count = 0, 0
        async for conversation in client.history.list(page_size=PAGE):
            conversation_count += 1
            message_count += conversation.message_count
            tell(f"conversations: {conversation_count}")
        stored = await _checkpoints(client)
    report = {
        "target": client.target,
        "answer_ms": round(answer_ms, 1),
        "conversations": conversation_count,
        "messages": message_count,
        "agents": {
            "total": fleet.leases.total(),
            "held": fleet.leases["live"] + fleet.leases["lost"],
            **{name: fleet.leases[name] for name in ("live", "lost", "free")},
        },
        "nodes": fleet.rows(),
        "checkpoints": stored,
        "next": _next(fleet, conversation_count),
    }
    if output.as_json:
        output.json(report)
    else:
        _show(output, report)


async def _checkpoints(client: perdure.AsyncClient) -> Record | None:
    """Count by asking what dropping all would remove; None: not for this key."""
    try:
        counted = await client.checkpoints.prune(drop_all=True, dry_run=True, all=True)
    except perdure.Denied:
        return None
    return {"count": counted.checkpoint_count, "frame_bytes": counted.frame_bytes}


def _show(output: Output, report: Record) -> None:
    agents, stored = report["agents"], report["checkpoints"]
    output.text(f"server         {report['target']}, {report['answer_ms']} ms")
    output.text(
        f"conversations  {report['conversations']:,} with "
        f"{report['messages']:,} messages"
    )
    output.text(
        f"checkpoints    {stored['count']:,} with {stored['frame_bytes']:,} bytes"
        if stored
        else "checkpoints    not counted: the key lacks the admin scope"
    )
    output.text(
        f"agents         {agents['total']:,}: {agents['held']:,} held "
        f"({agents['live']:,} live, {agents['lost']:,} lost), {agents['free']:,} free"
    )
    if report["nodes"]:
        output.table(NODE_COLUMNS, report["nodes"])
    output.text(f"next           {report['next']}", "bold")


def _next(fleet: _Fleet, conversation_count: int) -> str:
    if fleet.leases["lost"]:
        return "perdure recover plan --lease lost"
    if fleet.leases.total():
        return "perdure agents list"
    if conversation_count:
        return "perdure conversations list"
    return "perdure import FILE.jsonl"
