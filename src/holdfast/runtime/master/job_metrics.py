"""Metrics of a job in this process: counted once an epoch from the reports of its tasks.

`runtime/master/metric_catalog.py` declares the metrics that users see, and says how to add one. Statistics of
checkpoints are in `checkpoint/statistics.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.kernel.clock import Clock
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.commit.sink_metrics import SinkMeter, SinkMetrics
from holdfast.runtime.epoch import EpochResult, JobEpochs
from holdfast.runtime.exchange.real_time_metrics import RealTimeMetricsByTask, by_operator, least_idle
from holdfast.runtime.exchange.task_report import BarrierTimes, StepReport, TaskReport
from holdfast.runtime.function.metric import add_task_metrics
from holdfast.runtime.function.source import SourceStatistics
from holdfast.storage.object_store import REQUESTS


@dataclass(frozen=True)
class OperatorMetrics:
    """Metrics of one operator.

    Attributes:
        records_in: Elements read.
        records_out: Elements emitted.
        bytes_in: Bytes received in columns.
        busy: Microseconds that its subtasks have worked.
        warm: Tasks that found their state in the memory of a worker.
        cold: Tasks that read their state from run files.
        state_bytes: Size of its run files.
        state_entries: Rows in them; a key that was written several times counts several times until compaction.
        newest: Greatest assigned timestamp; None if there is none.
        watermark: Watermark in milliseconds since 1970; None if there is none yet.
        own: Metrics of its function: by name the kind and the values.
    """

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    busy: int = 0
    warm: int = 0
    cold: int = 0
    state_bytes: int = 0
    state_entries: int = 0
    newest: int | None = None
    watermark: int | None = None
    own: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobMetricsSnapshot:
    """Metrics of a job at one moment.

    Attributes:
        epochs: Accepted epochs.
        repeated: Repeated runs of epochs whose tasks had read different task attempts.
        rows: Elements read from sources.
        seconds: Time in epochs.
        checkpoint_seconds: Part of it for documents and pointers.
        commit_seconds: Part of it waiting for sinks.
        operators: Metrics of operators, by uid.
        sinks: Metrics of sinks, by uid.
        fetch_lags: Age of the newest element of an input with timestamps when it was read, in milliseconds, by uid.
        requests: Requests to object stores, by process ("driver" or "worker") and method.
    """

    epochs: int = 0
    repeated: int = 0
    rows: int = 0
    seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    commit_seconds: float = 0.0
    operators: dict[str, OperatorMetrics] = field(default_factory=dict)
    sinks: dict[str, SinkMetrics] = field(default_factory=dict)
    fetch_lags: dict[str, int] = field(default_factory=dict)
    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)


class JobMetrics:
    """Collects the metrics of a job. Safe to read from any thread.

    Args:
        clock: Time at which output becomes pending.

    Attributes:
        sinks: Metrics of sinks.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.sinks = SinkMeter(clock)
        self._lock = threading.Lock()
        self._numbers = JobMetricsSnapshot()

    def on_epoch_accepted(self, result: EpochResult, epochs: JobEpochs, times: tuple[float, float, float]) -> None:
        """Count an accepted epoch.

        Args:
            result: The epoch.
            epochs: State after the epoch.
            times: Seconds of the epoch, and of these of its checkpoint and of waiting for commits.
        """
        operators = dict(self._numbers.operators)
        gauges: dict[str, dict[str, float]] = {}
        for step in result.report.steps():
            known = operators.get(step.uid, OperatorMetrics())
            operators[step.uid] = replace(
                known,
                records_in=known.records_in + step.records_in,
                records_out=known.records_out + step.records_out,
                bytes_in=known.bytes_in + sum(size for _, size in step.arrived.values()),
                busy=known.busy + step.busy,
                warm=known.warm + (step.warm == 1),
                cold=known.cold + (step.warm == 0),
                newest=known.newest if step.observed is None else max(step.observed, known.newest or step.observed),
                own=add_task_metrics(known.own, step.metrics, gauges.setdefault(step.uid, {})),
            )
        for uid, version in epochs.versions.items():
            size, entries = sum(run.size for run in version.runs), sum(sum(run.rows.values()) for run in version.runs)
            known = operators.get(uid, OperatorMetrics())
            operators[uid] = replace(known, state_bytes=size, state_entries=entries)
        for uid, watermark in epochs.watermarks.items():
            if uid in operators and MIN_WATERMARK < watermark < MAX_WATERMARK:
                operators[uid] = replace(operators[uid], watermark=watermark)
        before = self._numbers
        requests = Counter(before.requests)
        requests.update({("driver", method): count for method, count in REQUESTS.take().items()})
        for stage in result.report.stages:
            for report in stage:
                requests.update({("worker", method): count for method, count in report.requests.items()})
        now = JobMetricsSnapshot(
            before.epochs + 1,
            before.repeated + result.descriptor.try_number,
            before.rows + result.rows,
            before.seconds + times[0],
            before.checkpoint_seconds + times[1],
            before.commit_seconds + times[2],
            operators,
            fetch_lags={**before.fetch_lags, **_fetch_lags(result, epochs)},
            requests=requests,
        )
        with self._lock:
            self._numbers = now

    @property
    def numbers(self) -> JobMetricsSnapshot:
        """The metrics now."""
        with self._lock:
            numbers = self._numbers
        return replace(numbers, sinks=self.sinks.numbers)


