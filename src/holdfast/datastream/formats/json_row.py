"""Rows from and to JSON, under PyFlink's names."""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.conversion.convert import to_row_type
from holdfast.types.conversion.flink_text import with_number_texts
from holdfast.types.conversion.json_schema import row_type_of_json_schema
from holdfast.types.conversion.json_value import json_reader, parse_json
from holdfast.types.encoder import json_text_of_flink, with_kind
from holdfast.types.information.type_information import ChangelogTypeInformation, RowTypeInformation
from holdfast.types.serialization_schema import DeserializationSchema, SerializationSchema



class JsonRowDeserializationSchema(DeserializationSchema):
    """Rows of JSON objects; `builder()` begins one.

    Fields that the type has not are ignored. Dates and times are ISO 8601, binaries base64, decimals numbers or text.
    As in Flink, a text is read for a number or a boolean, and numbers, objects and arrays for a text; a Z behind a time
    that has no time zone is passed over.
    """

    Builder: ClassVar[type[JsonRowDeserializationSchemaBuilder]]
    """PyFlink's name of the builder's class."""

    def __init__(self, row_type: RowTypeInformation, *, fails_on_missing: bool, ignores_errors: bool) -> None:
        self._type = row_type
        self._fails_on_missing = fails_on_missing
        self._ignores_errors = ignores_errors
        self._read = json_reader(row_type, needs_all=fails_on_missing, is_lenient=True, ignores_errors=ignores_errors)

    @staticmethod
    def builder() -> JsonRowDeserializationSchemaBuilder:
        """A builder of a schema."""
        return JsonRowDeserializationSchemaBuilder()

    def deserialize(self, message: bytes) -> Any:
        """The row that a JSON object stands for; None for what is none, if that is ignored."""
        try:
            row = self._read(parse_json(message))
            if row is None:
                raise ValueError("it is null")
            return self._type.adopt(row)
        except (ValueError, OutputTypeError) as error:
            if self._ignores_errors:
                return None
            raise ValueError(f"it is no JSON of {self._type}: {error!s:.1000}") from None

    def get_produced_type(self) -> RowTypeInformation:
        return self._type

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._type, self._fails_on_missing, self._ignores_errors)


class JsonRowDeserializationSchemaBuilder:
    """Builds a `JsonRowDeserializationSchema`; the names are PyFlink's."""

    def __init__(self) -> None:
        self._type: RowTypeInformation | None = None
        self._fails_on_missing = False
        self._ignores_errors = False

    def type_info(self, type_info: Any) -> JsonRowDeserializationSchemaBuilder:
        """The type of the rows: `Types.ROW_NAMED(...)`, or DDL such as `"id bigint, name string"`."""
        self._type = to_row_type(type_info)
        return self

    def json_schema(self, json_schema: str) -> JsonRowDeserializationSchemaBuilder:
        """The type of the rows by the JSON schema of an object; numbers are `Decimal`, also whole ones, as in Flink.

        Raises:
            ConfigurationError: It is no such schema, or has a part of which there is no type.
        """
        self._type = row_type_of_json_schema(json_schema)
        return self

    def fail_on_missing_field(self) -> JsonRowDeserializationSchemaBuilder:
        """An object without one of the fields is an error; otherwise the field is null."""
        self._fails_on_missing = True
        return self

    def ignore_parse_errors(self) -> JsonRowDeserializationSchemaBuilder:
        """A field that cannot be read is null, and what is no object is left out; otherwise it fails the job."""
        self._ignores_errors = True
        return self

    def build(self) -> JsonRowDeserializationSchema:
        """The schema.

        Raises:
            ConfigurationError: There is no type, JSON has no form for it, or both ways to treat errors were chosen.
        """
        if self._type is None:
            raise ConfigurationError("A JsonRowDeserializationSchema needs type_info().")
        if self._fails_on_missing and self._ignores_errors:
            raise ConfigurationError("fail_on_missing_field() and ignore_parse_errors() exclude each other.")
        return _again(self._type, self._fails_on_missing, self._ignores_errors)


class JsonRowSerializationSchema(SerializationSchema):
    """JSON objects of rows as Flink writes them, without spaces; `builder()` begins one.

    Decimals are numbers, dates and times ISO 8601, binaries base64; a FLOAT has the digits of its 32 bits. Timestamps
    and times of day end in a Z, also those without a time zone: Flink's schema reads no others. Rows of changes have
    their kind as a last field, `row_kind`.
    """

    Builder: ClassVar[type[JsonRowSerializationSchemaBuilder]]
    """PyFlink's name of the builder's class."""

    def __init__(self, row_type: RowTypeInformation) -> None:
        self._type = row_type
        self._with_number_texts = with_number_texts(row_type)

    @staticmethod
    def builder() -> JsonRowSerializationSchemaBuilder:
        """A builder of a schema."""
        return JsonRowSerializationSchemaBuilder()

    def serialize(self, element: Any) -> bytes:
        """The JSON of a row, which must be of the type."""
        row = self._type.adopt(element)
        is_change = isinstance(self._type, ChangelogTypeInformation)
        shown = with_kind(row) if is_change else row
        if self._with_number_texts is not None:
            shown = self._with_number_texts(shown)
        return json_text_of_flink(shown).encode()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type,)


class JsonRowSerializationSchemaBuilder:
    """Builds a `JsonRowSerializationSchema`; the names are PyFlink's."""

    def __init__(self) -> None:
        self._type: RowTypeInformation | None = None

    def with_type_info(self, type_info: Any) -> JsonRowSerializationSchemaBuilder:
        """The type of the rows, as `output_type` takes it."""
        self._type = to_row_type(type_info)
        return self

    def build(self) -> JsonRowSerializationSchema:
        """The schema.

        Raises:
            ConfigurationError: There is no type.
        """
        if self._type is None:
            raise ConfigurationError("A JsonRowSerializationSchema needs with_type_info().")
        return JsonRowSerializationSchema(self._type)


def _again(row_type: RowTypeInformation, fails_on_missing: bool, ignores_errors: bool) -> JsonRowDeserializationSchema:
    return JsonRowDeserializationSchema(row_type, fails_on_missing=fails_on_missing, ignores_errors=ignores_errors)


# PyFlink nests the builders.
JsonRowDeserializationSchema.Builder = JsonRowDeserializationSchemaBuilder
JsonRowSerializationSchema.Builder = JsonRowSerializationSchemaBuilder
