"""Serialization schemas and encoders under their path in PyFlink."""

from holdfast.common.flink_paths import module_getattr
from holdfast.types.serialization import (
    ByteArraySchema,
    DeserializationSchema,
    Encoder,
    RowFieldExtractorSchema,
    SerializationSchema,
    SimpleStringSchema,
)

__all__ = [
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "RowFieldExtractorSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]

__getattr__ = module_getattr(
    __name__,
    {"RowDataBulkWriterFactory": "BulkWriterFactory writes rows of every kind, with parquet(), arrow() and csv()"},
    {"BulkWriterFactory": "holdfast.datastream.connectors.file_system:BulkWriterFactory"},
)
