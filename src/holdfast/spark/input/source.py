"""Inputs of a job as Spark frames: one streaming frame for all streaming inputs, static ones beside it.

Several inputs are one plan: a union with one nullable struct column an input, split again inside the epoch. Spark
refuses to union streaming with static, so static inputs join the first epoch. The later epoch jobs of an epoch read
files that were staged in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import ConfigurationError, HoldfastError, OutputTypeError
from holdfast.runtime.exchange.chunk import TIMESTAMP
from holdfast.runtime.exchange.layout import RESERVED, SourceLayout
from holdfast.runtime.graph.plan import EpochJob, JobPlan, SourcePlan
from holdfast.runtime.graph.stream_graph import transforms_of
from holdfast.runtime.job.engine import StagedInput
from holdfast.runtime.operator import user_error
from holdfast.spark.exchange import quote, source_ddl
from holdfast.spark.frame import arrow_files, element_type_of, frame_of, numbered_frame
from holdfast.spark.input.fitting import InputIdentities, uid_of
from holdfast.spark.input.split_frames import StreamedSplits, split_frame, splits_of
from holdfast.types.conversion.arrow import element_ddl, element_schema
from holdfast.types.conversion.times_of_day import numbered_elements_ddl

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


class _Packing:
    """Puts the frames of an epoch job's sources into one frame, in the columns of `SourceLayout`."""

    def __init__(self, epoch_job: EpochJob, session: SparkSession) -> None:
        self._layout = SourceLayout(epoch_job.sources)
        self._columns = session.createDataFrame([], source_ddl(epoch_job)).schema

    def union(self, members: Sequence[tuple[SourcePlan, DataFrame]]) -> DataFrame | None:
        """All rows of these sources; None if there is no source."""
        result: DataFrame | None = None
        for source, frame in members:
            packed = frame if self._layout.flat else frame.select(*self._packed(source, frame))
            result = packed if result is None else result.union(packed)
        return result

    def column_of(self, source: SourcePlan) -> str:
        """The column of a source, where there are several."""
        return self._layout.column(self._layout.sources.index(source))

    def _packed(self, source: SourcePlan, frame: DataFrame) -> list[Column]:
        columns = []
        for position, other in enumerate(self._layout.sources):
            name = self._layout.column(position)
            value = F.struct(*[F.col(quote(c)) for c in frame.columns]) if other is source else F.lit(None)
            columns.append(value.cast(self._columns[name].dataType).alias(name))
        return columns


class JobFrames:
    """The frames of a job's inputs.

    Args:
        plan: The job.
        session: Of the job.
        goes_back: Whether a failure may go back by more than the epoch that failed.

    Raises:
        ConfigurationError: An input has reserved columns, keeps state in Spark itself, which our checkpoints do not
            cover, or destroys what the job may have to read again.
    """

    def __init__(self, plan: JobPlan, session: SparkSession, *, goes_back: bool = False) -> None:
        self._packing = packing = _Packing(plan.epoch_jobs[0], session)
        self._session = session
        given = [(source, frame_of(source.node, session)) for source in plan.sources if source.node is not None]
        for source, frame in given:
            _check(source, frame)
            if goes_back:
                _check_repeatable(source, frame)
        frames = [(source, numbered_frame(frame, element_type_of(frame))) for source, frame in given]
        streams = [(s, f) for s, f in frames if f.isStreaming]
        self._static = [(s, f) for s, f in frames if not f.isStreaming]
        self.streaming = packing.union(streams)
        self.identities = InputIdentities(streams, self._static, self.streaming, session)
        self.splits = StreamedSplits([s for s, _ in streams], self.identities.lines, packing.union, packing.column_of)

    def static(self, unread: Collection[str]) -> DataFrame | None:
        """All rows of the static inputs with these uids; None if there is none."""
        frame = self._packing.union([(s, self._read_once(s, f)) for s, f in self._static if uid_of(s) in unread])
        return None if frame is None else _in_session(frame, self._session)

    def _read_once(self, source: SourcePlan, frame: DataFrame) -> DataFrame:
        splits = splits_of(source)
        if splits is None:
            return frame
        return split_frame(self._session, splits.plan((), None, self._session.sparkContext.defaultParallelism).tasks)

    def with_static(self, batch: DataFrame, unread: Collection[str]) -> DataFrame:
        """The batch, and static inputs that have not been read."""
        static = self.static(unread)
        return batch if static is None else batch.union(static)


