"""Which checkpoints go: never a head, never a link that a survivor needs."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure_server.errors import (
    BaseMismatch,
    IdReused,
    KeyframeRequired,
    Pruned,
    StepBehind,
)
from perdure_server.store.agents import Selector
from perdure_server.store.fence import Fence
from perdure_server.store.retention import Policy, Sweeper
from perdure_server.store.retention import Pruned as Removed
from perdure_server.store.tenants import Tenants
from tests.support.fleet import Fleet, open_fleet

DAY_MS = 86_400_000
OLD = Policy(keep_steps=2, keep_age_ms=DAY_MS, max_age_ms=30 * DAY_MS)
ALL = Selector()


@pytest.fixture
async def fleet(database_dsn: str) -> AsyncIterator[Fleet]:
    async with open_fleet(database_dsn) as opened:
        yield opened


async def write(fleet: Fleet, fence: Fence, shape: str, first: int = 1) -> None:
    """Write one step a letter: K a keyframe, d a delta against the step before."""
    digest: bytes | None = None
    for step, kind in enumerate(shape, start=first):
        base = digest if kind == "d" else None
        receipt = await fleet.put(fence, step, f"s{step}", base_digest=base)
        digest = receipt.digest


async def age(fleet: Fleet, days: float, up_to: int = 10**6, agent: str = "a") -> None:
    await fleet.rows(
        "UPDATE perdure_store.checkpoints SET create_time = now() - $2 * "
        "interval '1 day' WHERE tenant_id = $1 AND agent_id = $3 AND step <= $4",
        days,
        agent,
        up_to,
    )


async def shown(fleet: Fleet, agent: str = "a") -> tuple[list[int], list[int]]:
    """Steps that are there, and those that are there but hidden."""
    rows = await fleet.rows(
        "SELECT step, delete_time FROM perdure_store.checkpoints "
        "WHERE tenant_id = $1 AND agent_id = $2 ORDER BY step",
        agent,
    )
    return (
        [row["step"] for row in rows if row["delete_time"] is None],
        [row["step"] for row in rows if row["delete_time"] is not None],
    )


async def prune(fleet: Fleet, policy: Policy | None = OLD) -> Removed:
    """Prune, after a dry run that must have said the same."""
    before = await shown(fleet)
    said = await fleet.retention.prune(fleet.tenant_id, ALL, policy, dry_run=True)
    assert await shown(fleet) == before
    removed = await fleet.retention.prune(fleet.tenant_id, ALL, policy, dry_run=False)
    assert said == removed
    return removed


async def test_the_newest_steps_stay_whatever_their_age_below_the_maximum(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    await write(fleet, fence, "KKKKK")
    await age(fleet, days=5)

    removed = await prune(fleet)

    assert removed.checkpoint_count == 3
    assert removed.frame_bytes > 0
    assert await shown(fleet) == ([4, 5], [])


async def test_young_steps_stay_whatever_their_number(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await write(fleet, fence, "KKKKK")
    await age(fleet, days=5, up_to=2)

    await prune(fleet)

    assert await shown(fleet) == ([3, 4, 5], [])


async def test_beyond_the_maximum_age_only_the_head_stays(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await write(fleet, fence, "KKKKK")
    await age(fleet, days=31)

    await prune(fleet)

    assert await shown(fleet) == ([5], [])
    chain = await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 0)
    assert [link.step for link in chain] == [5]


async def test_a_link_that_a_survivor_needs_is_hidden_not_removed(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await write(fleet, fence, "KddddKdd")
    await age(fleet, days=5, up_to=7)

    # Two newest stay: 7 and 8, which need 6. All of the segment of 1 goes.
    removed = await prune(fleet)

    assert removed.checkpoint_count == 5
    assert await shown(fleet) == ([7, 8], [6])
    with pytest.raises(Pruned):
        await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 6)
    with pytest.raises(Pruned):
        await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 3)
    chain = await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 8)
    assert [link.step for link in chain] == [6, 7, 8]


async def test_the_tail_of_a_segment_goes_and_its_needed_part_stays(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    await write(fleet, fence, "KdddK")
    await age(fleet, days=31)
    await age(fleet, days=0, up_to=2)
    await age(fleet, days=31, up_to=1)

    # 2 survives by its age and needs 1; 3 and 4 come after it.
    removed = await prune(fleet)

    assert removed.checkpoint_count == 2
    assert await shown(fleet) == ([2, 5], [1])
    await age(fleet, days=31)
    await prune(fleet)
    assert await shown(fleet) == ([5], [])


async def test_pruning_again_removes_nothing_more(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await write(fleet, fence, "KdKdKdKd")
    await age(fleet, days=5)
    await prune(fleet)

    assert (await prune(fleet)).checkpoint_count == 0


async def test_pruning_beside_a_writer_never_breaks_its_chain(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    strict = Policy(keep_steps=1, keep_age_ms=0, max_age_ms=0)
    done = asyncio.Event()

    async def prune_on() -> None:
        while not done.is_set():
            await fleet.retention.prune(fleet.tenant_id, ALL, strict, dry_run=False)

    async with asyncio.TaskGroup() as group:
        group.create_task(prune_on())
        await write(fleet, fence, "KdddKdddd" * 8)
        done.set()
    await fleet.retention.prune(fleet.tenant_id, ALL, strict, dry_run=False)

    chain = await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 0)
    assert [link.step for link in chain] == [68, 69, 70, 71, 72]
    assert await shown(fleet) == ([72], [68, 69, 70, 71])


async def test_dropping_all_leaves_numbers_and_asks_for_a_keyframe(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    await write(fleet, fence, "Kdd")
    newest = await fleet.put(fence, 4, 4)

    removed = await prune(fleet, policy=None)

    assert removed.checkpoint_count == 4
    assert await shown(fleet) == ([], [])
    assert await fleet.head_step("a") == 4
    with pytest.raises(Pruned):
        await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 0)
    with pytest.raises(StepBehind):
        await fleet.put(fence, 3, 3)
    # A retry of the head, whose first answer was lost, is a replay all the same.
    again = await fleet.put(fence, 4, 4)
    assert again.replayed
    assert again.digest == newest.digest
    with pytest.raises(IdReused):
        await fleet.put(fence, 4, 5)
    with pytest.raises((KeyframeRequired, BaseMismatch)):
        await fleet.put(fence, 5, 5, base_digest=newest.digest)
    await fleet.put(fence, 5, 5)
    assert await shown(fleet) == ([5], [])


async def test_the_sweeper_goes_by_each_tenants_policy(fleet: Fleet) -> None:
    await Tenants(fleet.database).create(fleet.tenant_id, "", b"k" * 32)
    fence = await fleet.acquire("a")
    await write(fleet, fence, "K" * 60)
    await age(fleet, days=2, up_to=55)
    sweeper = Sweeper(fleet.retention, interval_s=600)

    # Without a policy of its own: 50 steps, a day, 30 days.
    assert await sweeper.sweep() == 10
    await fleet.rows(
        "INSERT INTO perdure_store.retention_policies VALUES ($1, 5, 0, 0)"
    )
    assert await sweeper.sweep() == 49
    assert await shown(fleet) == ([60], [])


async def test_a_sweep_that_fails_is_logged_and_the_next_one_works(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sweeper = Sweeper(fleet.retention, interval_s=0.01)
    rounds: list[int] = []

    async def sweep() -> int:
        rounds.append(1)
        if len(rounds) == 1:
            raise ConnectionResetError
        return 0

    monkeypatch.setattr(sweeper, "sweep", sweep)
    running = asyncio.create_task(sweeper.run())
    while len(rounds) < 3:
        await asyncio.sleep(0.01)
    running.cancel()

    assert [record.levelname for record in caplog.records] == ["ERROR"]
