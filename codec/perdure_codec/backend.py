"""Picks the implementation of `pack` and `unpack`, once, at import."""

from __future__ import annotations

import importlib
import os
from typing import Literal

from perdure_codec import fallback

_WANTED = os.environ.get("PERDURE_CODEC", "")

BACKEND: Literal["cython", "python"] = "python"
"""Which implementation is in use; PERDURE_CODEC=python or =cython forces one."""

pack = fallback.pack
unpack = fallback.unpack

if _WANTED not in ("", "python", "cython"):
    raise ImportError("PERDURE_CODEC must be empty, python or cython")
if _WANTED != "python":
    try:
        _compiled = importlib.import_module("perdure_codec._codec")
    except ModuleNotFoundError:
        if _WANTED == "cython":
            raise
    else:
        pack, unpack = _compiled.pack, _compiled.unpack
        BACKEND = "cython"
