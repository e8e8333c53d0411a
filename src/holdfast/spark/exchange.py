"""The Spark plan of one epoch job of an epoch: stage after stage, an exchange between each two.

The key's hash, its key group and its subtask are computed in the JVM; rows are placed so that subtask i runs as
partition i (`place`). One tick row a task is added before the first exchange, because Spark drops operators whose input
is empty. Each exchange is one SQL text that is made once a plan: a call from Python into the JVM costs up to a
millisecond, and building the same plan from columns took hundreds of them in every epoch. Where a single input goes
straight to a keyed operator, most of the first exchange is even a part of the streaming query, which Spark plans once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from holdfast.runtime.exchange.layout import (
    CONTROL,
    HASH,
    KEY,
    KEY_HASH,
    PHASE,
    RESERVED,
    TARGET,
    TIMESTAMP,
    MessageLayout,
    RowLayout,
    SourceLayout,
    leaving_layout,
)
from holdfast.runtime.graph.plan import Edge, EpochJob, SourcePlan, Stage
from holdfast.spark.schema import Times, quote, spark_type, sql_type, stream_schema
from holdfast.types.type_parser import to_type

# Subtask i of an operator runs as partition i of its stage. Since 4.1 Spark places rows by the number of a partition
# (`repartitionById`). Earlier versions place them only by a hash of values, so a subtask is replaced by a number whose
# hash falls on its partition.

_SEED = 42
_FIRST_SEARCHED = 4096
SUBTASK = f"{RESERVED}subtask"
POSITION = f"{RESERVED}position"
_TAG = f"{RESERVED}tag"
RunStage = Callable[[DataFrame, Stage, StructType], DataFrame]
"""Runs one stage's tasks over a frame: (frame, stage, output columns) -> frame."""


def place(frame: DataFrame, tasks: int, subtask: str) -> DataFrame:
    """Return the frame in exactly `tasks` partitions, each row in the one of its subtask.

    Args:
        frame: Rows to place.
        tasks: Number of partitions; all of them run, also those without rows.
        subtask: SQL expression of an int, never null, from 0 to below `tasks`.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(tasks, F.expr(subtask))
    numbers = ", ".join(map(str, hashed_to(tasks)))
    return frame.repartition(tasks, F.expr(f"element_at(array({numbers}), ({subtask}) + 1)"))


@cache
def hashed_to(tasks: int) -> tuple[int, ...]:
    """Return for each partition an int that Spark's hash partitioning into `tasks` partitions puts there."""
    found = np.full(tasks, -1, np.int64)
    start, count = 0, max(_FIRST_SEARCHED, 8 * tasks)
    while (found < 0).any():
        candidates = np.arange(start, start + count, dtype=np.int64)
        partitions, first = np.unique(_hashes(candidates) % tasks, return_index=True)
        missing = found[partitions] < 0
        found[partitions[missing]] = candidates[first[missing]]
        start += count
    return tuple(found.tolist())


