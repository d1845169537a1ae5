"""One class for each reason of the proto, and what each becomes on the wire."""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from perdure_server.errors import IdReused, PerdureError, StaleFence, ValueNotStorable
from perdure_server.rpc.status import code_of, details_of, message_of

PROTO = Path(__file__).parents[2] / "proto/perdure/v1/error_reason.proto"
PREFIX = "ERROR_REASON_"


def leaves(base: type[PerdureError]) -> Iterator[type[PerdureError]]:
    for child in base.__subclasses__():
        if "reason" in vars(child):
            yield child
        yield from leaves(child)


CLASSES = list(leaves(PerdureError))


def test_the_proto_states_the_code_that_each_class_has() -> None:
    text = PROTO.read_text()
    for kind in CLASSES:
        above = text.split(f"  {PREFIX}{kind.reason} =")[0]
        comment = re.findall(r"// ([A-Z_]+)\. ", above)[-1]
        assert comment == kind.code, kind


def test_the_proto_says_which_reasons_carry_a_delay() -> None:
    text = PROTO.read_text()
    for kind in CLASSES:
        before = text.split(f"  {PREFIX}{kind.reason} =")[0]
        own = re.split(r"  ERROR_REASON_\w+ = \d+;", before)[-1]
        assert ("Carries RetryInfo" in re.sub(r"\s*//\s*", " ", own)) == (
            kind.retry_after_s is not None
        ), kind


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.reason)
def test_each_class_becomes_a_status_with_its_reason(kind: type[PerdureError]) -> None:
    error = kind("it is so", path="a.b")
    assert code_of(error) is grpc.StatusCode[kind.code]
    status = status_pb2.Status.FromString(details_of(error))
    assert status.code == code_of(error).value[0]
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("perdure", kind.reason)
    assert info.metadata == {"path": "a.b"}


def test_metadata_is_text_and_what_is_unknown_is_left_out() -> None:
    error = StaleFence("", epoch=3, committed=False, agent_id=None, digest=b"\x01\xff")
    assert error.metadata == {"epoch": "3", "committed": "false", "digest": "01ff"}


def test_an_error_is_told_of_the_place_where_it_stands() -> None:
    error = ValueNotStorable("no", path="value").at("operations[3].fact")
    assert isinstance(error, ValueNotStorable)
    assert error.metadata["path"] == "operations[3].fact.value"
    assert IdReused("no").at("operations[0]").metadata["path"] == "operations[0]"


def test_a_message_is_short_and_ascii() -> None:
    shown = message_of(ValueNotStorable("é\r\n\0" * 1000))
    assert shown.isascii()
    assert len(shown) <= 300
    assert "\n" not in shown


def test_metadata_is_cut_at_whole_characters() -> None:
    error = ValueNotStorable("no", path="é" * 1000)
    info = error_details_pb2.ErrorInfo()
    status_pb2.Status.FromString(details_of(error)).details[0].Unpack(info)
    assert info.metadata["path"] == "é" * 127
