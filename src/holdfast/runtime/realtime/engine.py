"""The engine of real-time jobs: one group of tasks that lives, and a barrier for each epoch.

To the job master it is an engine like others. An epoch of it begins behind one barrier and ends with the next one, and
its checkpoint is that of any epoch. `RealTimeEngine` has all that does not depend on who runs the tasks; subclasses
start them on Spark, or in threads.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from holdfast.checkpoint.checkpoint_machine import CheckpointParticipant
from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.checkpoint.options import ALIGNMENT_LIMIT, CheckpointingMode
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    ConfigurationError,
    EngineUnavailableError,
    HoldfastError,
    error_from_json,
)
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.runtime.exchange.real_time_metrics import INTERVAL_SECONDS, RealTimeMetrics, by_operator
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor, StageMessage
from holdfast.runtime.exchange.task_report import EpochReport, TaskReport, execution_id
from holdfast.runtime.function.source import PositionFiles, SourceStatistics
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import JobPlan, Stage
from holdfast.runtime.job.engine import (
    BegunCheckpoint,
    Engine,
    EpochAbandonedError,
    EpochDriver,
    EpochInput,
    Outcome,
    StagedInput,
)
from holdfast.runtime.job.options import LATENCY_HISTORY
from holdfast.runtime.job.position_files import JobPositionFiles
from holdfast.runtime.realtime.control import ControlServer, Heartbeat, Message, TaskKey
from holdfast.runtime.realtime.message import FRAME_BYTES
from holdfast.runtime.realtime.source_coordinator import Assignments, SourceCoordinator, refuse_unsupported_inputs
from holdfast.runtime.realtime.task import RealTimeStage
from holdfast.runtime.source_alignment import AlignmentLimits
from holdfast.runtime.task.stage_task import has_subtask

logger = get_logger(__name__)

_DEFAULT_INTERVAL: Final = 1000  # milliseconds
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 1.0
"""Time between two looks at the tasks; a lost connection is noticed at once."""
_SILENT_SECONDS: Final = 3 * INTERVAL_SECONDS
"""A task whose last metrics are older is busy: one that waits wakes up more often."""
_BY_EPOCHS: Final = "run the job by epochs (execution.trigger: continuous)"


class TaskGroup(Protocol):
    """The tasks of one launch, which run until they are stopped."""

    @property
    def is_running(self) -> bool: ...

    @property
    def failure(self) -> HoldfastError | None:
        """Why a task has failed; None while all run."""

    def wait(self, seconds: float) -> bool:
        """Block until all tasks have ended, or for some seconds; return whether they have."""

    def cancel(self) -> object:
        """End all tasks. Blocks for seconds at most."""


@dataclass
class _Barrier:
    """A barrier that is under way.

    Attributes:
        epoch: The epoch that ends with it.
        checkpoint: Its checkpoint; None if it could not be begun.
        failure: Why it was abandoned; None while it may complete.
        messages: Acknowledgements that have arrived, by task.
        declines: Declines that have arrived and were not handled.
        reports: What the tasks have acknowledged: their reports for this barrier and those before it.
    """

    epoch: EpochDescriptor
    checkpoint: BegunCheckpoint | None = None
    failure: CheckpointError | None = None
    messages: dict[TaskKey, Message] = field(default_factory=dict)
    declines: list[tuple[TaskKey, Message]] = field(default_factory=list)
    reports: dict[TaskKey, list[tuple[int, TaskReport]]] = field(default_factory=dict)

    @property
    def has_news(self) -> bool:
        return len(self.messages) > len(self.reports) or bool(self.declines)


class RealTimeInput(EpochInput):
    """What the sources have read up to a barrier."""

    completes_checkpoint = True

    def __init__(self, sources: SourceCoordinator, is_last: bool) -> None:
        self._sources = sources
        self.is_last = is_last
        self.ended_sources = sources.finished

    def positions(self) -> dict[str, Any]:
        return self._sources.positions()


class RealTimeEngine(Engine):
    """Runs the tasks of one job until it stops or is rescaled, and ends epochs with barriers.

    Args:
        configuration: The options of the job.
        source_tasks: Number of tasks that read sources.
    """

    batch_rows = 10_000
    fires_timers = True
    tasks_merge = False  # their version may be one epoch behind that of the driver
    aligns_sources = True

    def __init__(self, configuration: Configuration, source_tasks: int) -> None:
        self.source_tasks = source_tasks
        options = CoordinatorConfiguration.from_options(configuration)
        self._interval = (options.interval or _DEFAULT_INTERVAL) / 1000
        self._min_pause = options.min_pause / 1000
        self._max_concurrent = 1 if options.min_pause else options.max_concurrent  # as in Flink
        self._alignment_limit = configuration.get(ALIGNMENT_LIMIT)
        self._is_aligned = options.mode is CheckpointingMode.EXACTLY_ONCE
        self._heartbeat = Heartbeat.from_options(configuration)
        self._changed = threading.Condition()
        self._group: TaskGroup | None = None
        self._server: ControlServer | None = None
        self._sources: SourceCoordinator | None = None
        self._driver: EpochDriver | None = None
        self._connected: dict[TaskKey, str] = {}
        self._lost: set[TaskKey] = set()
        self._failure: HoldfastError | None = None
        self._barriers: dict[int, _Barrier] = {}
        self._accepted = 0
        self._has_failed = False
        self._assigned: dict[int, int] = {}
        self._drained: dict[int, int] = {}
        self._no_more_splits: frozenset[str] = frozenset()
        self._metrics: dict[TaskKey, tuple[float, RealTimeMetrics]] = {}
        self._limits = AlignmentLimits({})
        self._sends_limits = threading.Lock()
        self._triggered_at = 0.0

    # For subclasses

    @abstractmethod
    def start_tasks(
        self, job: JobDescriptor, stages: Sequence[Sequence[RealTimeStage]], workers: Sequence[int]
    ) -> TaskGroup:
        """Start the tasks of all stages.

        Args:
            job: The job with its sources.
            stages: The stages in their order, those together that share their workers (see `run_stages`).
            workers: Number of workers of each group of stages.
        """

    @abstractmethod
    def control_hosts(self) -> tuple[str, str]:
        """Return the host by which tasks reach the driver, and the one to listen on."""

    def frame_bytes(self) -> int:
        """Return the most bytes of a message between tasks."""
        return FRAME_BYTES

    def check(self, plan: JobPlan, workers: Sequence[int], *, is_running: bool) -> None:
        """Check that the workers of a plan can run here: so many for each group of stages.

        Args:
            plan: The plan.
            workers: Number of workers of each group of stages.
            is_running: Whether the job runs here, with another plan.

        Raises:
            ConfigurationError: They cannot.
        """

    def coordinator(
        self, plan: JobPlan, positions: Mapping[str, Any] | None, rules: InputRules, files: PositionFiles
    ) -> SourceCoordinator:
        """Return what assigns the splits of the sources."""
        return SourceCoordinator(plan, positions, self.source_tasks, rules, files=files)

    # Engine

    def prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int, rules: InputRules) -> None:
        plan = job.plan
        refuse_unsupported_steps(plan)
        refuse_unsupported_inputs(plan)
        history = Configuration(dict(job.configuration)).get(LATENCY_HISTORY)
        if history < 1:
            raise ConfigurationError(f"{LATENCY_HISTORY.key} is {history}: it must be 1 or more.")
        self._has_failed = False
        self._barriers = {}
        self._job = job
        self.check_plan(plan)
        self._files = JobPositionFiles(job.directory(), token)
        self._sources = self.coordinator(plan, positions, rules, self._files)
        self._sources.on_discovered = self._on_discovered

    def check_plan(self, plan: JobPlan) -> None:
        counts = [tasks for _, tasks in self._stages(plan)]
        workers = [counts[group[0]] for group in _sharing_workers(counts)]
        self.check(plan, workers, is_running=self._group is not None)

    def update_plan(self, job: JobDescriptor) -> None:
        self._end_tasks()
        self._job = job
        assert self._sources is not None
        self._sources.restart()

    def drive(self, driver: EpochDriver) -> Outcome:
        assert self._sources is not None
        self._driver = driver
        while not driver.is_stopping:
            is_last = self._sources.is_exhausted and not self._barriers
            driver.process(RealTimeInput(self._sources, is_last))
            if is_last:
                return Outcome.ENDED
        return Outcome.STOPPED

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> EpochReport:
        assert self._sources is not None
        if epoch.epoch not in self._barriers:  # it was not begun early by `_trigger_next`
            if self._group is None:
                self._launch(epoch)
            else:
                self._send_epoch("epoch", epoch)
            self._wait_until_due(epoch)
            self._trigger(epoch)
        barrier = self._barriers[epoch.epoch]
        failure = self._wait_for_acknowledgements(barrier)
        with self._changed:
            del self._barriers[epoch.epoch]
        if failure is not None:
            if epoch.is_last:  # event time has ended in the tasks
                raise CheckpointError(
                    "The last checkpoint failed. It is not tolerated, because no later one can replace it:",
                    str(failure),
                ) from failure
            raise EpochAbandonedError(str(failure), failure)
        reports = {task: self._unaccepted(parts) for task, parts in barrier.reports.items()}
        self._accepted, self._has_failed = epoch.epoch, False
        self._files.epoch = epoch.epoch
        self._sources.acknowledge([message["positions"] for message in barrier.messages.values()])
        return EpochReport(
            tuple(
                tuple(reports[task] for task in self._tasks_of(stage.index))
                for stage, _ in self._stages(self._job.plan)
            )
        )

    def process_all_available(self, ended: threading.Event) -> None:
        """Raise `ConfigurationError`: sources in tasks do not know where their present input ends."""
        raise ConfigurationError(
            "process_all_available() is not for real-time jobs, whose sources have no present end: a partition of "
            "Kafka may end with records that nobody gets, files are opened as tasks have time, and a rate goes on. "
            "Use trigger_checkpoint().result() to wait until all that was read so far is processed and committed, or "
            "a bounded source and await_termination()."
        )

    def close(self) -> None:
        self._end_tasks()
        if self._sources is not None:
            self._sources.close()
            self._sources = None

    # Metrics

    def task_metrics(self) -> dict[TaskKey, RealTimeMetrics]:
        now = time.monotonic()
        with self._changed:
            if self._server is None:
                return {}
            return {
                task: metrics if now - at < _SILENT_SECONDS else metrics.of_busy_task()
                for task, (at, metrics) in self._metrics.items()
            }

    def source_metrics(self) -> Mapping[str, SourceStatistics]:
        found: dict[str, SourceStatistics] = {}
        for uid, subtasks in by_operator(self.task_metrics()).items():
            known = [one.rates.pending for one in subtasks if one.rates.pending is not None]
            if known:
                found[uid] = SourceStatistics(records=sum(known))
        return found

    # Tasks

    @property
    def _control(self) -> ControlServer:
        assert self._server is not None
        return self._server

    def _stages(self, plan: JobPlan) -> list[tuple[Stage, int]]:
        """Return the stages with their numbers of tasks; the first one reads the sources."""
        [epoch_job] = plan.epoch_jobs
        return [(stage, stage.tasks) for stage in epoch_job.stages]

    @property
    def _first_stage(self) -> int:
        return self._job.plan.epoch_jobs[0].stages[0].index

    def _tasks_of(self, stage: int) -> list[TaskKey]:
        number = next(tasks for one, tasks in self._stages(self._job.plan) if one.index == stage)
        return [(stage, partition) for partition in range(number)]

    def _all_tasks(self) -> list[TaskKey]:
        return [task for stage, _ in self._stages(self._job.plan) for task in self._tasks_of(stage.index)]

    def _launch(self, epoch: EpochDescriptor) -> None:
        assert self._sources is not None
        attempt = int(new_nonce(), 16) % 2**63
        server = ControlServer(
            *self.control_hosts(), attempt, self._on_message, self._on_connected, self._on_lost, self._heartbeat
        )
        with self._changed:
            self._server = server
            self._connected, self._lost, self._failure = {}, set(), None
            self._barriers, self._accepted = {}, 0
            self._assigned, self._drained = dict.fromkeys(range(self.source_tasks), 0), {}
            self._metrics = {}
            self._limits = AlignmentLimits({uid: one.alignment for uid, one in self._job.plan.aligned.items()})
        numbered = self._stages(self._job.plan)
        counts = [tasks for _, tasks in numbered]
        stages = [
            RealTimeStage(
                stage=stage.index,
                producers=counts[at - 1] if at else 0,
                consumers=counts[at + 1] if at + 1 < len(counts) else 0,
                attempt=attempt,
                address=server.address,
                is_aligned=self._is_aligned,
                alignment_limit=self._alignment_limit,
                frame_bytes=self.frame_bytes(),
                flush_seconds=_flush_seconds(counts, at),
            )
            for at, (stage, _) in enumerate(numbered)
        ]
        groups = _sharing_workers(counts)
        job = replace(
            self._job,
            key=f"{self._job.key}-{attempt}",
            split_sources=self._sources.split_sources,
            control_secret=server.secret,
        )
        self._group = self.start_tasks(
            job, [[stages[at] for at in group] for group in groups], [counts[group[0]] for group in groups]
        )
        expected = set(self._all_tasks())
        self._wait_for_tasks(expected)
        self._send_epoch("start", epoch)
        self._triggered_at = time.monotonic()

    def _send_epoch(self, kind: str, epoch: EpochDescriptor) -> None:
        """Send each task its state as it is accepted."""
        assert self._sources is not None
        decided = min(self._barriers, default=epoch.epoch) - 1
        splits = self._sources.assignments()
        first = self._first_stage
        if kind == "start":
            self._count(splits)
            self._no_more_splits = self._sources.fully_assigned
        for stage, tasks in self._stages(self._job.plan):
            message = StageMessage.of(epoch, stage)
            for partition in range(tasks):
                values: dict[str, Any] = {
                    "epoch": message.for_task(partition),
                    "accepted": self._accepted,
                    "decided": decided,
                }
                if kind == "start":
                    values["splits"] = splits.get(partition, {}) if stage.index == first else {}
                    values["no_more_splits"] = self._no_more_splits
                self._control.send((stage.index, partition), kind, **values)
        if kind != "start":
            self._send_splits(splits)

    def _count(self, splits: Assignments) -> None:
        for partition, own in splits.items():
            self._assigned[partition] += sum(map(len, own.values()))

    def _send_splits(self, splits: Assignments) -> None:
        assert self._sources is not None
        self._count(splits)
        before, self._no_more_splits = self._no_more_splits, self._sources.fully_assigned
        for partition in range(self.source_tasks) if self._no_more_splits != before else splits:
            self._control.send(
                (self._first_stage, partition),
                "splits",
                splits=splits.get(partition, {}),
                no_more_splits=self._no_more_splits,
            )

    def _end_tasks(self) -> None:
        """Stop the tasks, or cancel them if they do not end. Never raises."""
        group, self._group = self._group, None
        server, self._server = self._server, None
        if server is not None and group is not None and group.is_running:
            for task in self._tasks_of(self._first_stage):
                server.send(task, "stop")
            if not group.wait(_STOP_SECONDS):
                group.cancel()
        if server is not None:
            server.close()

    # Waiting

    def _wait_until_due(self, epoch: EpochDescriptor) -> None:
        """Block until the epoch is to end: at the interval, at the end of the input, or if somebody requests it."""
        assert self._sources is not None and self._driver is not None
        began = time.monotonic()
        due = max(self._triggered_at + self._interval, began + self._min_pause)
        # After a failed checkpoint also a request waits, so that a lasting failure does not keep the tasks busy.
        pause = max(self._min_pause, min(self._interval, _RETRY_SECONDS)) if self._has_failed else 0.0
        while not epoch.is_last and not self._driver.is_stopping:
            self._check_tasks()
            self._send_splits(self._sources.assignments())
            now = time.monotonic()
            left = began + pause - now if self._driver.has_requests or self._has_read_all else due - now
            if left <= 0:
                return
            if self._driver.has_requests:
                time.sleep(min(left, _POLL_SECONDS))
            else:
                self._driver.wait(min(left, self._sources.seconds_to_discovery(), _LOOK_SECONDS))

    @property
    def _has_read_all(self) -> bool:
        """Whether the tasks have read bounded sources to their ends."""
        assert self._sources is not None
        has_all = self._sources.fully_assigned == self._sources.uids
        return has_all and self._drained == self._assigned

    def _trigger(self, epoch: EpochDescriptor) -> None:
        """Begin the checkpoint of an epoch, and send its barrier into the sources."""
        driver = self._driver
        assert driver is not None
        barrier = _Barrier(epoch)
        try:
            barrier.checkpoint = driver.begin_checkpoint(epoch.epoch, self._participants())
        except CheckpointError as error:
            barrier.failure = error
        with self._changed:
            self._barriers[epoch.epoch] = barrier
        self._triggered_at = time.monotonic()
        if barrier.failure is not None:
            self._abandon(barrier)
            return
        now = time.time_ns() // 1000
        for task in self._tasks_of(self._first_stage):
            self._control.send(task, "trigger", epoch=epoch.epoch, time=now)

    def _wait_for_acknowledgements(self, barrier: _Barrier) -> CheckpointError | None:
        """Block until all tasks have acknowledged a barrier, or it is abandoned. Others may follow it meanwhile.

        Returns:
            Why it is abandoned; None if it is not.
        """
        assert self._sources is not None
        number = len(self._all_tasks())
        while True:
            for one in list(self._barriers.values()):
                if one.failure is None:
                    self._pass_answers(one)
            if barrier.failure is not None or len(barrier.reports) == number:
                return barrier.failure
            self._check_tasks()
            self._send_splits(self._sources.assignments())  # so that new splits do not wait for the barrier
            self._trigger_next(barrier)
            with self._changed:
                if not any(one.has_news for one in self._barriers.values() if one.failure is None):
                    self._changed.wait(min(_POLL_SECONDS, self._sources.seconds_to_discovery()))

    def _pass_answers(self, barrier: _Barrier) -> None:
        """Give the coordinator what tasks have answered to a barrier; abandon it if its checkpoint was aborted."""
        checkpoint = barrier.checkpoint
        assert checkpoint is not None
        with self._changed:
            arrived = {task: message for task, message in barrier.messages.items() if task not in barrier.reports}
            declines, barrier.declines = barrier.declines, []
        for task, message in arrived.items():
            parts = [(part, TaskReport.from_json(dict(report))) for part, report in message["reports"]]
            barrier.reports[task] = parts
            checkpoint.acknowledge(self._unaccepted(parts))
        for task, message in declines:
            reason = CheckpointError(CheckpointFailureReason[message["reason"]], message["message"])
            checkpoint.decline(self._connected[task], reason)
        barrier.failure = checkpoint.failure
        if barrier.failure is not None:
            self._abandon(barrier)

    def _unaccepted(self, parts: Sequence[tuple[int, TaskReport]]) -> TaskReport:
        """Return one report with all that a task has written since the last barrier that was accepted."""
        first, *others = [report for part, report in parts if part > self._accepted]
        for report in others:
            first = report.after(first, self._job.plan.clocks)
        return first

    def _trigger_next(self, barrier: _Barrier) -> None:
        """Let the next barrier follow one that is under way, if it is due and so many may be."""
        pending = sum(one.failure is None for one in self._barriers.values())
        # The last epoch begins when no barrier is under way: never, if barriers took longer than the interval.
        if pending >= self._max_concurrent or barrier.epoch.is_last or self._has_read_all:
            return
        if time.monotonic() < self._triggered_at + self._interval:
            return
        assert self._driver is not None
        following = self._driver.begin_next_epoch()
        if following is not None:
            self._send_epoch("epoch", following)
            self._trigger(following)

    def _participants(self) -> list[CheckpointParticipant]:
        return [
            CheckpointParticipant(execution_id(self._connected[stage.index, partition], step.uid), step.uid, partition)
            for stage, tasks in self._stages(self._job.plan)
            for partition in range(tasks)
            for step in stage.steps
            if has_subtask(step, partition)
        ]

    def _abandon(self, barrier: _Barrier) -> None:
        """Tell the tasks to go on without a barrier."""
        self._has_failed = True
        for task in self._all_tasks():
            self._control.send(task, "abort", epoch=barrier.epoch.epoch)

    def _wait_for_tasks(self, expected: set[TaskKey]) -> None:
        """Block until all tasks have connected."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with self._changed:
                if self._connected.keys() >= expected:
                    return
                self._changed.wait(_POLL_SECONDS)
            self._check_tasks()
            if time.monotonic() > deadline:
                raise EngineUnavailableError(
                    f"The start of all tasks took over {_START_SECONDS:.0f} s. Tasks that did not answer: "
                    f"{sorted(expected - self._connected.keys())}."
                )

    def _check_tasks(self) -> None:
        """Raise the failure of the tasks.

        Raises:
            HoldfastError: They have failed, or ended by themselves.
        """
        group, server = self._group, self._server
        assert group is not None and server is not None
        if group.is_running and not self._lost and self._failure is None:
            return
        self.failed_at = time.monotonic()
        # A task whose process was killed says nothing. The group knows why, a moment later.
        deadline = time.monotonic() + _STOP_SECONDS
        while (failure := self._failure or group.failure) is None and group.is_running and time.monotonic() < deadline:
            group.wait(_POLL_SECONDS)
        self._group = self._server = None
        server.close()  # tasks end without it
        group.cancel()
        raise failure or EngineUnavailableError(f"The connections to the tasks {sorted(self._lost)} were lost.")

    def _wake_driver(self) -> None:
        if self._driver is not None:
            self._driver.wake()

    def _on_discovered(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._wake_driver()

    # Called by the threads of connections. Those of an earlier launch change nothing any more.

    def _on_connected(self, server: ControlServer, task: TaskKey, execution: str) -> None:
        with self._changed:
            if server is self._server:
                if task in self._connected:
                    self._lost.add(task)  # Spark runs it again. The first execution may not have noticed anything
                    self._wake_driver()
                self._connected[task] = execution
                self._changed.notify_all()

    def _on_lost(self, server: ControlServer, task: TaskKey) -> None:
        with self._changed:
            if server is self._server:
                self._lost.add(task)
                self._changed.notify_all()
                self._wake_driver()

    def _on_message(self, server: ControlServer, task: TaskKey, message: Message) -> None:
        kind = message.get("kind")
        if kind == "granted":
            for partition, sequence in enumerate(message["frames"]):
                producer = task[0] - 1, partition
                server.send(producer, "grant", consumer=task[1], frames=sequence, bytes=message["bytes"])
            return
        if kind == "watermarks":
            self._limit_sources(server, task, message["watermarks"])
            return
        with self._changed:
            if server is not self._server:
                return
            if kind in ("acknowledge", "decline"):
                barrier = self._barriers.get(message["epoch"])
                if barrier is None or barrier.failure is not None:
                    logger.debug("ignored %s of task %s for epoch %s, which is over", kind, task, message["epoch"])
                elif kind == "acknowledge":
                    barrier.messages[task] = message
                else:
                    barrier.declines.append((task, message))
            elif kind == "metrics":
                self._metrics[task] = time.monotonic(), RealTimeMetrics.from_json(message["metrics"])
                return
            elif kind == "drained":
                self._drained[task[1]] = message["splits"]
                self._wake_driver()
            elif kind == "failed":
                # Others may fail because this one did.
                self._failure = self._failure or error_from_json(message["error"])
                self._wake_driver()
            else:
                raise ValueError(f"task {task} sent a message of the unknown kind {kind!r}")
            self._changed.notify_all()

    def _limit_sources(self, server: ControlServer, task: TaskKey, watermarks: Mapping[str, int | None]) -> None:
        """Record the watermarks of a task, and send all tasks that read sources the limits that follow from them."""
        with self._sends_limits:  # in the order in which they are computed
            with self._changed:
                limits = self._limits if server is self._server else None
            if limits is not None and limits.report(task[1], watermarks):
                logger.debug("the limits of aligned sources are %s", limits.limits)
                for one in self._tasks_of(self._first_stage):
                    server.send(one, "limits", limits=limits.limits)


def refuse_unsupported_steps(plan: JobPlan) -> None:
    """Reject steps that a real-time job cannot run.

    Raises:
        ConfigurationError: There is one.
    """
    if len(plan.epoch_jobs) > 1:
        raise ConfigurationError(
            "transform() behind a Python operator is a function of the rows of an epoch, which a real-time job does "
            f"not have: use map(), process() or another operator, or {_BY_EPOCHS}."
        )
    for edge in plan.edges:
        if edge.key is not None and edge.key.spec.order_by:
            raise ConfigurationError(
                f"order_by of {edge.consumer!r} sorts the rows of an epoch, which a real-time job does not have: use "
                f"event time, or {_BY_EPOCHS}."
            )


def _continues_worker(tasks: Sequence[int], at: int) -> bool:
    """Return whether a stage runs in the worker of the one before, by the number of tasks of each stage."""
    return at > 0 and tasks[at - 1] == tasks[at] == 1


def _sharing_workers(tasks: Sequence[int]) -> list[list[int]]:
    """Return the places of the stages, those together that share their workers."""
    groups: list[list[int]] = []
    for at in range(len(tasks)):
        if _continues_worker(tasks, at):
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _flush_seconds(tasks: Sequence[int], at: int) -> float:
    """Return for how long elements may wait for others: a message costs about a millisecond of a core.

    Within a worker it costs less, and elements have waited in the first stage.
    """
    consumers = tasks[at + 1] if at + 1 < len(tasks) else 0
    if _continues_worker(tasks, at) and consumers <= 1:
        return 0.0
    return min(0.05, max(0.002, 0.001 * tasks[at] * consumers))
