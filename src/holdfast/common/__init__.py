"""Types, rows and configuration under PyFlink's names: a face over `holdfast.types` and `holdfast.kernel`."""

from holdfast.common.time import Duration, Time
from holdfast.errors import ConfigurationError, IllegalConfigurationError, IllegalConfigurationException
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID, JobVertexID, OperatorID
from holdfast.kernel.option import ConfigOption
from holdfast.kernel.watermark import TimestampAssigner, WatermarkStrategy
from holdfast.types.information.type_information import TypeInformation, Types
from holdfast.types.row import Row
from holdfast.types.serializer import TypeSerializer, TypeSerializerSchemaCompatibility, TypeSerializerSnapshot

__all__ = [
    "ConfigOption",
    "Configuration",
    "ConfigurationError",
    "Duration",
    "IllegalConfigurationError",
    "IllegalConfigurationException",
    "JobID",
    "JobVertexID",
    "OperatorID",
    "Row",
    "Time",
    "TimestampAssigner",
    "TypeInformation",
    "TypeSerializer",
    "TypeSerializerSchemaCompatibility",
    "TypeSerializerSnapshot",
    "Types",
    "WatermarkStrategy",
]
