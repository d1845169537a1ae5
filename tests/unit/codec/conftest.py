"""Both backends through one suite, and equality that sees types and bits."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType

import pytest

from perdure_codec import _codec, fallback

MATCHED = (list, tuple)


def same(left: object, right: object) -> bool:
    """Compare type and bits, with a stack of its own: depth is no obstacle."""
    pairs = [(left, right)]
    while pairs:
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, float):
            if struct.pack("<d", one) != struct.pack("<d", other):
                return False
        elif isinstance(one, MATCHED):
            if len(one) != len(other):
                return False
            pairs.extend(zip(one, other, strict=True))
        elif isinstance(one, dict):
            if len(one) != len(other):
                return False
            pairs.extend(zip(one.keys(), other.keys(), strict=True))
            pairs.extend(zip(one.values(), other.values(), strict=True))
        elif one != other:
            return False
    return True


@pytest.fixture(params=[_codec, fallback], ids=["cython", "python"])
def codec(request: pytest.FixtureRequest) -> ModuleType:
    """A backend: `pack` and `unpack`."""
    module: ModuleType = request.param
    return module


@pytest.fixture
def is_same() -> Callable[[object, object], bool]:
    """Equality of values, types and float bits."""
    return same
