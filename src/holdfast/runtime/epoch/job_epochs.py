"""One epoch after the other: plan, run, acknowledge; what it knows between checkpoints is in memory only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InconsistentEpochError
from holdfast.kernel.clock import Clock
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.compaction.background import Compaction, EpochTime
from holdfast.runtime.epoch.epoch_job import run_epoch_jobs
from holdfast.runtime.epoch.source_alignment import SourceAlignment
from holdfast.runtime.exchange.barrier import EpochReport
from holdfast.runtime.exchange.descriptor import CheckpointNews, EpochDescriptor
from holdfast.runtime.graph.event_time import EventTime, EventTimeKeeper
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.engine import Engine, EpochInput
from holdfast.runtime.task.operator_state import OperatorStates
from holdfast.runtime.task.queryable_names import check_names
from holdfast.state.run.run_file import RunHandle
from holdfast.state.run.version import StateVersion
from holdfast.state.timer.timer_service import PROCESSING
from holdfast.storage.job.job_directory import JobDirectory

logger = get_logger(__name__)

MAX_TRIES = 5
"""How often an epoch is run in place, because its acknowledgements disagree, before the attempt of the job fails."""


@dataclass(frozen=True)
class EpochResult:
    """An epoch whose tasks have acknowledged consistently; nothing of it is visible yet.

    Attributes:
        descriptor: The attempt that was accepted.
        report: What its tasks said.
        rows: Elements read from sources.
        task_seconds: From handing the tasks to the engine to their last acknowledgement, all attempts together.
    """

    descriptor: EpochDescriptor
    report: EpochReport
    rows: int
    task_seconds: float = 0.0

    def committables(self) -> dict[str, list[dict[str, Any]]]:
        """What the sinks staged, by sink uid, as `_metadata` holds it."""
        staged: dict[str, list[dict[str, Any]]] = {}
        for step in self.report.steps():
            for value in step.committables:
                rows = step.records_in - step.records_out  # what a sink emits it has not written
                entry = {"epoch": self.descriptor.epoch, "subtask": step.subtask, "rows": rows}
                staged.setdefault(step.uid, []).append({**entry, "value": value})
        return staged


class JobEpochs:
    """The epochs of one job attempt: runs one after the other, and knows what the next one begins with.

    Args:
        plan: The job's stages.
        engine: Runs the tasks.
        directory: The job's directory.
        clock: For processing time.
        epoch: The last epoch before this attempt; numbers never go back.
        processing_time: That of the last epoch, in milliseconds; it never goes back either.
        versions: State version of each keyed operator.
        compaction: Merges runs beside the epochs; None leaves them as they are.
        operator_states: Operator state that the attempt begins with; None for none.
        event_time: How far event time was, for an epoch that is run again; None to begin it anew.
    """

    def __init__(
        self,
        plan: JobPlan,
        engine: Engine,
        directory: JobDirectory,
        clock: Clock,
        epoch: int,
        processing_time: int,
        versions: Mapping[str, StateVersion],
        compaction: Compaction | None = None,
        operator_states: OperatorStates | None = None,
        event_time: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._engine = engine
        self._directory = directory
        self._compaction = compaction
        self._clock = clock
        self.operator_states = operator_states or OperatorStates(plan)
        self._follows = False
        self._event_time = EventTimeKeeper(event_time)
        self._alignment = SourceAlignment(plan.aligned)
        self.replan(plan)
        self.epoch = epoch
        self.processing_time = processing_time
        self.versions: dict[str, StateVersion] = dict(versions)
        self.least_timer = _least(version.least_timer(PROCESSING) for version in self.versions.values())

    def replan(self, plan: JobPlan) -> None:
        """Runs the next epochs by another plan of the same operators, with another parallelism, say."""
        self.plan = plan
        self._entries = _entry_steps(plan)
        self._parallelism = {step.uid: step.parallelism for step in plan.stateful_steps()}
        self.operator_states.replan(plan)

    def run(
        self, epoch_input: EpochInput | None, *, drain: bool = False, news: CheckpointNews | None = None
    ) -> EpochResult:
        """Runs one epoch; the state versions move on only if it is accepted.

        Args:
            epoch_input: Its input; None for a tick.
            drain: Whether event time advances to its end.
            news: What functions are told of checkpoints.

        Raises:
            InconsistentEpochError: The acknowledgements disagreed in every try.
            ConfigurationError: Two operators made state queryable under one name.
            HoldfastError: A task or the engine failed.
        """
        if self._compaction is not None:
            self.versions = self._compaction.take_results(self.versions, self.plan, self._now())
        self.epoch += 1
        self.processing_time = max(self._clock.now_ms(), self.processing_time + 1)
        is_last = drain or (epoch_input is not None and epoch_input.is_last)
        event_time = self._event_time.begin(self.plan.clocks, self.processing_time, is_over=is_last)
        began = time.perf_counter()
        for attempt in range(MAX_TRIES):
            descriptor = EpochDescriptor(
                epoch=self.epoch,
                attempt=attempt,
                processing_time=self.processing_time,
                event_time=event_time,
                versions=dict(self.versions),
                is_last=is_last,
                operator_states=self.operator_states.for_epoch(),
                follows=self._follows,
                news=news or CheckpointNews(),
                generators=self._event_time.generators,
            )
            try:
                report = run_epoch_jobs(self._engine, self.plan, self._directory, descriptor, epoch_input)
            except InconsistentEpochError as error:
                last = error
                if attempt + 1 < MAX_TRIES:
                    logger.warning(
                        "epoch %d is run again (attempt %d of %d): %s", self.epoch, attempt + 2, MAX_TRIES, error
                    )
                continue
            seconds = time.perf_counter() - began
            check_names(report.steps())
            self._move_on(report, event_time)
            if epoch_input is not None:  # beside a tick the engine may be planning what comes
                waiting = self._alignment.decide(self.watermarks, self.processing_time)
                self._event_time.let_wait(waiting, self.processing_time)
            rows = sum(step.records_in for step in report.steps() if step.uid in self._entries)
            return EpochResult(descriptor, report, rows, seconds)
        raise last

    def go_on(self) -> None:
        """Event time, which a drain has brought to its end, goes on: the job does not stop."""
        self._event_time.go_on()

    def close(self) -> None:
        """The attempt has ended: no source waits any more."""
        self._alignment.close()

    def live_runs(self) -> list[str]:
        """Paths of the runs of the current versions, and of those that compactions are writing."""
        live = [run.path for version in self.versions.values() for run in version.runs]
        return live if self._compaction is None else live + self._compaction.live()

    def _now(self) -> EpochTime:
        return EpochTime(self.epoch, self.processing_time)

    @property
    def event_time(self) -> Mapping[str, Any]:
        """How far event time is, as JSON; empty in a job without event time."""
        return self._event_time.to_json()

    @property
    def watermarks(self) -> Mapping[str, int]:
        """The watermark of each step."""
        return self._event_time.watermarks

    @property
    def least_watermark(self) -> int | None:
        """The least watermark of all steps, None while none is known."""
        known = (watermark for watermark in self.watermarks.values() if MIN_WATERMARK < watermark < MAX_WATERMARK)
        return min(known, default=None)

    @property
    def state_bytes(self) -> int:
        """Size of all run files that the state version names."""
        return sum(run.size for version in self.versions.values() for run in version.runs)

    def _move_on(self, report: EpochReport, event_time: EventTime) -> None:
        self._event_time.move_on(event_time, self.plan.clocks_of_steps(), report.observed(), self.processing_time)
        for step in report.steps():
            if step.generator is not None:
                self._event_time.keep(step.uid, step.subtask, step.generator)
        self._follows = True
        written: dict[str, list[RunHandle]] = {}
        for step in sorted(report.steps(), key=lambda s: s.subtask):
            if step.run is not None:
                written.setdefault(step.uid, []).append(RunHandle.from_json(step.run))
        for uid, runs in written.items():
            self.versions[uid] = self.versions[uid].plus(runs)
        self.operator_states.take(report.steps(), self._parallelism)
        self.least_timer = _least(step.least_timer for step in report.steps())
        if self._compaction is not None:
            self._compaction.offer(self.versions, self.plan, self._now())


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _entry_steps(plan: JobPlan) -> set[str]:
    """Steps that read an input of the job; the first reader of each, so that no element is counted twice."""
    found: dict[str, str] = {}
    for edge in plan.edges:
        if edge.origin.kind == "source":
            found.setdefault(edge.origin.name, edge.consumer)
    for stage in plan.stages:
        for step in stage.steps:
            for port in step.inputs:
                if port.kind == "source":
                    found.setdefault(port.name, step.uid)
    return {found[source.uid] for source in plan.sources if source.uid in found}
