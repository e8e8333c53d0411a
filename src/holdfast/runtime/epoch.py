"""Epochs: runs each one, accepts it or runs it again, and keeps the state between epochs.

State between two checkpoints is in memory only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, InconsistentEpochError
from holdfast.kernel.clock import ForwardTime
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.compaction import Compaction, EpochTime
from holdfast.runtime.exchange.stage_message import CheckpointNotifications, EpochDescriptor
from holdfast.runtime.exchange.task_report import EpochReport, TaskReport, check_epoch
from holdfast.runtime.graph.event_time import EventTimeKeeper
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.engine import Engine, EpochInput, Job, StagedInput
from holdfast.runtime.source_alignment import SourceAlignment
from holdfast.runtime.task.operator_state import OperatorStates, check_queryable_names
from holdfast.state.compaction_plan import TaskMerges, apply_task_merge
from holdfast.state.run_file import RunHandle
from holdfast.state.timer_service import PROCESSING
from holdfast.state.version import StateVersion
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import JobDirectory

logger = get_logger(__name__)

MAX_TRIES = 5
"""Tries of an epoch whose acknowledgements disagree; then the job attempt fails."""

_REPORTED_MS = 5000
"""How far the wall clock may be behind processing time before the log says so."""


@dataclass(frozen=True)
class EpochResult:
    """An accepted epoch, whose tasks have acknowledged consistently; nothing of it is visible yet.

    Attributes:
        descriptor: The accepted try.
        report: The reports of its tasks.
        rows: Elements read from sources.
        task_seconds: Time from starting the tasks to the last acknowledgement, all tries together.
    """

    descriptor: EpochDescriptor
    report: EpochReport
    rows: int
    task_seconds: float = 0.0

    def committables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the staged committables by sink uid, as in `_metadata`."""
        staged: dict[str, list[dict[str, Any]]] = {}
        for step in self.report.steps():
            for value in step.committables:
                rows = step.records_in - step.records_out  # a sink does not write the records that it emits
                entry = {"epoch": self.descriptor.epoch, "subtask": step.subtask, "rows": rows}
                staged.setdefault(step.uid, []).append({**entry, "value": value})
        return staged


@dataclass(frozen=True)
class StartState:
    """State at the start of a job attempt.

    Attributes:
        epoch: The last epoch before the attempt; numbers never go back.
        processing_time: Processing time of that epoch, in milliseconds since 1970; it never goes back either.
        versions: State version of each keyed operator, by uid.
        operator_states: Operator state.
        event_time: Progress of event time, for a replay; None to begin it anew.
    """

    epoch: int
    processing_time: int
    versions: Mapping[str, StateVersion]
    operator_states: OperatorStates
    event_time: Mapping[str, Mapping[str, Any]] | None = None


