"""What a format derives from a provider's own object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.v1 import message_pb2 as pb


@dataclass(frozen=True, slots=True)
class Derived:
    """Role, speaker and blocks of a native payload."""

    role: pb.Role.ValueType
    author: str
    blocks: tuple[pb.Block, ...]


class Format(Protocol):
    """One native format."""

    def check(self, payload: bytes, path: str) -> pb.Role.ValueType:
        """Return the role of a payload from outside.

        Raises:
            ValueNotStorable: The payload is not of this format; with a path.
            LimitExceeded: It is above a limit.
        """

    def derive(self, payload: bytes, *, opaque: bool) -> Derived:
        """Return what a payload says that `check` let pass.

        Args:
            payload: The provider's own object.
            opaque: Keep parts that no other block can hold as opaque blocks.
        """
