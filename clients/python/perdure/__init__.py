"""Client of Perdure: agent state that outlives its process.

`import perdure` is cheap: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.agent import Agent as Agent
    from perdure.client import AsyncClient as AsyncClient
    from perdure.client import connect as connect
    from perdure.errors import Conflict as Conflict
    from perdure.errors import DataLoss as DataLoss
    from perdure.errors import Denied as Denied
    from perdure.errors import Fenced as Fenced
    from perdure.errors import Invalid as Invalid
    from perdure.errors import NotFound as NotFound
    from perdure.errors import PerdureError as PerdureError
    from perdure.errors import Refused as Refused
    from perdure.errors import ServerFault as ServerFault
    from perdure.errors import Unavailable as Unavailable
    from perdure.messages import StoredMessage as StoredMessage
    from perdure.messages import native_message as native_message
    from perdure.restore import BrokenAgent as BrokenAgent
    from perdure.step import Step as Step

_HOMES = {
    "Agent": "agent",
    "AsyncClient": "client",
    "BrokenAgent": "restore",
    "Conflict": "errors",
    "DataLoss": "errors",
    "Denied": "errors",
    "Fenced": "errors",
    "Invalid": "errors",
    "NotFound": "errors",
    "PerdureError": "errors",
    "Refused": "errors",
    "ServerFault": "errors",
    "Step": "step",
    "StoredMessage": "messages",
    "Unavailable": "errors",
    "connect": "client",
    "native_message": "messages",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
