"""Avro records as elements and state, and rows of them, under PyFlink's names; see `holdfast.types.conversion.avro`."""

from __future__ import annotations

from pathlib import Path

from holdfast.common.flink_paths import refusing
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.avro_row import AvroRowDeserializationSchema, AvroRowSerializationSchema
from holdfast.types.conversion.avro import avro_type
from holdfast.types.information.record_type import AvroRecordTypeInformation

__all__ = [
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
    "avro_type",
]

__getattr__ = refusing(__name__, REFUSED_FORMATS)


class AvroSchema:
    """The schema of a record as JSON text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @staticmethod
    def parse_string(json_schema: str) -> AvroSchema:
        """Return the schema that a text is."""
        return AvroSchema(json_schema)

    @staticmethod
    def parse_file(file_path: str) -> AvroSchema:
        """Return the schema in a file."""
        return AvroSchema(Path(file_path).read_text("utf-8"))

    def __str__(self) -> str:
        return self.text


def GenericRecordAvroTypeInfo(schema: AvroSchema) -> AvroRecordTypeInformation:
    """Return the type of the records of a schema, which are dicts."""
    return avro_type(schema.text)
