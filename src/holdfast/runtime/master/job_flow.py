"""How elements flow through a job: what came over each edge, and how busy each subtask is, counted once an epoch."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from holdfast.runtime.epoch.job_epochs import EpochResult
from holdfast.runtime.exchange.barrier import Barrier, StepReport


@dataclass(frozen=True)
class SubtaskFlow:
    """The numbers of one subtask of an operator since this process runs it with its parallelism.

    Attributes:
        subtask: Its index.
        epochs: In how many epochs it has run.
        records_in: Elements that it has read.
        records_out: Elements that it has emitted.
        bytes_in: Bytes that came to it in columns, from sources and over exchanges.
        busy_ms: How long it has worked.
        saving_ms: Of that, for its state.
        last_in: Elements that it read in its last epoch that had any.
        last_busy_ms: How long it worked in that epoch.
    """

    subtask: int
    epochs: int = 0
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    busy_ms: float = 0.0
    saving_ms: int = 0
    last_in: int = 0
    last_busy_ms: float = 0.0

    def plus(self, report: StepReport) -> SubtaskFlow:
        """The numbers after another epoch."""
        has_worked = bool(report.records_in or report.records_out)
        return SubtaskFlow(
            self.subtask,
            self.epochs + 1,
            self.records_in + report.records_in,
            self.records_out + report.records_out,
            self.bytes_in + sum(size for _, size in report.arrived.values()),
            self.busy_ms + report.busy / 1000,
            self.saving_ms + sum(report.saving),
            report.records_in if has_worked else self.last_in,
            report.busy / 1000 if has_worked else self.last_busy_ms,
        )


@dataclass(frozen=True)
class EdgeFlow:
    """What came over one edge, or from one source to one operator.

    Attributes:
        rows: Since this process runs the job.
        bytes: The same, in columns.
        last_rows: In the last epoch that had any.
        last_bytes: The same, in columns.
    """

    rows: int = 0
    bytes: int = 0
    last_rows: int = 0
    last_bytes: int = 0


class JobFlow:
    """Counts; safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subtasks: dict[str, dict[int, SubtaskFlow]] = {}
        self._edges: dict[tuple[str, str], EdgeFlow] = {}

    def forget(self, uids: Iterable[str]) -> None:
        """Begin anew with operators whose subtasks are others from now on."""
        with self._lock:
            for uid in uids:
                self._subtasks.pop(uid, None)

    def take(self, result: EpochResult) -> None:
        """Count an epoch that was accepted."""
        came: dict[tuple[str, str], tuple[int, int]] = {}
        with self._lock:
            for report in result.report.steps():
                subtasks = self._subtasks.setdefault(report.uid, {})
                known = subtasks.get(report.subtask) or SubtaskFlow(report.subtask)
                subtasks[report.subtask] = known.plus(report)
                for origin, (rows, size) in report.arrived.items():
                    before = came.get((origin, report.uid), (0, 0))
                    came[origin, report.uid] = (before[0] + rows, before[1] + size)
            for edge, (rows, size) in came.items():
                flow = self._edges.get(edge, EdgeFlow())
                flow = replace(flow, rows=flow.rows + rows, bytes=flow.bytes + size)
                self._edges[edge] = replace(flow, last_rows=rows, last_bytes=size) if rows else flow

    def subtasks(self, uid: str) -> list[SubtaskFlow]:
        """The subtasks of an operator, by index; none before its first epoch."""
        with self._lock:
            return sorted(self._subtasks.get(uid, {}).values(), key=lambda flow: flow.subtask)

    def edge(self, origin: str, uid: str) -> EdgeFlow | None:
        """What came to an operator over an edge or from a source, by its name; None if nothing has yet."""
        with self._lock:
            return self._edges.get((origin, uid))


def critical_ms(stages: Iterable[Iterable[Barrier]]) -> tuple[float, float]:
    """How long the busiest task of each stage has worked, added up, and of that for state, in milliseconds.

    The rest of the time of an epoch's tasks is the engine's: it plans, starts them, and carries rows between them.
    """
    worked = saved = 0.0
    for stage in stages:
        busiest = max(stage, key=lambda barrier: sum(step.busy for step in barrier.steps), default=None)
        if busiest is not None:
            worked += sum(step.busy for step in busiest.steps) / 1000
            saved += sum(sum(step.saving) for step in busiest.steps)
    return worked, min(saved, worked)
