"""Questions about a Spark frame that the datastream layer asks."""

from __future__ import annotations

from pyspark.sql import DataFrame

from holdfast.errors import ConfigurationError
from holdfast.types.convert import to_row_type
from holdfast.types.type_information import RowTypeInformation


def element_type_of(frame: DataFrame) -> RowTypeInformation:
    """The row type of a frame.

    Raises:
        ConfigurationError: It is no frame of a classic Spark session, or has columns of a type that has no form in Python.
    """
    if not isinstance(frame, DataFrame):
        raise ConfigurationError(f"from_dataframe() takes a Spark DataFrame, not {type(frame).__name__}")
    return to_row_type(frame.schema)


def is_streaming(frame: DataFrame) -> bool:
    """Whether the frame is a stream."""
    return bool(frame.isStreaming)
