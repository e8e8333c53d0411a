"""Inputs of a job as Spark frames: one streaming frame for all streaming inputs, static ones beside it.

Several inputs are one plan: a union with one nullable struct column an input, split again inside the epoch. Spark
refuses to union streaming with static, so static inputs join the first epoch. The later epoch jobs of an epoch read
files that were staged in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from holdfast.errors import ConfigurationError, HoldfastError, OutputTypeError
from holdfast.runtime.exchange.layout import RESERVED, TIMESTAMP, SourceLayout
from holdfast.runtime.function.source import SourceStatistics, SplitInput
from holdfast.runtime.graph.plan import EpochJob, JobPlan, SourcePlan
from holdfast.runtime.graph.source_positions import OffsetLine, log_offset, require_plain
from holdfast.runtime.graph.stream_graph import SPLITS_COLUMN, SourceNode, transforms_of
from holdfast.runtime.job.engine import StagedInput
from holdfast.runtime.operator import user_error
from holdfast.spark.exchange import source_schema
from holdfast.spark.frame import arrow_files, element_type_of, frame_of, numbered_frame
from holdfast.spark.input.files import UnreadFileCounter, listed_in_log
from holdfast.spark.input.positions import InputIdentities, uid_of
from holdfast.spark.schema import Times, quote, stream_schema
from holdfast.spark.worker import wrap_errors
from holdfast.types.arrow import element_ddl, element_schema
from holdfast.types.type_parser import to_row_type

if TYPE_CHECKING:
    import pyarrow as pa


_RECORDS: Final = "splits"
"""The folder beside the log of a source: Spark ignores names that are no numbers."""

Union = Callable[[Sequence[tuple[SourcePlan, DataFrame]]], DataFrame | None]
Offset = dict[str, Any]
"""JSON; equal offsets must be equal texts, because Spark compares them so."""
_OLDEST = (4, 2)


def splits_of(source: SourcePlan) -> SplitInput | None:
    """Return what plans the splits of an input; None for one whose rows Spark reads."""
    return source.node.splits if isinstance(source.node, SourceNode) else None


def split_frame(session: SparkSession, tasks: Sequence[str]) -> DataFrame:
    """Return a frame with the splits of each task in a row, and in a partition.

    It is one SQL text, because `createDataFrame` makes dozens of calls into the JVM.
    """
    if not tasks:
        return session.createDataFrame([], StructType().add(SPLITS_COLUMN, StringType()))
    texts = ", ".join(f"X'{task.encode().hex()}'" for task in tasks)
    own = f"cast(element_at(array({texts}), cast(id as int) + 1) as string)"
    return session.sql(f"select {own} as {SPLITS_COLUMN} from range(0, {len(tasks)}, 1, {len(tasks)})")


class StreamedSplits:
    """The streaming inputs of a job whose rows tasks read.

    Before each epoch the driver turns the files that Spark listed into splits. Nobody runs Spark's own frame of such an
    input. The plan of an epoch is recorded beside the log of the listing source, so a checkpoint keeps it as it keeps
    that log; an epoch that is planned again is planned as it was recorded, and changed files are reported by name.

    Args:
        streams: The streaming inputs of the job.
        lines: Lines of its offset log.
        union: Merges frames of sources.
        column: From a source to its column, where it is one of several.
    """

    def __init__(
        self,
        streams: Sequence[SourcePlan],
        lines: Sequence[OffsetLine],
        union: Union,
        column: Callable[[SourcePlan], str],
    ) -> None:
        self._inputs = [(source, own) for source in streams if (own := splits_of(source)) is not None]
        self._are_all = len(self._inputs) == len(streams)
        self._lines = lines
        self._union = union
        self._column = column
        self._query: Path | None = None
        self._waiting: dict[str, list[UnreadFileCounter]] = {}

    @property
    def interval(self) -> float | None:
        """Seconds between two looks for new files, if all inputs are files and one sets it."""
        intervals = [own.interval() for _, own in self._inputs] if self._are_all else []
        return min((interval for interval in intervals if interval is not None), default=None)

    def waiting(self, query: Path) -> dict[str, SourceStatistics]:
        """Return the files that wait in each input, by uid, without those that cannot be counted. Blocks.

        Args:
            query: Directory of the query.
        """
        if query != self._query:
            self._query, self._waiting = query, dict(self._places(query))
        found: dict[str, SourceStatistics] = {}
        for uid, places in self._waiting.items():
            counted = [place.count() for place in places]
            if all(numbers.files is not None for numbers in counted):
                found[uid] = sum(counted, SourceStatistics())
        return found

    def _places(self, query: Path) -> Iterator[tuple[str, list[UnreadFileCounter]]]:
        for source, own in self._inputs:
            uid = uid_of(source)
            folders = dict.fromkeys(str(line.folder) for line in self._lines if line.leaf.uid == uid)
            logs = (query / "sources" / folder for folder in folders)
            yield uid, [UnreadFileCounter(own, place, log) for place, log in enumerate(logs)]

    def replace_listings(self, batch: DataFrame, query: Path, number: int) -> DataFrame:
        """Return a batch with splits in place of listed files.

        Args:
            batch: The batch.
            query: Directory of the query.
            number: Number of the batch.

        Raises:
            InputGoneError: A file is gone, or has changed since the same batch was planned first.
        """
        if not self._inputs:
            return batch
        session = batch.sparkSession
        members = [(source, self._planned(source, own, session, query, number)) for source, own in self._inputs]
        splits = self._union(members)
        assert splits is not None
        if self._are_all:
            return splits
        listed = " and ".join(f"{self._column(source)} is null" for source, _ in self._inputs)
        return batch.where(listed).union(splits)

    def _planned(
        self, source: SourcePlan, own: SplitInput, session: SparkSession, query: Path, number: int
    ) -> DataFrame:
        tasks: list[str] = []
        folders = set()
        for position, line in enumerate(self._lines):
            if line.leaf.uid == uid_of(source) and line.folder not in folders:
                folders.add(line.folder)
                after, until = (_offset(query, n, position) for n in (number - 1, number))
                paths = listed_in_log(query / "sources" / str(line.folder), after, until)
                tasks += _recorded(own, query / "sources" / str(line.folder) / _RECORDS, number, paths, session)
        return split_frame(session, tasks)


def _offset(query: Path, number: int, position: int) -> int:
    entry = query / "offsets" / str(number)
    return log_offset(require_plain(entry.read_text("utf-8"))[position]) if entry.exists() else -1


def _recorded(own: SplitInput, folder: Path, number: int, paths: Sequence[str], session: SparkSession) -> Sequence[str]:
    record = folder / str(number)
    known = record.read_text("utf-8") if record.exists() else None
    plan = own.plan(paths, known, session.sparkContext.defaultParallelism)
    if known is None:
        folder.mkdir(parents=True, exist_ok=True)
        record.write_text(plan.record, "utf-8")
        for other in folder.iterdir():
            if other.name != record.name:
                other.unlink()
    return plan.tasks


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


class _SourceUnion:
    """Merges the frames of an epoch job's sources into one, in the columns of `SourceLayout`."""

    def __init__(self, epoch_job: EpochJob) -> None:
        self._layout = SourceLayout(epoch_job.sources)
        self._columns = source_schema(epoch_job)

    def union(self, members: Sequence[tuple[SourcePlan, DataFrame]]) -> DataFrame | None:
        """Return all rows of these sources; None if there is no source."""
        result: DataFrame | None = None
        for source, frame in members:
            packed = frame if self._layout.flat else frame.select(*self._packed(source, frame))
            result = packed if result is None else result.union(packed)
        return result

    def column_of(self, source: SourcePlan) -> str:
        """Return the column of a source, where there are several."""
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
        session: Session of the job.
        goes_back: Whether a failure may go back by more than the failed epoch.

    Attributes:
        static_sources: Uids of the inputs that are read once, as a whole.

    Raises:
        ConfigurationError: An input has reserved columns, keeps state in Spark itself, which checkpoints do not cover,
            or destroys what the job may have to read again.
    """

    def __init__(self, plan: JobPlan, session: SparkSession, *, goes_back: bool = False) -> None:
        self._packing = packing = _SourceUnion(plan.epoch_jobs[0])
        self._session = session
        inputs = [(source, frame_of(source.node, session)) for source in plan.sources if source.node is not None]
        for source, frame in inputs:
            _check(source, frame)
            if goes_back:
                _check_repeatable(source, frame)
        frames = [(source, numbered_frame(frame, element_type_of(frame))) for source, frame in inputs]
        streams = [(s, f) for s, f in frames if f.isStreaming]
        self._static = [(s, f) for s, f in frames if not f.isStreaming]
        self.static_sources = frozenset(source.uid for source, _ in self._static)
        self.streaming = packing.union(streams)
        self.identities = InputIdentities(streams, self._static, self.streaming, session)
        self.splits = StreamedSplits([s for s, _ in streams], self.identities.lines, packing.union, packing.column_of)

    def static(self, unread: Collection[str]) -> DataFrame | None:
        """Return all rows of the static inputs with these uids; None if there is none."""
        frame = self._packing.union([(s, self._read_once(s, f)) for s, f in self._static if uid_of(s) in unread])
        return None if frame is None else _in_session(frame, self._session)

    def _read_once(self, source: SourcePlan, frame: DataFrame) -> DataFrame:
        splits = splits_of(source)
        if splits is None:
            return frame
        return split_frame(self._session, splits.plan((), None, self._session.sparkContext.defaultParallelism).tasks)

    def with_static(self, batch: DataFrame, unread: Collection[str]) -> DataFrame:
        """Return the batch, and static inputs that have not been read."""
        static = self.static(unread)
        return batch if static is None else batch.union(static)


class StagedFrames:
    """The frames of a later epoch job: staged files, and what transforms make of them.

    Raises:
        ConfigurationError: A transform returns reserved columns.
    """

    def __init__(self, epoch_job: EpochJob, session: SparkSession) -> None:
        self._epoch_job = epoch_job
        self._session = session
        self._packing = _SourceUnion(epoch_job)
        self._schemas = {source.uid: _staged_schema(source) for source in epoch_job.sources}
        for source in epoch_job.sources:
            _check_names(source, element_schema(source.element_type).names)

    def frame(self, staged: StagedInput, epoch: int) -> DataFrame:
        """Return the input of the epoch job in one try of an epoch.

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
    """Return the frame in another session: a union has the settings and views of the session of its first part."""
    return session.createDataFrame([], frame.schema).union(frame)