def _hashes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return what `hash(value)` of Spark SQL returns for int values: Murmur3 for 32 bits, signed."""
    mixed = values.astype(np.uint32)
    mixed = _rotated(mixed * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    result = _rotated(np.uint32(_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    result ^= np.uint32(4)  # the length in bytes
    result ^= result >> np.uint32(16)
    result *= np.uint32(0x85EBCA6B)
    result ^= result >> np.uint32(13)
    result *= np.uint32(0xC2B2AE35)
    result ^= result >> np.uint32(16)
    return result.astype(np.int32).astype(np.int64)


def _rotated(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


_views = itertools.count()


class EpochJobPlan:
    """The parts of the plan of an epoch job that are the same in every epoch.

    Args:
        epoch_job: The epoch job.
    """

    def __init__(self, epoch_job: EpochJob) -> None:
        self._epoch_job = epoch_job
        self._view = f"{RESERVED}view_{next(_views)}"
        self._outputs = {stage.index: _output_schema(stage) for stage in epoch_job.stages}
        stages = [stage for stage in epoch_job.stages if stage.index > epoch_job.base]
        self._exchanges = [self._exchange(stage, is_first=i == 0) for i, stage in enumerate(stages)]

    def _exchange(self, stage: Stage, *, is_first: bool) -> _Exchange | _KeyedInput | _Messages:
        if is_first and not self._epoch_job.starts_in_python and _KeyedInput.suits(stage):
            return _KeyedInput(stage)
        if _Messages.suits(stage):
            return _Messages(stage, has_ticks=is_first)
        return _Exchange(self._epoch_job, stage, self._view, is_first=is_first)

    def prepared(self, sources: DataFrame) -> DataFrame:
        """Return the input with all columns that do not depend on the epoch; `build` takes such frames.

        It is the same for every parallelism.

        Args:
            sources: Input of the epoch job in the columns of `SourceLayout`, of one epoch or all.
        """
        first = self._exchanges[0] if self._exchanges else None
        return first.prepared(sources) if isinstance(first, _KeyedInput) else sources

    def build(self, sources: DataFrame | None, session: SparkSession, run_stage: RunStage) -> DataFrame:
        """Return the frame whose collection runs the epoch job; its rows are the reports of the last stage.

        Args:
            sources: The result of `prepared` for the input; None for an epoch without input.
            session: Session with the settings of the epoch job's plan (adaptive execution off).
            run_stage: Adds one Python stage.
        """
        frame = sources
        first = self._epoch_job.stages[0]
        if self._epoch_job.starts_in_python and (frame is not None or not self._exchanges):
            start = session.createDataFrame([], source_schema(self._epoch_job)) if frame is None else frame
            frame = run_stage(start, first, self._outputs[first.index])
        for exchange in self._exchanges:
            arriving = exchange.apply(frame, session)
            frame = run_stage(arriving, exchange.stage, self._outputs[exchange.stage.index])
        assert frame is not None
        return frame


class _Exchange:
    """One exchange: the rows that leave one stage, placed and ordered for the tasks of the next."""

    def __init__(self, epoch_job: EpochJob, stage: Stage, view: str, *, is_first: bool) -> None:
        self.stage = stage
        self._view = view
        self._order = list(_order_of(stage))
        ticks = _ticks(stage, bool(self._order)) if is_first else None
        if stage.arrives_packed:
            self._with_rows, self._without_rows = _ordered_messages(view, ticks), ticks
            return
        from_sources = is_first and not epoch_job.starts_in_python
        rows = _rows_of_sources(epoch_job, stage, view) if from_sources else f"select * from {view}"
        placed = _placed(rows, stage.arriving, bool(self._order))
        self._with_rows = placed if ticks is None else f"{placed} union all {ticks}"
        self._without_rows = ticks

    def apply(self, frame: DataFrame | None, session: SparkSession) -> DataFrame:
        if frame is None:
            assert self._without_rows is not None
            placed = session.sql(self._without_rows)
        else:
            frame.createOrReplaceTempView(self._view)
            placed = session.sql(self._with_rows)
        arriving = place(placed, self.stage.tasks, SUBTASK)
        if self._order:
            return arriving.sortWithinPartitions(*self._order, POSITION)
        return arriving


class _KeyedInput:
    """The exchange between a single input and the operator that is keyed by its columns.

    The streaming query computes the hash of a row, and the placement its subtask, so Spark makes each row once. Control
    rows have their subtask where the others have their hash.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        (self._edge,) = stage.arriving
        self._order = list(_order_of(stage))
        self._ticks: DataFrame | None = None

    @staticmethod
    def suits(stage: Stage) -> bool:
        """Return whether the only rows that arrive at a stage have a key of columns."""
        keys = [edge.key for edge in stage.arriving]
        return len(keys) == 1 and keys[0] is not None and keys[0].spec.selector is None

    def prepared(self, sources: DataFrame) -> DataFrame:
        names = [quote(field.name) for field in _columns([self._edge])]
        hashed = f"{_hash_of(self._edge, '')} as {HASH}"
        return sources.selectExpr(f"cast(null as binary) as {CONTROL}", *names, hashed)

    def apply(self, frame: DataFrame | None, session: SparkSession) -> DataFrame:
        if self._ticks is None:
            self._ticks = session.sql(self._ticks_text())
        if frame is not None and self._order:
            # Not before: Spark refuses positions in a streaming query.
            frame = frame.selectExpr("*", f"monotonically_increasing_id() as {POSITION}")
        rows = self._ticks if frame is None else frame.union(self._ticks)
        subtask = f"if({CONTROL} is null, {_subtask_of(self._edge, '')}, cast({HASH} as int))"
        arriving = place(rows, self.stage.tasks, subtask)
        return arriving.sortWithinPartitions(*self._order, POSITION) if self._order else arriving

    def _ticks_text(self) -> str:
        nulls = "".join(f"{_null(field)} as {quote(field.name)}, " for field in _columns([self._edge]))
        position = f", cast(null as bigint) as {POSITION}" if self._order else ""
        columns = f"cast('' as binary) as {CONTROL}, {nulls}id as {HASH}{position}"
        return f"select {columns} from range(0, {self.stage.tasks}, 1, 1)"


