"""AgentService on the wire: every agent gets an answer of its own."""

import uuid
from typing import Any

import asyncpg
import pytest

from perdure.v1 import agent_pb2
from perdure.v1 import agent_service_pb2 as pb
from tests.support.wire import Wire, refused


@pytest.fixture
def name() -> str:
    return f"a-{uuid.uuid4().hex[:12]}"


def lease(**labels: str) -> agent_pb2.LeaseSpec:
    return agent_pb2.LeaseSpec(
        lease_id=str(uuid.uuid4()), owner="worker", labels=labels
    )


def spec(agent_id: str, **fields: Any) -> pb.AgentSpec:
    fields.setdefault("claim_id", str(uuid.uuid4()))
    return pb.AgentSpec(agent_id=agent_id, **fields)


async def acquire(
    wire: Wire, held_by: agent_pb2.LeaseSpec, *specs: pb.AgentSpec, **fields: Any
) -> Any:
    request = pb.AcquireAgentsRequest(lease=held_by, agents=specs, **fields)
    return await wire.agents.AcquireAgents(request, metadata=wire.key)


async def listed(wire: Wire, page_size: int = 0, **selector: Any) -> list[Any]:
    agents: list[Any] = []
    token = ""
    while True:
        request = pb.ListAgentsRequest(
            selector=agent_pb2.AgentSelector(**selector),
            page_size=page_size,
            page_token=token,
        )
        page = await wire.agents.ListAgents(request, metadata=wire.key)
        agents += page.agents
        token = page.next_page_token
        if not token:
            return agents


async def expire(connection: asyncpg.Connection, held_by: agent_pb2.LeaseSpec) -> None:
    # A time to live of 0 ms: the server has always been connected for long enough.
    await connection.execute(
        "UPDATE perdure_store.leases SET expire_time = now() - interval '1 s', "
        "ttl_ms = 1 WHERE lease_id = $1::uuid",
        held_by.lease_id,
    )


async def test_an_acquire_answers_for_each_agent_in_the_order_of_the_request(
    wire: Wire, name: str
) -> None:
    other = lease()
    await acquire(wire, other, spec(f"{name}-held"))
    await acquire(wire, other, spec(f"{name}-x", conversation_id=f"{name}-c"))
    mine = lease(node="n1")
    same = spec(f"{name}-same")
    await acquire(wire, mine, same)

    response = await acquire(
        wire,
        mine,
        spec(f"{name}-new", framework="own 1.0", agent_slug="clerk"),
        spec(f"{name}-held"),
        same,
        spec(f"{name}-x", conversation_id="another"),
    )

    assert [pb.AcquireOutcome.Name(each.outcome)[16:] for each in response.agents] == [
        "ACQUIRED",
        "HELD",
        "REPLAYED",
        "CONFLICT",
    ]
    new, held, replayed, conflict = response.agents
    assert (new.agent.framework, new.agent.agent_slug) == ("own 1.0", "clerk")
    assert new.fence.epoch == new.agent.epoch == 1
    assert new.agent.lease_state == agent_pb2.LEASE_STATE_LIVE
    assert not held.HasField("fence")
    assert held.agent.owner == "worker"
    assert replayed.fence.claim_id == same.claim_id
    assert not conflict.HasField("fence")
    assert dict(response.lease.labels) == {"node": "n1"}
    assert response.lease.ttl.seconds == 30


