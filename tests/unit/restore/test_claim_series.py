"""Claim ids of a stream: numbered, ascending, and not to be confused."""

from perdure_server.restore.claim_series import ClaimSeries, number_of


def test_claim_ids_ascend_in_the_order_in_which_they_are_taken() -> None:
    series = ClaimSeries.begin()

    ids = [*series.take(3), *series.take(2)]

    assert ids == sorted(ids)
    assert [number_of(each) for each in ids] == [1, 2, 3, 4, 5]
    assert all(series.claim_id(0) < each <= series.last() for each in ids)


def test_two_streams_share_no_claim_id() -> None:
    first, second = ClaimSeries.begin(), ClaimSeries.begin()

    assert not set(first.take(100)) & set(second.take(100))


def test_a_resumed_series_stays_clear_of_numbers_that_may_be_in_use() -> None:
    series = ClaimSeries.begin()
    used = series.take(500)

    resumed = ClaimSeries.resume(series.start, after_number=17)

    assert resumed.take(1)[0] > max(used)
    assert resumed.claim_id(17) == series.claim_id(17)
