"""How agents are read together: by the bytes of their chains, not by number."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

GROUP_BYTES = 1024 * 1024
GROUP_AGENTS = 16


class Sized(Protocol):
    """Something with a chain in the store."""

    @property
    def chain_bytes(self) -> int:
        """Stored bytes from the newest keyframe to the head."""


Item = TypeVar("Item", bound=Sized)


def grouped(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield runs of at most 16 agents and about 1 MiB; a larger one is alone."""
    group: list[Item] = []
    group_bytes = 0
    for item in items:
        is_full = len(group) >= GROUP_AGENTS
        if group and (is_full or group_bytes + item.chain_bytes > GROUP_BYTES):
            yield group
            group, group_bytes = [], 0
        group.append(item)
        group_bytes += item.chain_bytes
    if group:
        yield group
