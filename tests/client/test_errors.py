"""What a status becomes in the client."""

from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from perdure import errors
from perdure.retry import FIRST_DELAY_S, Backoff
from perdure.status import GROUPS, read_failure
from perdure.v1.error_reason_pb2 import ErrorReason

REASONS = [
    name.removeprefix("ERROR_REASON_")
    for name, _ in ErrorReason.items()
    if name != "ERROR_REASON_UNSPECIFIED"
]


class Failed:
    """What grpc raises, as far as the client reads it."""

    def __init__(self, code: str, *details: Any, said: str = "said") -> None:
        self._code = grpc.StatusCode[code]
        self._said = said
        packed = []
        for detail in details:
            packed.append(any_pb2.Any())
            packed[-1].Pack(detail)
        status = status_pb2.Status(code=self._code.value[0], details=packed)
        value = status.SerializeToString()
        self._trailers = [("grpc-status-details-bin", value)] if details else []

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._said

    def trailing_metadata(self) -> list[tuple[str, bytes]]:
        return self._trailers


def info(reason: str, domain: str = "perdure", **metadata: str) -> Any:
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_wire_has_one_group(reason: str) -> None:
    failure = read_failure(Failed("UNKNOWN", info(reason, path="a.b")), "host:1")

    assert type(failure.error) is GROUPS[reason]
    assert failure.error.reason == reason
    assert failure.error.path == "a.b"
    assert str(failure.error).startswith(f"{reason} at a.b: ")


def test_no_group_names_a_reason_that_the_wire_lacks() -> None:
    assert sorted(GROUPS) == sorted(REASONS)


def test_too_many_calls_are_an_overload_and_too_many_bytes_are_not() -> None:
    crowd = Failed("RESOURCE_EXHAUSTED", said="Concurrent RPC limit exceeded!")
    bulk = Failed("RESOURCE_EXHAUSTED", said="CLIENT: Sent message larger than max")

    overload, limit = read_failure(crowd, "host:1"), read_failure(bulk, "host:1")

    assert (type(overload.error), overload.error.reason, overload.retry) == (
        errors.Unavailable,
        "OVERLOADED",
        True,
    )
    assert (type(limit.error), limit.error.reason, limit.retry) == (
        errors.Invalid,
        "LIMIT_EXCEEDED",
        False,
    )


def test_all_groups_are_one_tree() -> None:
    assert all(issubclass(kind, errors.PerdureError) for kind in GROUPS.values())


def test_a_reason_of_another_domain_is_not_ours() -> None:
    failed = Failed("UNAVAILABLE", info("STALE_FENCE", "proxy.example"))

    assert read_failure(failed, "host:1").error.reason == "UNREACHABLE"


def test_an_unknown_reason_of_ours_keeps_the_group_of_its_code() -> None:
    failure = read_failure(Failed("NOT_FOUND", info("SHELF_NOT_FOUND")), "host:1")

    assert type(failure.error) is errors.NotFound
    assert failure.error.reason == "SHELF_NOT_FOUND"


def test_an_unreachable_server_says_what_to_type() -> None:
    failure = read_failure(Failed("UNAVAILABLE"), "10.0.0.1:7401")

    assert failure.retry
    assert type(failure.error) is errors.Unavailable
    assert "10.0.0.1:7401" in str(failure.error)
    assert "perdure serve" in str(failure.error)


@pytest.mark.parametrize(
    ("code", "reason", "retried"),
    [
        ("ABORTED", "SEQ_CONFLICT", False),
        ("ABORTED", "WRITE_CONTENTION", True),
        ("RESOURCE_EXHAUSTED", "OVERLOADED", True),
        ("UNAVAILABLE", "SHUTTING_DOWN", True),
        ("UNAVAILABLE", "STORE_UNAVAILABLE", True),
        ("FAILED_PRECONDITION", "STALE_FENCE", False),
        ("INTERNAL", "INTERNAL", False),
        ("UNAUTHENTICATED", "KEY_INVALID", False),
    ],
)
def test_only_what_may_pass_by_itself_is_retried(
    code: str, reason: str, retried: bool
) -> None:
    assert read_failure(Failed(code, info(reason)), "host:1").retry is retried


def test_a_retry_waits_as_long_as_the_server_asks() -> None:
    wait = error_details_pb2.RetryInfo(
        retry_delay=duration_pb2.Duration(seconds=2, nanos=500_000_000)
    )
    failure = read_failure(
        Failed("RESOURCE_EXHAUSTED", info("OVERLOADED"), wait), "host:1"
    )

    assert Backoff(10.0).next_delay_s(failure) == pytest.approx(2.5)


def test_retries_end_with_the_calls_deadline() -> None:
    failure = read_failure(Failed("UNAVAILABLE"), "host:1")

    assert Backoff(FIRST_DELAY_S / 4).next_delay_s(failure) is None


def test_delays_grow_and_are_jittered() -> None:
    failure = read_failure(Failed("UNAVAILABLE"), "host:1")
    runs = []
    for _ in range(20):
        backoff = Backoff(1000.0)
        runs.append([backoff.next_delay_s(failure) or 0.0 for _ in range(10)])

    assert len({run[0] for run in runs}) > 1
    assert all(0.5 <= run[-1] <= 1.0 for run in runs)
    assert all(run[0] <= FIRST_DELAY_S for run in runs)


def test_a_broken_trailer_does_not_hide_the_error() -> None:
    failed = Failed("NOT_FOUND", said="gone")
    failed._trailers = [("grpc-status-details-bin", b"\xff\xff\xff")]

    assert type(read_failure(failed, "host:1").error) is errors.NotFound
