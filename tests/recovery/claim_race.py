"""Claims racing with checkpoint writes, again and again.

    python -m tests.recovery.claim_race --rounds 10000 --seed 7

In each round an owner writes step after step, by PutCheckpoint or by Commit, while
another takes the agent from it: by a recovery that does not wait for the lease, or
by ending the lease and acquiring. What the taker then reads is the cut. Afterwards
every acknowledged write must be in the cut, and nothing may have come after it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from perdure_server.errors import StaleFence
from perdure_server.store.agents import LeaseSpec
from perdure_server.store.append import Append
from perdure_server.store.fence import Fence
from tests.support.cluster import open_cluster
from tests.support.fleet import (
    Fleet,
    make_checkpoint,
    make_lease,
    make_message,
    new_id,
    only,
    open_fleet,
)

AGENTS = 4
KEPT_STEPS = 500


class BrokenPromiseError(AssertionError):
    """A stale write was accepted, or an acknowledged one is not in the cut."""


@dataclass
class Written:
    """What one owner was told is stored."""

    digests: dict[int, bytes] = field(default_factory=dict)
    message_ids: list[str] = field(default_factory=list)
    was_refused: bool = False


async def run_rounds(
    fleet: Fleet, rounds: int, seed: int, report: Progress | None = None
) -> str:
    """Run `rounds` rounds and return one line that sums them up.

    Raises:
        BrokenPromiseError: At the first fault.
    """
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    task = report.add_task("rounds", total=rounds) if report else None
    started = time.monotonic()

    async def race(agent_id: str, share: int, own: random.Random) -> None:
        owner = make_lease()
        fence = await fleet.acquire(agent_id, owner)
        for _ in range(share):
            owner, fence = await _round(fleet, owner, fence, own, counts)
            if report and task is not None:
                report.advance(task)

    shares = [rounds // AGENTS + (n < rounds % AGENTS) for n in range(AGENTS)]
    async with asyncio.TaskGroup() as group:
        for number, share in enumerate(shares):
            own = random.Random(chance.random())
            group.create_task(race(f"agent-{number}", share, own))
    return (
        f"{rounds} rounds, {counts['acknowledged']} acknowledged writes, "
        f"{counts['refused']} stale writes refused, 0 accepted, 0 missing, "
        f"{time.monotonic() - started:.0f} s, seed {seed}"
    )


async def _round(
    fleet: Fleet,
    owner: LeaseSpec,
    fence: Fence,
    chance: random.Random,
    counts: Counter[str],
) -> tuple[LeaseSpec, Fence]:
    before = await fleet.head_step(fence.agent_id)
    written = Written()
    writing = asyncio.create_task(_write(fleet, fence, before, written, chance))
    await asyncio.sleep(chance.choice([0, 0, chance.uniform(0, 0.01)]))
    taker = make_lease()
    take = chance.choice([_recover, _revoke])
    new_fence = await take(fleet, owner, taker, fence.agent_id)
    cut = await _read_cut(fleet, new_fence, before)
    await writing
    after = await _read_cut(fleet, new_fence, before)
    counts["acknowledged"] += len(written.digests)
    counts["refused"] += written.was_refused
    _check(fence, written, cut, after)
    if chance.random() < 0.01:
        await fleet.rows(
            "DELETE FROM perdure_store.checkpoints WHERE tenant_id = $1 "
            "AND agent_id = $2 AND step < $3",
            fence.agent_id,
            after[0][-1][0] - KEPT_STEPS if after[0] else 0,
        )
    return taker, new_fence


async def _write(
    fleet: Fleet, fence: Fence, step: int, written: Written, chance: random.Random
) -> None:
    while True:
        step += 1
        state = {"step": step, "epoch": fence.epoch, "noise": chance.random()}
        new = make_checkpoint(fence.agent_id, step, state)
        message = make_message(f"step {step}", "assistant")
        try:
            if chance.random() < 0.5:
                await fleet.checkpoints.put(fleet.tenant_id, new, fence)
            else:
                append = Append(fleet.tenant_id, "", (message,))
                await fleet.commits.commit(fleet.tenant_id, fence, step, [append, new])
                written.message_ids.append(message.message_id)
        except StaleFence:
            written.was_refused = True
            return
        written.digests[step] = new.raw_digest


async def _recover(
    fleet: Fleet, owner: LeaseSpec, taker: LeaseSpec, agent_id: str
) -> Fence:
    recovery_id = new_id()
    await fleet.recoveries.start(
        fleet.tenant_id, recovery_id, only(agent_id), b"race", even_live=True
    )
    async with asyncio.timeout(10):
        # An agent that the old owner's refused write has locked is passed over.
        while not (
            taken := await fleet.recoveries.take(
                fleet.tenant_id, recovery_id, taker, [new_id()]
            )
        ):
            await asyncio.sleep(0)
    assert taken[0].fence is not None
    return taken[0].fence


async def _revoke(
    fleet: Fleet, owner: LeaseSpec, taker: LeaseSpec, agent_id: str
) -> Fence:
    await fleet.agents.release(fleet.tenant_id, [], owner.lease_id)
    return await fleet.acquire(agent_id, taker)


Cut = tuple[list[tuple[int, bytes]], int, list[str]]


async def _read_cut(fleet: Fleet, fence: Fence, after_step: int) -> Cut:
    head_step = await fleet.head_step(fence.agent_id)
    steps = await fleet.rows(
        "SELECT step, raw_digest FROM perdure_store.checkpoints WHERE tenant_id = $1 "
        "AND agent_id = $2 AND step > $3 ORDER BY step",
        fence.agent_id,
        after_step,
    )
    messages = await fleet.rows(
        "SELECT message_id FROM perdure_store.messages WHERE tenant_id = $1 "
        "AND conversation_id = $2 AND epoch >= $3 ORDER BY seq",
        fence.agent_id,
        max(1, fence.epoch - 2),
    )
    return (
        [(row["step"], row["raw_digest"]) for row in steps],
        head_step,
        [row["message_id"] for row in messages],
    )


def _check(old: Fence, written: Written, cut: Cut, after: Cut) -> None:
    where = f"{old.agent_id} epoch {old.epoch}"
    if cut != after:
        raise BrokenPromiseError(f"{where}: something was written after the cut")
    stored = dict(cut[0])
    for step, digest in written.digests.items():
        if stored.get(step) != digest or step > cut[1]:
            raise BrokenPromiseError(f"{where}: acknowledged step {step} is missing")
    # The cut may hold one more: committed, and its reply had not arrived yet.
    if len(stored) != len(written.digests):
        raise BrokenPromiseError(f"{where}: a refused step is stored")
    if [id for id in cut[2] if id in set(written.message_ids)] != written.message_ids:
        raise BrokenPromiseError(f"{where}: acknowledged messages are missing")


async def _main(rounds: int, seed: int, dsn: str) -> str:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns) as report:
        async with open_fleet(dsn, pool_size=16) as fleet:
            return await run_rounds(fleet, rounds, seed, report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    flags = parser.parse_args()
    with open_cluster() as opened:
        database_dsn = opened.create_database()
        try:
            print(asyncio.run(_main(flags.rounds, flags.seed, database_dsn)))
        except* BrokenPromiseError as broken:
            print(f"seed {flags.seed}: {broken.exceptions[0]}", file=sys.stderr)
            sys.exit(1)
        finally:
            opened.drop_database(database_dsn)
