"""What a job has done since this process runs it, counted once an epoch from what its tasks have reported."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.kernel.clock import Clock
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.commit.sink_numbers import SinkMeter, SinkNumbers
from holdfast.runtime.epoch import EpochResult, JobEpochs
from holdfast.runtime.exchange.barrier import Barrier, StepReport
from holdfast.runtime.function.metric import add_task_metrics
from holdfast.runtime.function.source import SourceStatistics


@dataclass(frozen=True)
class OperatorNumbers:
    """The numbers of one operator.

    Attributes:
        records_in: Elements that it has read.
        records_out: Elements that it has emitted.
        bytes_in: Bytes that came to it in columns.
        busy: Microseconds that its subtasks have worked.
        warm: Tasks that found their state in the memory of a worker.
        cold: Tasks that did not, and read what they needed from run files.
        state_bytes: Size of the run files of its state.
        state_entries: Rows in them; a key that was written again counts twice until they are compacted.
        newest: The greatest timestamp that it has assigned, None if there is none.
        watermark: Its watermark in milliseconds since 1970, None if it has none yet.
        own: What its function counts itself, by name the kind and the numbers.
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
class JobNumbers:
    """The numbers of a job at one moment.

    Attributes:
        epochs: Epochs that were accepted.
        repeated: Epochs that were run again because tasks had read different attempts.
        rows: Elements read from sources.
        seconds: Time that epochs have taken.
        checkpoint_seconds: Of that, for documents and pointers.
        commit_seconds: Of that, for sinks.
        operators: By uid.
        sinks: By uid, what they have committed and what waits.
        fetch_lags: By the uid of an input whose elements have timestamps, how old the newest of the last ones was when
            they were read, in milliseconds.
    """

    epochs: int = 0
    repeated: int = 0
    rows: int = 0
    seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    commit_seconds: float = 0.0
    operators: dict[str, OperatorNumbers] = field(default_factory=dict)
    sinks: dict[str, SinkNumbers] = field(default_factory=dict)
    fetch_lags: dict[str, int] = field(default_factory=dict)


class JobMetrics:
    """Counts; safe to read from any thread.

    Args:
        clock: Says since when output waits for its commit.

    Attributes:
        sinks: Where what sinks commit is counted.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.sinks = SinkMeter(clock)
        self._lock = threading.Lock()
        self._numbers = JobNumbers()

    def on_epoch_accepted(self, result: EpochResult, epochs: JobEpochs, times: tuple[float, float, float]) -> None:
        """Count an epoch that was accepted.

        Args:
            result: The epoch.
            epochs: What the job's state is after it.
            times: Seconds that it took, and of these its checkpoint and its commits.
        """
        operators = dict(self._numbers.operators)
        gauges: dict[str, dict[str, float]] = {}
        for step in result.report.steps():
            known = operators.get(step.uid, OperatorNumbers())
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
            known = operators.get(uid, OperatorNumbers())
            operators[uid] = replace(known, state_bytes=size, state_entries=entries)
        for uid, watermark in epochs.watermarks.items():
            if uid in operators and MIN_WATERMARK < watermark < MAX_WATERMARK:
                operators[uid] = replace(operators[uid], watermark=watermark)
        before = self._numbers
        now = JobNumbers(
            before.epochs + 1,
            before.repeated + result.descriptor.attempt,
            before.rows + result.rows,
            before.seconds + times[0],
            before.checkpoint_seconds + times[1],
            before.commit_seconds + times[2],
            operators,
            fetch_lags={**before.fetch_lags, **_fetch_lags(result, epochs)},
        )
        with self._lock:
            self._numbers = now

    @property
    def numbers(self) -> JobNumbers:
        """The numbers now."""
        with self._lock:
            numbers = self._numbers
        return replace(numbers, sinks=self.sinks.numbers)


def lags(sinks: Mapping[str, SinkNumbers], sources: Mapping[str, SourceStatistics], now: int) -> dict[str, Any]:
    """What waits at the ends of a job: records and files that no epoch has read, and output that is not committed.

    Args:
        sinks: The sinks by uid.
        sources: The sources by uid; those that do not count what waits are left out.
        now: In milliseconds since 1970.
    """
    return {
        "sources": [{"id": uid, **waiting} for uid, source in sources.items() if (waiting := source.waiting())],
        "sinks": [
            {**sink.to_json(uid), "pending_rows": sink.pending_records, "lag_ms": sink.lag_ms(now)}
            for uid, sink in sinks.items()
        ],
    }


def _fetch_lags(result: EpochResult, epochs: JobEpochs) -> dict[str, int]:
    """How old the newest elements of inputs were, by the steps that give them the timestamps which they came with."""
    observed, now = result.report.observed(), result.descriptor.processing_time
    return {
        port.name: now - observed[step.uid]
        for stage in epochs.plan.stages
        for step in stage.steps
        if step.strategy is not None and step.uid in observed
        for port in step.inputs
        if port.kind == "source"
    }


# How elements flow through a job: what came over each edge, and how busy each subtask is, counted once an epoch.


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

    def on_epoch_accepted(self, result: EpochResult) -> None:
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
