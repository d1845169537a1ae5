"""Kill the server, or crash Postgres, at random moments under concurrent writers.

    python -m tests.faults.kill_rounds --rounds 200 --seed 7

After every round each acknowledged write must be there, once, in order. Exits with
status 1 at the first broken promise and prints the seed that repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import perdure
from tests.faults import audit
from tests.faults.world import World
from tests.faults.writers import Ledger, append_for_ever, progress, step_for_ever
from tests.support.cluster import open_folder

APPENDERS = 6
AGENTS = 6
ANSWER_TIMEOUT_S = 60.0


class BrokenPromiseError(AssertionError):
    """A round found something lost, doubled or out of order."""


async def run_rounds(rounds: int, seed: int, report: Progress | None = None) -> str:
    """Run `rounds` rounds and return one line that sums them up.

    Raises:
        BrokenPromiseError: With every fault that the audit found.
    """
    chance = random.Random(seed)
    task = report.add_task("rounds", total=rounds) if report else None
    ledger = Ledger()
    kills = {"server": 0, "postgres": 0, "both": 0}
    started = time.monotonic()
    with open_folder() as folder:
        world = World(folder)
        await world.start()
        try:
            for number in range(rounds):
                victim = chance.choice(["server", "postgres", "both"])
                kills[victim] += 1
                try:
                    await _round(world, ledger, victim, chance.uniform(0.05, 0.6))
                except BaseExceptionGroup as group:
                    raise BrokenPromiseError(
                        f"round {number} ({victim}), seed {seed}: "
                        f"{group.exceptions[0]!r}\n{world.last_words()}"
                    ) from group
                async with perdure.connect(world.target, key=world.key) as client:
                    found = await audit.faults(client, ledger)
                if found:
                    raise BrokenPromiseError(
                        f"round {number}, seed {seed}: " + "; ".join(found[:5])
                    )
                if report and task is not None:
                    report.advance(task)
        finally:
            await world.stop()
    return (
        f"{rounds} rounds in {time.monotonic() - started:.0f} s, seed {seed}: "
        f"{kills['server']} x server, {kills['postgres']} x Postgres, "
        f"{kills['both']} x both; {len(ledger.appended)} appends and "
        f"{sum(ledger.steps.values())} steps acknowledged, 0 lost, 0 twice"
    )


async def _round(world: World, ledger: Ledger, victim: str, delay_s: float) -> None:
    stop = asyncio.Event()
    async with (
        perdure.connect(
            world.target, key=world.key, owner="rounds", timeout_s=ANSWER_TIMEOUT_S
        ) as client,
        asyncio.TaskGroup() as writers,
    ):
        for number in range(APPENDERS):
            writers.create_task(append_for_ever(client, f"w{number}", ledger, stop))
        for number in range(AGENTS):
            writers.create_task(_own_and_step(client, f"agent-{number}", ledger, stop))
        await asyncio.sleep(delay_s)
        await _kill(world, victim)
        seen = progress(ledger)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            # The writers must go on by themselves once the server is back.
            while progress(ledger) < seen + 4 * (APPENDERS + AGENTS):
                await asyncio.sleep(0.02)
        stop.set()


async def _own_and_step(
    client: perdure.AsyncClient, agent_id: str, ledger: Ledger, stop: asyncio.Event
) -> None:
    async with client.agents.acquire(agent_id) as agent:
        await step_for_ever(agent, ledger, stop)


async def _kill(world: World, victim: str) -> None:
    if victim == "postgres":
        await world.crash_postgres()  # its server brings it back by itself
        return
    await world.kill_server()
    if victim == "both":
        await world.crash_postgres()
    await world.start()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns) as report:
        try:
            summary = asyncio.run(run_rounds(options.rounds, options.seed, report))
        except BrokenPromiseError as broken:
            print(f"broken: {broken}", file=sys.stderr)
            return 1
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