def lags(sinks: Mapping[str, SinkMetrics], sources: Mapping[str, SourceStatistics], now: int) -> dict[str, Any]:
    """Return the pending input and output of a job: unread records and files, and uncommitted output.

    Args:
        sinks: Metrics of sinks by uid.
        sources: Metrics of sources by uid; sources that do not count pending input are left out.
        now: Milliseconds since 1970.
    """
    return {
        "sources": [{"id": uid, **backlog} for uid, source in sources.items() if (backlog := source.backlog())],
        "sinks": [
            {**sink.to_json(uid), "pending_rows": sink.pending_records, "lag_ms": sink.lag_ms(now)}
            for uid, sink in sinks.items()
        ],
    }


def _fetch_lags(result: EpochResult, epochs: JobEpochs) -> dict[str, int]:
    """Return the age of the newest elements of inputs, by the input whose elements have timestamps."""
    observed, now = result.report.observed(), result.descriptor.processing_time
    return {
        port.name: now - observed[step.uid]
        for stage in epochs.plan.stages
        for step in stage.steps
        if step.strategy is not None and step.uid in observed
        for port in step.inputs
        if port.kind == "source"
    }


@dataclass(frozen=True)
class SubtaskFlow:
    """Metrics of one subtask of an operator, since this process runs it with its parallelism.

    Attributes:
        subtask: Its index.
        epochs: Epochs in which it has run.
        records_in: Elements read.
        records_out: Elements emitted.
        bytes_in: Bytes received in columns, from sources and exchanges.
        busy_ms: Time that it has worked.
        saving_ms: Part of it for saving state.
        last_in: Elements read in its last epoch with any.
        last_busy_ms: Time that it worked in that epoch.
        barrier: Microseconds of its last alignment and its last snapshot, for which elements have waited; None in an
            job by epochs.
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
    barrier: BarrierTimes | None = None

    def plus(self, report: StepReport, barrier: BarrierTimes | None) -> SubtaskFlow:
        """Return the metrics after another epoch."""
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
            barrier,
        )


def _total(flows: Iterable[SubtaskFlow]) -> SubtaskFlow:
    total = SubtaskFlow(0)
    for flow in flows:
        total = replace(
            total,
            records_in=total.records_in + flow.records_in,
            records_out=total.records_out + flow.records_out,
            bytes_in=total.bytes_in + flow.bytes_in,
            busy_ms=total.busy_ms + flow.busy_ms,
            saving_ms=total.saving_ms + flow.saving_ms,
        )
    return total


@dataclass(frozen=True)
class EdgeFlow:
    """Metrics of one edge between operators, or from a source to an operator.

    Attributes:
        rows: Rows since this process runs the job.
        bytes: The same in bytes, in columns.
        last_rows: Rows in the last epoch with any.
        last_bytes: The same in bytes, in columns.
    """

    rows: int = 0
    bytes: int = 0
    last_rows: int = 0
    last_bytes: int = 0


class JobFlow:
    """Collects the metrics of subtasks and edges. Safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subtasks: dict[str, dict[int, SubtaskFlow]] = {}
        self._ended: dict[str, list[SubtaskFlow]] = {}
        self._rescaled: dict[str, int] = {}
        self._edges: dict[tuple[str, str], EdgeFlow] = {}

    def rescale(self, uids: Iterable[str], now: int) -> None:
        """Begin with new subtasks of operators; the operators keep the totals of the earlier ones.

        Args:
            uids: Operators whose number of subtasks changes.
            now: Milliseconds since 1970.
        """
        with self._lock:
            for uid in uids:
                subtasks = self._subtasks.pop(uid, {})
                self._ended[uid] = [_total([*self._ended.get(uid, ()), *subtasks.values()])]
                self._rescaled[uid] = now

    def on_epoch_accepted(self, result: EpochResult) -> None:
        """Count an accepted epoch."""
        received: dict[tuple[str, str], tuple[int, int]] = {}
        with self._lock:
            tasks = [task for stage in result.report.stages for task in stage]
            for report, barrier in [(step, task.barrier) for task in tasks for step in task.steps]:
                subtasks = self._subtasks.setdefault(report.uid, {})
                known = subtasks.get(report.subtask) or SubtaskFlow(report.subtask)
                subtasks[report.subtask] = known.plus(report, barrier)
                for origin, (rows, size) in report.arrived.items():
                    before = received.get((origin, report.uid), (0, 0))
                    received[origin, report.uid] = (before[0] + rows, before[1] + size)
            for edge, (rows, size) in received.items():
                flow = self._edges.get(edge, EdgeFlow())
                flow = replace(flow, rows=flow.rows + rows, bytes=flow.bytes + size)
                self._edges[edge] = replace(flow, last_rows=rows, last_bytes=size) if rows else flow

    def subtasks(self, uid: str) -> list[SubtaskFlow]:
        """Return the subtasks of an operator, by index; empty before its first epoch."""
        with self._lock:
            return sorted(self._subtasks.get(uid, {}).values(), key=lambda flow: flow.subtask)

    def total(self, uid: str) -> SubtaskFlow:
        """Return the sum of all subtasks of an operator, with those before rescales; its index has no meaning."""
        with self._lock:
            return _total([*self._ended.get(uid, ()), *self._subtasks.get(uid, {}).values()])

    def rescaled(self, uid: str) -> int | None:
        """Return the time of the last rescale of an operator in milliseconds since 1970; None before the first."""
        with self._lock:
            return self._rescaled.get(uid)

    def edge(self, origin: str, uid: str) -> EdgeFlow | None:
        """Return the metrics of an edge; None before its first rows."""
        with self._lock:
            return self._edges.get((origin, uid))


