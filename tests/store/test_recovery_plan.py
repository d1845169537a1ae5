"""Planning and fencing: by compare-and-set, to be gone on with after any crash."""

import asyncio
import hashlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure_server.errors import IdReused, StaleFence
from perdure_server.store.agents import Selector
from perdure_server.store.fence import Fence
from perdure_server.store.queries import load_queries
from tests.support.fleet import (
    Fleet,
    make_checkpoint,
    make_lease,
    new_id,
    only,
    open_fleet,
)

LOST = Selector(lease_state="lost")


@pytest.fixture
async def fleet(database_dsn: str) -> AsyncIterator[Fleet]:
    async with open_fleet(database_dsn) as opened:
        yield opened


async def lose(fleet: Fleet, count: int) -> list[Fence]:
    """Make agents with one step each under a lease that is over."""
    lease = make_lease()
    fences = [await fleet.acquire(f"a{n:03}", lease) for n in range(count)]
    for fence in fences:
        await fleet.put(fence, 1, fence.agent_id)
    await fleet.expire(lease)
    return fences


async def start(fleet: Fleet, recovery_id: uuid.UUID, **options: Any) -> Counter[str]:
    selector = options.pop("selector", LOST)
    options.setdefault("even_live", False)
    digest = hashlib.sha256(repr(selector).encode()).digest()
    await fleet.recoveries.start(
        fleet.tenant_id, recovery_id, selector, digest, **options
    )
    return await states(fleet, recovery_id)


async def states(fleet: Fleet, recovery_id: uuid.UUID) -> Counter[str]:
    progress = await fleet.recoveries.progress(fleet.tenant_id, recovery_id)
    return Counter(item.state for item in progress)


async def take(fleet: Fleet, recovery_id: uuid.UUID, **options: Any) -> list[Fence]:
    lease = options.get("lease") or make_lease()
    claims = [new_id() for _ in range(options.get("limit", 100))]
    taken = await fleet.recoveries.take(fleet.tenant_id, recovery_id, lease, claims)
    return [item.fence for item in taken if item.fence is not None]


async def test_fenced_agents_refuse_their_old_owner_before_anyone_has_them(
    fleet: Fleet,
) -> None:
    fences = await lose(fleet, 3)
    recovery_id = new_id()

    assert await start(fleet, recovery_id) == {"fenced": 3}

    for fence in fences:
        with pytest.raises(StaleFence):
            await fleet.put(fence, 2, 2)


async def test_the_same_start_again_changes_nothing(fleet: Fleet) -> None:
    await lose(fleet, 3)
    recovery_id = new_id()
    await start(fleet, recovery_id)
    epochs = "SELECT agent_id, epoch FROM perdure_store.agents WHERE tenant_id = $1"
    before = await fleet.rows(epochs)

    assert await start(fleet, recovery_id) == {"fenced": 3}

    assert await fleet.rows(epochs) == before
    with pytest.raises(IdReused):
        await start(fleet, recovery_id, selector=only("a000"))
    with pytest.raises(IdReused):
        await start(fleet, recovery_id, even_live=True)


