"""The steps of a level at work in one task: a keyed operator, an operator without keys, or a sink.

All three take chunks and may emit chunks; at the end of the input they emit what is left, and report what they made
durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from holdfast.errors import CorruptFileError, HoldfastError, NotExistError
from holdfast.kernel.key_group import range_of
from holdfast.runtime.barrier import StepReport
from holdfast.runtime.chunk import Chunk
from holdfast.runtime.descriptor import EpochDescriptor
from holdfast.runtime.operator import OperatorSubtask, SubtaskInfo, user_error
from holdfast.runtime.operator_state import TaskSnapshotStore, inline_limit
from holdfast.runtime.plan import Step
from holdfast.runtime.queryable_names import QueryableNames
from holdfast.runtime.sink import WriterContext, WriterInitContext, owner_of
from holdfast.runtime.worker import LoadedJob
from holdfast.state.backend import OperatorStateBackend
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.version import StateVersion
from holdfast.storage.job_directory import SHARED, TASK_OWNED
from holdfast.storage.naming import FileName
from holdfast.storage.os_error import translate
from holdfast.storage.path import is_absolute, join

if TYPE_CHECKING:
    from holdfast.runtime.task import TaskIdentity


class StepRun(ABC):
    """One step in one task."""

    def __init__(self, step: Step, subtask: int) -> None:
        self.step = step
        self.subtask = subtask
        self.records_in = 0
        self.records_out = 0

    @abstractmethod
    def accept(self, chunk: Chunk) -> Chunk | None:
        """Processes elements; returns what came out, if anything reads it."""

    def end_of_input(self) -> Chunk | None:
        """All elements have been accepted, upstream timers included."""
        return None

    def side_outputs(self) -> dict[str, list[Any]]:
        """What was sent to side outputs since the last call."""
        return {}

    @abstractmethod
    def report(self) -> StepReport:
        """Makes durable what this step has changed or staged, and says what that is."""

    def succeeded(self) -> None:  # noqa: B027 - most steps have nothing to do
        """Every step of the task has reported."""

    def abort(self) -> None:  # noqa: B027 - most steps have nothing to do
        """The task has failed; never raises."""

    def _emitted(self, elements: list[Any]) -> Chunk:
        self.records_out += len(elements)
        return Chunk(self.step.output_type, self.step.uid, elements=elements)


class OperatorRun(StepRun):
    """An operator without keys.

    Args:
        step: The operator.
        subtask: It at work.
        given: The operator state that it began with.
    """

    def __init__(self, step: Step, subtask: OperatorSubtask, given: OperatorSnapshot | None = None) -> None:
        super().__init__(step, subtask.info.subtask)
        self._operator = subtask
        self._given = given

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        return self._emitted(self._operator.process(chunk.elements))

    def accept_broadcast(self, chunk: Chunk) -> Chunk:
        """Processes elements of which every subtask gets a copy; they count once."""
        self.records_in += 0 if self.subtask else len(chunk)
        return self._emitted(self._operator.process_broadcast(chunk.elements))

    def side_outputs(self) -> dict[str, list[Any]]:
        return self._operator.take_side_outputs() if self._operator.side_outputs else {}

    def report(self) -> StepReport:
        state = self._saved_state()
        return StepReport(
            self.step.uid,
            self.subtask,
            records_in=self.records_in,
            records_out=self.records_out,
            operator_state=state,
        )

    def _saved_state(self) -> dict[str, Any] | None:
        """Lets the function save its state and writes it; None if it is as it was."""
        self._operator.snapshot_state()
        state = self._operator.operator_state
        snapshot = None if state is None else state.snapshot()
        return None if snapshot is None or snapshot == self._given else snapshot.to_json()


class KeyedRun(OperatorRun):
    """An operator with keyed state."""

    def __init__(
        self,
        step: Step,
        subtask: OperatorSubtask,
        job: LoadedJob,
        epoch: EpochDescriptor,
        names: QueryableNames,
        given: OperatorSnapshot | None = None,
    ) -> None:
        super().__init__(step, subtask, given)
        self._names = names
        assert subtask.backend is not None
        self._backend = subtask.backend
        self._epoch = epoch
        self._token = job.descriptor.token
        self._takes_batches = step.operator is not None and step.operator.shape == "batches"

    def accept(self, chunk: Chunk) -> Chunk:
        raise AssertionError(f"elements without a key arrived at {self.step.uid!r}")

    def accept_keyed(self, chunk: Chunk, dict_keys: list[Any], hashes: npt.NDArray[np.uint64]) -> Chunk:
        """Processes elements with their canonical keys and hashes."""
        self.records_in += len(chunk)
        if self._takes_batches:
            batch = self._operator.process_batch(chunk.batch, dict_keys, hashes)
            self.records_out += batch.num_rows
            return Chunk(self.step.output_type, self.step.uid, batch=batch)
        return self._emitted(self._operator.process(chunk.elements, dict_keys, hashes))

    def end_of_input(self) -> Chunk:
        fired = self._operator.advance_watermark(self._epoch.watermark)
        fired += self._operator.fire_processing_time(self._epoch.processing_time)
        return self._emitted(fired)

    def report(self) -> StepReport:
        state = self._saved_state()
        run = self._backend.flush(self._new_path, self._token, self._epoch.epoch)
        return StepReport(
            self.step.uid,
            self.subtask,
            run=None if run is None else run.to_json(),
            records_in=self.records_in,
            records_out=self.records_out,
            least_timer=self._backend.timers.least_processing_time(),
            operator_state=state,
            queryable=self._names.names(),
        )

    def succeeded(self) -> None:
        self._backend.commit_cache()

    def abort(self) -> None:
        self._backend.drop_cache()

    def _new_path(self) -> str:
        name = FileName.new(self._token, self._epoch.epoch, self._epoch.attempt, owner_of(self.step.uid), self.subtask)
        return f"{SHARED}/{name.format()}"


class SinkRun(StepRun):
    """A sink's writer."""

    def __init__(self, step: Step, context: WriterInitContext, epoch: EpochDescriptor) -> None:
        super().__init__(step, context.subtask)
        self._epoch = epoch
        self._context = _ElementContext(epoch.watermark)
        self._writer = self._guard("opening the writer", step.sink.create_writer, context)
        self._write_batch = getattr(self._writer, "write_batch", None)

    def accept(self, chunk: Chunk) -> None:
        self.records_in += len(chunk)
        if self._write_batch is not None:
            self._guard("writing", self._write_batch, chunk.batch)
            return
        write, context = self._writer.write, self._context
        for element in chunk.elements:
            self._guard("writing", write, element, context)

    def report(self) -> StepReport:
        self._guard("flushing", self._writer.flush, self._epoch.is_last)
        committables = tuple(self._guard("preparing the commit", self._writer.prepare_commit))
        self._guard("closing the writer", self._writer.close)
        return StepReport(self.step.uid, self.subtask, committables=committables, records_in=self.records_in)

    def abort(self) -> None:
        try:
            self._writer.abort()
        except Exception:
            # The attempt has failed already; what it staged is swept by name.
            return

    def _guard(self, doing: str, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except HoldfastError:
            raise
        except OSError as error:
            raise translate(error, "write", f"sink {self.step.uid}") from error
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch.epoch, doing) from error


