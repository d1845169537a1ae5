"""The bounds that writer and reader both enforce; SPEC.md section 6 states them."""

from __future__ import annotations

from typing import Final

MAX_RAW_BYTES: Final = 256 * 1024 * 1024
"""Raw bytes of one state, and payload bytes of one frame."""

MAX_DEPTH: Final = 1_000
"""Containers inside each other: lists, dicts and tuples; a bare scalar has depth 0."""

MAX_ITEMS: Final = 10_000_000
"""Elements of all lists, tuples and vectors, plus keys and values of all dicts."""

MAX_EQUAL_HASHES: Final = 256
"""Keys of one dict that may share a hash; only tuples and big ints can reach it."""

MAX_ZSTD_RATIO: Final = 1_000
"""Raw bytes that one byte of zstd payload may stand for, beyond the free part."""

RATIO_FREE_BYTES: Final = 1024 * 1024
"""Raw bytes allowed whatever the ratio: a small state of zeros is no bomb."""

MIN_VECTOR_ITEMS: Final = 16
"""Floats from which a list is packed as a vector; below, it would not be smaller."""

MAX_JSON_INTEGER_DIGITS: Final = 4_300
"""Digits of an integer in JSON text; converting longer ones takes quadratic time."""
