"""A few rounds of the claim race; the whole of it is run by hand."""

from tests.recovery.claim_race import run_rounds
from tests.support.fleet import open_fleet


async def test_a_claim_racing_with_writes_cuts_between_acknowledged_and_refused(
    database_dsn: str,
) -> None:
    async with open_fleet(database_dsn, pool_size=16) as fleet:
        summary = await run_rounds(fleet, 300, seed=7)

    assert summary.startswith("300 rounds")