async def test_a_selector_takes_what_is_lost_with_its_subtree(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    dead = lease(node=name)
    await acquire(wire, dead, spec(name), *(spec(f"{name}-{n}") for n in range(3)))
    await acquire(wire, dead, spec(f"{name}-child", parent_agent_id=name))
    await expire(connection, dead)
    selector = agent_pb2.AgentSelector(
        labels={"node": name}, lease_state=agent_pb2.LEASE_STATE_LOST
    )

    first = await acquire(wire, lease(), selector=selector, at_most=2)
    rest = await acquire(wire, lease(), selector=selector)

    taken = [each.agent.agent_id for each in (*first.agents, *rest.agents)]
    assert sorted(taken) == sorted(
        [name, f"{name}-child", *(f"{name}-{n}" for n in range(3))]
    )
    assert all(each.fence.epoch == 2 for each in first.agents)


async def test_a_selector_looks_past_agents_that_others_hold(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    for n in range(3):
        held = [spec(f"{name}-{n}-{m:02}", agent_slug=name) for m in range(20)]
        await acquire(wire, lease(), *held)
    dead = lease()
    await acquire(wire, dead, spec(f"{name}-9", agent_slug=name))
    await acquire(wire, dead, spec(f"{name}-8", parent_agent_id=f"{name}-9"))
    await expire(connection, dead)
    selector = agent_pb2.AgentSelector(agent_slug=name)

    mine = lease()
    response = await acquire(wire, mine, selector=selector)
    again = await acquire(wire, lease(), selector=selector)

    taken = {each.agent.agent_id: each.fence for each in response.agents}
    assert set(taken) == {f"{name}-9", f"{name}-8"}
    assert len({fence.claim_id for fence in taken.values()}) == 1
    assert (list(again.agents), again.lease.owner) == ([], "worker")


async def test_a_renewal_names_the_agents_that_were_lost(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    mine = lease()
    response = await acquire(wire, mine, spec(name), spec(f"{name}-2"))
    fences = [each.fence for each in response.agents]
    await expire(connection, mine)
    await acquire(wire, lease(), spec(name))

    renewed = await wire.agents.RenewLease(
        pb.RenewLeaseRequest(lease_id=mine.lease_id, fences=fences), metadata=wire.key
    )

    assert list(renewed.stale_agent_ids) == [name]
    assert renewed.lease.lease_id == mine.lease_id


async def test_a_release_frees_and_ends(wire: Wire, name: str) -> None:
    mine = lease()
    response = await acquire(wire, mine, spec(name))
    fence = response.agents[0].fence
    stale = agent_pb2.Fence(agent_id=f"{name}-no", epoch=1, claim_id=str(uuid.uuid4()))

    released = await wire.agents.ReleaseAgents(
        pb.ReleaseAgentsRequest(fences=[fence, stale], revoke_lease_id=mine.lease_id),
        metadata=wire.key,
    )

    assert list(released.released_agent_ids) == [name]
    assert list(released.stale_agent_ids) == [f"{name}-no"]
    (agent,) = await listed(wire, agent_ids=[name])
    assert agent.lease_state == agent_pb2.LEASE_STATE_FREE
    assert (agent.owner, agent.lease_id) == ("", "")
    with refused("LEASE_REVOKED"):
        await acquire(wire, mine, spec(name))
    with refused("LEASE_REVOKED"):
        await wire.agents.RenewLease(
            pb.RenewLeaseRequest(lease_id=mine.lease_id), metadata=wire.key
        )


async def test_a_list_pages_in_the_order_of_ids(wire: Wire, name: str) -> None:
    specs = [spec(f"{name}-{n:02}", agent_slug=name) for n in range(11)]
    await acquire(wire, lease(), *specs)

    agents = await listed(wire, page_size=4, agent_slug=name)

    assert [agent.agent_id for agent in agents] == [each.agent_id for each in specs]
    with refused("PAGE_TOKEN_INVALID"):
        await wire.agents.ListAgents(
            pb.ListAgentsRequest(
                selector=agent_pb2.AgentSelector(all=True), page_token="x"
            ),
            metadata=wire.key,
        )


async def test_an_empty_selector_is_refused_everywhere(wire: Wire, name: str) -> None:
    with refused("SELECTOR_EMPTY"):
        await listed(wire)
    with refused("SELECTOR_EMPTY"):
        await acquire(wire, lease())
    with refused("SELECTOR_EMPTY"):
        await acquire(wire, lease(), selector=agent_pb2.AgentSelector())


@pytest.mark.parametrize(
    ("fields", "reason", "path"),
    [
        ({"lease": {"lease_id": "no"}}, "VALUE_NOT_STORABLE", "lease.lease_id"),
        ({"lease": {"owner": ""}}, "VALUE_NOT_STORABLE", "lease.owner"),
        ({"lease": {"owner": "o" * 256}}, "LIMIT_EXCEEDED", "lease.owner"),
        (
            {"lease": {"labels": {str(n): "" for n in range(33)}}},
            "LIMIT_EXCEEDED",
            "lease.labels",
        ),
        ({"lease": {"ttl": {"seconds": 7200}}}, "VALUE_NOT_STORABLE", "lease.ttl"),
        ({"lease": {"ttl": {"nanos": 1}}}, "VALUE_NOT_STORABLE", "lease.ttl"),
        ({"agent_id": ""}, "VALUE_NOT_STORABLE", "agents[0].agent_id"),
        ({"agent_id": "a\0"}, "VALUE_NOT_STORABLE", "agents[0].agent_id"),
        ({"agent_id": "a" * 256}, "LIMIT_EXCEEDED", "agents[0].agent_id"),
        ({"conversation_id": "c\0"}, "VALUE_NOT_STORABLE", "agents[0].conversation_id"),
        ({"claim_id": ""}, "VALUE_NOT_STORABLE", "agents[0].claim_id"),
        ({"framework": "f" * 256}, "LIMIT_EXCEEDED", "agents[0].framework"),
    ],
)
async def test_a_field_that_cannot_be_kept_is_named(
    wire: Wire, name: str, fields: dict[str, Any], reason: str, path: str
) -> None:
    own = {"lease_id": str(uuid.uuid4()), "owner": "w"} | fields.pop("lease", {})
    agent = {"agent_id": name, "claim_id": str(uuid.uuid4())} | fields

    with refused(reason) as refusal:
        await acquire(wire, agent_pb2.LeaseSpec(**own), pb.AgentSpec(**agent))

    assert refusal.metadata["path"].startswith(path)
    assert await listed(wire, agent_ids=[name]) == []


async def test_one_agent_named_twice_is_a_bug_in_the_caller(
    wire: Wire, name: str
) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await acquire(wire, lease(), spec(name), spec(name))

    assert refusal.metadata["path"] == "agents[1].agent_id"


# R64
async def test_an_agent_whose_worker_died_is_lost_by_the_databases_clock_alone(
    wire: Wire, connection: asyncpg.Connection, name: str
) -> None:
    dead = lease()
    dead.ttl.FromMilliseconds(1000)
    await acquire(wire, dead, spec(name))
    (agent,) = await listed(wire, agent_ids=[name])
    assert agent.lease_state == agent_pb2.LEASE_STATE_LIVE
    left = await connection.fetchval(
        "SELECT expire_time - now() FROM perdure_store.leases "
        "WHERE lease_id = $1::uuid",
        dead.lease_id,
    )
    assert 0 < left.total_seconds() <= 1.0

    await connection.execute("SELECT pg_sleep(1.1)")

    (agent,) = await listed(wire, agent_ids=[name])
    assert agent.lease_state == agent_pb2.LEASE_STATE_LOST
    first, second = [
        (await acquire(wire, lease(), spec(name))).agents[0] for _ in range(2)
    ]
    assert first.outcome == pb.ACQUIRE_OUTCOME_ACQUIRED
    assert second.outcome == pb.ACQUIRE_OUTCOME_HELD
