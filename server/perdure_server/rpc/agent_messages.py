"""Agents, leases and selectors on the wire."""

from collections.abc import Mapping

from perdure.v1 import agent_pb2 as pb
from perdure_server.errors import SelectorEmpty
from perdure_server.rpc.checks import (
    check_count,
    check_duration_ms,
    check_id,
    check_items,
    check_text,
    check_uuid,
)
from perdure_server.rpc.timestamps import to_timestamp
from perdure_server.store.agents import Agent, Lease, LeaseSpec, Selector

MAX_LABELS = 32
MAX_SELECTED_IDS = 1_000
DEFAULT_TTL_MS = 30_000
MIN_TTL_MS = 1_000
MAX_TTL_MS = 3_600_000

_STATES = {
    pb.LEASE_STATE_LIVE: "live",
    pb.LEASE_STATE_LOST: "lost",
    pb.LEASE_STATE_FREE: "free",
}
_STATE_NUMBERS = {name: number for number, name in _STATES.items()}


def read_lease(message: pb.LeaseSpec, path: str) -> LeaseSpec:
    """Return a checked lease."""
    ttl_ms = DEFAULT_TTL_MS
    if message.HasField("ttl"):
        ttl_ms = check_duration_ms(message.ttl, f"{path}.ttl", MIN_TTL_MS, MAX_TTL_MS)
    return LeaseSpec(
        lease_id=check_uuid(message.lease_id, f"{path}.lease_id"),
        owner=check_id(message.owner, f"{path}.owner"),
        labels=_labels(message.labels, f"{path}.labels"),
        ttl_ms=ttl_ms,
    )


def read_selector(message: pb.AgentSelector, path: str) -> Selector:
    """Return a checked selector.

    Raises:
        SelectorEmpty: It sets nothing.
    """
    if not message.ListFields():
        raise SelectorEmpty("the selector sets nothing; say `all`", path=path)
    check_items(len(message.agent_ids), f"{path}.agent_ids", MAX_SELECTED_IDS)
    ids = tuple(
        check_id(agent_id, f"{path}.agent_ids[{n}]")
        for n, agent_id in enumerate(message.agent_ids)
    )
    max_schema_version = None
    if message.HasField("max_schema_version"):
        max_schema_version = check_count(
            message.max_schema_version, f"{path}.max_schema_version"
        )
    parent = check_text(message.parent_agent_id, f"{path}.parent_agent_id")
    return Selector(
        agent_ids=ids or None,
        owner=check_text(message.owner, f"{path}.owner") or None,
        labels=_labels(message.labels, f"{path}.labels") or None,
        lease_state=_STATES.get(message.lease_state),
        framework=check_text(message.framework, f"{path}.framework") or None,
        agent_slug=check_text(message.agent_slug, f"{path}.agent_slug") or None,
        parent_agent_id=parent or None,
        max_schema_version=max_schema_version,
    )


def lease_message(lease: Lease) -> pb.Lease:
    """Return a lease as a message."""
    message = pb.Lease(
        lease_id=str(lease.lease_id),
        owner=lease.owner,
        labels=dict(lease.labels),
        expire_time=to_timestamp(lease.expire_time),
    )
    message.ttl.FromMilliseconds(lease.ttl_ms)
    return message


def agent_message(agent: Agent) -> pb.Agent:
    """Return an agent as a message."""
    message = pb.Agent(
        agent_id=agent.agent_id,
        conversation_id=agent.conversation_id,
        agent_slug=agent.agent_slug,
        parent_agent_id=agent.parent_agent_id or "",
        framework=agent.framework,
        epoch=agent.epoch,
        lease_id=str(agent.lease_id) if agent.lease_id else "",
        lease_state=_STATE_NUMBERS[agent.lease_state],
        owner=agent.owner or "",
        labels=dict(agent.labels),
        canonical_branch=agent.canonical_branch,
        head_step=agent.head_step,
        schema_version=agent.schema_version,
        create_time=to_timestamp(agent.create_time),
    )
    if agent.expire_time is not None:
        message.lease_expire_time.CopyFrom(to_timestamp(agent.expire_time))
    return message


def _labels(labels: Mapping[str, str], path: str) -> dict[str, str]:
    check_items(len(labels), path, MAX_LABELS)
    for name, value in labels.items():
        check_id(name, path)
        check_text(value, f"{path}.{name}")
    return dict(labels)
