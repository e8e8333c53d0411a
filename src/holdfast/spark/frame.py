"""Spark frames as the rest of Holdfast asks about them: their rows' type, and the frame that a step stands for."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from holdfast.errors import ConfigurationError
from holdfast.runtime.graph import Node, SourceNode, transforms_of
from holdfast.types.arrow import element_ddl, elements_to_batch
from holdfast.types.convert import to_row_type
from holdfast.types.type_information import RowTypeInformation

_TAKES_TABLES = hasattr(DataFrame, "toArrow")


def element_type_of(frame: DataFrame) -> RowTypeInformation:
    """The row type of a frame.

    Raises:
        ConfigurationError: It is no frame of a classic Spark session, or has columns of a type that has no form in
            Python.
    """
    if not isinstance(frame, DataFrame):
        raise ConfigurationError(f"from_dataframe() takes a Spark DataFrame, not {type(frame).__name__}")
    return to_row_type(frame.schema)


def arrow_files(session: SparkSession) -> DataFrameReader:
    """A reader of Parquet files that Arrow has written: their dates are of today's calendar, however old.

    Spark before 4.0 refuses those before 1582 unless it is told.
    """
    return session.read.option("datetimeRebaseMode", "CORRECTED").option("int96RebaseMode", "CORRECTED")


def is_streaming(frame: DataFrame) -> bool:
    """Whether the frame is a stream."""
    return bool(frame.isStreaming)


def frame_of(node: Node, session: SparkSession, staged: DataFrame | None = None) -> DataFrame:
    """The frame of an input, or of transforms after one or after a Python operator.

    Args:
        node: The input or the last of the transforms.
        session: For frames that are made here.
        staged: What the Python operator has emitted; without it a frame without rows, which has the right columns.

    Raises:
        ConfigurationError: A transform returned something else than a frame.
    """
    transforms = transforms_of(node)
    start = transforms[0].inputs[0] if transforms else node
    frame = _start(start, session) if staged is None else staged
    for transform in transforms:
        frame = transform.function(frame)
        if not isinstance(frame, DataFrame):
            raise ConfigurationError(
                f"transform() takes a function DataFrame -> DataFrame; that of {transform.name!r} returned {frame!r}."
            )
    return frame


def _start(node: Node, session: SparkSession) -> DataFrame:
    if not isinstance(node, SourceNode):
        return session.createDataFrame([], element_ddl(node.element_type))
    if node.collection is not None:
        batch = elements_to_batch(list(node.collection), node.element_type, node.uid)
        return frame_with(batch, element_ddl(node.element_type), session)
    assert isinstance(node.frame, DataFrame)
    return node.frame


def frame_with(batch: pa.RecordBatch, ddl: str, session: SparkSession) -> DataFrame:
    """The rows of a batch as a frame. Spark takes Arrow tables since 4.0; before, a task brings the batch along."""
    if _TAKES_TABLES:
        return session.createDataFrame(pa.Table.from_batches([batch]), schema=ddl)
    return session.range(0, 1, 1, 1).mapInArrow(lambda _: iter([batch]), ddl)
