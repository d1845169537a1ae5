"""The bound on keys that share a hash, which would make a dict quadratic."""

from __future__ import annotations

from perdure_codec.limits import MAX_EQUAL_HASHES


class KeyHashes:
    """Counts the hashes of one dict's tuple and big-int keys.

    Only these can be made to collide at will: text and bytes are hashed with a
    secret, and at most a few hundred 64-bit ints and floats share a hash at all.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, key: object) -> bool:
        """Count a key; False once more than MAX_EQUAL_HASHES share its hash."""
        if not isinstance(key, (tuple, int)):
            return True
        if isinstance(key, int) and -(2**63) <= key < 2**64:
            return True
        key_hash = hash(key)
        count = self._counts.get(key_hash, 0) + 1
        self._counts[key_hash] = count
        return count <= MAX_EQUAL_HASHES
