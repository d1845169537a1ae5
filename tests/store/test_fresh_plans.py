"""Claims and restores on tables without statistics, as after a load or a crash.

The planner then guesses, and a guess that reads a whole table a batch makes a
recovery of many agents quadratic. Counted are rows read, which no load disturbs.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from perdure_server.store.agents import AgentSpec, Selector
from perdure_server.store.append import Append
from perdure_server.store.fence import Fence
from perdure_server.store.restores import Unread
from tests.support.fleet import (
    Fleet,
    make_checkpoint,
    make_lease,
    make_message,
    open_fleet,
)

AGENTS = 5_000
LOT = 32
TABLES = (
    "agents",
    "branches",
    "checkpoints",
    "conversations",
    "leases",
    "messages",
    "recovery_agents",
)
REPEATED = 8  # often enough for statements of functions to be planned generically


@pytest.fixture
async def fleet(
    database_dsn: str, connection: asyncpg.Connection[Any]
) -> AsyncIterator[Fleet]:
    """One connection, whose counters can be read, on tables that are just loaded."""
    for table in TABLES:
        await connection.execute(
            f"ALTER TABLE perdure_store.{table} SET (autovacuum_enabled = off)"
        )
    async with open_fleet(database_dsn, pool_size=1) as opened:
        await load(opened)
        yield opened


async def load(fleet: Fleet) -> None:
    """Make agents under one lease that is over, each with a step and a few messages."""
    lease = make_lease()
    await fleet.acquire("seed", lease)
    await fleet.expire(lease)
    new = make_checkpoint("a", 1, {"n": 1})
    await fleet.rows(
        "INSERT INTO perdure_store.conversations (tenant_id, conversation_id, "
        "message_count, owned) SELECT $1, 'a' || n, 4, true "
        "FROM generate_series(1, $2::int) n",
        AGENTS,
    )
    await fleet.rows(
        "INSERT INTO perdure_store.messages (tenant_id, conversation_id, seq, "
        "message_id, role, digest, body) SELECT $1, 'a' || n, s, 'm' || s, 'user', "
        "'', '\\x01' FROM generate_series(1, $2::int) n, generate_series(0, 3) s",
        AGENTS,
    )
    await fleet.rows(
        "INSERT INTO perdure_store.agents (tenant_id, agent_id, epoch, claim_id, "
        "lease_id, conversation_id) SELECT $1, 'a' || n, 1, $3, $4, 'a' || n "
        "FROM generate_series(1, $2::int) n",
        AGENTS,
        uuid.uuid4(),
        lease.lease_id,
    )
    await fleet.rows(
        "INSERT INTO perdure_store.branches (tenant_id, agent_id, branch, head_step, "
        "keyframe_step, chain_bytes, head_epoch, head_digest) SELECT $1, 'a' || n, "
        "'main', 1, 1, $3::int, 1, $4 FROM generate_series(1, $2::int) n",
        AGENTS,
        len(new.frame),
        new.raw_digest,
    )
    await fleet.rows(
        "INSERT INTO perdure_store.checkpoints (tenant_id, agent_id, branch, step, "
        "parent_step, keyframe_step, read_seq, schema_version, epoch, raw_bytes, "
        "frame_bytes, raw_digest, frame) SELECT $1, 'a' || n, 'main', 1, 0, 1, 2, 0, "
        "1, $3::int, $4::int, $5, $6 FROM generate_series(1, $2::int) n",
        AGENTS,
        new.raw_bytes,
        len(new.frame),
        new.raw_digest,
        new.frame,
    )


async def rows_read(fleet: Fleet) -> int:
    names = ", ".join(f"'{table}'" for table in TABLES)
    # Backends publish their counts when idle; this one is made to at once.
    await fleet.database.fetch("SELECT pg_stat_force_next_flush()")
    total: int = await fleet.database.fetchval(
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint "
        f"FROM pg_stat_user_tables WHERE relname IN ({names}) "
        "AND schemaname = 'perdure_store'"
    )
    return total


async def most_rows(
    fleet: Fleet, call: Callable[[int], Awaitable[object]], repeated: int = REPEATED
) -> int:
    """Return how many rows the most expensive of several calls read."""
    most = 0
    for number in range(repeated):
        before = await rows_read(fleet)
        await call(number)
        most = max(most, await rows_read(fleet) - before)
    return most


async def test_a_recovery_reads_a_few_rows_an_agent(fleet: Fleet) -> None:
    recovery_id = uuid.uuid4()
    lost = Selector(lease_state="lost")
    before = await rows_read(fleet)
    await fleet.recoveries.start(
        fleet.tenant_id, recovery_id, lost, b"", even_live=False
    )
    read = {"start": (await rows_read(fleet) - before) // AGENTS}

    lots: list[list[Fence]] = []

    async def take(number: int) -> None:
        claims = [UUID(int=1_000 * number + n) for n in range(LOT)]
        taken = await fleet.recoveries.take(
            fleet.tenant_id, recovery_id, make_lease(), claims
        )
        lots.append([item.fence for item in taken if item.fence])

    read["take"] = await most_rows(fleet, take) // LOT
    heads = [await fleet.restores.heads(fleet.tenant_id, lot) for lot in lots]
    wanted = [
        [Unread(h.agent.conversation_id, 2, 4, h.agent.agent_id, 1, 9999) for h in lot]
        for lot in heads
    ]
    calls: dict[str, Callable[[int], Awaitable[object]]] = {
        "heads": lambda n: fleet.restores.heads(fleet.tenant_id, lots[n]),
        "chains": lambda n: fleet.restores.chains(fleet.tenant_id, heads[n]),
        "unread": lambda n: fleet.restores.unread(fleet.tenant_id, wanted[n], 100),
    }
    for name, call in calls.items():
        read[name] = await most_rows(fleet, call) // LOT
    progress = await most_rows(
        fleet, lambda n: fleet.recoveries.progress(fleet.tenant_id, recovery_id), 2
    )
    read["progress"] = progress // AGENTS

    assert all(len(lot) == LOT for lot in lots)
    assert max(read.values()) <= 40, read


async def test_steps_of_one_agent_read_a_few_rows(fleet: Fleet) -> None:
    fence = await fleet.acquire("a17")

    async def put(number: int) -> None:
        await fleet.put(fence, 10 + number, number)

    async def commit(number: int) -> None:
        step = 100 + number
        append = Append(fleet.tenant_id, "", (make_message("x", "assistant"),))
        await fleet.commits.commit(
            fleet.tenant_id, fence, step, [append, make_checkpoint("a17", step, step)]
        )

    async def acquire(number: int) -> None:
        await fleet.acquire(f"a{100 + number}")

    async def acquire_many(number: int) -> None:
        ids = [f"a{1000 + 50 * number + n}" for n in range(50)]
        specs = [AgentSpec(each, each, "", None, "", uuid.uuid4()) for each in ids]
        lease = make_lease()
        _, outcomes = await fleet.agents.acquire(fleet.tenant_id, lease, specs)
        fences = [item.fence for item in outcomes if item.fence]
        assert len(fences) == 50
        await fleet.agents.release(fleet.tenant_id, fences, lease.lease_id)

    async def get(number: int) -> None:
        await fleet.checkpoints.chain(fleet.tenant_id, "a17", "main", 0)

    async def renew(number: int) -> None:
        await fleet.agents.renew(fleet.tenant_id, lease.lease_id, [own])

    async def release(number: int) -> None:
        fences = [await fleet.acquire(f"a{200 + number}", make_lease())]
        await fleet.agents.release(fleet.tenant_id, fences, None)

    lease = make_lease()
    own = await fleet.acquire("a18", lease)
    read = {
        call.__name__: await most_rows(fleet, call)
        for call in (put, commit, acquire, get, renew, release)
    }
    read["acquire_many"] = await most_rows(fleet, acquire_many) // 50

    assert max(read.values()) <= 40, read


async def test_a_page_of_a_selector_reads_about_a_page(fleet: Fleet) -> None:
    async def page(number: int) -> None:
        found = await fleet.agents.select(
            fleet.tenant_id, Selector(lease_state="lost"), f"a{number}", 100
        )
        assert len(found) == 100

    read = await most_rows(fleet, page)

    assert read <= 100 * 10, read
