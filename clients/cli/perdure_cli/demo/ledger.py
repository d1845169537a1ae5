"""What the workers reported: every acknowledgement, in the parent's own memory.

A worker writes a report to its pipe before its next step, so an acknowledged write is
known here even when the worker is killed right after.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Ledger:
    """Acknowledged writes of all workers, and when the fleet came back."""

    message_seqs: dict[tuple[str, int], int] = field(default_factory=dict)
    """(agent, place in the source) -> acknowledged seq."""
    steps: dict[str, int] = field(default_factory=dict)
    """agent -> newest acknowledged step."""
    step_count: int = 0
    """Steps acknowledged, each with a checkpoint."""
    progress: dict[str, int] = field(default_factory=dict)
    """agent -> messages acknowledged."""
    restored: dict[str, float] = field(default_factory=dict)
    """agent -> when a new worker had its state, by the parent's clock."""
    resumed: dict[str, float] = field(default_factory=dict)
    """agent -> when its first step under the new worker was acknowledged."""
    finished: set[str] = field(default_factory=set)
    stale_refused: int = 0
    stale_accepted: int = 0
    faults: list[str] = field(default_factory=list)
    _restored_steps: dict[str, int] = field(default_factory=dict)

    def take(self, report: dict[str, Any]) -> None:
        """Note one report."""
        getattr(self, f"_take_{report['kind']}")(report)

    def _take_messages(self, report: dict[str, Any]) -> None:
        agent_id = report["agent"]
        for place, seq in zip(report["places"], report["seqs"], strict=True):
            known = self.message_seqs.setdefault((agent_id, place), seq)
            if known != seq:
                self.faults.append(f"{agent_id}: message {place} at {known} and {seq}")
        reached = max(report["places"]) + 1
        self.progress[agent_id] = max(self.progress.get(agent_id, 0), reached)

    def _take_step(self, report: dict[str, Any]) -> None:
        agent_id, step = report["agent"], report["step"]
        self._take_messages(report)
        if step <= self._restored_steps.get(agent_id, 0):
            return  # a frozen worker tells late of a step that the restore has shown
        if step <= self.steps.get(agent_id, 0):
            self.faults.append(f"{agent_id}: step {step} was acknowledged twice")
        self.steps[agent_id] = step
        self.step_count += 1
        if agent_id in self.restored:
            self.resumed.setdefault(agent_id, time.monotonic())

    def _take_restored(self, report: dict[str, Any]) -> None:
        agent_id = report["agent"]
        self.restored.setdefault(agent_id, time.monotonic())
        known = self.steps.get(agent_id, 0)
        if report["step"] < known:
            self.faults.append(
                f"{agent_id}: restored at step {report['step']}, {known} acknowledged"
            )
        self._restored_steps[agent_id] = report["step"]
        # A step may have been stored without its answer reaching anyone.
        self.steps[agent_id] = max(known, report["step"])

    def _take_finished(self, report: dict[str, Any]) -> None:
        self.finished.add(report["agent"])

    def _take_stale(self, report: dict[str, Any]) -> None:
        if report["refused"]:
            self.stale_refused += 1
        else:
            self.stale_accepted += 1

    def _take_fault(self, report: dict[str, Any]) -> None:
        self.faults.append(report["what"])
