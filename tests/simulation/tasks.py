"""The tasks of an epoch, as attempts that may run beside each other, be repeated, and come late.

What they write goes where real tasks write, through the real file system, under real names; only the work on state is
that of `workload`. Barriers, their agreement and all that follows are the real code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.errors import EngineError, HoldfastError, StorageError, UnsharedStorageError
from holdfast.kernel.key_group import range_of, subtask_of
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor
from holdfast.runtime.exchange.task_report import (
    MarkerFormat,
    MarkerReader,
    StepReport,
    TaskReport,
    decode_report,
    encode_report,
)
from holdfast.runtime.function.sink import WriterInitContext, owner_of
from holdfast.runtime.graph.plan import Stage, Step
from holdfast.runtime.job.engine import EpochDriver, EpochInput, Outcome, StagedInput
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import SHARED, TASK_OWNED, FileName
from holdfast.testing.epoch_runner import LocalEngine, LocalInput
from tests.simulation import workload
from tests.simulation.evidence import Evidence
from tests.simulation.settings import Settings
from tests.simulation.workload import LEDGER, PARITY, LightSink, Row
from tests.simulation.world import Actor, Killed, Process, World

_TRIES = 3


@dataclass
class TaskResult:
    """What one attempt of a task has left: what it says, the control row for each task below, and its rows."""

    content: bytes
    controls: list[bytes]
    rows: list[Row]


@dataclass
class Attempt:
    """One attempt of one task."""

    partition: int
    result: TaskResult | None = None
    error: BaseException | None = None
    actor: Actor | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None or (self.actor is not None and self.actor.is_done)


@dataclass
class Reading:
    """What a task reads: rows, and the control rows of the tasks above."""

    rows: list[Any] = field(default_factory=list)
    controls: list[bytes] = field(default_factory=list)


class SimulatedEngine(LocalEngine):
    """Runs the tasks of a job in executors, which are processes of their own.

    Args:
        world: The world.
        inputs: Elements of each epoch.
        settings: How likely tasks run beside each other, and have second attempts.
    """

    def __init__(self, world: World, inputs: Sequence[Sequence[workload.Payment]], settings: Settings) -> None:
        super().__init__([{"payments": epoch} for epoch in inputs], is_bounded=True)
        self._world, self._settings = world, settings
        self._executor: Process | None = None

    def update_plan(self, job: JobDescriptor) -> None:
        self._job = job
        self._plan = job.plan
        self._directory = job.directory()

    def services(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        """Executors outlive what they run for a while."""

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> list[TaskReport]:
        first, second = self._plan.epoch_jobs[0].stages
        assert epoch_input is None or isinstance(epoch_input, LocalInput)
        elements = [] if epoch_input is None else list(epoch_input.elements["payments"])
        reading = [Reading() for _ in range(first.tasks)]
        for payment in elements:
            reading[_subtask(first, LEDGER, payment[1])].rows.append(payment)
        above = self._run_stage_of(first, epoch, reading)
        reading = [self._read(second, at, above) for at in range(second.tasks)]
        last = self._run_stage_of(second, epoch, reading)
        contents = [self._one_of(attempts).content for attempts in last]
        return [decode_report(content, self._directory) for content in self._answers(contents)]

    def drive(self, driver: EpochDriver) -> Outcome:
        return super().drive(Idling(driver, self._world, self._settings.idle))

    def _answers(self, contents: list[bytes]) -> list[bytes]:
        """What reaches the driver: usually one answer of each task."""
        if self._world.choices.chance(self._settings.again / 4):
            at = self._world.choices.below(2 * len(contents))
            if at < len(contents):
                self._world.note("answer lost: task")
                return contents[:at] + contents[at + 1 :]
            self._world.note("answer twice: task")
            return [*contents, contents[at - len(contents)]]
        return contents

    def _read(self, stage: Stage, at: int, above: Sequence[Sequence[TaskResult]]) -> Reading:
        """What one task reads: of each task above some attempt, which another reader may read of another attempt.

        What an attempt left for the task comes as a whole, but it may come twice, or not at all.
        """
        reading = Reading()
        for attempts in above:
            chosen = self._one_of(attempts)
            mine = [row for row in chosen.rows if _subtask(stage, PARITY, workload.parity_of(row)) == at]
            for _ in range(self._times()):
                reading.controls.append(chosen.controls[at])
                reading.rows += mine
        return reading

    def _times(self) -> int:
        """How often a task reads what one above has left for it."""
        if self._world.choices.chance(self._settings.again / 16):
            if self._world.choices.below(2):
                self._world.note("read twice: task")
                return 2
            self._world.note("not read: task")
            return 0
        return 1

    def _one_of(self, attempts: Sequence[TaskResult]) -> TaskResult:
        if len(attempts) == 1:
            return attempts[0]
        at = self._world.choices.below(len(attempts))
        if at:
            self._world.note("another attempt's rows: task")
        return attempts[at]

    def _run_stage_of(self, stage: Stage, epoch: EpochDescriptor, reading: Sequence[Reading]) -> list[list[TaskResult]]:
        choices, job = self._world.choices, self._job
        together = choices.chance(self._settings.beside)
        attempts: list[Attempt] = []
        for partition, what in enumerate(reading):
            again = choices.chance(self._settings.again)
            if not together and not again:
                attempts.append(self._here(stage, epoch, partition, what))
                continue
            for _ in range(2 if again else 1):
                attempts.append(self._beside_here(Task(self._world, job, stage, epoch, partition, what)))
            if again:
                self._world.note("second attempt: task")
        results = []
        for partition in range(len(reading)):
            results.append(self._results(stage, epoch, partition, reading[partition], attempts))
        return results

    def _results(
        self, stage: Stage, epoch: EpochDescriptor, partition: int, what: Reading, attempts: Sequence[Attempt]
    ) -> list[TaskResult]:
        """What there is of a task as soon as one attempt has ended well; others may still be running."""
        mine = [attempt for attempt in attempts if attempt.partition == partition]
        for _ in range(_TRIES):
            if not any(one.result for one in mine) and not all(one.is_done for one in mine):
                self._world.block(lambda: any(one.result for one in mine) or all(one.is_done for one in mine), None)
            found = [one.result for one in mine if one.result is not None]
            if found:
                return found
            mine.append(self._beside_here(Task(self._world, self._job, stage, epoch, partition, what)))
        raise EngineError(f"task {partition} of stage {stage.index} failed {_TRIES} times") from mine[0].error

    def _here(self, stage: Stage, epoch: EpochDescriptor, partition: int, what: Reading) -> Attempt:
        """Runs a task in the thread of the driver, which costs no switch."""
        attempt = Attempt(partition)
        try:
            attempt.result = Task(self._world, self._job, stage, epoch, partition, what).run()
        except HoldfastError as error:
            attempt.error = error
        return attempt

    def _beside_here(self, task: Task) -> Attempt:
        attempt = Attempt(task.partition)

        def body() -> None:
            try:
                attempt.result = task.run()
            except HoldfastError as error:
                attempt.error = error

        if self._executor is None or self._executor.is_dead:
            driver = self._world.current
            assert driver is not None
            self._executor = Process(self._world, f"executor of {driver.process.name}")
        attempt.actor = self._world.spawn(self._executor, f"task {task.partition}", body)
        return attempt


class Idling:
    """The driver of epochs, whose input does not always come at once."""

    def __init__(self, driver: EpochDriver, world: World, idle: float) -> None:
        self._driver, self._world, self._idle = driver, world, idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def process(self, epoch_input: EpochInput) -> None:
        """Runs an epoch when its input is there."""
        if self._world.choices.chance(self._idle):
            self._driver.wait((0.1, 0.5, 2.0)[self._world.choices.below(3)])
            self._driver.tick_if_due()
        self._driver.process(epoch_input)


class Task:
    """One attempt of one task of one stage."""

    def __init__(
        self, world: World, job: JobDescriptor, stage: Stage, epoch: EpochDescriptor, partition: int, what: Reading
    ) -> None:
        self._world, self._job, self._stage, self._epoch, self._what = world, job, stage, epoch, what
        self.partition = partition
        self._directory = job.directory()
        self._mark = world.nonce(8)

    def run(self) -> TaskResult:
        """Reads state, works, writes, and says so.

        Raises:
            HoldfastError: What made it fail.
        """
        self._require_shared_storage()
        form = MarkerFormat(())
        above = MarkerReader(form)
        for control in self._what.controls:
            above.add(control)
        rows: list[Any] = self._what.rows
        reports = []
        for step in self._stage.steps:
            if step.kind == "keyed":
                rows, report = self._keyed(step, rows)
            else:
                report = self._sink(step, rows)
            reports.append(report)
        barrier = TaskReport(
            stage=self._stage.index,
            partition=self.partition,
            attempt=f"{self._stage.index}-{self.partition}-{self._mark}",
            steps=tuple(reports),
            read=above.digest(),
            read_attempts=above.read_attempts() if self._epoch.try_number else (),
        )
        content = encode_report(barrier, self._directory, lambda: self._name("barrier"), above.reports())
        below = [other.tasks for other in self._job.plan.stages if other.index == self._stage.index + 1]
        marker = form.marker(barrier.head, {})
        controls = [row for tasks in below for row in form.rows(marker, content, self.partition, tasks)]
        return TaskResult(content, controls, rows)

    def _require_shared_storage(self) -> None:
        if not self._directory.fs.exists(self._directory.absolute(self._job.nonce_file)):
            raise UnsharedStorageError("this worker cannot see the nonce file")

    def _keyed(self, step: Step, rows: Sequence[Any]) -> tuple[list[Row], StepReport]:
        key_groups = range_of(self.partition, step.max_parallelism, step.parallelism)
        version = self._epoch.versions.get(step.uid, StateVersion()).for_range(key_groups)
        state = {
            key: value
            for key, value in self._state(version).items()
            if workload.group_of(key, step.max_parallelism) in key_groups
        }
        before = dict(state)
        work: Callable[..., list[Row]] = workload.number_payments if step.uid == LEDGER else workload.count_parities
        out = work(state, rows, self._mark)
        changed = {key: value for key, value in state.items() if before.get(key) != value}
        run = None
        if changed:
            path = f"{SHARED}/{self._name(owner_of(step.uid)).format()}"
            groups = (key_groups.start, key_groups.end)
            run = write_run(self._directory, path, changed, groups, self._job.token, self._epoch.epoch).to_json()
        return out, StepReport(step.uid, self.partition, run=run, records_in=len(rows), records_out=len(out))

    def _state(self, version: StateVersion) -> dict[str, Row]:
        state: dict[str, Row] = {}
        for run in version.runs:
            state.update(read_run(self._directory, run))
        return state

    def _sink(self, step: Step, rows: Sequence[Row]) -> StepReport:
        assert isinstance(step.sink, LightSink)
        context = WriterInitContext(
            job_id=self._job.job_id,
            uid=step.uid,
            epoch=self._epoch.epoch,
            subtask=self.partition,
            parallelism=self._stage.tasks,
            attempt=self._epoch.try_number,
            token=self._job.token,
            input_type=step.input_type,
            staging_dir=join(self._job.job_root, TASK_OWNED),
            processing_time=self._epoch.processing_time,
            incarnation=self._job.incarnation,
            target=self._job.targets.get(step.uid),
        )
        committables = step.sink.create_writer(context).stage(rows)
        return StepReport(step.uid, self.partition, committables=tuple(committables), records_in=len(rows))

    def _name(self, owner: str) -> FileName:
        return FileName.new(self._job.token, self._epoch.epoch, self._epoch.try_number, owner, self.partition)


def write_run(
    directory: Any,
    path: str,
    rows: Mapping[str, Row],
    key_groups: tuple[int, int],
    token: int,
    epoch: int,
    lineage: Any = None,
) -> RunHandle:
    """Writes a run whose content is JSON, durably."""
    data = json.dumps(rows, sort_keys=True).encode()
    directory.fs.write_atomic(directory.absolute(path), data)
    digest = hashlib.sha256(data).hexdigest()
    return RunHandle(path, len(data), 0, digest, key_groups, {"state": len(rows)}, token, epoch, {}, lineage)


def read_run(directory: Any, run: RunHandle) -> dict[str, Row]:
    """Reads a run, which must be the one that was written."""
    data = bytes(directory.fs.mmap(directory.absolute(run.path)))
    if hashlib.sha256(data).hexdigest() != run.digest:
        raise StorageError(f"{run.path!r} is not what was written")
    found: dict[str, Row] = json.loads(data)
    return found


def state_of(operator: OperatorMetadata, root: str, evidence: Evidence) -> dict[str, Row]:
    """What the runs of an operator say of each key."""
    state: dict[str, Row] = {}
    for run in operator.runs:
        state.update(evidence.content(f"{root}/{run.path}"))
    return state


def _subtask(stage: Stage, uid: str, key: str) -> int:
    step = next(step for step in stage.steps if step.uid == uid)
    return subtask_of(workload.group_of(key, step.max_parallelism), step.max_parallelism, step.parallelism)


__all__ = ["Killed", "SimulatedEngine"]
