"""Schemas of what goes in and out, under their PyFlink names."""

from holdfast.common.flink_paths import refusing
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

__getattr__ = refusing(
    __name__,
    {"RowDataBulkWriterFactory": "BulkWriterFactory writes rows of every kind, with parquet(), arrow() and csv()"},
    {"BulkWriterFactory": "holdfast.datastream.connectors.file_system:BulkWriterFactory"},
)
