"""Every method has a scope, the one that its comment in the proto states."""

import re
from pathlib import Path

import pytest

from perdure_server.app import SERVICES
from perdure_server.rpc.scopes import OPEN_METHODS, SCOPE_OF

PROTOS = Path(__file__).parents[2] / "proto/perdure/v1"
METHODS = [
    (service.name, method.name) for service in SERVICES for method in service.methods
]


def test_every_service_of_the_proto_is_served() -> None:
    stated = set()
    for path in PROTOS.glob("*.proto"):
        stated |= set(re.findall(r"^service (\w+)", path.read_text(), re.MULTILINE))
    assert {service.name for service in SERVICES} == stated


def test_the_table_lists_every_method_and_no_other() -> None:
    expected = {f"/perdure.v1.{service}/{method}" for service, method in METHODS}
    assert {name for name in SCOPE_OF if name.startswith("/perdure.")} == expected
    assert not OPEN_METHODS & SCOPE_OF.keys()


@pytest.mark.parametrize(("service", "method"), METHODS)
def test_the_proto_states_the_scope_of_each_method(service: str, method: str) -> None:
    for path in PROTOS.glob("*_service.proto"):
        text = path.read_text()
        if f"service {service} " in text:
            comment = re.split(r"rpc \w+\(", text.split(f"rpc {method}(")[0])[-1]
            words = re.sub(r"\s*//\s*", " ", comment)
            (scope,) = re.findall(r"Needs the (\w+) scope", words)
            assert SCOPE_OF[f"/perdure.v1.{service}/{method}"] == scope
            return
    raise AssertionError(f"no proto has {service}")
