"""One attempt of a job: one term of one leader, from its restored start to its outcome.

::

    JobMaster:  raise token -> restore: choose and read a checkpoint (`runtime/restore.py`)
                                 |
    JobAttempt: plan -> assign state to operators -> prepare sinks, master hooks and engine
                                 |
                commit the checkpoint's output -> epochs ... -> outcome

At each step a FencedError may show that another leader took over: this process stops and deletes nothing. Everything
that an attempt knows beside its checkpoint and the requested parallelism is in memory and is lost with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.checkpoint_machine import CheckpointParticipant
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.errors import ConfigurationError, FencedError, HoldfastError
from holdfast.ha.options import HA_SUBMISSION
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.commit.checkpointing import EpochCheckpoints
from holdfast.runtime.compaction import Compaction, CompactionStatistics
from holdfast.runtime.epoch import JobEpochs, StartState
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor
from holdfast.runtime.graph.compiler import compile_graph, with_packed_exchanges, with_source_stage
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.control import JobControl, RescaleRequest
from holdfast.runtime.job.engine import BegunCheckpoint, EpochAbandonedError, EpochDriver, EpochInput, Job, Outcome
from holdfast.runtime.job.options import MAX_PARALLELISM, PACKED_EXCHANGE
from holdfast.runtime.job.progress import EpochProgress, JobHistory, ProgressReporter
from holdfast.runtime.job.requested_parallelism import RequestedParallelism
from holdfast.runtime.master.job_metrics import JobFlow, JobMetrics, critical_ms, real_time_progress
from holdfast.runtime.restore import AttemptStart, restored_versions, stored_max_parallelism
from holdfast.runtime.task.operator_state import OperatorStates
from holdfast.storage.register import RegisterWriter

logger = get_logger(__name__)


@dataclass(frozen=True)
class JobReports:
    """Progress, statistics and metrics of a job in this process, over all of its attempts.

    Attributes:
        progress: Reports of epochs.
        statistics: Statistics of checkpoints.
        metrics: Metrics of epochs, operators and sinks.
        flow: Metrics of subtasks and edges.
        history: Failures.
    """

    progress: ProgressReporter
    statistics: CheckpointStatsTracker
    metrics: JobMetrics
    flow: JobFlow
    history: JobHistory


class JobAttempt(EpochDriver):
    """One attempt. Call `run` once.

    Args:
        job: The job.
        writer: The right to write its register, raised for this attempt.
        number: Number of earlier attempts in this process.
        restored: The start of the attempt.
        control: Requests of other threads.
        reports: Progress, statistics and metrics of the job.
    """

    def __init__(
        self,
        job: Job,
        writer: RegisterWriter,
        number: int,
        restored: AttemptStart,
        control: JobControl,
        reports: JobReports,
    ) -> None:
        self._job = job
        self._writer = writer
        self._number = number
        self._restored = restored
        self._control = control
        self._reports = reports
        self._lock = threading.Lock()
        self._stored_max = stored_max_parallelism(job.graph, restored.operators, job.configuration.get(MAX_PARALLELISM))
        self._requested = RequestedParallelism(
            job.directory, restored.incarnation, job.configuration.get(HA_SUBMISSION) or ""
        )
        self._plan = self._first_plan()
        versions = restored_versions(self._plan, restored.operators, restored.allow_non_restored)
        self._checkpoints = EpochCheckpoints(
            job, writer, self._plan, restored, control, reports.statistics, reports.metrics.sinks
        )
        self._compaction = Compaction(
            job.directory.path, writer.token, job.configuration, tasks_merge=job.engine.tasks_merge
        )
        operator_states = OperatorStates(self._plan, restored.operators)
        start = StartState(restored.epoch, restored.processing_time, versions, operator_states, restored.event_time)
        self._epochs = JobEpochs(job, self._plan, start, self._compaction)

    def _compile(self, parallelism: Mapping[str, int]) -> JobPlan:
        job = self._job
        maximum = job.configuration.get(MAX_PARALLELISM)
        plan = compile_graph(job.graph, job.default_parallelism, maximum, self._stored_max, parallelism)
        rows, source_tasks = job.engine.batch_rows, job.engine.source_tasks
        if source_tasks:
            return with_packed_exchanges(with_source_stage(plan, source_tasks), rows)
        return with_packed_exchanges(plan, rows) if rows and job.configuration.get(PACKED_EXCHANGE) else plan

    def _first_plan(self) -> JobPlan:
        """Return the plan with the parallelism that was requested from this leader or one before."""
        self._control.parallelism = requested = self._requested.read()
        if not requested:
            return self._compile({})
        shown = ", ".join(f"{uid or 'all operators'}={number}" for uid, number in sorted(requested.items()))
        try:
            plan = self._compile(requested)
        except ConfigurationError as error:
            logger.warning(
                "job %r cannot have the parallelism that was requested while it ran (%s), so that of the program is "
                "used: %s",
                self._job.name,
                shown,
                error,
            )
            self._control.parallelism = {}
            return self._compile({})
        logger.info("job %r has the parallelism that was requested while it ran: %s", self._job.name, shown)
        return plan

    def run(self) -> Outcome:
        """Run the attempt to its end. Blocks.

        Raises:
            FencedError: Another leader took over.
            HoldfastError: The failure of the attempt.
        """
        job = self._job
        try:
            self._checkpoints.prepare_sinks()
            self._checkpoints.restore_hooks()
            restored = self._restored
            job.engine.prepare(self._descriptor(), restored.positions, self._writer.token, restored.rules)
            self._checkpoints.commit_restored()
            outcome = job.engine.drive(self)
            # First, so that the last sweep finds its leftover files.
            self._compaction.close()
            self._checkpoints.end(self._epochs)
            return outcome
        except FencedError:
            self._checkpoints.uncommitted.halt()
            raise
        finally:
            # Before the engine closes, whose services committers use, and before another attempt commits the same
            # output.
            self._checkpoints.uncommitted.finish()
            self._compaction.close()
            job.engine.close()
            self._epochs.close()
            self._checkpoints.close()

    @property
    def plan(self) -> JobPlan:
        return self._plan

    @property
    def compaction(self) -> CompactionStatistics:
        return self._compaction.statistics

    @property
    def epoch(self) -> int:
        return self._epochs.epoch

    @property
    def is_stopping(self) -> bool:
        return self._control.is_stopping

    @property
    def has_requests(self) -> bool:
        control = self._control
        return control.is_stopping or control.snapshot_requested or control.rescale_requested

    def report(self, failure: HoldfastError) -> None:
        logger.warning("%s", redacted_message(failure))
        self._reports.history.failed(failure)

    def wait(self, seconds: float) -> None:
        self._control.wait(self._seconds_to_tick(seconds))

    def wake(self) -> None:
        self._control.wake()

    def process(self, epoch_input: EpochInput) -> None:
        with self._lock:
            if not self.is_stopping:
                self._run_epoch(epoch_input)

    def wait_all_committed(self) -> None:
        with self._lock:
            self._checkpoints.uncommitted.wait_all_committed()

    @property
    def is_all_committed(self) -> bool:
        return self._checkpoints.uncommitted.is_all_committed

    def begin_checkpoint(self, epoch: int, tasks: Sequence[CheckpointParticipant]) -> BegunCheckpoint:
        return self._checkpoints.begin(epoch, self._epochs, tasks)

    def begin_next_epoch(self) -> EpochDescriptor | None:
        # A request waits until no epoch but the one that serves it is under way.
        if self.has_requests or not self._epochs.may_begin_next:
            return None
        return self._epochs.begin_next(self._checkpoints.notifications_of_functions())

    def tick_if_due(self) -> None:
        if self._checkpoints.uncommitted.has_finished_commits and self._lock.acquire(blocking=False):
            try:
                self._checkpoints.uncommitted.poll_completed()
            finally:
                self._lock.release()
        if not self._tick_is_due():
            return
        with self._lock:
            if not self.is_stopping and self._tick_is_due():
                self._run_epoch(None)

    def _tick_is_due(self) -> bool:
        if self._control.snapshot_requested or self._control.rescale_requested:
            return True
        least = self._epochs.least_timer
        return least is not None and least <= self._epochs.now_ms()

    def _seconds_to_tick(self, seconds: float) -> float:
        least = self._epochs.least_timer
        if least is None or self._job.engine.fires_timers:
            return seconds
        return max(0.0, min(seconds, (least - self._epochs.now_ms()) / 1000))

    def _run_epoch(self, epoch_input: EpochInput | None) -> None:
        self._checkpoints.uncommitted.poll_completed()
        notifications = None
        if not self._epochs.has_begun_next:
            while (request := self._control.next_rescale()) is not None:
                self._rescale(request)
            self._checkpoints.reject_invalid_drains()
            notifications = self._checkpoints.notifications_of_functions()
        started, began = time.perf_counter(), self._job.clock.now_ms()
        try:
            result = self._epochs.run(epoch_input, drain=self._control.drain_requested, notifications=notifications)
        except EpochAbandonedError as error:
            self._checkpoints.on_epoch_abandoned(error, self._epochs)
            return
        acknowledged = time.perf_counter()
        checkpoint_id = self._checkpoints.on_epoch_accepted(result, self._epochs, epoch_input)
        completed = time.perf_counter()
        if checkpoint_id is not None:
            self._checkpoints.on_checkpoint_completed(checkpoint_id, self._epochs)
        ended = time.perf_counter()
        self._reports.metrics.on_epoch_accepted(
            result, self._epochs, (ended - started, completed - acknowledged, ended - completed)
        )
        self._reports.flow.on_epoch_accepted(result)
        function_ms, saving_ms = critical_ms(result.report.stages)
        self._reports.progress.report(
            EpochProgress(
                epoch=self._epochs.epoch,
                checkpoint_id=checkpoint_id,
                rows=result.rows,
                duration_ms=round(1000 * (ended - started), 1),
                checkpoint_ms=round(1000 * (completed - acknowledged), 1),
                commit_ms=round(1000 * (ended - completed), 1),
                state_bytes=self._epochs.state_bytes,
                position=self._checkpoints.position(),
                started=began,
                task_ms=round(1000 * result.task_seconds, 1),
                function_ms=round(function_ms, 1),
                saving_ms=round(saving_ms, 1),
                watermark=self._epochs.least_watermark,
                sinks=tuple(sink.to_json(uid) for uid, sink in self._reports.metrics.sinks.numbers.items()),
                real_time=real_time_progress(result.report.stages, self._job.engine.task_metrics()),
            )
        )

    def _rescale(self, request: RescaleRequest) -> None:
        """Change the parallelism from this epoch on: the same runs, read by other ranges of key groups."""
        is_of_all = "" in request.parallelism
        wanted = {**({} if is_of_all else self._control.parallelism), **request.parallelism}
        started, before = self._job.clock.now_ms(), _parallelism(self._plan)
        self._stored_max = {step.uid: step.max_parallelism for step in self._plan.stateful_steps()}
        try:
            unknown = sorted(set(request.parallelism) - {""} - set(self._stored_max))
            if unknown:
                raise ConfigurationError(
                    f"No operator with state has the uid {unknown[0]!r}; known uids: {sorted(self._stored_max)}."
                )
            plan = self._compile(wanted)
            self._job.engine.check_plan(plan)
            self._requested.write(self._writer, wanted)
        except FencedError as error:
            self._reject(request, before, started, error)
            raise
        except HoldfastError as error:
            self._reject(request, before, started, error)
            return
        self._plan = plan
        try:
            self._epochs.replan(plan)
            self._job.engine.update_plan(self._descriptor())
        except BaseException as error:
            with suppress(HoldfastError):  # the next attempt begins with the former plan
                self._requested.write(self._writer, self._control.parallelism)
            self._reject(request, before, started, error)
            raise
        self._control.parallelism = wanted
        after = _parallelism(plan)
        times = (started, self._job.clock.now_ms())
        self._reports.flow.rescale([uid for uid, number in before.items() if after.get(uid) != number], times[1])
        self._control.rescales.record(request.parallelism, before, after, times)
        request.future.set_result(None)

    def _reject(self, request: RescaleRequest, before: Mapping[str, int], started: int, error: BaseException) -> None:
        times = (started, self._job.clock.now_ms())
        self._control.rescales.record(request.parallelism, before, before, times, redacted_message(error))
        request.future.set_exception(error)

    def _descriptor(self) -> JobDescriptor:
        job, token = self._job, self._writer.token
        texts = job.configuration.to_texts()
        parameters = {
            key.removeprefix("pipeline.global-job-parameters."): text
            for key, text in texts.items()
            if key.startswith("pipeline.global-job-parameters.")
        }
        return JobDescriptor(
            key=f"{job.job_id}-{token}-{new_nonce()}",
            job_id=str(job.job_id),
            job_name=job.name,
            attempt_number=self._number,
            token=token,
            job_root=job.directory.path,
            nonce_file=self._checkpoints.nonce_file,
            plan=self._plan,
            configuration=texts,
            parameters=parameters,
            is_restored=self._restored.checkpoint_id is not None,
            incarnation=self._restored.incarnation,
            targets=self._checkpoints.targets,
        )


def _parallelism(plan: JobPlan) -> dict[str, int]:
    return {step.uid: step.parallelism for step in plan.stateful_steps()}