def real_time_progress(stages: Iterable[Iterable[TaskReport]], tasks: RealTimeMetricsByTask) -> dict[str, Any] | None:
    """Return `EpochProgress.real_time`; None in a job by epochs.

    Args:
        stages: The reports of the tasks.
        tasks: Their metrics in the last second.
    """
    barriers = [report.barrier for stage in stages for report in stage if report.barrier is not None]
    if not barriers:
        return None
    return {
        "alignment_ms": max(one.alignment for one in barriers) / 1000,
        "sync_ms": max(one.sync for one in barriers) / 1000,
        "operators": [
            {"id": uid, "busy": time.busy, "back_pressured": time.back_pressured, "idle": time.idle}
            for uid, subtasks in by_operator(tasks).items()
            for time in [least_idle(subtasks)]
        ],
    }


def critical_ms(stages: Iterable[Iterable[TaskReport]]) -> tuple[float, float]:
    """Return how long the busiest task of each stage has worked in total, and how long for state, in milliseconds.

    The rest of the time of an epoch's tasks is the engine's: it plans, starts them, and moves rows between them.
    """
    worked = saved = 0.0
    for stage in stages:
        busiest = max(stage, key=lambda report: sum(step.busy for step in report.steps), default=None)
        if busiest is not None:
            worked += sum(step.busy for step in busiest.steps) / 1000
            saved += sum(sum(step.saving) for step in busiest.steps)
    return worked, min(saved, worked)
