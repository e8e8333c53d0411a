"""Spark frames as the rest of Holdfast asks about them: their rows' type, and the frame that a step stands for."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import ConfigurationError
from holdfast.runtime.graph import FrameTransformNode, Node, SourceNode
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


def is_streaming(frame: DataFrame) -> bool:
    """Whether the frame is a stream."""
    return bool(frame.isStreaming)


def frame_of(node: Node, session: SparkSession) -> DataFrame:
    """The frame of a source, or of transforms after one.

    Raises:
        ConfigurationError: The step stands after a Python operator, where there are no frames, or a transform returned
            something else.
    """
    if isinstance(node, FrameTransformNode):
        frame = node.function(frame_of(node.inputs[0], session))
        if not isinstance(frame, DataFrame):
            raise ConfigurationError(f"transform() {node.name!r} must return a DataFrame, not {type(frame).__name__}")
        return frame
    if not isinstance(node, SourceNode):
        raise ConfigurationError(
            f"transform() after {node.name!r}: frames end at the first Python operator, so call transform() before it, "
            "or write to a sink and read that in a job of its own"
        )
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
