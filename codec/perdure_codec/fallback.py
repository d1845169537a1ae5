"""The readable reference: `pack` and `unpack` without a compiler.

It walks with a stack of its own, so depth is a count and never the C stack.
"""

from __future__ import annotations

from perdure_codec.fallback_pack import pack
from perdure_codec.fallback_unpack import unpack

__all__ = ["pack", "unpack"]