class _Messages:
    """The exchange between two Python stages whose elements are in messages, which carry their target."""

    def __init__(self, stage: Stage, *, has_ticks: bool) -> None:
        self.stage = stage
        self._has_ticks = has_ticks
        self._ticks: DataFrame | None = None

    @staticmethod
    def suits(stage: Stage) -> bool:
        """Return whether messages arrive at a stage in any order."""
        return stage.arrives_packed and not list(_order_of(stage))

    def apply(self, frame: DataFrame | None, session: SparkSession) -> DataFrame:
        if self._has_ticks:
            if self._ticks is None:
                values = f"cast('' as binary) as {CONTROL}, cast(id as int) as {TARGET}, cast(null as int) as {PHASE}"
                self._ticks = session.sql(f"select {values} from range(0, {self.stage.tasks}, 1, 1)")
            frame = self._ticks if frame is None else frame.union(self._ticks)
        assert frame is not None
        return place(frame, self.stage.tasks, TARGET)


def layout_schema(layout: RowLayout | MessageLayout) -> StructType:
    """Return the columns of rows or messages between two stages."""
    is_message = isinstance(layout, MessageLayout)
    columns = [StructField(PHASE, IntegerType())] if is_message else _columns(layout.edges)
    return StructType([StructField(CONTROL, BinaryType()), StructField(TARGET, IntegerType()), *columns])


def source_schema(epoch_job: EpochJob) -> StructType:
    """Return the columns of `SourceLayout`."""
    layout = SourceLayout(epoch_job.sources)
    if layout.flat:
        return _stamped(epoch_job.sources[0])
    return StructType([StructField(layout.column(i), _stamped(source)) for i, source in enumerate(epoch_job.sources)])


def _stamped(carrier: Edge | SourcePlan) -> StructType:
    """Return the columns of a stream, with the one of timestamps."""
    columns = stream_schema(carrier.element_type, Times.NANOS)
    return columns.add(TIMESTAMP, LongType()) if carrier.has_timestamp_column else columns


def _edge_schema(edge: Edge) -> StructType:
    columns = _stamped(edge)
    if edge.key is not None and edge.key.spec.selector is not None:
        columns.add(KEY, spark_type(to_type(edge.key.codec.storage_type), Times.NANOS)).add(KEY_HASH, LongType())
    return columns


def _columns(edges: Sequence[Edge]) -> list[StructField]:
    """Return the columns in which edges cross an exchange."""
    if len(edges) == 1:
        return _edge_schema(edges[0]).fields
    return [StructField(edge.name, _edge_schema(edge)) for edge in edges]


def _names(columns: Iterable[StructField]) -> str:
    return ", ".join(quote(column.name) for column in columns)


def _null(column: StructField) -> str:
    return f"cast(null as {sql_type(column.dataType)})"


def _output_schema(stage: Stage) -> StructType:
    layout = leaving_layout(stage)
    return StructType([StructField(CONTROL, BinaryType())]) if layout is None else layout_schema(layout)


def _rows_of_sources(epoch_job: EpochJob, stage: Stage, view: str) -> str:
    """Return source columns as edge columns, without Python: a row is repeated for each edge and each target."""
    layout, edges = SourceLayout(epoch_job.sources), stage.arriving
    control = f"cast(null as binary) as {CONTROL}"
    if len(edges) == 1:
        names = _names(_stamped(epoch_job.sources[0]))
        targets_of_one = _copies_of(edges[0], stage)
        several = len(targets_of_one) > 1
        target = f"explode(array({', '.join(targets_of_one)}))" if several else targets_of_one[0]
        return f"select {control}, {target} as {TARGET}, {names} from {view}"
    structs = {}
    for position, source in enumerate(epoch_job.sources):
        names = _names(_stamped(source))
        structs[source.uid] = f"struct({names})" if layout.flat else layout.column(position)
    copies = [(edge, copy) for edge in edges for copy in _copies_of(edge, stage)]
    tags = "array()"
    for uid, struct in structs.items():
        numbers = ", ".join(str(i) for i, (edge, _) in enumerate(copies) if edge.origin.name == uid)
        tags = f"array({numbers})" if layout.flat else f"if({struct} is not null, array({numbers}), {tags})"
    targets = " ".join(f"when {_TAG} = {i} then {target}" for i, (_, target) in enumerate(copies))
    columns = []
    for edge in edges:
        numbers = ", ".join(str(i) for i, (other, _) in enumerate(copies) if other is edge)
        columns.append(f"if({_TAG} in ({numbers}), {structs[edge.origin.name]}, null) as {edge.name}")
    tagged = f"select *, explode({tags}) as {_TAG} from {view}"
    return f"select {control}, case {targets} end as {TARGET}, {', '.join(columns)} from ({tagged})"