class StagedFrames:
    """The frames of a later epoch job: staged files, and what transforms make of them.

    Raises:
        ConfigurationError: A transform gives reserved columns.
    """

    def __init__(self, epoch_job: EpochJob, session: SparkSession) -> None:
        self._epoch_job = epoch_job
        self._session = session
        self._packing = _Packing(epoch_job, session)
        self._schemas = {
            source.uid: session.createDataFrame([], _staged_ddl(source)).schema for source in epoch_job.sources
        }
        for source in epoch_job.sources:
            _check_names(source, element_schema(source.element_type).names)

    def frame(self, staged: StagedInput, epoch: int) -> DataFrame:
        """The input of the epoch job in one attempt at an epoch.

        Raises:
            UserFunctionError: A transform raised.
            OutputTypeError: A transform returned other columns than at first.
        """
        members = [(source, self._frame(source, staged.of(source), epoch)) for source in self._epoch_job.sources]
        frame = self._packing.union(members)
        assert frame is not None
        return frame if frame.sparkSession is self._session else _in_session(frame, self._session)

    def _frame(self, source: SourcePlan, paths: list[str], epoch: int) -> DataFrame:
        schema = self._schemas[source.uid]
        session = self._session
        read = arrow_files(session).schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)
        if source.node is None:
            return read
        try:
            frame = frame_of(source.node, session, read)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, source.uid, None, epoch, "transforming a frame") from error
        found = element_type_of(frame)
        if found != source.element_type:
            raise OutputTypeError(
                source.uid,
                f"transform() {source.uid!r} returned the columns {found.schema_ddl!r} in epoch {epoch}, but "
                f"{element_ddl(source.element_type)!r} for a frame without rows: the columns must not depend on the "
                "rows (with pivot(), name the values)",
                declared=str(source.element_type),
            )
        return numbered_frame(frame, found)


def _in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same frame in another session: a union belongs to that of its first part, whose settings and views it has."""
    return session.createDataFrame([], frame.schema).union(frame)


def _staged_ddl(source: SourcePlan) -> str:
    """The columns of the files that a source is made of, as far as it needs them."""
    transforms = [] if source.node is None else transforms_of(source.node)
    columns = numbered_elements_ddl(transforms[0].inputs[0].element_type if transforms else source.element_type)
    return f"{columns}, {TIMESTAMP} bigint" if source.stamped else columns


def _check_names(source: SourcePlan, names: Sequence[str]) -> None:
    reserved = [name for name in names if name.startswith(RESERVED)]
    if reserved:
        raise ConfigurationError(
            f"input {source.uid!r} has a column {reserved[0]!r}: names that start with {RESERVED!r} are reserved, "
            "rename it"
        )
    odd = [name for name in names if "." in name or "`" in name]
    if odd:
        raise ConfigurationError(
            f"input {source.uid!r} has a column {odd[0]!r}: Spark does not pass columns with dots or backticks in "
            "their names to Python, rename it, for instance by withColumnRenamed()"
        )


def _check(source: SourcePlan, frame: DataFrame) -> None:
    _check_names(source, frame.columns)
    if frame.isStreaming:
        found = _stateful(frame._jdf.queryExecution().analyzed())
        if found:
            raise ConfigurationError(
                f"input {source.uid!r} contains {found}, which keeps state in Spark that a Holdfast checkpoint does "
                "not hold: use a keyed operator of Holdfast instead, run it in a query of its own, or call transform() "
                "after a Python operator, where it sees the rows of one epoch"
            )


def _check_repeatable(source: SourcePlan, frame: DataFrame) -> None:
    found = _destroying(frame._jdf.queryExecution().analyzed()) if frame.isStreaming else None
    if found:
        raise ConfigurationError(
            f"input {source.uid!r} has {found}, and a failure goes back to the last completed checkpoint, whose rows "
            "are gone then: remove this, or unset execution.checkpointing.interval, "
            "execution.checkpointing.min-pause and execution.checkpointing.tolerable-failed-checkpoints, so that every "
            "epoch completes a checkpoint"
        )


def _destroying(plan: Any) -> str | None:
    """What a streaming plan reads from that does not keep it, None if there is nothing."""
    if plan.getClass().getSimpleName() == "StreamingRelation":
        options = plan.dataSource().options().iterator()
        while options.hasNext():
            option = options.next()
            if option._1().lower() == "cleansource" and option._2().lower() != "off":
                return f"the option cleanSource={option._2()}"
    if plan.getClass().getSimpleName() == "StreamingRelationV2" and "socket" in plan.sourceName().lower():
        return "a socket as its source"
    children = plan.children()
    members = [children.apply(i) for i in range(children.size())]
    return next((found for member in members if (found := _destroying(member))), None)


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
