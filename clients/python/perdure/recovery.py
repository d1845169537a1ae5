"""Recoveries as an operator or orchestrator runs them: `client.recovery`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Unpack

from perdure.channel import Channel
from perdure.selector import Selection, make_selector
from perdure.stream import StreamEnd, resume_stream
from perdure.v1.recovery_service_pb2 import (
    Recovery,
    RecoveryProgress,
    StartRecoveryRequest,
    WatchRecoveryRequest,
    WatchRecoveryResponse,
)

START_TIMEOUT_S: Final = 300.0
"""Fencing a large fleet works in short batches and may take this long."""


class Recoveries:
    """Fences fleets and shows how far they have come back."""

    def __init__(self, channel: Channel) -> None:
        """Use a client's connections."""
        self._channel = channel

    async def start(
        self,
        *,
        recovery_id: str | None = None,
        even_live: bool = False,
        dry_run: bool = False,
        **selection: Unpack[Selection],
    ) -> Recovery:
        """Fence every selected agent; their states cannot change from then on.

        Args:
            recovery_id: A UUID, to go on with a recovery that was started before.
                Absent: a new one, found in the answer.
            even_live: Fence agents under a live lease too.
            dry_run: Only count.
            **selection: Which agents.

        Raises:
            Invalid: SELECTOR_EMPTY, or the id belongs to another selector (ID_REUSED).
        """
        response = await self._channel.call(
            lambda stubs: stubs.recoveries.StartRecovery,
            StartRecoveryRequest(
                recovery_id=recovery_id or str(uuid.uuid4()),
                selector=make_selector(selection),
                even_live=even_live,
                dry_run=dry_run,
            ),
            timeout_s=max(START_TIMEOUT_S, self._channel.timeout_s),
        )
        return response.recovery

    async def watch(
        self, recovery_id: str, *, once: bool = False
    ) -> AsyncGenerator[RecoveryProgress, None]:
        """Yield how far a recovery is until every fenced agent has resumed.

        First every agent as it stands, then those that changed; after a broken
        connection every agent again.

        Args:
            recovery_id: The recovery.
            once: Only the present state.

        Raises:
            NotFound: There is no such recovery.
        """
        events = resume_stream(
            self._channel,
            lambda stubs: stubs.recoveries.WatchRecovery,
            lambda token: WatchRecoveryRequest(recovery_id=recovery_id, once=once),
            token_of=lambda event: "",
            end_of=_end_of,
        )
        async with aclosing(events):
            async for event in events:
                if event.HasField("progress") and event.progress.HasField("recovery"):
                    yield event.progress


def _end_of(event: WatchRecoveryResponse) -> StreamEnd | None:
    return event.end if event.HasField("end") else None
