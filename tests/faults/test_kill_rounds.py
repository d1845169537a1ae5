import random

from tests.faults.kill_rounds import run_rounds


async def test_acknowledged_writes_survive_kills_of_server_and_postgres() -> None:
    seed = random.randrange(1_000_000)

    print(await run_rounds(rounds=4, seed=seed))