def _copies_of(edge: Edge, stage: Stage) -> list[str]:
    """Return the target of each copy of a row, as `Edge.targets` has them."""
    if edge.broadcast and edge.to_stage == stage.index:
        return [str(subtask) for subtask in range(edge.parallelism)]
    return [_target_of(edge, stage)]


def _target_of(edge: Edge, stage: Stage) -> str:
    if edge.key is not None:
        return "cast(null as int)"
    tasks = edge.parallelism if edge.parallelism and edge.to_stage == stage.index else stage.tasks
    return f"cast(pmod(spark_partition_id(), {tasks}) as int)"


def _placed(rows: str, edges: Sequence[Edge], ordered: bool) -> str:
    """Add the hash, the subtask and, where rows are ordered, their position in the source."""
    names = _names(_columns(edges))
    hashed = f"select *, {_by_edge(edges, _hash_of, 'bigint')} as {HASH} from ({rows})"
    subtask = f"coalesce({TARGET}, {_by_edge(edges, _subtask_of, 'int')}) as {SUBTASK}"
    position = f", monotonically_increasing_id() as {POSITION}" if ordered else ""
    return f"select {CONTROL}, {names}, {HASH}, {subtask}{position} from ({hashed})"


def _ordered_messages(view: str, ticks: str | None) -> str:
    """Return rows that carry their target, with their position."""
    rows = f"select {CONTROL}, {PHASE}, {TARGET} as {SUBTASK}, monotonically_increasing_id() as {POSITION} from {view}"
    return rows if ticks is None else f"{rows} union all {ticks}"


def _by_edge(edges: Sequence[Edge], expression: Callable[[Edge, str], str | None], kind: str) -> str:
    """Return the expression of the edge that the row belongs to."""
    if len(edges) == 1:
        return expression(edges[0], "") or f"cast(null as {kind})"
    cases = [(edge.name, own) for edge in edges if (own := expression(edge, f"{edge.name}.")) is not None]
    whens = " ".join(f"when {name} is not null then {own}" for name, own in cases)
    return f"case {whens} end" if whens else f"cast(null as {kind})"


def _hash_of(edge: Edge, prefix: str) -> str | None:
    if edge.key is None:
        return None
    if edge.key.spec.selector is not None:
        return f"{prefix}{KEY_HASH}"
    return f"xxhash64({', '.join(f'{prefix}{quote(name)}' for name in edge.key.spec.columns)})"


def _subtask_of(edge: Edge, prefix: str) -> str | None:
    if edge.key is None:
        return None
    maximum, parallelism = edge.key.max_parallelism, edge.key.parallelism
    group = f"shiftrightunsigned(shiftrightunsigned({HASH}, 32) * {maximum}L, 32)"
    return f"cast({group} * {parallelism}L div {maximum}L as int)"


def _ticks(stage: Stage, ordered: bool) -> str:
    """Return one control row for each task, in the columns that `_placed` gives."""
    position = ", cast(null as bigint)" if ordered else ""
    if stage.arrives_packed:
        values = f"cast('' as binary), cast(null as int), cast(id as int){position}"
        names = f"{CONTROL}, {PHASE}, {SUBTASK}{', ' + POSITION if ordered else ''}"
        return f"select * from (select {values} from range(0, {stage.tasks}, 1, 1)) as ticks({names})"
    arriving = _columns(stage.arriving)
    nulls = "".join(f"{_null(column)}, " for column in arriving)
    columns = f"{CONTROL}, {_names(arriving)}, {HASH}, {SUBTASK}{', ' + POSITION if ordered else ''}"
    values = f"cast('' as binary), {nulls}cast(null as bigint), cast(id as int){position}"
    return f"select * from (select {values} from range(0, {stage.tasks}, 1, 1)) as ticks({columns})"


def _order_of(stage: Stage) -> Iterable[str | Column]:
    """Yield the columns by which rows of a task are sorted before their position: broadcast, then `order_by`."""
    edges = stage.arriving
    if stage.arrives_packed:
        if any(edge.broadcast and edge.to_stage == stage.index for edge in edges):
            yield PHASE
        return
    for edge in edges if len(edges) > 1 else ():
        if edge.broadcast and edge.to_stage == stage.index:
            yield F.col(edge.name).isNull()
    for edge in edges:
        if edge.key is not None:
            prefix = "" if len(edges) == 1 else f"{edge.name}."
            yield from (f"{prefix}{quote(name)}" for name in edge.key.spec.order_by)
