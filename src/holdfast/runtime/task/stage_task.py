"""One task of one stage in one epoch: a pure function from (state versions, input rows) to (output rows, report).

`StageTask` opens the state versions, passes the elements that arrive through the steps of the stage
(`runtime/task/steps.py`), fires timers at the end of its input, writes one run for each keyed step, lets sinks stage,
and emits its report. File names belong to one attempt, so an attempt that fails, is repeated or is late does no damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import (
    CorruptFileError,
    HoldfastError,
    NotExistError,
    NullKeyError,
    OutputTypeError,
)
from holdfast.kernel.failure_text import short_repr
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.key_group import range_of
from holdfast.kernel.watermark import WatermarkGeneratorContext
from holdfast.runtime.exchange.layout import (
    KEY,
    KEY_HASH,
    REPORT_SCHEMA,
    Arrival,
    Chunk,
    MessageLayout,
    MessageWriter,
    RowLayout,
    SourceLayout,
    arriving_layout,
    leaving_layout,
    null_key_error,
)
from holdfast.runtime.exchange.stage_message import EpochDescriptor
from holdfast.runtime.exchange.task_report import (
    TICK,
    MarkerFormat,
    MarkerReader,
    StepReport,
    TaskReport,
    encode_report,
)
from holdfast.runtime.function.sink import WriterInitContext, owner_of
from holdfast.runtime.graph.event_time import Observed, merge_observed
from holdfast.runtime.graph.plan import Edge, KeyPlan, Port, SourcePlan, Stage, Step
from holdfast.runtime.operator import SubtaskInfo, user_error
from holdfast.runtime.task.operator_state import QueryableNames, TaskSnapshotStore, inline_limit
from holdfast.runtime.task.steps import (
    ForwardExecutor,
    KeyedStepExecutor,
    OperatorExecutor,
    SinkExecutor,
    SplitReaderExecutor,
    StagingSinkExecutor,
    StepExecutor,
    TimestampExecutor,
    WatermarkGeneratorExecutor,
)
from holdfast.runtime.task.worker_process import LoadedJob, collect_young, paused_garbage_collection
from holdfast.runtime.window_operator.window_subtask import subtask_class
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.state.version import StateVersion
from holdfast.storage.file_system import is_absolute, join
from holdfast.storage.job_directory import TASK_OWNED, FileName
from holdfast.storage.object_store import REQUESTS
from holdfast.types.arrow import to_event_times
from holdfast.types.key_codec import LazyKeys, lazy_keys
from holdfast.types.type_information import TypeInformation

COLLECT_EVERY: Final = 16
"""Batches between two collections of cycles."""


@dataclass(frozen=True)
class TaskIdentity:
    """One task attempt; no other one has the same `attempt`."""

    stage: int
    partition: int
    attempt: str

    @classmethod
    def fresh(cls, stage: int, partition: int) -> TaskIdentity:
        return cls(stage, partition, new_nonce())


class StepOpener:
    """Opens the steps of one task: their functions, state and writers."""

    def __init__(
        self, job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, writers: dict[str, Any] | None
    ) -> None:
        self._job = job
        self._writers = writers
        self._epoch = epoch
        self._identity = identity
        self._stage = job.stage(identity.stage)

    def open(self, step: Step) -> StepExecutor | None:
        """Return the executor of a step. None where the step has fewer subtasks than the stage has tasks."""
        epoch, partition = self._epoch, self._identity.partition
        if step.kind in ("sink", "staging"):
            executor = SinkExecutor if step.kind == "sink" else StagingSinkExecutor
            return executor(step, self._writer_context(step), epoch, self._writers)
        if step.operator is not None and step.operator.shape == "splits":
            return SplitReaderExecutor(step, partition)
        if step.strategy is not None and step.strategy.supplier is not None:
            before = epoch.event_time.before(step.uid)
            context = WatermarkGeneratorContext(partition, before, epoch.processing_time)
            held = epoch.generators.get(step.uid, {}).get(partition)
            return WatermarkGeneratorExecutor(step, step.strategy, context, epoch.epoch, held)
        if step.strategy is not None:
            return TimestampExecutor(step, step.strategy, partition, epoch.epoch)
        if not has_subtask(step, partition):
            return None
        if step.kind == "forward":
            return ForwardExecutor(step, partition)
        return self._open_operator(step)

    def _open_operator(self, step: Step) -> OperatorExecutor:
        """Open a step with a user's function, and the state of its subtask."""
        job, epoch = self._job, self._epoch
        info = self._subtask_info(step)
        instance = job.instance(step, info)
        base_state = epoch.state_of(step.uid, info.subtask)
        state = self._operator_state(step, info, base_state)
        subtask_type = subtask_class(instance.spec, has_timestamps=step.has_timestamps)
        if step.kind == "narrow":
            return OperatorExecutor(step, subtask_type(instance, info, None, state), base_state)
        key_groups = range_of(info.subtask, step.max_parallelism, step.parallelism)
        names = QueryableNames(step.uid)
        backend = job.keyed_backend(step, info, key_groups, names)
        version = epoch.versions.get(step.uid, StateVersion()).for_range(key_groups)
        try:
            backend.open_version(version, job.run_files, job.descriptor.job_root)
        except NotExistError as error:
            raise self._missing_run_error(version, error) from error
        return KeyedStepExecutor(step, subtask_type(instance, info, backend, state), job, epoch, names, base_state)

    def _subtask_info(self, step: Step) -> SubtaskInfo:
        descriptor, epoch = self._job.descriptor, self._epoch
        return SubtaskInfo(
            uid=step.uid,
            name=step.name,
            job_id=descriptor.job_id,
            subtask=self._identity.partition,
            parallelism=step.parallelism or self._stage.tasks,
            max_parallelism=step.max_parallelism,
            epoch=epoch.epoch,
            attempt_number=descriptor.attempt_number,
            processing_time=epoch.processing_time,
            watermark=epoch.event_time.before(step.uid),
            is_restored=descriptor.is_restored,
            has_past=descriptor.is_restored or epoch.follows,
            checkpoint_id=epoch.notifications.next_id,
            restored_checkpoint_id=epoch.notifications.newest,
            completed_checkpoint_id=epoch.notifications.completed,
            aborted_checkpoint_ids=epoch.notifications.aborted,
            parameters=descriptor.parameters,
        )

    def _missing_run_error(self, version: StateVersion, error: NotExistError) -> HoldfastError:
        """Return the error for a run that a version names and that does not exist: the state is damaged."""
        root = self._job.descriptor.job_root
        paths = [join(root, run.path) for run in version.runs if not is_absolute(run.path)]
        missing = [path for path in paths if not self._job.file_system.exists(path)]
        return CorruptFileError(missing[0], None, "the file does not exist.") if missing else error

    def _operator_state(
        self, step: Step, info: SubtaskInfo, base_state: OperatorSnapshot | None
    ) -> OperatorStateBackend | None:
        """Restore the operator state of a subtask. Return None for a step that has and had none."""
        if not step.has_operator_state and base_state is None:
            return None
        job, epoch = self._job, self._epoch
        plan, token = job.descriptor.plan, job.descriptor.token
        limit = inline_limit(job.configuration, self._stage, plan.epoch_job_of(self._stage.index).stages)
        store = TaskSnapshotStore(
            job.directory,
            lambda: FileName.new(token, epoch.epoch, epoch.try_number, owner_of(step.uid), info.subtask),
            limit,
        )
        state = job.operator_backend(step, info)
        state.restore(base_state or OperatorSnapshot({}), store)
        return state

    def _writer_context(self, step: Step) -> WriterInitContext:
        descriptor, epoch = self._job.descriptor, self._epoch
        return WriterInitContext(
            job_id=descriptor.job_id,
            uid=step.uid,
            epoch=epoch.epoch,
            subtask=self._identity.partition,
            parallelism=self._stage.tasks,
            attempt=epoch.try_number,
            token=descriptor.token,
            input_type=step.input_type,
            staging_dir=f"{descriptor.job_root}/{TASK_OWNED}",
            processing_time=epoch.processing_time,
            watermark=epoch.event_time.before(step.uid),
            incarnation=descriptor.incarnation,
            target=descriptor.targets.get(step.uid),
            is_real_time=self._writers is not None,
        )


