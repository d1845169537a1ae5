"""What a stream says that it has sent."""

import hashlib

from perdure.v1 import agent_pb2, checkpoint_pb2
from perdure.v1.recovery_service_pb2 import RestoredAgent, RestoreError
from perdure_server.restore.manifest import Manifest


def test_a_manifest_counts_and_digests_what_was_restored_in_order() -> None:
    manifest = Manifest()
    whole = RestoredAgent(
        agent=agent_pb2.Agent(agent_id="a"),
        checkpoint=checkpoint_pb2.Checkpoint(step=3, digest=b"\x01\xff"),
    )
    rebuilt = RestoredAgent(agent=agent_pb2.Agent(agent_id="b"), rebuilt=True)
    broken = RestoredAgent(
        agent=agent_pb2.Agent(agent_id="c"), error=RestoreError(message="broken")
    )

    for agent in (whole, broken, rebuilt):
        manifest.add(agent)

    assert manifest.digest == hashlib.sha256(b"a\0003\00001ff\nb\0000\000\n").digest()
    assert (manifest.restored_count, manifest.rebuilt_count) == (2, 1)
    assert manifest.failed_count == 1
