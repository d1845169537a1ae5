"""A restore that arrived incomplete is told apart from one that is complete."""

import pytest

from perdure.errors import DataLoss
from perdure.manifest import Manifest
from perdure.v1.agent_pb2 import Agent
from perdure.v1.checkpoint_pb2 import Checkpoint
from perdure.v1.recovery_service_pb2 import (
    RestoredAgent,
    RestoreError,
    RestoreManifest,
)

WHOLE = RestoredAgent(
    agent=Agent(agent_id="a"), checkpoint=Checkpoint(step=3, digest=b"\x01\xff")
)
REBUILT = RestoredAgent(agent=Agent(agent_id="b"), rebuilt=True)
BROKEN = RestoredAgent(agent=Agent(agent_id="c"), error=RestoreError())
END = RestoreManifest(
    restored_count=2,
    rebuilt_count=1,
    failed_count=1,
    # printf 'a\0003\00001ff\nb\0000\000\n' | sha256sum
    digest=bytes.fromhex(
        "a1d42cebe5a5dd0ee8c0f767ba583487aeafd5525bd2e454a15e24b88d5349e7"
    ),
)


def arrived(*agents: RestoredAgent) -> Manifest:
    manifest = Manifest()
    for agent in agents:
        manifest.add(agent)
    return manifest


def test_what_was_sent_and_arrived_is_complete() -> None:
    arrived(WHOLE, REBUILT, BROKEN).check(END)


@pytest.mark.parametrize(
    "agents",
    [
        (),
        (WHOLE, REBUILT),
        (WHOLE, BROKEN),
        (REBUILT, WHOLE, BROKEN),
        (WHOLE, REBUILT, REBUILT, BROKEN),
    ],
)
def test_a_gap_a_repeat_and_another_order_are_data_loss(
    agents: tuple[RestoredAgent, ...],
) -> None:
    with pytest.raises(DataLoss) as caught:
        arrived(*agents).check(END)
    assert caught.value.reason == "MANIFEST_MISMATCH"
