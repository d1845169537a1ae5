"""How many agents a second come back into live Python objects?

One client process restores a fenced fleet over a real channel. Peers are measured
beside it by the recovery suite.
"""

import time

import perdure
from benchmarks.server import running_server

AGENTS = 500
ROUNDS = 5


async def measure() -> dict[str, float]:
    """Return the rate of the median round and its spread, agents per second."""
    rates: list[float] = []
    async with running_server() as server:
        async with perdure.connect(server.address, key=server.key) as client:
            for number in range(AGENTS):
                await _seed(client, f"agent-{number:04d}")
        for _ in range(ROUNDS):
            rates.append(await _restore_all(server.address, server.key))
    rates.sort()
    return {
        "agents": float(AGENTS),
        "agents_per_second_median": rates[len(rates) // 2],
        "agents_per_second_min": rates[0],
        "agents_per_second_max": rates[-1],
    }


async def _seed(client: perdure.AsyncClient, agent_id: str) -> None:
    state = {"notes": [f"{agent_id} note {n}" for n in range(200)], "step": 1}
    async with client.agents.acquire(agent_id) as agent, agent.step() as step:
        step.append({"role": "assistant", "content": "ready"})
        step.checkpoint(state)


async def _restore_all(target: str, key: str) -> float:
    started = time.perf_counter()
    restored = 0
    async with perdure.connect(target, key=key) as client:
        recovery = await client.recovery.start(all=True, even_live=True)
        async for _ in client.agents.restore(recovery_id=recovery.recovery_id):
            restored += 1
    if restored != AGENTS:
        raise RuntimeError(f"{restored} of {AGENTS} agents came back")
    return restored / (time.perf_counter() - started)
