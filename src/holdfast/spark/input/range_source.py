"""Frames over places that are read in ranges of offsets, by Python and without a jar: Spark's Python data sources.

The driver asks where the place ends and plans ranges; tasks read them. What Spark writes of an offset into its log is
what checkpoints keep of any source, so nothing else has to be kept: a range that is read again has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyspark
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import ConfigurationError
from holdfast.spark.worker import errors_carried

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]
"""JSON; equal offsets must be equal texts, because Spark compares them so."""

_OLDEST = (4, 2)


class Ranges(Protocol):
    """A place. It is pickled into the process that plans and into tasks, and may hold connections once it is there."""

    def initial(self) -> Offset:
        """Where a stream begins that no checkpoint knows. Blocks."""

    def latest(self, start: Offset, is_limited: bool) -> Offset:
        """Where the next epoch ends, at `start` if nothing is new; limited as the place was told to. Blocks."""

    def freeze(self) -> None:
        """From now on nothing new is seen: the job ends when it has read what is there. Blocks."""

    def plan(self, start: Offset, end: Offset) -> Sequence[Any]:
        """The ranges between two offsets, each for one task; they can be pickled."""

    def bounds(self) -> tuple[Offset, Offset]:
        """Beginning and end of a place that is read once, as a whole. Blocks."""

    def read(self, planned: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a range, in a task. Blocks."""

    def reported(self) -> Offset | None:
        """The end of the place, for progress."""


def frame_of_ranges(
    session: SparkSession, name: str, ranges: Ranges, columns: str, places: Mapping[str, str], *, is_streaming: bool
) -> DataFrame:
    """A frame over a place.

    Args:
        session: The session.
        name: Of the kind of place; a checkpoint knows an input by it and by `places`.
        ranges: The place.
        columns: Its columns as DDL.
        places: Options that name the place, as `description` knows them.
        is_streaming: Whether the frame goes on, or is read once as a whole.

    Raises:
        ConfigurationError: This Spark has no such data sources.
    """
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"Spark {pyspark.__version__} cannot plan epochs over {name} in Python: such data sources come with "
            "Spark 4.2. Read it with Spark's own source, by from_dataframe()."
        )
    session.dataSource.register(_data_source(name, ranges, columns))
    reader = session.readStream if is_streaming else session.read
    return reader.format(name).options(**places).load()


def _data_source(kind: str, ranges: Ranges, columns: str) -> Any:
    """A class that has the place in it. It is made here, so that it is pickled as a whole."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> Offset:
            with errors_carried():
                return ranges.initial()

        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
            with errors_carried():
                return ranges.latest(start, not isinstance(limit, ReadAllAvailable))

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxRows(2**31 - 1)  # any limit: how much it is the place knows

        def prepareForTriggerAvailableNow(self) -> None:
            with errors_carried():
                ranges.freeze()

        def reportLatestOffset(self) -> Offset | None:
            with errors_carried():
                return ranges.reported()

        def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
            with errors_carried():
                return [InputPartition(planned) for planned in ranges.plan(start, end)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            with errors_carried():
                yield from ranges.read(partition.value)

    class BatchReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            # Planned when the program was defined: a frame that is planned again has the same rows.
            with errors_carried():
                return [InputPartition(planned) for planned in ranges.plan(*ranges.bounds())]

        def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
            if partition is None or partition.value is None:
                return  # Spark plans one task at least
            with errors_carried():
                yield from ranges.read(partition.value)

    class RangeSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return kind

        def schema(self) -> str:
            return columns

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return StreamReader()

        def reader(self, schema: Any) -> DataSourceReader:
            return BatchReader()

    return RangeSource
