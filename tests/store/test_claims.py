"""Leases and claims: who owns an agent, judged by the database's clock."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from perdure_server.errors import LeaseNotFound, LeaseRevoked, StaleFence
from perdure_server.store.agents import AgentSpec, Selector
from tests.support.fleet import Fleet, make_lease, only, open_fleet


@pytest.fixture
async def fleet(database_dsn: str) -> AsyncIterator[Fleet]:
    async with open_fleet(database_dsn) as opened:
        yield opened


async def states(fleet: Fleet) -> dict[str, str]:
    found = await fleet.agents.select(fleet.tenant_id, Selector(), None, 100)
    return {agent.agent_id: agent.lease_state for agent in found}


async def test_an_acquire_makes_agent_and_conversation(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")

    assert fence.epoch == 1
    rows = await fleet.rows(
        "SELECT conversation_id, owned FROM perdure_store.conversations "
        "WHERE tenant_id = $1"
    )
    assert rows == [{"conversation_id": "a", "owned": True}]
    assert await states(fleet) == {"a": "live"}


async def test_a_live_lease_keeps_its_agents(fleet: Fleet) -> None:
    lease = make_lease()
    await fleet.acquire("a", lease)

    assert (await fleet.try_acquire("a")).outcome == "held"
    # Another claim by the same worker would void the first one's fence.
    assert (await fleet.try_acquire("a", lease)).outcome == "held"


async def test_the_same_claim_again_is_the_same_fence(fleet: Fleet) -> None:
    lease = make_lease()
    spec = AgentSpec("a", "a", "", None, "", uuid.uuid4())
    _, (first,) = await fleet.agents.acquire(fleet.tenant_id, lease, [spec])

    _, (again,) = await fleet.agents.acquire(fleet.tenant_id, lease, [spec])

    assert (first.outcome, again.outcome) == ("acquired", "replayed")
    assert again.fence == first.fence


async def test_an_expired_lease_loses_an_agent_only_when_someone_takes_it(
    fleet: Fleet,
) -> None:
    lease = make_lease()
    fence = await fleet.acquire("a", lease)
    await fleet.expire(lease)
    assert await states(fleet) == {"a": "lost"}

    await fleet.put(fence, 1, 1)  # nobody took it: still accepted
    renewal = await fleet.agents.renew(fleet.tenant_id, lease.lease_id, [fence])
    assert renewal.stale_agent_ids == ()
    assert await states(fleet) == {"a": "live"}

    await fleet.expire(lease)
    await fleet.acquire("a")
    renewal = await fleet.agents.renew(fleet.tenant_id, lease.lease_id, [fence])
    assert renewal.stale_agent_ids == ("a",)
    with pytest.raises(StaleFence):
        await fleet.put(fence, 2, 2)


async def test_a_revoked_lease_is_over_at_once_and_for_good(fleet: Fleet) -> None:
    lease = make_lease()
    await fleet.acquire("a", lease)
    await fleet.agents.release(fleet.tenant_id, [], lease.lease_id)

    assert await states(fleet) == {"a": "lost"}
    with pytest.raises(LeaseRevoked):
        await fleet.agents.renew(fleet.tenant_id, lease.lease_id)
    with pytest.raises(LeaseRevoked):
        await fleet.acquire("b", lease)
    with pytest.raises(LeaseNotFound):
        await fleet.agents.renew(fleet.tenant_id, uuid.uuid4())


async def test_an_outage_of_the_database_steals_no_fleet(database_dsn: str) -> None:
    async with open_fleet(database_dsn) as fleet:
        lease = make_lease(ttl_ms=60_000)
        fence = await fleet.acquire("a", lease)
        await fleet.expire(lease)
        # Just connected again, for less than the lease's whole time.
        fleet.database._connected_since += 1_000_000.0 - 30.0

        assert await states(fleet) == {"a": "live"}
        assert (await fleet.try_acquire("a")).outcome == "held"
        recovery_id = uuid.uuid4()
        await fleet.recoveries.start(
            fleet.tenant_id, recovery_id, only("a"), b"", even_live=False
        )
        progress = await fleet.recoveries.progress(fleet.tenant_id, recovery_id)
        assert [item.state for item in progress] == ["live"]
        await fleet.put(fence, 1, 1)

        fleet.database._connected_since -= 31.0
        assert await states(fleet) == {"a": "lost"}
        assert (await fleet.try_acquire("a")).outcome == "acquired"


async def test_a_released_agent_is_free_with_its_subtree(fleet: Fleet) -> None:
    lease = make_lease()
    await fleet.acquire("child", lease, parent_agent_id="parent")
    await fleet.agents.release(fleet.tenant_id, [], lease.lease_id)
    fence = await fleet.acquire("parent")
    assert await states(fleet) == {"child": "live", "parent": "live"}

    released = await fleet.agents.release(fleet.tenant_id, [fence], None)

    assert released == {"parent": True}
    assert await states(fleet) == {"child": "free", "parent": "free"}
    assert await fleet.agents.release(fleet.tenant_id, [fence], None) == {
        "parent": True
    }


async def test_a_child_that_a_live_worker_holds_stays_with_it(fleet: Fleet) -> None:
    child = await fleet.acquire("child", parent_agent_id="parent")

    await fleet.acquire("parent")

    await fleet.put(child, 1, 1)


async def test_workers_that_pull_at_once_share_a_fleet(fleet: Fleet) -> None:
    lease = make_lease()
    ids = [f"a{n:02}" for n in range(40)]
    await asyncio.gather(*(fleet.acquire(each, lease) for each in ids))
    await fleet.expire(lease)
    picked = await fleet.agents.select(
        fleet.tenant_id, Selector(lease_state="lost"), None, 100
    )
    assert [agent.agent_id for agent in picked] == ids

    answers = await asyncio.gather(
        *(
            fleet.agents.claim(
                fleet.tenant_id, make_lease(), picked, [uuid.uuid4() for _ in picked]
            )
            for _ in range(4)
        )
    )

    taken = [
        answer.agent_id
        for claimed in answers
        for answer in claimed
        if answer.outcome == "acquired"
    ]
    assert sorted(taken) == ids


async def test_acquires_of_overlapping_fleets_never_deadlock_into_an_error(
    fleet: Fleet,
) -> None:
    ids = [f"a{n}" for n in range(12)]

    async def acquire(order: list[str]) -> list[str]:
        specs = [AgentSpec(each, each, "", None, "", uuid.uuid4()) for each in order]
        _, outcomes = await fleet.agents.acquire(fleet.tenant_id, make_lease(), specs)
        return [item.agent_id for item in outcomes if item.outcome == "acquired"]

    orders = [ids, ids[::-1], ids[::2] + ids[1::2], ids[6:] + ids[:6]] * 3
    taken = await asyncio.gather(*(acquire(order) for order in orders))

    assert sorted(each for part in taken for each in part) == sorted(ids)


async def test_a_selector_narrows_by_everything_it_sets(fleet: Fleet) -> None:
    node = make_lease(node="n1", gpu="0")
    for agent_id, parent in (("a", None), ("b", None), ("c", "a")):
        await fleet.acquire(agent_id, node, parent_agent_id=parent)
    await fleet.acquire("d", make_lease(node="n2"))

    async def found(**fields: object) -> list[str]:
        picked = await fleet.agents.select(
            fleet.tenant_id,
            Selector(**fields),  # type: ignore[arg-type]
            None,
            100,
        )
        return [agent.agent_id for agent in picked]

    assert await found(labels={"node": "n1"}) == ["a", "b", "c"]
    assert await found(labels={"node": "n1", "gpu": "1"}) == []
    assert await found(parent_agent_id="a") == ["c"]
    assert await found(agent_ids=("a", "d"), labels={"node": "n2"}) == ["d"]
    assert await found(owner="nobody") == []
    assert await found(max_schema_version=0) == ["a", "b", "c", "d"]


async def test_a_claim_judges_a_sub_agent_after_the_rival_that_it_waited_for(
    fleet: Fleet, connection: asyncpg.Connection
) -> None:
    dead, rival = make_lease(), make_lease()
    await fleet.acquire("parent", dead)
    await fleet.acquire("child", dead, parent_agent_id="parent")
    await fleet.acquire("other", rival)
    await fleet.expire(dead)
    await fleet.expire(rival)
    (parent,) = await fleet.agents.select(fleet.tenant_id, only("parent"), None, 1)
    async with connection.transaction():
        # The rival comes back late and takes the child in one transaction.
        await connection.execute(
            "UPDATE perdure_store.leases SET expire_time = now() + interval '1 h' "
            "WHERE lease_id = $1",
            rival.lease_id,
        )
        await connection.execute(
            "UPDATE perdure_store.agents SET lease_id = $1, epoch = epoch + 1 "
            "WHERE tenant_id = $2 AND agent_id = 'child'",
            rival.lease_id,
            fleet.tenant_id,
        )
        claim = asyncio.create_task(
            fleet.agents.claim(fleet.tenant_id, make_lease(), [parent], [uuid.uuid4()])
        )
        async with asyncio.timeout(3):
            while not await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ):
                await asyncio.sleep(0.01)

    assert [item.agent_id for item in await claim] == ["parent"]
