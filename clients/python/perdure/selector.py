"""Keywords that pick agents, as list, restore, recovery and prune take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from perdure.errors import Invalid
from perdure.v1 import agent_pb2

_LEASE_STATES: Final = {
    "live": agent_pb2.LEASE_STATE_LIVE,
    "lost": agent_pb2.LEASE_STATE_LOST,
    "free": agent_pb2.LEASE_STATE_FREE,
}


class Selection(TypedDict, total=False):
    """All keywords that are given must hold."""

    lease: str | None
    """live, lost or free."""
    ids: Sequence[str] | None
    """Any of these agents; at most 1,000."""
    owner: str | None
    """Held or lost under a lease of this owner."""
    labels: Mapping[str, str] | None
    """Held or lost under a lease with all these labels."""
    framework: str | None
    """Running in this framework."""
    agent_slug: str | None
    """Of this kind."""
    parent_agent_id: str | None
    """Children of this agent."""
    max_schema_version: int | None
    """With a newest state of at most this schema version."""
    all: bool
    """Every agent of the tenant; the other keywords narrow it."""


def make_selector(selection: Selection) -> agent_pb2.AgentSelector:
    """Return the selector; Invalid when a keyword cannot be right.

    An empty selection is left to the server, which refuses it.
    """
    lease = selection.get("lease")
    if lease is not None and lease not in _LEASE_STATES:
        raise Invalid(
            f"lease must be one of {', '.join(_LEASE_STATES)}",
            reason="VALUE_NOT_STORABLE",
            metadata={"path": "selector.lease"},
        )
    ids = selection.get("ids")
    if isinstance(ids, str):
        raise Invalid(
            "ids must be a list of ids",
            reason="VALUE_NOT_STORABLE",
            metadata={"path": "selector.ids"},
        )
    if ids is not None and not ids:
        # An empty list must not widen the selection to everything.
        raise Invalid(
            "ids is an empty list, which selects nothing",
            reason="SELECTOR_EMPTY",
            metadata={"path": "selector.ids"},
        )
    return agent_pb2.AgentSelector(
        agent_ids=ids or (),
        owner=selection.get("owner") or "",
        labels=selection.get("labels") or {},
        lease_state=(
            _LEASE_STATES[lease] if lease else agent_pb2.LEASE_STATE_UNSPECIFIED
        ),
        framework=selection.get("framework") or "",
        agent_slug=selection.get("agent_slug") or "",
        parent_agent_id=selection.get("parent_agent_id") or "",
        max_schema_version=selection.get("max_schema_version"),
        all=selection.get("all") or False,
    )
