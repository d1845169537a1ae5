"""Retries of one call within its total deadline: jittered, growing, bounded.

Every write carries ids that the client made, so sending it again is always harmless.
"""

from __future__ import annotations

import random
import time

from perdure.status import Failure

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 1.0


class Backoff:
    """Delays of one call: each between half and all of a span that doubles."""

    def __init__(self, timeout_s: float) -> None:
        """Start the clock of a call that may take `timeout_s` in all."""
        self._deadline = time.monotonic() + timeout_s
        self._span_s = FIRST_DELAY_S

    def remaining_s(self) -> float:
        """Seconds left until the deadline, at least 0."""
        return max(0.0, self._deadline - time.monotonic())

    def next_delay_s(self, failure: Failure) -> float | None:
        """Return how long to wait before the next attempt; None: give up."""
        if not failure.retry:
            return None
        delay_s = self._span_s * random.uniform(0.5, 1.0)
        self._span_s = min(MAX_DELAY_S, self._span_s * 2)
        delay_s = max(delay_s, failure.retry_after_s)
        return delay_s if delay_s < self.remaining_s() else None

    def reset(self, timeout_s: float) -> None:
        """Begin anew after progress: short delays, `timeout_s` from now."""
        self._deadline = time.monotonic() + timeout_s
        self._span_s = FIRST_DELAY_S
