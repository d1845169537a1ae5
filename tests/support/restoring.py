"""RestoreAgents as a test sees it: fleets that are left lost, and what comes back."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import asyncpg

import perdure_codec
from perdure.v1 import (
    agent_pb2,
    agent_service_pb2,
    checkpoint_pb2,
    commit_service_pb2,
)
from perdure.v1 import recovery_service_pb2 as pb
from tests.support.wire import Wire, said


def lease(seconds: int = 600) -> agent_pb2.LeaseSpec:
    spec = agent_pb2.LeaseSpec(lease_id=str(uuid.uuid4()), owner="worker")
    spec.ttl.FromSeconds(seconds)
    return spec


class Received:
    """What one stream brought."""

    def __init__(self) -> None:
        self.agents: list[pb.RestoredAgent] = []
        self.tokens: list[str] = []
        self.sizes: list[int] = []
        self.end: pb.RestoreManifest | None = None

    @property
    def ids(self) -> list[str]:
        return [agent.agent.agent_id for agent in self.agents]

    def add(self, response: pb.RestoreAgentsResponse) -> None:
        assert self.end is None, "something came after the end"
        self.sizes.append(response.ByteSize())
        if response.HasField("end"):
            self.end = response.end
            return
        self.agents += response.batch.agents
        self.tokens.append(response.batch.resume_token)

    def check(self) -> None:
        """Compare with the manifest."""
        assert self.end is not None
        whole = [agent for agent in self.agents if not agent.HasField("error")]
        lines = "".join(
            f"{agent.agent.agent_id}\0{agent.checkpoint.step}\0"
            f"{agent.checkpoint.digest.hex()}\n"
            for agent in whole
        )
        assert self.end.digest == hashlib.sha256(lines.encode()).digest()
        assert self.end.restored_count == len(whole)
        assert self.end.failed_count == len(self.agents) - len(whole)
        assert self.end.rebuilt_count == sum(agent.rebuilt for agent in whole)


async def restore(
    wire: Wire, origin: Any, held_by: agent_pb2.LeaseSpec | None = None, **fields: Any
) -> Received:
    received = Received()
    async for response in stream(wire, origin, held_by, **fields):
        received.add(response)
    received.check()
    return received


def stream(
    wire: Wire, origin: Any, held_by: agent_pb2.LeaseSpec | None = None, **fields: Any
) -> Any:
    kind = "recovery_id" if isinstance(origin, str) else "selector"
    request = pb.RestoreAgentsRequest(
        lease=held_by or lease(), **{kind: origin}, **fields
    )
    return wire.recoveries.RestoreAgents(request, metadata=wire.key)


def lost(name: str) -> agent_pb2.AgentSelector:
    return agent_pb2.AgentSelector(
        framework=name, lease_state=agent_pb2.LEASE_STATE_LOST
    )


async def write(
    wire: Wire, fence: agent_pb2.Fence, step: int, state: Any, *bodies: bytes, **f: Any
) -> None:
    write = checkpoint_pb2.CheckpointWrite(
        agent_id=fence.agent_id,
        step=step,
        frame=perdure_codec.encode(state, compress=False),
        **f,
    )
    operations = [commit_service_pb2.Operation(put_checkpoint=write)]
    if bodies:
        append = commit_service_pb2.AppendOperation(messages=bodies)
        operations.insert(0, commit_service_pb2.Operation(append=append))
    await wire.commits.Commit(
        commit_service_pb2.CommitRequest(fence=fence, operations=operations, step=step),
        metadata=wire.key,
    )


async def leave(
    wire: Wire,
    connection: asyncpg.Connection,
    name: str,
    count: int,
    *,
    pad_bytes: int = 0,
    parent: str = "",
) -> dict[str, agent_pb2.Fence]:
    """Make agents with a question, an answer and a step, and leave them lost."""
    held_by = lease()
    specs = [
        agent_service_pb2.AgentSpec(
            agent_id=f"{name}-{n:03}",
            framework=name,
            parent_agent_id=parent,
            claim_id=str(uuid.uuid4()),
        )
        for n in range(count)
    ]
    acquired = await wire.agents.AcquireAgents(
        agent_service_pb2.AcquireAgentsRequest(lease=held_by, agents=specs),
        metadata=wire.key,
    )
    fences = {each.agent.agent_id: each.fence for each in acquired.agents}
    for agent_id, fence in fences.items():
        await wire.append(agent_id, said("question"))
        answer = said("answer", role="assistant")
        state = {"id": agent_id, "pad": b"\1" * pad_bytes}
        await write(wire, fence, 1, state, answer, read_seq=2)
    await over(connection, held_by)
    return fences


async def over(connection: asyncpg.Connection, held_by: agent_pb2.LeaseSpec) -> None:
    # A time to live of 1 ms: the server has been connected for long enough.
    await connection.execute(
        "UPDATE perdure_store.leases SET ttl_ms = 1, "
        "expire_time = now() - interval '1 s' WHERE lease_id = $1::uuid",
        held_by.lease_id,
    )


async def start(wire: Wire, selector: agent_pb2.AgentSelector, **f: Any) -> str:
    recovery_id = str(uuid.uuid4())
    await wire.recoveries.StartRecovery(
        pb.StartRecoveryRequest(recovery_id=recovery_id, selector=selector, **f),
        metadata=wire.key,
    )
    return recovery_id


async def watch(wire: Wire, recovery_id: str) -> pb.Recovery:
    last = pb.Recovery()
    request = pb.WatchRecoveryRequest(recovery_id=recovery_id, once=True)
    async for response in wire.recoveries.WatchRecovery(request, metadata=wire.key):
        if response.HasField("progress"):
            last = response.progress.recovery
    return last
