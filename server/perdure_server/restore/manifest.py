"""What a restore stream sent, so that its reader can check that nothing is missing."""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.v1.recovery_service_pb2 import RestoredAgent

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass
class Manifest:
    """Counts of one stream and a digest over what was restored, in order."""

    restored_count: int = 0
    rebuilt_count: int = 0
    failed_count: int = 0
    _digest: "_Hash" = field(default_factory=hashlib.sha256)

    def add(self, restored: RestoredAgent) -> None:
        """Count an agent as it is sent, whole or broken."""
        if restored.HasField("error"):
            self.failed_count += 1
            return
        self.restored_count += 1
        self.rebuilt_count += restored.rebuilt
        newest = restored.checkpoint
        digest = newest.digest.hex()
        line = f"{restored.agent.agent_id}\0{newest.step}\0{digest}\n"
        self._digest.update(line.encode())

    @property
    def digest(self) -> bytes:
        """SHA-256 over a line for each restored agent."""
        return self._digest.digest()
