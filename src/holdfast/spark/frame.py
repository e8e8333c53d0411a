"""Spark frames: their row types, the frames of steps, and `mapInArrow` for every supported Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction

from holdfast.errors import ConfigurationError
from holdfast.runtime.graph.stream_graph import Node, SourceNode, transforms_of
from holdfast.spark.schema import Times, quote, stream_schema
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import (
    element_schema,
    elements_to_batch,
    has_times_of_day,
    nanos_to_times,
    times_to_nanos,
    times_to_texts,
)
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_row_type

_TAKES_TABLES = hasattr(DataFrame, "toArrow")  # since Spark 4.0
_MAP_ARROW_ITER: Final = 207
"""`PythonEvalType.SQL_MAP_ARROW_ITER_UDF`, which Spark 3.5 defines in another module; the JVM gets the number."""

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def element_type_of(frame: DataFrame) -> RowTypeInformation:
    """Return the row type of a frame.

    Raises:
        ConfigurationError: It is no frame of a classic Spark session, or has columns of a type without a form in
            Python.
    """
    if not isinstance(frame, DataFrame):
        raise ConfigurationError(f"from_dataframe() takes a Spark DataFrame, not {type(frame).__name__}")
    return to_row_type(frame.schema)


def arrow_files(session: SparkSession) -> DataFrameReader:
    """Return a reader of Parquet files that Arrow wrote: their dates are of today's calendar, however old.

    Spark before 4.0 refuses dates before 1582 unless it is told. The checksums of pages are verified. A missing or
    damaged file fails, also in a session that skips such files: its rows would be lost.
    """
    dates = session.read.option("datetimeRebaseMode", "CORRECTED").option("int96RebaseMode", "CORRECTED")
    complete = dates.option("ignoreMissingFiles", False).option("ignoreCorruptFiles", False)
    return complete.option("parquet.page.verify-checksum.enabled", True)


def staged_frame(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of Parquet files that tasks staged, with the columns that they were written with.

    Without them Spark would read intervals as numbers, and times without time zone as its settings say.
    """
    with file_system_for(paths[0]).open_input(paths[0]) as file:
        columns = stream_schema(to_row_type(pq.read_schema(file)), Times.NANOS)
    return arrow_files(session).schema(columns).parquet(*paths)


def is_streaming(frame: DataFrame) -> bool:
    return bool(frame.isStreaming)


def frame_of(node: Node, session: SparkSession, staged: DataFrame | None = None) -> DataFrame:
    """Return the frame of an input, or of transforms after one or after a Python operator.

    Transforms see times of day, of a collection or of a Python operator, as texts.

    Args:
        node: The input or the last of the transforms.
        session: For frames that are made here.
        staged: The output of the Python operator, with times of day as numbers; None for a frame of the right
            columns without rows.

    Raises:
        ConfigurationError: A transform returned something else than a frame.
    """
    transforms = transforms_of(node)
    start = transforms[0].inputs[0] if transforms else node
    if staged is None:
        frame = _start(start, session, times_as_text=bool(transforms))
    else:
        frame = _with_texts(staged, start.element_type) if transforms else staged
    for transform in transforms:
        frame = transform.function(frame)
        if not isinstance(frame, DataFrame):
            raise ConfigurationError(
                f"transform() takes a function DataFrame -> DataFrame; that of {transform.name!r} returned {frame!r}."
            )
    return frame


def numbered_frame(frame: DataFrame, kind: RowTypeInformation) -> DataFrame:
    """Return the frame with times of day as numbers of nanoseconds; Spark has such a type only if it is enabled."""
    if not any(map(has_times_of_day, kind.arrow_schema.types)):
        return frame
    return map_in_arrow(frame, _with_numbers, stream_schema(kind, Times.NANOS))


def _with_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return map(times_to_nanos, batches)


def _with_texts(staged: DataFrame, element_type: TypeInformation) -> DataFrame:
    schema = element_schema(element_type)
    if not any(map(has_times_of_day, schema.types)):
        return staged

    def with_their_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (times_to_texts(nanos_to_times(batch, schema)) for batch in batches)

    return map_in_arrow(staged, with_their_texts, stream_schema(element_type, Times.TEXTS))


def _start(node: Node, session: SparkSession, *, times_as_text: bool) -> DataFrame:
    if not isinstance(node, SourceNode):
        return session.createDataFrame([], stream_schema(node.element_type, Times.TEXTS))
    if node.collection is not None:
        batch = elements_to_batch(list(node.collection), node.element_type, node.uid)
        if times_as_text:
            return frame_with(times_to_texts(batch), stream_schema(node.element_type, Times.TEXTS), session)
        return frame_with(times_to_nanos(batch), stream_schema(node.element_type, Times.NANOS), session)
    if node.frame is None:
        raise ConfigurationError(
            f"input {node.identity!r} reads {node.reads}, which only real-time jobs read: set execution.trigger to "
            "real-time"
        )
    assert isinstance(node.frame, DataFrame)
    return node.frame


def frame_with(batch: pa.RecordBatch, columns: StructType, session: SparkSession) -> DataFrame:
    """Return the rows of a batch as a frame. Spark takes Arrow tables since 4.0; before, a task brings the batch."""
    if _TAKES_TABLES:
        return session.createDataFrame(pa.Table.from_batches([batch]), schema=columns)
    return map_in_arrow(session.range(0, 1, 1, 1), lambda _: iter([batch]), columns)


def map_in_arrow(frame: DataFrame, function: ArrowFunction, columns: StructType | str) -> DataFrame:
    """Apply a function to the batches of a frame, as `frame.mapInArrow(function, columns)` does, on PySpark 3.5 to 4.3.

    Spark's own makes the function by `pandas_udf`, so it needs pandas, although no batch becomes pandas; and it
    misreads a dot or a backtick in the name of a column.
    """
    return ArrowStep(function, columns, frame.columns).over(frame)


class ArrowStep:
    """`mapInArrow` of one function over one frame after the other; the parts that stay the same are made once.

    Args:
        function: The function.
        columns: Its output.
        names: The columns of all frames.
    """

    def __init__(self, function: ArrowFunction, columns: StructType | str, names: Sequence[str]) -> None:
        made = UserDefinedFunction(function, columns, evalType=_MAP_ARROW_ITER)
        self._applied: Any = made(*[F.col(quote(name)) for name in names])

    def over(self, frame: DataFrame) -> DataFrame:
        """Return the output for the rows of a frame."""
        java: Any = frame._jdf
        if _TAKES_TABLES:
            mapped = java.mapInArrow(self._applied._jc, False, None)
        else:  # Spark 3.5
            mapped = java.pythonMapInArrow(self._applied._jc.expr(), False)
        return DataFrame(mapped, frame.sparkSession)
