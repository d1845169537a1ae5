"""The proof that a write comes from an agent's present owner."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True)
class Fence:
    """Epoch and claim of an agent; both must equal the agent's current ones."""

    agent_id: str
    epoch: int
    claim_id: UUID
