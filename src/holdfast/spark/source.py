"""Inputs of a job as Spark frames: one streaming frame for all streaming inputs, static ones beside it.

Several inputs are one plan: a union with one nullable struct column an input, split again inside the epoch. Spark
refuses to union streaming with static, so static inputs join the first epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import ConfigurationError
from holdfast.runtime.exchange import RESERVED, SourceLayout
from holdfast.runtime.plan import JobPlan, Source
from holdfast.spark.exchange import quote, source_ddl
from holdfast.spark.frame import frame_of

_STATEFUL = {
    "Aggregate": "an aggregation",
    "Distinct": "distinct()",
    "Deduplicate": "dropDuplicates()",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark()",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState()",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState()",
    "GlobalLimit": "limit()",
}


class JobFrames:
    """The frames of a job's sources.

    Raises:
        ConfigurationError: An input has reserved columns, or keeps state in Spark itself, which our checkpoints do not
            cover.
    """

    def __init__(self, plan: JobPlan, session: SparkSession) -> None:
        self._layout = SourceLayout(plan.sources)
        self._ddl = source_ddl(plan)
        self._session = session
        frames = [(source, frame_of(source.node, session)) for source in plan.sources if source.node is not None]
        for source, frame in frames:
            _check(source, frame)
        self.streaming = self._union([(s, f) for s, f in frames if f.isStreaming])
        static = self._union([(s, f) for s, f in frames if not f.isStreaming])
        # A union belongs to the session of its first part: with that of the job come its settings, and its views.
        self.static = None if static is None else session.createDataFrame([], static.schema).union(static)

    def with_static(self, batch: DataFrame | None) -> DataFrame | None:
        """The batch and all static inputs, for the first epoch."""
        if self.static is None or batch is None:
            return self.static if batch is None else batch
        return batch.union(self.static)

    def _union(self, members: Sequence[tuple[Source, DataFrame]]) -> DataFrame | None:
        result: DataFrame | None = None
        for source, frame in members:
            packed = frame if self._layout.flat else frame.select(*self._columns(source, frame))
            result = packed if result is None else result.union(packed)
        return result

    def _columns(self, source: Source, frame: DataFrame) -> list[Column]:
        schema = self._session.createDataFrame([], self._ddl).schema
        columns = []
        for position, other in enumerate(self._layout.sources):
            name = self._layout.column(position)
            if other is source:
                columns.append(
                    F.struct(*[F.col(quote(c)) for c in frame.columns]).cast(schema[name].dataType).alias(name)
                )
            else:
                columns.append(F.lit(None).cast(schema[name].dataType).alias(name))
        return columns


def _check(source: Source, frame: DataFrame) -> None:
    reserved = [name for name in frame.columns if name.startswith(RESERVED)]
    if reserved:
        raise ConfigurationError(
            f"input {source.uid!r} has a column {reserved[0]!r}: names that start with {RESERVED!r} are reserved, "
            "rename it"
        )
    if frame.isStreaming:
        found = _stateful(frame._jdf.queryExecution().analyzed())
        if found:
            raise ConfigurationError(
                f"input {source.uid!r} contains {found}, which keeps state in Spark that a Holdfast checkpoint does "
                "not hold: use a keyed operator of Holdfast instead, or run it in a query of its own"
            )


def _stateful(plan: Any) -> str | None:
    """What in a streaming plan keeps state in Spark, None if nothing does."""
    if not plan.isStreaming():
        return None
    name = plan.getClass().getSimpleName()
    if name in _STATEFUL:
        return _STATEFUL[name]
    children = plan.children()
    members = [children.apply(i) for i in range(children.size())]
    if name == "Join" and all(member.isStreaming() for member in members):
        return "a join of two streams"
    return next((found for member in members if (found := _stateful(member))), None)
