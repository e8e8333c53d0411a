"""The Spark plan of an epoch: level after level, an exchange between each two.

The key's hash, its key group and its subtask are computed in the JVM; rows are placed by `repartitionById`, so
subtask i runs as partition i. One tick row a task is added before the first exchange, because Spark drops operators
whose input is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.runtime.exchange import CONTROL, HASH, KEY, KEY_HASH, RESERVED, TARGET, EdgeLayout, SourceLayout
from holdfast.runtime.plan import Edge, JobPlan, Level
from holdfast.types.arrow import VALUE_COLUMN
from holdfast.types.convert import to_type
from holdfast.types.type_information import RowTypeInformation, TypeInformation

SUBTASK = f"{RESERVED}subtask"
POSITION = f"{RESERVED}position"
_TAG = f"{RESERVED}tag"

Stage = Callable[[DataFrame, Level, str], DataFrame]
"""Runs one level's tasks over a frame: (frame, level, output schema as DDL) -> frame."""


def build(plan: JobPlan, sources: DataFrame | None, session: SparkSession, run_level: Stage) -> DataFrame:
    """The frame whose collection runs the epoch; its rows are the barriers of the last level.

    Args:
        plan: The job.
        sources: Input of the epoch in the columns of `SourceLayout`; None for an epoch without input.
        session: Session whose settings the epoch's plan has (adaptive execution off).
        run_level: Adds one Python stage.
    """
    levels = list(plan.levels)
    frame: DataFrame | None
    if plan.starts_in_python:
        first = levels.pop(0)
        frame = None if sources is None else run_level(sources, first, _output_ddl(first))
        if not levels:
            return run_level(_no_rows(session, plan), first, _output_ddl(first)) if frame is None else frame
    else:
        frame = None if sources is None else _edges_of_sources(sources, plan, levels[0].arriving, levels[0].tasks)
    for position, level in enumerate(levels):
        layout = EdgeLayout(level.arriving)
        placed = None if frame is None else _placed(frame, level.arriving)
        if position == 0:
            ticks = _ticks(session, layout, level)
            placed = ticks if placed is None else ticks.union(placed)
        assert placed is not None
        frame = run_level(_arriving(placed, level), level, _output_ddl(level))
    assert frame is not None
    return frame


def layout_ddl(layout: EdgeLayout) -> str:
    """The columns of an exchange as DDL."""
    parts = [f"{CONTROL} binary", f"{TARGET} int"]
    if layout.flat:
        parts += _edge_ddl(layout.edges[0], " ")
    else:
        parts += [f"{edge.name} struct<{', '.join(_edge_ddl(edge, ': '))}>" for edge in layout.edges]
    return ", ".join(parts)


def source_ddl(plan: JobPlan) -> str:
    """The columns of `SourceLayout` as DDL."""
    layout = SourceLayout(plan.sources)
    if layout.flat:
        return ", ".join(_fields_ddl(plan.sources[0].element_type, " "))
    structs = (", ".join(_fields_ddl(source.element_type, ": ")) for source in plan.sources)
    return ", ".join(f"{layout.column(i)} struct<{struct}>" for i, struct in enumerate(structs))


def quote(name: str) -> str:
    """A column name as it stands in SQL."""
    return "`" + name.replace("`", "``") + "`"


def _fields_ddl(element_type: TypeInformation, separator: str) -> list[str]:
    if not isinstance(element_type, RowTypeInformation):
        return [f"{VALUE_COLUMN}{separator}{element_type.ddl}"]
    return [
        f"{quote(name)}{separator}{type_.ddl}"
        for name, type_ in zip(element_type.names, element_type.types, strict=True)
    ]


def _edge_ddl(edge: Edge, separator: str) -> list[str]:
    parts = _fields_ddl(edge.element_type, separator)
    if edge.key is not None and edge.key.spec.selector is not None:
        parts += [f"{KEY}{separator}{to_type(edge.key.codec.storage_type).ddl}", f"{KEY_HASH}{separator}bigint"]
    return parts


def _output_ddl(level: Level) -> str:
    return layout_ddl(EdgeLayout(level.leaving)) if level.leaving else f"{CONTROL} binary"


def _no_rows(session: SparkSession, plan: JobPlan) -> DataFrame:
    return session.createDataFrame([], source_ddl(plan))


