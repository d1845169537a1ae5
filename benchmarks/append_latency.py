"""Does an append cost more in a long conversation than in a short one?

Samples of both lengths are interleaved in one run against one server over a real
channel, so a slow moment of the machine meets both.
"""

import statistics
import time

import perdure
from benchmarks.server import running_server

LONG_MESSAGES = 100_000
SHORT_MESSAGES = 10
SAMPLES = 400
PAYLOAD = {"role": "user", "content": "Where is my order? " * 10}


async def measure() -> dict[str, float]:
    """Return medians in milliseconds and their ratio, long to short."""
    async with (
        running_server() as server,
        perdure.connect(server.address, key=server.key) as client,
    ):
        await _fill(client, "long", LONG_MESSAGES)
        for number in range(SAMPLES):
            await _fill(client, f"short-{number}", SHORT_MESSAGES)
        short_ms: list[float] = []
        long_ms: list[float] = []
        for number in range(SAMPLES):
            short_ms.append(await _append_ms(client, f"short-{number}"))
            long_ms.append(await _append_ms(client, "long"))
    return {
        f"at_{SHORT_MESSAGES}_median_ms": statistics.median(short_ms),
        f"at_{SHORT_MESSAGES}_p95_ms": _p95(short_ms),
        f"at_{LONG_MESSAGES}_median_ms": statistics.median(long_ms),
        f"at_{LONG_MESSAGES}_p95_ms": _p95(long_ms),
        "ratio": statistics.median(long_ms) / statistics.median(short_ms),
    }


async def _fill(
    client: perdure.AsyncClient, conversation_id: str, message_count: int
) -> None:
    while message_count > 0:
        batch = min(message_count, 1_000)
        await client.history.append(conversation_id, [PAYLOAD] * batch)
        message_count -= batch


async def _append_ms(client: perdure.AsyncClient, conversation_id: str) -> float:
    started = time.perf_counter()
    await client.history.append(conversation_id, [PAYLOAD])
    return (time.perf_counter() - started) * 1_000


def _p95(samples_ms: list[float]) -> float:
    return statistics.quantiles(samples_ms, n=20)[-1]
