"""Types, rows and configuration under PyFlink's names, from `holdfast.types` and `holdfast.kernel`."""

from typing import Any

from holdfast.common import flink_paths
from holdfast.common.serialization import (
    ByteArraySchema,
    DeserializationSchema,
    SerializationSchema,
    SimpleStringSchema,
)
from holdfast.common.time import Duration, Instant, Time
from holdfast.errors import ConfigurationError, IllegalConfigurationError, IllegalConfigurationException
from holdfast.kernel.configuration import ConfigOption, Configuration
from holdfast.kernel.ids import JobID, JobVertexID, OperatorID
from holdfast.kernel.watermark import (
    ColumnTimestampAssigner,
    TimestampAssigner,
    Watermark,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.types.row import Row, RowKind
from holdfast.types.serialization import Encoder
from holdfast.types.serializer import TypeSerializer, TypeSerializerSchemaCompatibility, TypeSerializerSnapshot
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

__all__ = [
    "ByteArraySchema",
    "ColumnTimestampAssigner",
    "ConfigOption",
    "Configuration",
    "ConfigurationError",
    "DeserializationSchema",
    "Duration",
    "Encoder",
    "IllegalConfigurationError",
    "IllegalConfigurationException",
    "Instant",
    "JobID",
    "JobVertexID",
    "OperatorID",
    "Row",
    "RowKind",
    "SerializationSchema",
    "SimpleStringSchema",
    "Time",
    "TimestampAssigner",
    "TypeInformation",
    "TypeSerializer",
    "TypeSerializerSchemaCompatibility",
    "TypeSerializerSnapshot",
    "Types",
    "Watermark",
    "WatermarkGenerator",
    "WatermarkGeneratorContext",
    "WatermarkOutput",
    "WatermarkStrategy",
]

flink_paths.register(__name__, flink_paths.COMMON, flink_paths.REFUSED_MODULES)


def __getattr__(name: str) -> Any:
    """Load names of `pyflink.common` whose classes are in packages above this one."""
    flink_paths.refuse(name, flink_paths.REFUSED)
    if name not in flink_paths.LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return flink_paths.load(flink_paths.LAZY[name])