def _edges_of_sources(sources: DataFrame, plan: JobPlan, edges: Sequence[Edge], tasks: int) -> DataFrame:
    """Source columns as edge columns, without Python: a row read by several edges is repeated for each."""
    layout = SourceLayout(plan.sources)
    control = F.lit(None).cast("binary").alias(CONTROL)
    forward = F.pmod(F.spark_partition_id(), F.lit(tasks)).cast("int")
    target = (F.lit(None).cast("int") if all(e.key for e in edges) else forward).alias(TARGET)
    if len(edges) == 1 and layout.flat:
        return sources.select(control, target, *[F.col(quote(name)) for name in sources.columns])
    structs = {
        source.uid: F.struct(*[F.col(quote(n)) for n in sources.columns]) if layout.flat else F.col(layout.column(i))
        for i, source in enumerate(plan.sources)
    }
    if len(edges) == 1:
        raise AssertionError("several sources cannot share one edge")
    readers = {uid: [i for i, edge in enumerate(edges) if edge.origin.name == uid] for uid in structs}
    numbers: Column = F.array()
    for uid, positions in readers.items():
        numbers = F.when(structs[uid].isNotNull(), F.array(*[F.lit(i) for i in positions])).otherwise(numbers)
    tagged = sources.select("*", F.explode(numbers).alias(_TAG))
    columns = [F.when(F.col(_TAG) == i, structs[edge.origin.name]).alias(edge.name) for i, edge in enumerate(edges)]
    return tagged.select(control, target, *columns)


def _placed(frame: DataFrame, edges: Sequence[Edge]) -> DataFrame:
    """Adds the hash, the subtask and, where rows are ordered, their position in the source."""
    hashed = frame.withColumn(HASH, _first_of(edges, _hash_of))
    placed = hashed.withColumn(SUBTASK, F.coalesce(F.col(TARGET), _first_of(edges, _subtask_of)))
    if any(edge.key is not None and edge.key.spec.order_by for edge in edges):
        placed = placed.withColumn(POSITION, F.monotonically_increasing_id())
    return placed.drop(TARGET)


def _first_of(edges: Sequence[Edge], expression: Callable[[Edge, bool], Column | None]) -> Column:
    """The expression of the edge that the row belongs to."""
    if len(edges) == 1:
        only = expression(edges[0], True)
        assert only is not None
        return only
    result: Column = F.lit(None)
    for edge in edges:
        own = expression(edge, False)
        if own is not None:
            result = F.when(F.col(edge.name).isNotNull(), own).otherwise(result)
    return result


def _hash_of(edge: Edge, flat: bool) -> Column | None:
    if edge.key is None:
        return None
    prefix = "" if flat else f"{edge.name}."
    if edge.key.spec.selector is not None:
        return F.col(f"{prefix}{KEY_HASH}")
    return F.xxhash64(*[F.col(f"{prefix}{quote(name)}") for name in edge.key.spec.columns])


def _subtask_of(edge: Edge, flat: bool) -> Column | None:
    if edge.key is None:
        return None
    maximum, parallelism = edge.key.max_parallelism, edge.key.parallelism
    group = f"shiftrightunsigned(shiftrightunsigned({HASH}, 32) * {maximum}L, 32)"
    return F.expr(f"cast({group} * {parallelism}L div {maximum}L as int)")


def _ticks(session: SparkSession, layout: EdgeLayout, level: Level) -> DataFrame:
    """One control row for each task, in the columns that `_placed` gives."""
    ordered = any(edge.key is not None and edge.key.spec.order_by for edge in layout.edges)
    types = layout_ddl(layout)
    empty = session.createDataFrame([], types).schema
    columns = [F.expr("cast('' as binary)").alias(CONTROL)]
    columns += [
        F.lit(None).cast(field.dataType).alias(field.name)
        for field in empty.fields
        if field.name not in (CONTROL, TARGET)
    ]
    columns += [F.lit(None).cast("bigint").alias(HASH), F.col("id").cast("int").alias(SUBTASK)]
    if ordered:
        columns.append(F.lit(None).cast("bigint").alias(POSITION))
    return session.range(0, level.tasks, 1, 1).select(*columns)


def _arriving(placed: DataFrame, level: Level) -> DataFrame:
    frame = placed.repartitionById(level.tasks, F.col(SUBTASK))
    order = list(_order_of(level.arriving))
    if order:
        frame = frame.sortWithinPartitions(*order, POSITION).drop(POSITION)
    return frame.drop(SUBTASK)


def _order_of(edges: Sequence[Edge]) -> Iterable[Column]:
    for edge in edges:
        if edge.key is not None:
            prefix = "" if len(edges) == 1 else f"{edge.name}."
            yield from (F.col(f"{prefix}{quote(name)}") for name in edge.key.spec.order_by)
