import pytest

from perdure_server.errors import Overloaded
from perdure_server.rpc.request_budget import RequestBudget


def test_requests_beyond_the_budget_are_refused_until_others_are_answered() -> None:
    budget = RequestBudget(limit_bytes=10)
    with budget.taken(6):
        with budget.taken(4), pytest.raises(Overloaded), budget.taken(1):
            pass
        with budget.taken(4):
            pass
    with budget.taken(10):
        pass


def test_a_refused_request_takes_nothing_and_a_failed_one_gives_back() -> None:
    budget = RequestBudget(limit_bytes=10)
    with pytest.raises(Overloaded), budget.taken(11):
        pass
    with pytest.raises(RuntimeError), budget.taken(10):
        raise RuntimeError
    with budget.taken(10):
        pass