def _staged_schema(source: SourcePlan) -> StructType:
    """Return the columns of the files of a source that it needs."""
    transforms = [] if source.node is None else transforms_of(source.node)
    columns = stream_schema(transforms[0].inputs[0].element_type if transforms else source.element_type, Times.NANOS)
    return columns.add(TIMESTAMP, LongType()) if source.has_timestamps else columns


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
    """Return what in a streaming plan deletes rows that were read, None if nothing does."""
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
    """Return what in a streaming plan keeps state in Spark, None if nothing does."""
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


class RangeReader(Protocol):
    """A place that is read in ranges of offsets, in Python and without a jar, by Spark's Python data sources.

    The driver plans ranges up to the end of the place, and tasks read them. Checkpoints keep Spark's offsets, so
    nothing else is needed: a range that is read again has the same rows. The object is pickled into the planning
    process and into tasks, where it may open connections.
    """

    def initial(self) -> Offset:
        """Return the start of a stream without a checkpoint. Blocks."""

    def latest(self, start: Offset, is_limited: bool) -> Offset:
        """Return the end of the next epoch, `start` if nothing is new; limited as the place is configured. Blocks."""

    def freeze(self) -> None:
        """See nothing new from now on: the job ends when it has read what is there. Blocks."""

    def plan(self, start: Offset, end: Offset) -> Sequence[Any]:
        """Return the ranges between two offsets, each for one task; they can be pickled."""

    def bounds(self) -> tuple[Offset, Offset]:
        """Return beginning and end of a place that is read once, as a whole. Blocks."""

    def read(self, planned: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in a task. Blocks."""

    def reported(self) -> Offset | None:
        """Return the end of the place, for progress."""


def frame_of_ranges(
    session: SparkSession,
    name: str,
    ranges: RangeReader,
    columns: str,
    places: Mapping[str, str],
    *,
    is_streaming: bool,
) -> DataFrame:
    """Return a frame over a place.

    Args:
        session: The session.
        name: Kind of the place; a checkpoint knows an input by it and by `places`.
        ranges: The place.
        columns: Its columns as DDL.
        places: Options that name the place, as `description` knows them.
        is_streaming: Whether the frame is a stream, or is read once as a whole.

    Raises:
        ConfigurationError: This Spark has no such data sources.
    """
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"Spark {pyspark.__version__} cannot plan epochs over {name} in Python: such data sources come with "
            "Spark 4.2. Read it with Spark's own source, by from_dataframe()."
        )
    schema = stream_schema(to_row_type(columns), Times.NANOS)
    session.dataSource.register(_data_source(name, ranges, schema))
    reader = session.readStream if is_streaming else session.read
    return reader.format(name).options(**places).load()


def _data_source(kind: str, ranges: RangeReader, columns: StructType) -> Any:  # noqa: C901 - the methods count as one
    """Return a class that has the place in it; made in here, so that it is pickled as a whole."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> Offset:
            with wrap_errors():
                return ranges.initial()

        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
            with wrap_errors():
                return ranges.latest(start, not isinstance(limit, ReadAllAvailable))

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxRows(2**31 - 1)  # any limit: how much it is the place knows

        def prepareForTriggerAvailableNow(self) -> None:
            with wrap_errors():
                ranges.freeze()

        def reportLatestOffset(self) -> Offset | None:
            with wrap_errors():
                return ranges.reported()

        def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
            with wrap_errors():
                return [InputPartition(planned) for planned in ranges.plan(start, end)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            with wrap_errors():
                yield from ranges.read(partition.value)

    class BatchReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            # Planned when the program was defined: a frame that is planned again has the same rows.
            with wrap_errors():
                return [InputPartition(planned) for planned in ranges.plan(*ranges.bounds())]

        def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
            if partition is None or partition.value is None:
                return  # Spark plans one task at least
            with wrap_errors():
                yield from ranges.read(partition.value)

    class RangeSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return kind

        def schema(self) -> StructType:
            return columns

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return StreamReader()

        def reader(self, schema: Any) -> DataSourceReader:
            return BatchReader()

    return RangeSource
