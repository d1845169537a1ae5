"""The script of the demo: what happens to the fleet, act by act."""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import perdure
from perdure_cli.conversation_file import SourceConversation
from perdure_cli.demo.ledger import Ledger
from perdure_cli.demo.processes import DemoError, DemoServer, DemoWorker
from perdure_cli.demo.screen import Screen
from perdure_cli.demo.verdict import Verdict, compare, rebuild

WORKERS = 4
NEW_WORKERS = 3
CALL_TIMEOUT_S = 60.0
ACT_TIMEOUT_S = 120.0
_DOOMED = {"rack": "a"}
_SPARED = {"rack": "b"}


@dataclass
class Stage:
    """One run of the demo."""

    source: Path | None
    source_name: str
    conversations: Sequence[SourceConversation]
    ledger: Ledger = field(default_factory=Ledger)
    verdict: Verdict = field(default_factory=Verdict)
    workers: list[DemoWorker] = field(default_factory=list)
    recovery_started: float = 0.0

    async def run(self) -> dict[str, Any]:
        """Play all acts and return the result.

        Raises:
            DemoError: A process did not do what it was told.
        """
        lengths = {
            item.conversation_id: len(item.messages) for item in self.conversations
        }
        with tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp") as folder:
            # Under root the embedded Postgres runs as another account and must get in.
            os.chmod(folder, 0o711)
            server = DemoServer(Path(folder))
            screen = Screen(self.workers, self.ledger.progress, lengths)
            try:
                with screen:
                    await self._play(server, screen, sum(lengths.values()))
            finally:
                for worker in self.workers:
                    await worker.end()
                await server.stop()
        for fault in [*self.ledger.faults, *self.verdict.faults][:10]:
            screen.say(fault, style="red")
        if self.is_kept:
            screen.say("every promise was kept", style="bold green")
        else:
            screen.say("a promise was broken", style="bold red")
        return self._result()

    @property
    def is_kept(self) -> bool:
        """Whether every promise was kept."""
        result = self._result()
        return (
            not self.ledger.faults
            and not self.verdict.faults
            and result["lost_acknowledged_writes"] == 0
            and result["state_mismatches"] == 0
            and self.ledger.stale_accepted == 0
            and result["stale_writes_refused"] > 0
            and result["rebuilt"] == result["agents"]
        )

    async def _play(self, server: DemoServer, screen: Screen, total: int) -> None:
        count = len(self.conversations)
        screen.act(f"{count} agents replay {total:,} messages of {self.source_name}")
        took_s = await server.start()
        screen.say(
            f"server {server.pid} with an empty embedded Postgres: {took_s:.1f} s"
        )
        await self._start_workers(server)
        await self._until(lambda: sum(self.ledger.progress.values()) >= total // 2)
        await self._disaster(server, screen)
        async with perdure.connect(
            server.target,
            key=server.key,
            owner="orchestrator",
            timeout_s=CALL_TIMEOUT_S,
        ) as client:
            await self._recover(server, client, screen)
            await self._thaw(screen)
            await self._finish(screen)
            screen.act(
                "every conversation and state is compared with source and ledger"
            )
            await compare(client, self.conversations, self.ledger, self.verdict)
            dropped = await client.checkpoints.prune(drop_all=True, all=True)
            self.verdict.take_dropped(dropped.checkpoint_count, self.ledger)
            screen.act(
                f"all {dropped.checkpoint_count:,} checkpoints are dropped; every "
                "agent comes back from its messages"
            )
            await rebuild(client, self.conversations, self.verdict)
            screen.say(f"{self.verdict.rebuilt_count} agents rebuilt and equal")

    async def _start_workers(self, server: DemoServer) -> None:
        ids = [item.conversation_id for item in self.conversations]
        for number in range(WORKERS):
            labels = _SPARED if number == WORKERS - 1 else _DOOMED
            order = self._order(server, {**labels, "node": f"node-{number + 1}"})
            order["agent_ids"] = ids[number::WORKERS]
            await self._add_worker(f"worker-{number + 1}", order)

    async def _disaster(self, server: DemoServer, screen: Screen) -> None:
        screen.act("half-way: SIGKILL worker-1 and worker-2, SIGSTOP worker-3")
        self.workers[2].freeze()
        await self.workers[0].kill()
        await self.workers[1].kill()
        screen.act("SIGKILL the server")
        await server.kill()
        took_s = await server.start()
        screen.say(f"started again, its Postgres adopted: {took_s:.1f} s")

    async def _recover(
        self, server: DemoServer, client: perdure.AsyncClient, screen: Screen
    ) -> None:
        self.recovery_started = time.monotonic()
        recovery = await client.recovery.start(
            labels=_DOOMED, even_live=True, framework="demo"
        )
        took_s = time.monotonic() - self.recovery_started
        fenced = recovery.fenced_count
        screen.act(
            f"one call fences the {fenced} agents of the lost nodes: {took_s:.2f} s"
        )
        if fenced == 0:
            raise DemoError("nothing was left to recover; use more agents")
        for number in range(NEW_WORKERS):
            labels = {**_SPARED, "node": f"node-{WORKERS + number + 1}"}
            order = self._order(server, labels)
            order["recovery_id"] = recovery.recovery_id
            order["at_most"] = math.ceil(fenced / NEW_WORKERS)
            await self._add_worker(f"worker-{WORKERS + number + 1}", order)
        await self._until(lambda: len(self.ledger.restored) >= fenced)
        screen.say(
            f"{fenced} agents restored by {NEW_WORKERS} new workers: "
            f"{self._restore_s():.2f} s"
        )

    async def _thaw(self, screen: Screen) -> None:
        screen.act("worker-3 wakes up and tries to write")
        self.workers[2].thaw()
        await self._bounded(self.workers[2].wait())
        screen.say(
            f"{self.ledger.stale_refused} stale writes refused, "
            f"{self.ledger.stale_accepted} accepted"
        )

    async def _finish(self, screen: Screen) -> None:
        for worker in self.workers[3:]:
            await self._bounded(worker.wait())
        screen.say("every conversation is told to its end")

    async def _add_worker(self, name: str, order: dict[str, Any]) -> None:
        worker = DemoWorker(name, order, self.ledger.take)
        self.workers.append(worker)
        await worker.start()

    def _order(self, server: DemoServer, labels: dict[str, str]) -> dict[str, Any]:
        return {
            "target": server.target,
            "key": server.key,
            "labels": labels,
            "source": str(self.source) if self.source else None,
            "agents": len(self.conversations),
        }

    async def _until(self, reached: Any) -> None:
        deadline = time.monotonic() + ACT_TIMEOUT_S
        while not reached():
            if self.ledger.faults:
                raise DemoError("; ".join(self.ledger.faults[:3]))
            if time.monotonic() > deadline:
                raise DemoError(f"an act took longer than {ACT_TIMEOUT_S:.0f} s")
            await asyncio.sleep(0.02)

    async def _bounded(self, ending: Any) -> None:
        try:
            async with asyncio.timeout(ACT_TIMEOUT_S):
                await ending
        except TimeoutError as exc:
            raise DemoError(f"a worker took longer than {ACT_TIMEOUT_S:.0f} s") from exc

    def _restore_s(self) -> float:
        return max(self.ledger.restored.values(), default=0.0) - self.recovery_started

    def _result(self) -> dict[str, Any]:
        restored = len(self.ledger.restored)
        restore_s = self._restore_s() if restored else 0.0
        resumed_s = max(self.ledger.resumed.values(), default=self.recovery_started)
        return {
            "agents": len(self.conversations),
            "messages": self.verdict.message_count,
            "checkpoints": self.verdict.checkpoint_count,
            "restored": restored,
            "rebuilt": self.verdict.rebuilt_count,
            "lost_acknowledged_writes": self.verdict.lost_count,
            "state_mismatches": self.verdict.mismatch_count,
            "stale_writes_refused": self.ledger.stale_refused,
            "restore_seconds": round(restore_s, 3),
            "agents_per_second": round(restored / restore_s, 1) if restore_s else 0.0,
            "time_to_resumed_seconds": round(resumed_s - self.recovery_started, 3),
        }
