"""Runs jobs without a JVM: all parts are those of a job on Spark, but Spark's exchange is simulated.

For tests and simulations. What is durable in a job is durable here. Every batch crosses the exchange in the columns in
which Spark would carry it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.errors import ConfigurationError, HoldfastError, NullKeyError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import key_groups_of
from holdfast.runtime.exchange.layout import (
    CONTROL,
    HASH,
    KEY_HASH,
    PHASE,
    TARGET,
    MessageLayout,
    RowLayout,
    SourceLayout,
    arriving_layout,
    null_key_error,
    schema_with_timestamps,
)
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor, StageMessage
from holdfast.runtime.exchange.task_report import TICK, TaskReport, decode_report
from holdfast.runtime.function.source import SourceStatistics
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import Edge, EpochJob, JobPlan, SourcePlan, Stage
from holdfast.runtime.graph.stream_graph import FrameTransformNode, SourceNode, StreamGraph, transforms_of
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.engine import Engine, EpochDriver, EpochInput, Job, Outcome, StagedInput, job_directory
from holdfast.runtime.job.leadership import open_register
from holdfast.runtime.job.progress import ProgressReporter
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.operator import user_error
from holdfast.runtime.task import worker_process
from holdfast.runtime.task.stage_task import StageTask, TaskIdentity
from holdfast.state.batch import take_rows
from holdfast.state.run_file import forget_runs
from holdfast.state.version import STATE_CACHE
from holdfast.storage.file_system import FileSystem
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import element_schema, elements_to_batch, nanos_to_times
from holdfast.types.type_parser import to_type

# Frames are Arrow tables here, and a transform of frames is a function from table to table.


def staged_elements(plan: JobPlan, staged: StagedInput, epoch: int) -> dict[str, pa.RecordBatch]:
    """Return the elements of the sources of a later epoch job, by uid.

    Raises:
        ConfigurationError: A transform does not take a table and return one with the columns that it was declared with.
        UserFunctionError: A transform raised.
    """
    return {
        source.uid: _one_batch(_elements(source, staged, epoch)) for source in plan.epoch_jobs[staged.epoch_job].sources
    }


def _elements(source: SourcePlan, staged: StagedInput, epoch: int) -> pa.Table:
    transforms = [] if source.node is None else transforms_of(source.node)
    schema = element_schema(transforms[0].inputs[0].element_type) if transforms else schema_with_timestamps(source)
    tables = [nanos_to_times(pq.read_table(path, columns=schema.names), schema) for path in staged.of(source)]
    table = pa.concat_tables([schema.empty_table(), *tables])
    for node in transforms:
        table = _transformed(node, table, epoch)
    return table


def _transformed(node: FrameTransformNode, table: pa.Table, epoch: int) -> pa.Table:
    try:
        result = node.function(table)
    except HoldfastError:
        raise
    except Exception as error:
        raise user_error(error, node.identity, None, epoch, "transforming a frame") from error
    wanted = element_schema(node.element_type)
    if not isinstance(result, pa.Table) or result.schema.names != wanted.names:
        raise ConfigurationError(
            f"transform() {node.name!r} runs without Spark here, where frames are Arrow tables: it must return a table "
            f"with the columns {wanted.names!r}, not {result!r}"
        )
    return result.cast(wanted)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


Elements = Sequence[Any]
Batches = list[pa.RecordBatch]


class LocalInput(EpochInput):
    def __init__(
        self, number: int, elements: Mapping[str, Elements], is_last: bool, ended: Collection[str] = frozenset()
    ) -> None:
        self.number = number
        self.elements = elements
        self.ended_sources = ended
        self.is_last = is_last

    def positions(self) -> dict[str, Any]:
        return {"next": self.number + 1}


class LocalEngine(Engine):
    """Runs each task in this process, one after the other.

    Args:
        inputs: Elements by source uid, one mapping for each data epoch.
        is_bounded: Whether the job ends FINISHED after the last input; otherwise it waits for more.
        bounded_sources: Uids of the sources that end with the last input that names them.
        source_tasks: Number of partitions of each source.
        amnesia: Whether the caches of the worker process are cleared before each task.
        interceptor: Called with (stage, partition) before each task runs; if it raises, the task fails.
    """

    def __init__(
        self,
        inputs: Sequence[Mapping[str, Elements]],
        *,
        is_bounded: bool = False,
        bounded_sources: Collection[str] = (),
        source_tasks: int = 2,
        amnesia: bool = False,
        interceptor: Callable[[int, int], None] | None = None,
    ) -> None:
        self.inputs = list(inputs)
        self._is_bounded = is_bounded
        self._bounded_sources = frozenset(bounded_sources)
        self._source_tasks = source_tasks
        self._amnesia = amnesia
        self._interceptor = interceptor or (lambda stage, partition: None)
        self._next = 0

    def prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int, rules: InputRules) -> None:
        self.update_plan(job)
        self._next = int(positions["next"]) if positions else 0

    def source_metrics(self) -> Mapping[str, SourceStatistics]:
        waiting: Counter[str] = Counter()
        for inputs in self.inputs[getattr(self, "_next", 0) :]:
            waiting.update({uid: len(elements) for uid, elements in inputs.items()})
        uids = dict.fromkeys(uid for inputs in self.inputs for uid in inputs)
        return {uid: SourceStatistics(records=waiting[uid]) for uid in uids}

    def update_plan(self, job: JobDescriptor) -> None:
        self._key = job.key
        self._content = job.to_bytes()
        self._plan: JobPlan = job.plan
        self._directory = job.directory()

    def drive(self, driver: EpochDriver) -> Outcome:
        driver.tick_if_due()
        while self._next < len(self.inputs) and not driver.is_stopping:
            number = self._next
            is_last = self._is_bounded and number == len(self.inputs) - 1
            driver.process(LocalInput(number, self.inputs[number], is_last, self._ended(number)))
            self._next = number + 1
            driver.tick_if_due()
        if driver.is_stopping:
            return Outcome.STOPPED
        return Outcome.ENDED if self._is_bounded else Outcome.EXHAUSTED

    def _ended(self, number: int) -> frozenset[str]:
        """Return the bounded sources that no input after this one names."""
        later = range(number + 1, len(self.inputs))
        return frozenset(uid for uid in self._bounded_sources if not any(uid in self.inputs[i] for i in later))

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> list[TaskReport]:
        if isinstance(epoch_input, StagedInput):
            epoch_job, elements = (
                self._plan.epoch_jobs[epoch_input.epoch_job],
                staged_elements(self._plan, epoch_input, epoch.epoch),
            )
        else:
            epoch_job, elements = self._plan.epoch_jobs[0], self._elements(epoch_input)
        sources = self._source_batches(epoch_job, elements)
        stages, tasks = list(epoch_job.stages), epoch_job.tasks
        if epoch_job.starts_in_python:
            first = stages.pop(0)
            crossing = self._run_stage(first, epoch, sources, tasks.get(first.index + 1, 0))
        else:
            crossing = [_project(epoch_job, batches, stages[0], i) for i, batches in enumerate(sources)]
        for position, stage in enumerate(stages):
            if position == 0:
                crossing = [*crossing, [arriving_layout(stage).control([TICK] * stage.tasks)]]
            placed = self.hand_over(stage, crossing)
            crossing = self._run_stage(stage, epoch, placed, tasks.get(stage.index + 1, 0))
        rows = [row for batches in crossing for batch in batches for row in batch.column(0).to_pylist()]
        return [decode_report(row, self._directory) for row in rows]

    def hand_over(self, stage: Stage, crossing: Sequence[Batches]) -> Sequence[Batches]:
        """Distribute the batches of the tasks above over the tasks of a stage; tests override it to reorder them."""
        return exchange(arriving_layout(stage), [batch for batches in crossing for batch in batches], stage.tasks)

    def services(self) -> Mapping[str, Any]:
        return {"read_parquet": lambda paths: pa.concat_tables([pq.read_table(path) for path in paths])}

    def close(self) -> None:
        worker_process.unload_all()

    def _run_stage(
        self, stage: Stage, epoch: EpochDescriptor, inputs: Sequence[Batches], next_tasks: int
    ) -> list[Batches]:
        message = StageMessage.of(epoch, stage)
        return [
            list(self._run_task(stage, message.for_task(partition), partition, batches, next_tasks))
            for partition, batches in enumerate(inputs)
        ]

    def _run_task(
        self, stage: Stage, epoch: EpochDescriptor, partition: int, batches: Batches, next_tasks: int
    ) -> Iterator[pa.RecordBatch]:
        if self._amnesia:
            _start_cold()
        self._interceptor(stage.index, partition)
        job = worker_process.load_job(self._key, lambda: self._content)
        task = StageTask(job, epoch, TaskIdentity.fresh(stage.index, partition), next_tasks)
        yield from task.run(batches)

    def _elements(self, epoch_input: EpochInput | None) -> dict[str, pa.RecordBatch]:
        if epoch_input is None:
            return {}
        assert isinstance(epoch_input, LocalInput)
        given = epoch_input.elements
        return {s.uid: elements_to_batch(list(given.get(s.uid, ())), s.element_type, s.uid) for s in self._plan.sources}

    def _source_batches(self, epoch_job: EpochJob, elements: Mapping[str, pa.RecordBatch]) -> list[Batches]:
        partitions: list[Batches] = [[] for _ in range(self._source_tasks)]
        layout = SourceLayout(epoch_job.sources)
        for position, source in enumerate(layout.sources):
            if source.uid in elements:
                for number, part in enumerate(_split(elements[source.uid], self._source_tasks)):
                    if part.num_rows:
                        partitions[number].append(part if layout.flat else _struct_of(layout, position, part))
        return partitions


def run_job(
    graph: StreamGraph,
    directory: Path | str,
    engine: Engine,
    configuration: Mapping[str, Any] | None = None,
    *,
    name: str = "job",
    clock: Clock | None = None,
    parallelism: int = 2,
    file_system: FileSystem | None = None,
) -> JobMaster:
    """Return a job master over a directory, ready to `run()`; run again on the same directory, the job resumes.

    Args:
        graph: The job.
        directory: Checkpoint directory of all jobs.
        engine: Runs its epochs.
        configuration: Its options.
        name: Name of the job; its id is derived from it.
        clock: For timers, intervals and grace periods.
        parallelism: Parallelism of keyed operators that set none.
        file_system: The file system of the master; tasks always use the plain one.
    """
    job_id = JobID.from_name(name)
    options = Configuration(dict(configuration or {}))
    use_s3_options(options)
    root = str(directory)
    own_directory = job_directory(file_system or file_system_for(root), root, job_id, options)
    own_directory.create()
    register, leadership = open_register(own_directory, options)
    job = Job(
        job_id=job_id,
        name=name,
        graph=graph,
        configuration=options,
        directory=own_directory,
        register=register,
        engine=engine,
        default_parallelism=parallelism,
        owner=f"epoch-runner-{uuid.uuid4().hex[:8]}",
        clock=clock or SystemClock(),
        leadership=leadership,
    )
    return JobMaster(job, ProgressReporter(name))


def exchange(layout: RowLayout | MessageLayout, batches: Iterable[pa.RecordBatch], tasks: int) -> list[Batches]:
    """Hash, place and sort batches as Spark's exchange does."""
    placed: list[Batches] = [[] for _ in range(tasks)]
    for batch in batches:
        if isinstance(layout, MessageLayout):
            subtasks, carried = batch.column(TARGET).to_numpy(), batch
        else:
            hashes, subtasks = _placement(layout, batch)
            carried = batch.drop_columns([TARGET]).append_column(HASH, pa.array(hashes.view(np.int64)))
        by_task = np.argsort(subtasks, kind="stable")
        carried = carried.take(pa.array(by_task))
        bounds = np.searchsorted(subtasks[by_task], np.arange(tasks + 1)).tolist()
        for task, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                placed[task].append(carried.slice(start, end - start))
    if isinstance(layout, MessageLayout):
        return [_by_phase(part) for part in placed]
    order = [path for edge in layout.edges if edge.key for path in _order_paths(layout, edge)]
    first = [edge.name for edge in layout.edges if edge.broadcast and not layout.flat]
    return [_sorted(part, first, order) for part in placed] if order or first else placed


