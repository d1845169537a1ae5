"""Claim ids of one restore stream: a random start, then numbered.

The number lets a token say up to which claim agents were delivered, and a resumed
stream find those that came after. The start is as unguessable as the whole needs to
be: a fence protects against accidents, a key against strangers.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from uuid import UUID

_NUMBER_BITS = 48
_START_BITS = 128 - _NUMBER_BITS
_RESUME_GAP = 1 << 24


@dataclass
class ClaimSeries:
    """Makes and recognises the claim ids of a stream."""

    start: int
    next_number: int = 1

    @classmethod
    def begin(cls) -> ClaimSeries:
        """Return a new series."""
        return cls(secrets.randbits(_START_BITS))

    @classmethod
    def resume(cls, start: int, after_number: int) -> ClaimSeries:
        """Return a series that goes on well after the numbers that may be in use."""
        return cls(start, after_number + _RESUME_GAP)

    def take(self, count: int) -> list[UUID]:
        """Return the next claim ids, ascending."""
        first = self.next_number
        self.next_number += count
        return [self.claim_id(number) for number in range(first, first + count)]

    def claim_id(self, number: int) -> UUID:
        """Return the claim id of a number."""
        return UUID(int=(self.start << _NUMBER_BITS) | number)

    def last(self) -> UUID:
        """Return the greatest claim id of the series."""
        return self.claim_id((1 << _NUMBER_BITS) - 1)


def number_of(claim_id: UUID) -> int:
    """Return the number within its series."""
    return claim_id.int & ((1 << _NUMBER_BITS) - 1)
