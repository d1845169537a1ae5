"""commit_1: one step, all or nothing."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from perdure_server.errors import (
    AgentNotFound,
    IdReused,
    SeqConflict,
    StaleFence,
    StepBehind,
)
from perdure_server.store.append import Append, Appended
from perdure_server.store.checkpoints import NewCheckpoint, Receipt
from perdure_server.store.commits import RefusedOperation
from tests.support.fleet import (
    Fleet,
    make_checkpoint,
    make_lease,
    make_message,
    open_fleet,
)


@pytest.fixture
async def fleet(database_dsn: str) -> AsyncIterator[Fleet]:
    async with open_fleet(database_dsn) as opened:
        yield opened


def answer(fleet: Fleet, *texts: str, to: str = "") -> Append:
    messages = tuple(make_message(text, "assistant") for text in texts)
    return Append(fleet.tenant_id, to, messages)


async def counts(fleet: Fleet) -> tuple[int, int]:
    """Messages and checkpoints of the tenant."""
    row = await fleet.rows(
        "SELECT (SELECT count(*) FROM perdure_store.messages WHERE tenant_id = $1) "
        "AS m, (SELECT count(*) FROM perdure_store.checkpoints WHERE tenant_id = $1) "
        "AS c"
    )
    return row[0]["m"], row[0]["c"]


async def test_messages_and_checkpoint_of_a_step_are_stored_together(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    await fleet.say("a", "question")
    append = answer(fleet, "thinking", "reply")
    # The checkpoint counts the step's own messages as read.
    state = make_checkpoint("a", 1, {"n": 1}, read_seq=3)

    appended, receipt = await fleet.commits.commit(
        fleet.tenant_id, fence, 1, [append, state]
    )

    assert isinstance(appended, Appended)
    assert isinstance(receipt, Receipt)
    assert [place.seq for place in appended.places] == [1, 2]
    assert (receipt.step, receipt.replayed) == (1, False)
    assert await counts(fleet) == (3, 1)
    marked = await fleet.rows(
        "SELECT step, epoch, agent_id FROM perdure_store.messages "
        "WHERE tenant_id = $1 AND seq > 0"
    )
    assert marked == [{"step": 1, "epoch": 1, "agent_id": "a"}] * 2


async def test_a_commit_sent_again_is_answered_as_the_first_time(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    operations = [
        replace(answer(fleet, "reply"), expected_seq=0),
        make_checkpoint("a", 1, 1),
    ]
    first = await fleet.commits.commit(fleet.tenant_id, fence, 1, operations)

    again = await fleet.commits.commit(fleet.tenant_id, fence, 1, operations)

    assert isinstance(again[0], Appended)
    assert isinstance(again[1], Receipt)
    assert again[0].places[0].replayed
    assert again[1].replayed
    assert [again[0].places[0].seq, again[1].digest] == [
        first[0].places[0].seq,  # type: ignore[union-attr]
        first[1].digest,  # type: ignore[union-attr]
    ]
    assert await counts(fleet) == (1, 1)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_refused_operation_leaves_nothing_of_any_other(
    fleet: Fleet, place: int
) -> None:
    fence = await fleet.acquire("a")
    await fleet.put(fence, 5, 5)
    before = await counts(fleet)
    operations: list[Append | NewCheckpoint] = [
        answer(fleet, "one"),
        make_checkpoint("a", 6, 6),
        answer(fleet, "two"),
    ]
    refused: Append | NewCheckpoint = replace(answer(fleet, "late"), expected_seq=10**6)
    if place == 1:
        refused = make_checkpoint("a", 4, 4)
    operations[place] = refused

    with pytest.raises(RefusedOperation) as caught:
        await fleet.commits.commit(fleet.tenant_id, fence, 6, operations)

    assert caught.value.index == place
    assert isinstance(caught.value.error, StepBehind if place == 1 else SeqConflict)
    assert await counts(fleet) == before
    assert await fleet.head_step("a") == 5


async def test_a_stale_commit_says_whether_it_was_carried_out(fleet: Fleet) -> None:
    lease = make_lease()
    old = await fleet.acquire("a", lease)
    done = [answer(fleet, "reply"), make_checkpoint("a", 1, 1)]
    await fleet.commits.commit(fleet.tenant_id, old, 1, done)
    await fleet.expire(lease)
    new = await fleet.acquire("a")

    with pytest.raises(StaleFence) as caught:
        await fleet.commits.commit(fleet.tenant_id, old, 1, done)
    assert caught.value.metadata["committed"] == "true"
    assert caught.value.metadata["current_epoch"] == str(new.epoch)

    fresh = [answer(fleet, "other"), make_checkpoint("a", 2, 2)]
    with pytest.raises(StaleFence) as caught:
        await fleet.commits.commit(fleet.tenant_id, old, 2, fresh)
    assert caught.value.metadata["committed"] == "false"
    assert await counts(fleet) == (1, 1)


async def test_a_fence_must_be_equal(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    for other in (
        replace(fence, epoch=fence.epoch + 1),
        replace(fence, claim_id=uuid.uuid4()),
    ):
        with pytest.raises(StaleFence):
            await fleet.commits.commit(
                fleet.tenant_id, other, 1, [make_checkpoint("a", 1, 1)]
            )
    with pytest.raises(AgentNotFound):
        await fleet.commits.commit(
            fleet.tenant_id, replace(fence, agent_id="b"), 1, [answer(fleet, "x")]
        )
    assert await counts(fleet) == (0, 0)


async def test_a_sub_agents_checkpoint_rides_in_its_parents_commit(
    fleet: Fleet,
) -> None:
    await fleet.acquire("child", lease := make_lease(), parent_agent_id="parent")
    await fleet.expire(lease)
    fence = await fleet.acquire("parent")

    results = await fleet.commits.commit(
        fleet.tenant_id,
        fence,
        1,
        [make_checkpoint("parent", 1, "p"), make_checkpoint("child", 1, "c")],
    )

    assert len(results) == 2
    assert (await fleet.head_step("parent"), await fleet.head_step("child")) == (1, 1)


async def test_a_stranger_is_not_part_of_the_commit(fleet: Fleet) -> None:
    fence = await fleet.acquire("a")
    await fleet.acquire("b")
    with pytest.raises(RefusedOperation) as caught:
        await fleet.commits.commit(
            fleet.tenant_id,
            fence,
            1,
            [make_checkpoint("a", 1, 1), make_checkpoint("b", 1, 1)],
        )

    assert caught.value.index == 1
    assert isinstance(caught.value.error, StaleFence)
    assert await counts(fleet) == (0, 0)


async def test_a_sub_agent_that_someone_else_took_is_not_written(fleet: Fleet) -> None:
    await fleet.acquire("child", lease := make_lease(), parent_agent_id="parent")
    await fleet.expire(lease)
    taken = make_lease()
    fence = await fleet.acquire("parent", taken)
    await fleet.rows(
        "UPDATE perdure_store.agents SET epoch = epoch + 1, claim_id = $2 "
        "WHERE tenant_id = $1 AND agent_id = 'child'",
        uuid.uuid4(),
    )

    with pytest.raises(RefusedOperation) as caught:
        await fleet.commits.commit(
            fleet.tenant_id, fence, 1, [make_checkpoint("child", 1, 1)]
        )
    assert isinstance(caught.value.error, StaleFence)


async def test_a_known_message_with_other_content_refuses_the_commit(
    fleet: Fleet,
) -> None:
    fence = await fleet.acquire("a")
    first = make_message("first", "assistant", message_id="m")
    other = make_message("other", "assistant", message_id="m")
    await fleet.commits.commit(
        fleet.tenant_id, fence, 1, [Append(fleet.tenant_id, "", (first,))]
    )

    with pytest.raises(RefusedOperation) as caught:
        await fleet.commits.commit(
            fleet.tenant_id,
            fence,
            2,
            [make_checkpoint("a", 2, 2), Append(fleet.tenant_id, "", (other,))],
        )

    assert caught.value.index == 1
    assert isinstance(caught.value.error, IdReused)
    assert caught.value.error.metadata["stored_digest"] == first.digest.hex()
    assert await counts(fleet) == (1, 0)