class JobEpochs:
    """The epochs of one job attempt, one after the other, and the state between them.

    Args:
        job: The job.
        plan: The job's stages.
        start: State at the start of the attempt.
        compaction: Merges runs beside the epochs; None for no compaction.

    Attributes:
        plan: The plan in force.
        epoch: The epoch that runs, or ran last.
        processing_time: Its processing time, in milliseconds since 1970.
        versions: State version of each keyed operator, by uid.
        operator_states: Operator state.
        least_timer: Time of the next processing-time timer, in milliseconds since 1970; None if there is none.
    """

    def __init__(self, job: Job, plan: JobPlan, start: StartState, compaction: Compaction | None = None) -> None:
        self._engine = job.engine
        self._directory = job.directory
        self._compaction = compaction
        self._time = ForwardTime(job.clock, start.processing_time)
        self._is_ahead = False
        self.operator_states = start.operator_states
        self._has_earlier_epoch = False
        self._event_time = EventTimeKeeper(start.event_time)
        self._alignment = SourceAlignment({} if job.engine.aligns_sources else plan.aligned)
        self.replan(plan)
        self.epoch = start.epoch
        self.processing_time = start.processing_time
        self._begun: deque[EpochDescriptor] = deque()
        self.versions: dict[str, StateVersion] = dict(start.versions)
        self.least_timer = _least(version.least_timer(PROCESSING) for version in self.versions.values())

    def now_ms(self) -> int:
        """Return the processing time now, in milliseconds since 1970."""
        return self._time.now_ms()

    def _report_if_ahead(self) -> None:
        ahead = self._time.ahead_ms()
        if not self._is_ahead and ahead > _REPORTED_MS:
            logger.warning(
                "the clock of this host is %.0f s behind the processing time of the job: it was set back, or that "
                "of the host before was ahead. Timers and processing-time windows go on at nine tenths of their pace "
                "until the clock has caught up; check the time synchronization of the hosts.",
                ahead / 1000,
            )
        self._is_ahead = ahead > _REPORTED_MS

    def replan(self, plan: JobPlan) -> None:
        """Run the next epochs by another plan of the same operators, for instance with another parallelism."""
        self.plan = plan
        self._readers = _source_readers(plan)
        self._parallelism = {step.uid: step.parallelism for step in plan.stateful_steps()}
        self.operator_states.replan(plan)

    def run(
        self,
        epoch_input: EpochInput | None,
        *,
        drain: bool = False,
        notifications: CheckpointNotifications | None = None,
    ) -> EpochResult:
        """Run the next epoch: the oldest one that was begun, or a new one. The state advances only if it is accepted.

        Args:
            epoch_input: Input of the epoch; None for a tick.
            drain: Whether event time advances to its end; not used if the epoch was begun.
            notifications: Notifications of checkpoints for the functions; not used if the epoch was begun.

        Raises:
            InconsistentEpochError: The acknowledgements disagreed in every try.
            ConfigurationError: Two operators have queryable state of one name.
            EpochAbandonedError: The tasks go on without the snapshot of the epoch.
            HoldfastError: A task or the engine failed.
        """
        if epoch_input is not None:
            self._event_time.ended = self.plan.ended_clocks(epoch_input.ended_sources)
        if self._begun:
            begun = self._begun.popleft()
        else:
            merges: TaskMerges = {}
            if self._compaction is not None:
                self.versions = self._compaction.take_results(self.versions, self.plan, self._now())
                merges = self._compaction.merges_for_tasks(self.versions, self.plan, self._now())
            is_last = drain or (epoch_input is not None and epoch_input.is_last)
            begun = self._descriptor(notifications or CheckpointNotifications(), merges, is_last=is_last)
        self.epoch, self.processing_time = begun.epoch, begun.processing_time
        began = time.perf_counter()
        for try_number in range(MAX_TRIES):
            descriptor = replace(begun, try_number=try_number)
            try:
                report = run_epoch_jobs(self._engine, self.plan, self._directory, descriptor, epoch_input)
            except InconsistentEpochError as error:
                last = error
                if try_number + 1 < MAX_TRIES:
                    logger.warning(
                        "epoch %d is run again (try %d of %d): %s", self.epoch, try_number + 2, MAX_TRIES, error
                    )
                continue
            seconds = time.perf_counter() - began
            check_queryable_names(report.steps())
            self._advance(report, begun)
            if epoch_input is not None:  # during a tick the engine may be planning the next epoch
                waiting = self._alignment.decide(self.watermarks, self.processing_time)
                self._event_time.pause_sources(waiting, self.processing_time)
            return EpochResult(descriptor, report, self._rows_read(report), seconds)
        raise last

    @property
    def has_begun_next(self) -> bool:
        """Whether the epoch after the present one was begun, in a real-time job."""
        return bool(self._begun)

    @property
    def may_begin_next(self) -> bool:
        """Whether an epoch may begin before the present one has ended: no merged runs wait to replace others.

        A run is deleted when no checkpoint names it, and tasks must read it no more by then. So versions are replaced
        only while no epoch is under way that began with those before.
        """
        return self._compaction is None or not self._compaction.has_results

    def begin_next(self, notifications: CheckpointNotifications) -> EpochDescriptor:
        """Begin the next epoch before the present one has ended, and return it; only in a real-time job.

        It has the state that is accepted now, and its tasks know what they have written since. `run` ends it in its
        turn.
        """
        begun = self._descriptor(notifications, {}, is_last=False)
        self._begun.append(begun)
        return begun

    def drop_begun(self) -> None:
        """Forget the begun epochs after the present one, because the attempt ends."""
        self._begun.clear()

    def _descriptor(
        self, notifications: CheckpointNotifications, merges: TaskMerges, *, is_last: bool
    ) -> EpochDescriptor:
        before = self._begun[-1] if self._begun else self
        self._report_if_ahead()
        processing_time = max(self._time.now_ms(), before.processing_time + 1)
        return EpochDescriptor(
            epoch=before.epoch + 1,
            try_number=0,
            processing_time=processing_time,
            event_time=self._event_time.begin(self.plan.clocks, processing_time, is_over=is_last),
            versions=dict(self.versions),
            is_last=is_last,
            operator_states=self.operator_states.for_epoch(),
            follows=self._has_earlier_epoch,
            notifications=notifications,
            generators=self._event_time.generators,
            merges=merges,
        )

    def resume(self) -> None:
        """Continue event time after a drain, because the job does not stop."""
        self._event_time.resume()

    def close(self) -> None:
        """Open the gates of all sources at the end of the attempt."""
        self._alignment.close()

    def live_runs(self) -> list[str]:
        """Return the paths of the runs of current versions and of running compactions."""
        live = [run.path for version in self.versions.values() for run in version.runs]
        return live if self._compaction is None else live + self._compaction.live()

    def _now(self) -> EpochTime:
        return EpochTime(self.epoch, self.processing_time)

    @property
    def event_time(self) -> Mapping[str, Any]:
        """Progress of event time as JSON; empty in a job without event time."""
        return self._event_time.to_json()

    @property
    def watermarks(self) -> Mapping[str, int]:
        return self._event_time.watermarks

    @property
    def least_watermark(self) -> int | None:
        """Least watermark of all steps; None while none is known."""
        known = (watermark for watermark in self.watermarks.values() if MIN_WATERMARK < watermark < MAX_WATERMARK)
        return min(known, default=None)

    @property
    def state_bytes(self) -> int:
        """Size in bytes of all run files of the current versions."""
        return sum(run.size for version in self.versions.values() for run in version.runs)

    def _rows_read(self, report: EpochReport) -> int:
        return sum(
            step.arrived.get(reader.input, (0, 0))[0] // reader.copies
            for step in report.steps()
            for reader in self._readers.get(step.uid, ())
            if not (reader.is_broadcast and step.subtask)
        )

    def _advance(self, report: EpochReport, begun: EpochDescriptor) -> None:
        merges, now = begun.merges, begun.processing_time
        # Anew, because the epoch before may have ended after this one began.
        event_time = self._event_time.begin(self.plan.clocks, now, is_over=begun.is_last)
        self._event_time.move_on(event_time, self.plan.clocks_of_steps(), report.observed(), now)
        for step in report.steps():
            if step.generator is not None:
                self._event_time.keep(step.uid, step.subtask, step.generator)
        self._has_earlier_epoch = True
        written: dict[str, list[RunHandle]] = {}
        for step in sorted(report.steps(), key=lambda s: s.subtask):
            runs = [RunHandle.from_json(run) for run in step.runs]
            if not runs:
                continue
            run = runs[-1]
            if step.merged:
                self.versions[step.uid] = apply_task_merge(self.versions[step.uid], step.merged, run)
            else:
                written.setdefault(step.uid, []).extend(runs)
            if self._compaction is not None and step.subtask in merges.get(step.uid, {}):
                self._compaction.merged_by_task(run if step.merged else None)
        for uid, runs in written.items():
            self.versions[uid] = self.versions[uid].plus(runs)
        self.operator_states.update(report.steps(), self._parallelism)
        self.least_timer = _least(step.least_timer for step in report.steps())
        if self._compaction is not None:
            self._compaction.offer(self.versions, self.plan, self._now())


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


