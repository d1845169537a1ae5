"""What arrived in one restore stream, to be compared with what was sent."""

from __future__ import annotations

import hashlib

from perdure.errors import DataLoss
from perdure.v1.recovery_service_pb2 import RestoredAgent, RestoreManifest


class Manifest:
    """Counts one stream as it arrives, and compares it with the server's count."""

    def __init__(self) -> None:
        """Begin at the start of a stream."""
        self._hash = hashlib.sha256()
        self._counts = [0, 0, 0]

    def add(self, restored: RestoredAgent) -> None:
        """Count an agent of the stream, repeated or not."""
        if restored.HasField("error"):
            self._counts[2] += 1
            return
        self._counts[0] += 1
        self._counts[1] += restored.rebuilt
        digest = restored.checkpoint.digest.hex()
        line = f"{restored.agent.agent_id}\0{restored.checkpoint.step}\0{digest}\n"
        self._hash.update(line.encode())

    def check(self, end: RestoreManifest) -> None:
        """Raise DataLoss unless exactly what the server sent has arrived."""
        counts = [end.restored_count, end.rebuilt_count, end.failed_count]
        if counts != self._counts or end.digest != self._hash.digest():
            raise DataLoss(
                f"the restore is not complete: the server sent {counts} agents "
                f"(restored, rebuilt, failed), {self._counts} arrived; restore again",
                reason="MANIFEST_MISMATCH",
            )