class StageRun(SinkRun):
    """What stages elements for a later leg of the epoch."""

    def report(self) -> StepReport:
        report = super().report()
        staged = tuple(committable["file"] for committable in report.committables)
        return replace(report, committables=(), staged=staged)


class _ElementContext(WriterContext):
    def __init__(self, watermark: int) -> None:
        self._watermark = watermark

    def timestamp(self) -> int | None:
        return None

    def current_watermark(self) -> int:
        return self._watermark


def open_step(job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, step: Step, tasks: int) -> StepRun | None:
    """The step as it runs in this task; None where it has fewer subtasks than the level has tasks."""
    descriptor = job.descriptor
    if step.kind in ("sink", "stage"):
        run = SinkRun if step.kind == "sink" else StageRun
        return run(step, _writer_context(job, epoch, identity, step, tasks), epoch)
    if step.parallelism and identity.partition >= step.parallelism:
        return None
    info = SubtaskInfo(
        uid=step.uid,
        name=step.name,
        job_id=descriptor.job_id,
        subtask=identity.partition,
        parallelism=step.parallelism or tasks,
        max_parallelism=step.max_parallelism,
        epoch=epoch.epoch,
        attempt_number=descriptor.attempt_number,
        processing_time=epoch.processing_time,
        watermark=epoch.previous_watermark,
        is_restored=descriptor.is_restored,
        has_past=descriptor.is_restored or epoch.follows,
        checkpoint_id=epoch.news.next_id,
        restored_checkpoint_id=epoch.news.newest,
        completed_checkpoint_id=epoch.news.completed,
        aborted_checkpoint_ids=epoch.news.aborted,
        parameters=descriptor.parameters,
    )
    opened = job.opened(step, info)
    given = epoch.operator_states[step.uid][info.subtask] if step.uid in epoch.operator_states else None
    state = _operator_state(job, epoch, identity, step, info, given)
    if step.kind == "narrow":
        return OperatorRun(step, OperatorSubtask(opened, info, None, state), given)
    key_groups = range_of(identity.partition, step.max_parallelism, step.parallelism)
    names = QueryableNames(step.uid)
    backend = job.keyed_backend(step, info, key_groups, names)
    version = epoch.versions.get(step.uid, StateVersion()).for_range(key_groups)
    try:
        backend.open_version(version, job.run_files, descriptor.job_root)
    except NotExistError as error:
        raise _gone(job, version, error) from error
    return KeyedRun(step, OperatorSubtask(opened, info, backend, state), job, epoch, names, given)