def _placement(layout: RowLayout, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    rows = batch.num_rows
    target = batch.column(batch.schema.get_field_index(TARGET))
    subtasks = target.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).copy()
    hashes = np.zeros(rows, np.uint64)
    control = batch.column(batch.schema.get_field_index(CONTROL)).is_null().to_numpy(zero_copy_only=False)
    for edge in layout.edges:
        if edge.key is None:
            continue
        mine = control
        columns = batch
        if not layout.flat:
            column = batch.column(batch.schema.get_field_index(edge.name))
            mine = column.is_valid().to_numpy(zero_copy_only=False)
            columns = pa.RecordBatch.from_struct_array(column.filter(pa.array(mine)))
        else:
            columns = batch.filter(pa.array(mine))
        if not mine.any():
            continue
        own = _hashes_of(edge, columns)
        hashes[mine] = own
        groups = key_groups_of(own, edge.key.max_parallelism).astype(np.int64)
        subtasks[mine] = groups * edge.key.parallelism // edge.key.max_parallelism
    return hashes, subtasks


def _hashes_of(edge: Edge, columns: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    assert edge.key is not None
    if edge.key.spec.selector is not None:
        given = columns.column(columns.schema.get_field_index(KEY_HASH)).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(given).view(np.uint64)
    arrays = [columns.column(columns.schema.get_field_index(name)) for name in edge.key.spec.columns]
    try:
        return edge.key.codec.hashes(edge.key.codec.dict_keys(arrays))
    except NullKeyError as error:
        raise null_key_error(edge, columns, error) from error


def _order_paths(layout: RowLayout, edge: Edge) -> list[tuple[str, ...]]:
    assert edge.key is not None
    prefix = () if layout.flat else (edge.name,)
    return [(*prefix, name) for name in edge.key.spec.order_by]


def _sorted(batches: Batches, first: Sequence[str], order: Sequence[tuple[str, ...]]) -> Batches:
    if not batches:
        return batches
    table = pa.Table.from_batches(batches)
    keys = {f"broadcast {name}": table.column(name).is_null() for name in first}
    keys |= {f"{i}": _at(table, path) for i, path in enumerate(order)}
    keys["position"] = pa.chunked_array([pa.array(np.arange(table.num_rows))])
    by = [(name, "ascending") for name in keys]
    indices = pc.sort_indices(pa.table(keys), sort_keys=[(name, order, "at_start") for name, order in by])
    return table.take(indices).to_batches()  # type: ignore[no-any-return]


def _by_phase(batches: Batches) -> Batches:
    if not batches:
        return batches
    table = pa.Table.from_batches(batches)
    order = np.argsort(table.column(PHASE).to_numpy(), kind="stable")
    return take_rows(table, order).to_batches()  # type: ignore[no-any-return]


def _at(table: pa.Table, path: tuple[str, ...]) -> pa.ChunkedArray:
    column = table.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _project(epoch_job: EpochJob, batches: Batches, stage: Stage, partition: int) -> Batches:
    """Return source columns as edge columns, without Python operators; a row that several edges read is repeated."""
    sources, layout = SourceLayout(epoch_job.sources), RowLayout(stage.arriving)
    return [
        layout.pack(edge, columns, target)
        for batch in batches
        for source, columns in sources.unpack(batch)
        for edge in stage.arriving
        if edge.origin.name == source.uid
        for target in edge.targets(stage.index, stage.tasks, partition)
    ]


def _start_cold() -> None:
    """Clear the caches of a worker process: opened functions, decoded state, mapped files."""
    worker_process.unload_all()
    STATE_CACHE.clear()
    forget_runs()


def _split(batch: pa.RecordBatch, parts: int) -> Batches:
    size = -(-batch.num_rows // parts) or 1
    return [batch.slice(i * size, size) for i in range(parts)]


def _struct_of(layout: SourceLayout, position: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = []
    for other, source in enumerate(layout.sources):
        schema = schema_with_timestamps(source)
        if other == position:
            columns.append(pa.StructArray.from_arrays(batch.columns, fields=list(schema)))
        else:
            columns.append(pa.nulls(batch.num_rows, pa.struct(list(schema))))
    return pa.RecordBatch.from_arrays(columns, names=[layout.column(i) for i in range(len(columns))])


OPTIONS: Final[Mapping[str, str]] = {
    "restart-strategy.type": "none",
    "execution.checkpointing.cleaner.grace-period": "0 ms",
    "state.compaction.executor": "thread",
}
"""Options that a program on the epoch runner has unless others are given: a failure is seen at once."""


class EpochProgram(StreamExecutionEnvironment):
    """A stream environment whose sources get their elements from a test; programs run here epoch by epoch.

    Job master, tasks, checkpoints and sinks are those of a job on Spark; Spark and Java are not needed. Run again over
    the same directory with more inputs, the job resumes from its newest checkpoint.

    >>> import tempfile
    >>> found = []
    >>> program = EpochProgram()
    >>> words = program.source("words", "word string")
    >>> counts = words.map(lambda row: (row.word, 1), "word string, n bigint").key_by("word").sum("n").uid("n")
    >>> _ = counts.for_each_epoch(lambda frame, epoch: found.extend(frame.to_pylist())).uid("out")
    >>> program.run(tempfile.mkdtemp(), [{"words": [("kelp",), ("kelp",)]}, {"words": [("kelp",)]}], is_bounded=True)
    <JobStatus.FINISHED: 'FINISHED'>
    >>> [row["n"] for row in found]
    [1, 2, 3]
    """

    def __init__(self) -> None:
        super().__init__(Configuration(), None)

    def source(self, uid: str, type_info: Any = None, *, is_bounded: bool = False) -> DataStream:
        """Add a source and return its stream.

        Args:
            uid: Uid of the source; `run` gets its elements under this name.
            type_info: Type of its elements, as `output_type` takes it; None for Python objects.
            is_bounded: Whether it ends with the last input of `run` that names it.
        """
        node = SourceNode(name=uid, uid=uid, element_type=to_type(type_info), is_streaming=not is_bounded)
        return DataStream(self, node)

    def run(
        self,
        directory: Path | str,
        inputs: Sequence[Mapping[str, Sequence[Any]]],
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "job",
        clock: Clock | None = None,
        parallelism: int = 2,
        source_tasks: int = 2,
        is_bounded: bool = False,
        amnesia: bool = False,
        interceptor: Callable[[int, int], None] | None = None,
    ) -> JobStatus:
        """Run the program until its inputs are used up. Blocks.

        Args:
            directory: Checkpoint directory. If it has checkpoints of the job, the job resumes, and skips the inputs
                that its newest checkpoint has seen.
            inputs: One mapping for each epoch: elements by uid of their source.
            options: Options of the job, added to `OPTIONS`.
            name: Name of the job; its id is derived from it.
            clock: For timers, intervals and pauses.
            parallelism: Parallelism of keyed operators that set none.
            source_tasks: Number of partitions of each source.
            is_bounded: Whether the job ends after the last input; otherwise it could get more.
            amnesia: Whether the caches of the worker process are cleared before each task.
            interceptor: Called with (stage, subtask) before each task; if it raises, the task fails.

        Returns:
            FINISHED if the inputs are bounded, otherwise the status of a job that waits for more.

        Raises:
            JobExecutionError: The job has failed.
            HoldfastError: It could not start.
        """
        graph = self.get_stream_graph()
        engine = LocalEngine(
            inputs,
            is_bounded=is_bounded,
            bounded_sources=[node.identity for node in graph.of(SourceNode) if not node.is_streaming],
            source_tasks=source_tasks,
            amnesia=amnesia,
            interceptor=interceptor,
        )
        configuration = {**OPTIONS, **(options or {})}
        return run_job(graph, directory, engine, configuration, name=name, clock=clock, parallelism=parallelism).run()
