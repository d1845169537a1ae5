"""put_checkpoint_1: the order of its checks, and what each outcome leaves behind."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from perdure_server.errors import (
    AgentNotFound,
    BaseMismatch,
    FenceRequired,
    IdReused,
    KeyframeRequired,
    StaleFence,
    StepBehind,
    ValueNotStorable,
)
from tests.support.fleet import Fleet, make_checkpoint, make_lease, open_fleet


@pytest.fixture
async def fleet(database_dsn: str) -> AsyncIterator[Fleet]:
    async with open_fleet(database_dsn) as opened:
        yield opened


async def steps_of(fleet: Fleet, agent_id: str) -> list[int]:
    rows = await fleet.rows(
        "SELECT step FROM perdure_store.checkpoints WHERE tenant_id = $1 "
        "AND agent_id = $2 ORDER BY step",
        agent_id,
    )
    return [row["step"] for row in rows]


async def test_a_checkpoint_is_stored_once_and_a_retry_gets_the_first_answer(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")

    first = await fleet.put(fence, 1, {"n": 1})
    again = await fleet.put(fence, 1, {"n": 1})

    assert not first.replayed
    assert again == replace(first, replayed=True)
    assert await steps_of(fleet, "a") == [1]


async def test_an_equal_state_in_another_frame_is_a_replay(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    new = make_checkpoint("a", 1, {"text": "x" * 1000})
    await fleet.checkpoints.put(fleet.tenant_id, new, fence)

    other = replace(new, frame=new.frame + b"!", base_digest=b"\1" * 16)
    receipt = await fleet.checkpoints.put(fleet.tenant_id, other, fence)

    assert receipt.replayed


async def test_another_state_for_a_stored_step_names_both_digests(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    stored = await fleet.put(fence, 1, 1)

    with pytest.raises(IdReused) as caught:
        await fleet.put(fence, 1, 2)

    assert caught.value.metadata["stored_digest"] == stored.digest.hex()
    assert caught.value.metadata["digest"] != stored.digest.hex()
    assert await steps_of(fleet, "a") == [1]


@pytest.mark.parametrize("field", ["epoch", "claim_id"])
async def test_a_fence_must_be_equal_not_just_newer(fleet: Fleet, field: str) -> None:
    fence = await fleet.acquire("a")
    other = (
        replace(fence, epoch=fence.epoch + 1)
        if field == "epoch"
        else replace(fence, claim_id=uuid.uuid4())
    )

    with pytest.raises(StaleFence) as caught:
        await fleet.put(other, 1, 1)

    assert caught.value.metadata["committed"] == "false"
    assert await steps_of(fleet, "a") == []


# R55
async def test_an_old_claim_of_the_same_worker_is_refused_on_every_path(
    fleet: Fleet,
) -> None:
    stalled = make_lease()
    old = await fleet.acquire("a", stalled)
    await fleet.put(old, 1, 1)
    await fleet.expire(stalled)
    new = await fleet.acquire("a", make_lease())
    await fleet.put(new, 2, 2)

    assert new.epoch == old.epoch + 1
    with pytest.raises(StaleFence):
        await fleet.put(old, 3, 3)
    with pytest.raises(StaleFence):
        await fleet.commits.commit(
            fleet.tenant_id, old, 3, [make_checkpoint("a", 3, 3)]
        )
    renewal = await fleet.agents.renew(fleet.tenant_id, stalled.lease_id, [old])
    assert renewal.stale_agent_ids == ("a",)
    assert await fleet.agents.release(fleet.tenant_id, [old], None) == {"a": False}
    assert await steps_of(fleet, "a") == [1, 2]
    assert not (await fleet.put(new, 3, 3)).replayed


async def test_a_stale_retry_says_that_its_write_is_there(fleet: Fleet) -> None:
    lease = make_lease()
    old = await fleet.acquire("a", lease)
    await fleet.put(old, 1, {"n": 1})
    await fleet.expire(lease)
    await fleet.acquire("a")

    with pytest.raises(StaleFence) as caught:
        await fleet.put(old, 1, {"n": 1})

    assert caught.value.metadata["committed"] == "true"


async def test_the_checks_come_in_the_order_agent_fence_replay_base(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    await fleet.put(fence, 5, 5)
    stale = replace(fence, claim_id=uuid.uuid4())
    wrong_base = b"\0" * 16

    with pytest.raises(AgentNotFound):
        await fleet.put(replace(stale, agent_id="b"), 5, 6, base_digest=wrong_base)
    with pytest.raises(StaleFence):
        await fleet.put(stale, 5, 6, base_digest=wrong_base)
    with pytest.raises(IdReused):
        await fleet.put(fence, 5, 6, base_digest=wrong_base)
    with pytest.raises(StepBehind):
        await fleet.put(fence, 4, 6, base_digest=wrong_base)
    with pytest.raises(BaseMismatch):
        await fleet.put(fence, 6, 6, base_digest=wrong_base)


async def test_an_agent_that_was_acquired_needs_its_fence(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await fleet.agents.release(fleet.tenant_id, [fence], None)

    with pytest.raises(FenceRequired):
        await fleet.put(None, 1, 1, agent_id="a")


async def test_a_released_fence_is_void(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await fleet.agents.release(fleet.tenant_id, [fence], None)

    with pytest.raises(StaleFence):
        await fleet.put(fence, 1, 1)


async def test_steps_may_skip_but_never_go_back(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await fleet.put(fence, 3, 3)
    await fleet.put(fence, 10, 10)

    with pytest.raises(StepBehind) as caught:
        await fleet.put(fence, 7, 7)

    assert caught.value.metadata["head_step"] == "10"
    assert await steps_of(fleet, "a") == [3, 10]


async def test_branches_have_heads_of_their_own(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await fleet.put(fence, 5, "main")
    await fleet.put(fence, 1, "other", branch="what-if")

    head = await fleet.checkpoints.head_step(fleet.tenant_id, "a", "what-if")

    assert (await fleet.head_step("a"), head) == (5, 1)


async def test_rivals_for_the_first_step_of_a_branch_leave_one_winner(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    answers = await asyncio.gather(
        *(fleet.put(fence, 1, n, branch="new") for n in range(8)),
        return_exceptions=True,
    )

    refused = [answer for answer in answers if isinstance(answer, IdReused)]
    assert len(refused) == 7
    assert await steps_of(fleet, "a") == [1]


async def test_retries_that_race_are_one_write(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    answers = await asyncio.gather(*(fleet.put(fence, 1, "same") for _ in range(8)))

    assert [answer.replayed for answer in answers].count(False) == 1


async def test_a_chain_of_deltas_ends_at_64_links(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    newest = await fleet.put(fence, 1, 1)
    for step in range(2, 66):
        newest = await fleet.put(fence, step, step, base_digest=newest.digest)

    with pytest.raises(KeyframeRequired):
        await fleet.put(fence, 66, 66, base_digest=newest.digest)
    await fleet.put(fence, 66, 66)

    chain = await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 65)
    assert [link.step for link in chain] == list(range(1, 66))
    chain = await fleet.checkpoints.chain(fleet.tenant_id, "a", "main", 66)
    assert [link.step for link in chain] == [66]


async def test_no_more_messages_are_read_than_there_are(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await fleet.say("a", "one", "two")

    with pytest.raises(ValueNotStorable):
        await fleet.put(fence, 1, 1, read_seq=3)
    await fleet.put(fence, 1, 1, read_seq=2)