class _SourceReader(NamedTuple):
    """An input of a step that reads a source.

    Attributes:
        input: Its name in the reports of the step.
        copies: How often the step reads each row of it.
        is_broadcast: Whether every subtask reads all rows.
    """

    input: str
    copies: int = 1
    is_broadcast: bool = False


def _source_readers(plan: JobPlan) -> dict[str, list[_SourceReader]]:
    """Return the first reader of each source, by the uid of its step, so that no row counts twice."""
    found: dict[str, tuple[str, _SourceReader]] = {}
    for edge in plan.edges:
        if edge.origin.kind == "source":
            found.setdefault(edge.origin.name, (edge.consumer, _SourceReader(edge.name, is_broadcast=edge.broadcast)))
    for stage in plan.stages:
        for step in stage.steps:
            for port in step.inputs:
                if port.kind == "source":
                    found.setdefault(port.name, (step.uid, _SourceReader(port.name, step.inputs.count(port))))
    readers: dict[str, list[_SourceReader]] = {}
    for source in plan.sources:
        if source.uid in found:
            uid, reader = found[source.uid]
            readers.setdefault(uid, []).append(reader)
    return readers


# An epoch has one or more epoch jobs, each one job of the engine::
#
#     job 0: tasks --reports--> accepted --names of staged files--> job 1: tasks --reports--> accepted --> ...
#
# An epoch job begins when all tasks of the one before have acknowledged consistently. It reads exactly the files that
# they name, so its input does not change, however often Spark evaluates it. If one fails, the epoch fails.
#
# Staged files have token, epoch and try in their names; no checkpoint names them. They are deleted after the last
# epoch job, and when a later one fails. Files of a failed epoch job, or of a process that died, are swept.
def run_epoch_jobs(
    engine: Engine, plan: JobPlan, directory: JobDirectory, epoch: EpochDescriptor, epoch_input: EpochInput | None
) -> EpochReport:
    """Run one try of an epoch and return the reports of all its stages.

    Args:
        engine: Runs the tasks.
        plan: The epoch jobs.
        directory: The job's directory, where staged files are.
        epoch: The try of the epoch.
        epoch_input: Input of the epoch; None for a tick.

    Raises:
        InconsistentEpochError: The acknowledgements of an epoch job disagree; nothing of the epoch may be used.
        HoldfastError: A task or the engine failed.
    """
    stages: tuple[tuple[TaskReport, ...], ...] = ()
    files: dict[str, tuple[str, ...]] = {}
    staged: list[str] = []
    try:
        for number, epoch_job in enumerate(plan.epoch_jobs):
            job_input = StagedInput(number, files) if number else epoch_input
            reports = engine.execute(epoch, job_input)
            report = reports if isinstance(reports, EpochReport) else check_epoch(reports, epoch_job.tasks)
            stages += report.stages
            epoch = replace(epoch, event_time=epoch.event_time.plus(report.observed()))
            for step in report.steps():
                paths = tuple(join(directory.taskowned_dir, name) for name in step.staged)
                files[step.uid] = files.get(step.uid, ()) + paths
                staged += step.staged
    finally:
        # Also if a later job fails: many tries may fail before a checkpoint completes, and a sweep runs only after
        # one.
        _remove(directory, staged)
    return EpochReport(stages)


def _remove(directory: JobDirectory, names: Iterable[str]) -> None:
    """Delete used staged files; a file that cannot be deleted is left to the sweep."""
    for name in names:
        try:
            directory.fs.delete_in(directory.taskowned_dir, name)
        except (HoldfastError, OSError) as error:
            logger.warning("could not delete the staged file %r; a sweep will: %s", name, error)
