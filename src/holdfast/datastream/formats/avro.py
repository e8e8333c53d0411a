"""Schemas and types for Avro, under PyFlink's names (`holdfast.types.avro`). Rows need `holdfast[avro]`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.avro import avro_type, logical_type_of
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import AvroRecordTypeInformation, RecordTypeInformation, RowTypeInformation
from holdfast.types.serialization import DeserializationSchema, SerializationSchema
from holdfast.types.type_information import TypeInformation

_PARTS: Final = ("type", "items", "values", "fields")
_UUID: Final = "holdfast-uuid"
"""The logical type of UUIDs in schemas for fastavro, which would make objects of them."""


class _AvroRowSchema:
    """The Avro schema, and the row type that it describes.

    Args:
        record_class: A class of Java; rejected.
        avro_schema_string: The schema of a record, as JSON.

    Raises:
        ConfigurationError: It is not the schema of a record, has a part that rows cannot have, such as a union of
            several types, or fastavro is not installed.
    """

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        if record_class is not None or avro_schema_string is None:
            raise ConfigurationError(
                f"{type(self).__name__} takes avro_schema_string=, the schema of a record as JSON; a record_class is a "
                "class of Java."
            )
        self._text = avro_schema_string
        row_type = to_row_types(avro_type(avro_schema_string))
        assert isinstance(row_type, RowTypeInformation)
        self._type = row_type
        self._avro = _fastavro()
        try:
            self._schema = self._avro.parse_schema(_for_fastavro(json.loads(avro_schema_string)))
        except Exception as error:  # fastavro raises errors of many types for an invalid schema
            raise ConfigurationError(f"The Avro schema is invalid: {error!r:.300}.") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None, self._text)


class AvroRowDeserializationSchema(_AvroRowSchema, DeserializationSchema):
    """Reads rows from records in Avro's binary encoding, without a container file.

    Args:
        record_class: A class of Java; rejected.
        avro_schema_string: The schema of a record, as JSON.

    Raises:
        ConfigurationError: The schema is invalid, or has a part that rows cannot have.

    Example:
        >>> from holdfast.datastream.formats.avro import AvroRowDeserializationSchema, AvroRowSerializationSchema
        >>> fields = '[{"name": "word", "type": "string"}, {"name": "n", "type": "long"}]'
        >>> avro = '{"type": "record", "name": "Count", "fields": %s}' % fields
        >>> row = AvroRowDeserializationSchema(avro_schema_string=avro).deserialize(bytes([8]) + b"kelp" + bytes([14]))
        >>> row.word, row.n
        ('kelp', 7)
    """

    def deserialize(self, message: bytes) -> Any:
        """Decode a record.

        Raises:
            ValueError: The bytes are not a record of the schema.
        """
        stream = io.BytesIO(message)
        try:
            record = self._avro.schemaless_reader(stream, self._schema, None)
            if stream.tell() != len(message):
                raise ValueError(f"{len(message) - stream.tell()} bytes are too many")
            return self._type.adopt(record)
        except OutputTypeError as error:
            raise ValueError(f"it is no Avro of {self._type}: {error!s:.1000}") from None
        except Exception as error:  # noqa: BLE001 - a reader may raise anything for malformed bytes
            raise ValueError(f"it is no Avro of {self._type}: {error!r:.200}") from None

    def get_produced_type(self) -> RowTypeInformation:
        return self._type


class AvroRowSerializationSchema(_AvroRowSchema, SerializationSchema):
    """Writes rows as records in Avro's binary encoding, without a container file.

    Args:
        record_class: A class of Java; rejected.
        avro_schema_string: The schema of a record, as JSON.

    Raises:
        ConfigurationError: The schema is invalid, or has a part that rows cannot have.

    Example:
        >>> from holdfast.datastream.formats.avro import AvroRowDeserializationSchema, AvroRowSerializationSchema
        >>> fields = '[{"name": "word", "type": "string"}, {"name": "n", "type": "long"}]'
        >>> avro = '{"type": "record", "name": "Count", "fields": %s}' % fields
        >>> list(AvroRowSerializationSchema(avro_schema_string=avro).serialize(("kelp", 7)))
        [8, 107, 101, 108, 112, 14]
    """

    def serialize(self, element: Any) -> bytes:
        """Encode a row of the type that the schema describes.

        Raises:
            ValueError: The schema does not allow a value, such as null.
        """
        record = self._type.adopt(element).as_dict(recursive=True)
        stream = io.BytesIO()
        try:
            self._avro.schemaless_writer(stream, self._schema, record, strict=True)
        except Exception as error:  # noqa: BLE001 - errors of many types, as above
            raise ValueError(f"{element!r:.200} is no record of the Avro schema: {error!r:.200}") from None
        return stream.getvalue()


def _for_fastavro(schema: Any) -> Any:
    """Keep only the logical types that the row type has too; text of UUIDs is checked."""
    if isinstance(schema, list):
        return list(map(_for_fastavro, schema))
    if not isinstance(schema, Mapping):
        return schema
    parts = {name: _for_fastavro(part) if name in _PARTS else part for name, part in schema.items()}
    if "logicalType" in schema and "type" in schema and logical_type_of(schema) is None:
        is_uuid = (schema["type"], schema["logicalType"]) == ("string", "uuid")
        del parts["logicalType"]
        parts |= {"logicalType": _UUID} if is_uuid else {}
    return parts


def _require_uuid(text: str, schema: Any) -> str:
    """Check a text that is written as a UUID; readers of other languages refuse all other texts."""
    with suppress(ValueError):
        if str(UUID(text)) == text.lower():
            return text
    raise ValueError(f"{text!r:.100} is not a UUID")


def to_row_types(described: TypeInformation) -> TypeInformation:
    """Replace the types of Avro records, which are dicts, by row types.

    Raises:
        ConfigurationError: A record has no fields.
    """
    if isinstance(described, RecordTypeInformation):
        if not described.names:
            raise ConfigurationError(f"The Avro record {described.name!r} has no fields, so there is no row of it.")
        return RowTypeInformation(described.names, [to_row_types(part) for part in described.types])
    if isinstance(described, ListTypeInformation):
        return ListTypeInformation(to_row_types(described.element_type))
    if isinstance(described, MapTypeInformation):
        return MapTypeInformation(described.key_type, to_row_types(described.value_type))
    return described


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise ConfigurationError(
            f"Rows of Avro need fastavro, which is not installed ({error}): pip install 'holdfast[avro]'."
        ) from error
    fastavro.write.LOGICAL_WRITERS[f"string-{_UUID}"] = _require_uuid
    return fastavro


__all__ = [
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
    "avro_type",
]

__getattr__ = module_getattr(__name__, REFUSED_FORMATS)


class AvroSchema:
    """The schema of a record as JSON text.

    Example:
        >>> from holdfast.datastream.formats.avro import AvroSchema, GenericRecordAvroTypeInfo
        >>> fields = '[{"name": "n", "type": "long"}]'
        >>> schema = AvroSchema.parse_string('{"type": "record", "name": "R", "fields": %s}' % fields)
        >>> GenericRecordAvroTypeInfo(schema).names
        ('n',)
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @staticmethod
    def parse_string(json_schema: str) -> AvroSchema:
        """Return the schema in a JSON text."""
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