def _gone(job: LoadedJob, version: StateVersion, error: NotExistError) -> HoldfastError:
    """A run that a version names and that is not there is no better than a damaged one."""
    paths = [join(job.descriptor.job_root, run.path) for run in version.runs if not is_absolute(run.path)]
    missing = [path for path in paths if not job.file_system.exists(path)]
    return CorruptFileError(missing[0], None, "it is not there.") if missing else error


def _operator_state(
    job: LoadedJob,
    epoch: EpochDescriptor,
    identity: TaskIdentity,
    step: Step,
    info: SubtaskInfo,
    given: OperatorSnapshot | None,
) -> OperatorStateBackend | None:
    """The operator state of a subtask; None for a step that has none and was left none."""
    if not step.has_operator_state and given is None:
        return None
    plan, token = job.descriptor.plan, job.descriptor.token
    limit = inline_limit(job.configuration, job.level(identity.level), len(plan.levels))
    store = TaskSnapshotStore(
        job.directory,
        lambda: FileName.new(token, epoch.epoch, epoch.attempt, owner_of(step.uid), info.subtask),
        limit,
    )
    state = job.operator_backend(step, info)
    state.restore(given or OperatorSnapshot({}), store)
    return state


def _writer_context(
    job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, step: Step, tasks: int
) -> WriterInitContext:
    return WriterInitContext(
        job_id=job.descriptor.job_id,
        uid=step.uid,
        epoch=epoch.epoch,
        subtask=identity.partition,
        parallelism=tasks,
        attempt=epoch.attempt,
        token=job.descriptor.token,
        input_type=step.input_type,
        staging_dir=f"{job.descriptor.job_root}/{TASK_OWNED}",
        processing_time=epoch.processing_time,
        watermark=epoch.previous_watermark,
    )