async def test_a_start_that_broke_off_is_gone_on_with(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lose(fleet, 12)
    monkeypatch.setattr("perdure_server.store.recoveries.PLAN_PAGE", 5)
    monkeypatch.setattr("perdure_server.store.recoveries.FENCE_BATCH", 5)
    recovery_id = new_id()
    for statements in range(1, 12):
        # Cut the start after so many of its statements, as a crash would.
        fetchval, left = fleet.database.fetchval, statements

        async def cut(sql: str, *args: object, run: Any = fetchval) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise ConnectionResetError
            return await run(sql, *args)

        monkeypatch.setattr(fleet.database, "fetchval", cut)
        try:
            await start(fleet, recovery_id)
        except ConnectionResetError:
            continue
        finally:
            monkeypatch.setattr(fleet.database, "fetchval", fetchval)
        break

    assert await states(fleet, recovery_id) == {"fenced": 12}
    rows = await fleet.rows(
        "SELECT epoch FROM perdure_store.agents WHERE tenant_id = $1"
    )
    assert [row["epoch"] for row in rows] == [2] * 12


async def test_two_rival_recoveries_never_steal_from_each_other(fleet: Fleet) -> None:
    await lose(fleet, 30)
    rivals = [new_id(), new_id()]

    first, second = await asyncio.gather(*(start(fleet, rival) for rival in rivals))

    # Whoever was planned at the old epoch and came second sees it moved.
    assert first["fenced"] + second["fenced"] >= 30
    progress = [
        await fleet.recoveries.progress(fleet.tenant_id, rival) for rival in rivals
    ]
    fenced = [
        item.agent_id for part in progress for item in part if item.state == "fenced"
    ]
    assert sorted(fenced) == [f"a{n:03}" for n in range(30)]
    taken = [fence for rival in rivals for fence in await take(fleet, rival)]
    assert sorted(fence.agent_id for fence in taken) == sorted(fenced)


async def test_an_agent_in_mid_write_is_waited_for_and_then_called_busy(
    fleet: Fleet, connection: asyncpg.Connection
) -> None:
    await lose(fleet, 3)
    recovery_id = new_id()
    async with connection.transaction():
        await connection.execute(
            "SELECT FROM perdure_store.agents WHERE tenant_id = $1 "
            "AND agent_id = 'a001' FOR SHARE",
            fleet.tenant_id,
        )
        assert await start(fleet, recovery_id) == {"fenced": 2, "busy": 1}

    other = new_id()
    assert await start(fleet, other) == {"fenced": 1}


async def test_a_write_that_ends_in_time_is_part_of_the_cut(
    fleet: Fleet, connection: asyncpg.Connection
) -> None:
    fences = await lose(fleet, 2)
    recovery_id = new_id()
    transaction = connection.transaction()
    await transaction.start()
    new = make_checkpoint("a000", 2, 2)
    put = load_queries("checkpoints")["put_checkpoint"]
    row = await connection.fetchrow(
        put,
        *(fleet.tenant_id, "a000", fences[0].epoch, fences[0].claim_id, False),
        *("main", 2, None, new.raw_digest, new.raw_bytes, new.frame, 0, 0, "", ""),
    )
    assert row["outcome"] == "stored"
    starting = asyncio.create_task(start(fleet, recovery_id))
    await asyncio.sleep(0.3)
    await transaction.commit()

    assert await starting == {"fenced": 2}
    progress = await fleet.recoveries.progress(fleet.tenant_id, recovery_id)
    assert {item.agent_id: item.head_step for item in progress} == {
        "a000": 2,
        "a001": 1,
    }


async def test_live_agents_are_left_alone_unless_the_operator_knows_better(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    everyone = only("a")

    assert await start(fleet, new_id(), selector=everyone) == {"live": 1}
    await fleet.put(fence, 1, 1)
    assert await start(fleet, new_id(), selector=everyone, even_live=True) == {
        "fenced": 1
    }
    with pytest.raises(StaleFence):
        await fleet.put(fence, 2, 2)


async def test_a_subtree_is_fenced_with_its_parent_and_stays_together(
    fleet: Fleet,
) -> None:
    lease = make_lease()
    for agent_id, parent in (("p", None), ("c1", "p"), ("c2", "p"), ("g", "c1")):
        await fleet.acquire(agent_id, lease, parent_agent_id=parent)
    await fleet.expire(lease)
    plan = await fleet.recoveries.dry_run(fleet.tenant_id, only("p"), even_live=False)
    recovery_id = new_id()

    assert plan.fenced_count == plan.agent_count == 4
    assert await start(fleet, recovery_id, selector=only("p")) == {"fenced": 4}
    taken = await take(fleet, recovery_id, limit=1)

    assert {fence.agent_id for fence in taken} == {"p", "c1", "c2", "g"}
    assert len({fence.claim_id for fence in taken}) == 1
    # The parent's first write is the report for all of them.
    parent = next(fence for fence in taken if fence.agent_id == "p")
    await fleet.put(parent, 1, 1)
    assert await states(fleet, recovery_id) == {"resumed": 4}


async def test_agents_of_a_worker_that_died_return_to_the_pool(fleet: Fleet) -> None:
    await lose(fleet, 4)
    recovery_id = new_id()
    await start(fleet, recovery_id)
    worker = make_lease()
    taken = await take(fleet, recovery_id, lease=worker, limit=3)
    await fleet.put(taken[0], 2, "resumed before the worker died")
    assert await take(fleet, recovery_id) != []

    await fleet.expire(worker)
    again = await take(fleet, recovery_id)

    assert {fence.agent_id for fence in again} == {fence.agent_id for fence in taken}
    assert all(fence.epoch == 4 for fence in again)
    with pytest.raises(StaleFence):
        await fleet.put(taken[1], 2, 2)


async def test_an_agent_that_was_given_back_is_not_handed_out_again(
    fleet: Fleet,
) -> None:
    await lose(fleet, 2)
    recovery_id = new_id()
    await start(fleet, recovery_id)
    worker = make_lease()
    taken = await take(fleet, recovery_id, lease=worker)

    # It had nothing left to do: it gives its agents back and ends.
    await fleet.agents.release(fleet.tenant_id, taken, worker.lease_id)

    assert await take(fleet, recovery_id) == []
    assert await states(fleet, recovery_id) == {"resumed": 2}


async def test_progress_follows_each_agent_to_its_first_write(fleet: Fleet) -> None:
    await lose(fleet, 3)
    recovery_id = new_id()
    await start(fleet, recovery_id)
    first, second = await take(fleet, recovery_id, limit=2)

    assert await states(fleet, recovery_id) == {"restored": 2, "fenced": 1}
    await fleet.put(first, 2, 2)
    assert await states(fleet, recovery_id) == {
        "resumed": 1,
        "restored": 1,
        "fenced": 1,
    }
    assert (await fleet.try_acquire("a002")).outcome == "acquired"
    assert await states(fleet, recovery_id) == {
        "resumed": 1,
        "restored": 1,
        "moved": 1,
    }
    assert second.epoch == first.epoch


async def test_a_dry_run_counts_and_writes_nothing(fleet: Fleet) -> None:
    await lose(fleet, 5)
    await fleet.acquire("alive")
    before = await fleet.rows(
        "SELECT agent_id, epoch, claim_id FROM perdure_store.agents "
        "WHERE tenant_id = $1"
    )

    plan = await fleet.recoveries.dry_run(fleet.tenant_id, Selector(), even_live=False)
    bold = await fleet.recoveries.dry_run(fleet.tenant_id, Selector(), even_live=True)

    assert (plan.agent_count, plan.fenced_count, plan.live_count) == (6, 5, 1)
    assert (bold.fenced_count, bold.live_count) == (6, 0)
    assert plan.frame_bytes > 0
    assert before == await fleet.rows(
        "SELECT agent_id, epoch, claim_id FROM perdure_store.agents "
        "WHERE tenant_id = $1"
    )
