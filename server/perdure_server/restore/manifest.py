"""What a restore stream sent, so that its reader can check that nothing is missing."""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass
class Manifest:
    """Counts of one stream and a digest over what was restored, in order."""

    restored_count: int = 0
    rebuilt_count: int = 0
    failed_count: int = 0
    _digest: "_Hash" = field(default_factory=hashlib.sha256)

    def add_restored(
        self, agent_id: str, step: int, raw_digest: bytes, *, rebuilt: bool
    ) -> None:
        """Count an agent that was sent whole; step 0 when it has no checkpoint."""
        self.restored_count += 1
        self.rebuilt_count += rebuilt
        self._digest.update(f"{agent_id}\0{step}\0{raw_digest.hex()}\n".encode())

    def add_failed(self) -> None:
        """Count an agent that was reported broken."""
        self.failed_count += 1

    @property
    def digest(self) -> bytes:
        """SHA-256 over a line for each restored agent."""
        return self._digest.digest()