def has_subtask(step: Step, partition: int) -> bool:
    """Return whether a step has a subtask in a task of its stage; a step with keys may have fewer than tasks."""
    is_everywhere = step.kind in ("sink", "staging") or step.strategy is not None
    return is_everywhere or not step.parallelism or partition < step.parallelism


class RecordWriter:
    """Writes the elements that leave a task into the exchange after its stage; `drain` yields what is ready.

    Args:
        stage: The stage of the task.
        partition: Its partition, which chooses the target task of elements without a key.
        next_tasks: Number of tasks of the next stage, 0 if there is none.
        epoch: For error messages.
        selector_of: Returns the key selector of an edge for this task.
        message_bytes: Bytes of a message, None for the default.
    """

    def __init__(
        self,
        stage: Stage,
        partition: int,
        next_tasks: int,
        epoch: int,
        selector_of: Callable[[Edge], Callable[[Any], Any]],
        message_bytes: int | None = None,
    ) -> None:
        self.layout = layout = leaving_layout(stage)
        self._packer = (
            MessageWriter(layout, next_tasks, stage.batch_rows, message_bytes)
            if isinstance(layout, MessageLayout)
            else None
        )
        self._next = (stage.index + 1, next_tasks, partition)
        self._epoch = epoch
        self._by_origin: dict[Port, list[Edge]] = {}
        self._selectors: dict[str, Callable[[Any], Any]] = {}
        for edge in stage.leaving:
            if edge.from_stage == stage.index:
                self._by_origin.setdefault(edge.origin, []).append(edge)
                if edge.key is not None and edge.key.spec.selector is not None:
                    self._selectors[edge.name] = selector_of(edge)
        self._packed: list[pa.RecordBatch] = []

    def set_message_bytes(self, size: int) -> None:
        """Set the bytes of a message from now on."""
        if self._packer is not None:
            self._packer.message_bytes = size

    def origins(self) -> set[Port]:
        return set(self._by_origin)

    def send(self, port: Port, chunk: Chunk) -> None:
        """Write a chunk to every edge that starts at `port`."""
        edges = self._by_origin.get(port, [])
        for piece in chunk.split_for_arrow() if edges else ():
            for edge in edges:
                batch = piece.batch_with_timestamps() if edge.has_timestamp_column else piece.batch
                if edge.key is not None and edge.key.spec.selector is not None:
                    batch = self._with_key(edge, edge.key, piece, batch)
                self.forward(edge, batch)

    def forward(self, edge: Edge, batch: pa.RecordBatch) -> None:
        """Write a batch that has the columns of the edge already."""
        targets = edge.targets(*self._next)
        if self._packer is not None:
            self._packed += self._packer.add(edge, batch, targets)
            return
        assert isinstance(self.layout, RowLayout)
        self._packed += [self.layout.pack(edge, batch, target) for target in targets]

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield what is ready since the last call; small messages are kept until they are worth sending."""
        packed, self._packed = self._packed, []
        yield from packed

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield all that was not sent yet."""
        yield from self.drain()
        if self._packer is not None:
            yield from self._packer.flush()

    def flush_messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield what `drain` does not, as messages with their tasks."""
        return iter(()) if self._packer is None else self._packer.flush_messages()

    def _with_key(self, edge: Edge, key: KeyPlan, chunk: Chunk, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = _selected(self._selectors[edge.name], chunk.elements, edge.consumer, self._epoch)
        dict_keys = _dict_keys(key, keys, edge.consumer, chunk.elements)
        hashes = key.codec.hashes(dict_keys).view(np.int64)
        names = [*batch.schema.names, KEY, KEY_HASH]
        return pa.RecordBatch.from_arrays(
            [*batch.columns, key.codec.storage_array(dict_keys), pa.array(hashes)], names=names
        )


def _dict_keys(key: KeyPlan, keys: list[Any], uid: str, elements: Sequence[Any]) -> list[Any]:
    try:
        return list(map(key.codec.dict_key, keys))
    except NullKeyError as error:
        row = next((at for at, value in enumerate(keys) if value is None), None)
        element = "" if row is None else f" for {short_repr(elements[row])}"
        raise NullKeyError(
            uid,
            f"The key selector of operator {uid!r} returned None{element}. Filter such rows out or give them a key "
            "before key_by.",
            row=row,
        ) from error
    except OutputTypeError as error:
        raise OutputTypeError(
            uid,
            f"The key selector of operator {uid!r} returned a value that cannot be a key: {error}",
            declared=error.declared,
        ) from error


def _selected(select: Callable[[Any], Any], elements: list[Any], uid: str, epoch: int) -> list[Any]:
    source = iter(elements)  # an error report finds the element by these two names
    try:
        return list(map(select, source))
    except HoldfastError:
        raise
    except Exception as error:
        raise user_error(error, uid, None, epoch, "selecting a key") from error


class StageTask:
    """Runs one stage for one partition: an epoch in one call of `run`, or step by step in a real-time task.

    Args:
        job: The job attempt as loaded in this process.
        epoch: The try of the epoch.
        identity: This execution of the task.
        next_tasks: Number of tasks of the stage below, each of which gets a marker; 0 for the last stage.
        message_bytes: Bytes of a message to the stage below, None for the default.
        writers: Writers of a real-time task that go on behind barriers, by uid; None in a job by epochs.
    """

    def __init__(
        self,
        job: LoadedJob,
        epoch: EpochDescriptor,
        identity: TaskIdentity,
        next_tasks: int,
        message_bytes: int | None = None,
        writers: dict[str, Any] | None = None,
    ) -> None:
        self._job = job
        self._epoch = epoch
        self._identity = identity
        self._stage = job.stage(identity.stage)
        self._next_tasks = next_tasks
        self._format = MarkerFormat(job.descriptor.plan.clocks)
        self._markers = MarkerReader(self._format)
        self._arriving = arriving_layout(self._stage) if self._stage.arriving else None
        self.writer = RecordWriter(
            self._stage, identity.partition, next_tasks, epoch.epoch, self._selector_of, message_bytes
        )
        self._consumers: dict[Port, list[tuple[StepExecutor, bool]]] = {}
        self._sources = SourceLayout(job.descriptor.plan.epoch_job_of(identity.stage).sources)
        self.executors: list[StepExecutor] = []
        opener = StepOpener(job, epoch, identity, writers)
        try:
            for step in self._stage.steps:
                executor = opener.open(step)
                if executor is not None:
                    self.executors.append(executor)
        except BaseException:
            self.abort()
            raise
        for executor in self.executors:
            first_inputs = executor.step.first_inputs or len(executor.step.inputs)
            for number, port in enumerate(executor.step.inputs):
                self._consumers.setdefault(port, []).append((executor, number >= first_inputs))
        self._side_ports = [port for port in {*self._consumers, *self.writer.origins()} if port.tag is not None]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the elements that leave, then the markers for the tasks below, or the report for the driver."""
        with paused_garbage_collection():
            yield from self._run(batches)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = False
        try:
            for number, _ in enumerate(self._process(batches), start=1):
                if number % COLLECT_EVERY == 0:
                    collect_young()
                yield from self.writer.drain()
            observed = self._markers.observed()
            for executor in self.executors:
                self.end_of_input(executor, observed)
                yield from self.writer.drain()
            yield from self.writer.flush()
            report = self.acknowledge()
            done = True
            yield self._report_rows(report)
        finally:
            if not done:
                self.abort()

    def end_of_input(self, executor: StepExecutor, observed: Observed) -> None:
        """Fire what is due in a step, and pass its output on."""
        self._emit(executor, executor.meter.timed(executor.end_of_input, observed))

    def finish_calls(self, executor: OperatorExecutor) -> None:
        """Wait for the asynchronous calls of a step, and pass their output on."""
        self._emit(executor, executor.meter.timed(executor.finish_calls))

    def _selector_of(self, edge: Edge) -> Callable[[Any], Any]:
        descriptor = self._job.descriptor
        info = SubtaskInfo(
            uid=edge.consumer,
            name=edge.consumer,
            job_id=descriptor.job_id,
            subtask=self._identity.partition,
            parallelism=self._stage.tasks,
            epoch=self._epoch.epoch,
            attempt_number=descriptor.attempt_number,
            processing_time=self._epoch.processing_time,
            is_restored=descriptor.is_restored,
            parameters=descriptor.parameters,
        )
        return self._job.selector(edge, info)

    def abort(self) -> None:
        """Release what a failed task has opened. Never raises."""
        for executor in self.executors:
            executor.abort()

    def _process(self, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
        """Process batches of sources or of an exchange; yields where the caller may drain the output."""
        for batch in batches:
            if self._arriving is None:
                yield from self._process_sources(batch)
            else:
                self._process_exchange(self._arriving, batch)
                yield

    def _process_sources(self, batch: pa.RecordBatch) -> Iterator[None]:
        for source, columns in self._sources.unpack(batch):
            yield from self.take_source(source, columns)
        yield

    def take_source(self, source: SourcePlan, columns: pa.RecordBatch) -> Iterator[None]:
        """Process elements of a source; yields where the caller may drain the output."""
        port = Port("source", source.uid)
        for executor, _ in self._consumers.get(port, ()):
            if isinstance(executor, SplitReaderExecutor):
                reading = executor.read(columns)
                while (elements := executor.meter.timed(next, reading, None)) is not None:
                    if len(elements):
                        executor.meter.count_input(port.name, elements.batch)
                    self._emit(executor, elements)
                    yield
        self._deliver(port, _chunk(source, source.uid, columns), columns)

    def _process_exchange(self, arriving: RowLayout | MessageLayout, batch: pa.RecordBatch) -> None:
        try:
            controls, arrivals = arriving.unpack(batch)
            for content in controls:
                if content != TICK:
                    self._markers.add(content)
        except ValueError as error:
            raise CorruptFileError(self._job.directory.path, None, f"an exchange is damaged: {error}.") from error
        for arrival in arrivals:
            self.take_arrival(arrival)

    def take_arrival(self, arrival: Arrival) -> None:
        """Process elements that have crossed an exchange."""
        edge = arrival.edge
        if edge.to_stage > self._stage.index:
            self.writer.forward(edge, arrival.batch)
            return
        consumer = self._consumer_of(edge)
        consumer.meter.count_input(edge.name, arrival.batch)
        if isinstance(consumer, ForwardExecutor):
            self._emit(consumer, consumer.meter.timed(consumer.accept, _elements_of(edge, arrival.batch)))
            return
        if edge.broadcast:
            assert isinstance(consumer, OperatorExecutor)
            chunk = _chunk(edge, edge.origin.name, arrival.batch)
            self._emit(consumer, consumer.meter.timed(consumer.accept_broadcast, chunk))
            return
        if edge.key is None:
            self._accept(consumer, edge.second, _chunk(edge, edge.origin.name, arrival.batch))
            return
        assert isinstance(consumer, KeyedStepExecutor)
        keyed = consumer.accept_keyed_second if edge.second else consumer.accept_keyed

        def accept() -> Chunk:
            return keyed(_elements_of(edge, arrival.batch), *_keys_of(edge, arrival))

        self._emit(consumer, consumer.meter.timed(accept))

    def _consumer_of(self, edge: Edge) -> StepExecutor:
        found = self._consumers.get(Port("edge", edge.name))
        if not found:
            raise NotExistError(
                f"elements for {edge.consumer!r} arrived at partition {self._identity.partition}, which does not run it"
            )
        return found[0][0]

    def _accept(self, executor: StepExecutor, is_second: bool, chunk: Chunk) -> None:
        """Pass elements to the first or second input of a step."""
        if is_second:
            assert isinstance(executor, OperatorExecutor)
            self._emit(executor, executor.meter.timed(executor.accept_second, chunk))
        elif isinstance(executor, OperatorExecutor) and not isinstance(self.writer.layout, RowLayout):
            for piece in executor.pieces(chunk):
                self._emit(executor, executor.meter.timed(executor.accept, piece))
        else:  # not in pieces: each batch of rows that leaves costs the engine something
            self._emit(executor, executor.meter.timed(executor.accept, chunk))

    def _emit(self, executor: StepExecutor, chunk: Chunk | None) -> None:
        """Deliver what a step emitted, side outputs included, to its readers."""
        for tag, (elements, timestamps) in executor.side_outputs().items():
            for port in self._side_ports:
                if port.name == executor.step.uid and port.tag == tag:
                    side = Chunk(self._type_at(port), executor.step.uid, elements=elements, timestamps=timestamps)
                    self._deliver(port, side)
                    executor.meter.timed(self.writer.send, port, side)
        if chunk is not None and len(chunk):
            port = Port("step", executor.step.uid)
            self._deliver(port, chunk)
            executor.meter.timed(self.writer.send, port, chunk)

    def _type_at(self, port: Port) -> TypeInformation:
        readers = self._consumers.get(port)
        if readers:
            executor, is_second = readers[0]
            operator = executor.step.operator
            second_type = operator.second_type if is_second and operator is not None else None
            return executor.step.input_type if second_type is None else second_type
        return next(edge.element_type for edge in self._stage.leaving if edge.origin == port)

    def _deliver(self, port: Port, chunk: Chunk, columns: pa.RecordBatch | None = None) -> None:
        """Pass elements to the steps of the stage that read them; those of a source also leave here.

        Args:
            port: Where they come from.
            chunk: The elements.
            columns: The columns of a source; None for elements that a step has emitted.
        """
        for executor, is_second in self._consumers.get(port, ()):
            if isinstance(executor, SplitReaderExecutor):
                continue  # it reads splits as they arrive
            if columns is not None:
                executor.meter.count_input(port.name, columns)
            self._accept(executor, is_second, chunk)
        if columns is not None:
            self.writer.send(port, chunk)

    def flush_sinks(self) -> None:
        """Let the sinks make their output durable. `acknowledge` does it too, when it can no longer be declined.

        Raises:
            CheckpointDeclinedError: A sink cannot do it now. The task may go on.
        """
        for executor in self.executors:
            if isinstance(executor, SinkExecutor):
                executor.meter.timed(executor.flush)

    def acknowledge(self) -> TaskReport:
        """Take the snapshot of the task: write what its steps have changed and staged, and return their reports.

        The task processes nothing afterwards.
        """
        reports = [_report_of(executor) for executor in self.executors]
        for executor in self.executors:
            executor.succeeded()
        return self._report(reports)

    def _report(self, reports: Sequence[StepReport]) -> TaskReport:
        return TaskReport(
            stage=self._identity.stage,
            partition=self._identity.partition,
            attempt=self._identity.attempt,
            steps=tuple(reports),
            read=self._markers.digest(),
            observed=merge_observed(
                self._markers.observed(), *({r.uid: r.observed} for r in reports if r.observed is not None)
            ),
            read_attempts=self._markers.read_attempts() if self._epoch.try_number else (),
            requests=REQUESTS.take(),
        )

    def _report_rows(self, report: TaskReport) -> pa.RecordBatch:
        content = encode_report(report, self._job.directory, self._new_name, self._markers.reports())
        if self.writer.layout is not None:
            marker = self._format.marker(report.head, report.observed)
            rows = self._format.rows(marker, content, report.partition, self._next_tasks)
            return self.writer.layout.control(rows)
        return pa.RecordBatch.from_arrays([pa.array([content], pa.binary())], schema=REPORT_SCHEMA)

    def _new_name(self) -> FileName:
        token, epoch = self._job.descriptor.token, self._epoch
        return FileName.new(token, epoch.epoch, epoch.try_number, "barrier", self._identity.partition)


def _report_of(executor: StepExecutor) -> StepReport:
    return executor.meter.with_counts(executor.meter.timed(executor.report))


def _chunk(carrier: Edge | SourcePlan, uid: str, batch: pa.RecordBatch) -> Chunk:
    if isinstance(carrier, Edge) and carrier.time_column is not None:
        times = to_event_times(batch.column(carrier.time_column))
        return Chunk(carrier.element_type, uid, batch=batch, timestamps=times)
    if carrier.has_timestamps:
        return Chunk.from_batch_with_timestamps(carrier.element_type, uid, batch)
    return Chunk(carrier.element_type, uid, batch=batch)


def _elements_of(edge: Edge, batch: pa.RecordBatch) -> Chunk:
    if edge.key is not None and edge.key.spec.selector is not None:
        batch = batch.select([name for name in batch.schema.names if name not in (KEY, KEY_HASH)])
    return _chunk(edge, edge.origin.name, batch)


def _keys_of(edge: Edge, arrival: Arrival) -> tuple[Sequence[Any], npt.NDArray[np.uint64]]:
    assert edge.key is not None
    assert arrival.hashes is not None
    codec, batch = edge.key.codec, arrival.batch
    if edge.key.spec.selector is not None:
        stored = batch.column(batch.schema.get_field_index(KEY))
        canonical = codec.canonical_stored(stored)
        return codec.from_storage(stored) if canonical is None else LazyKeys(codec, canonical), arrival.hashes
    columns = [batch.column(batch.schema.get_field_index(name)) for name in edge.key.spec.columns]
    try:
        return lazy_keys(codec, columns), arrival.hashes
    except NullKeyError as error:
        raise null_key_error(edge, batch, error) from error
