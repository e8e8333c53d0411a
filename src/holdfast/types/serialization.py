"""Serialization schemas and encoders, under PyFlink's names: elements to bytes and back at the edges of a job.

Unlike a `TypeSerializer`, which state uses, a schema has no versions: others read what it writes.
"""

from __future__ import annotations

import base64
import codecs
import datetime
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.types.changelog_type import ROW_KIND
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

_MARK: Final = "\udc00"
"""A lone surrogate, which no text of a declared type has: marks texts that are written without quotes."""
_NO_NUMBERS: Final = frozenset(("NaN", "Infinity", "-Infinity"))


class SerializationSchema(ABC):
    """Serializes elements. It is pickled into tasks.

    >>> class Upper(SerializationSchema):
    ...     def serialize(self, element):
    ...         return element.upper().encode()
    >>> Upper().serialize("kelp")
    b'KELP'
    """

    def open(self) -> None:  # noqa: B027 - most schemas have nothing to open
        """Create what cannot be pickled. Called in the task, once for each subtask and epoch."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes | None:
        """Return the bytes of an element; None where the target supports absent values.

        Args:
            element: An element of the stream.
        """

    def serialize_batch(self, batch: pa.RecordBatch) -> Sequence[bytes | None] | None:
        """Return the bytes of each element of a batch; None to have each element passed to `serialize`.

        The default is None. Override it where columns are faster, and return None wherever the bytes would not be those
        of `serialize`, also if that would raise.

        Args:
            batch: A column for each field of a row type, otherwise one column `value`.
        """
        return None


class DeserializationSchema(ABC):
    """Deserializes elements. It is pickled into tasks.

    >>> class Numbers(DeserializationSchema):
    ...     def deserialize(self, message):
    ...         return int(message)
    ...
    ...     def get_produced_type(self):
    ...         return Types.LONG()
    >>> Numbers().deserialize(b"7")
    7
    """

    def open(self) -> None:  # noqa: B027 - most schemas have nothing to open
        """Create what cannot be pickled. Called in the task, once for each subtask and epoch."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """Return the element of a message; None to skip it.

        Args:
            message: The bytes of the message.

        Raises:
            ValueError: The message is not an element.
        """

    def deserialize_all(self, message: bytes) -> Sequence[Any]:
        """Return the elements of a message: by default the one of `deserialize`, or none if that is None.

        Override it if a message has several elements; `deserialize` is then not called.

        Args:
            message: The bytes of the message.

        Raises:
            ValueError: The message is invalid.
        """
        element = self.deserialize(message)
        return () if element is None else (element,)

    def deserialize_batch(self, messages: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return the elements of many messages as columns; None to have each message passed to `deserialize_all`.

        The default is None. Override it where columns are faster, and return None wherever an element would not be
        the one of `deserialize_all`, also if that would raise.

        Args:
            messages: The bytes of each message.

        Returns:
            One row for each message, in order, in the Arrow columns of `get_produced_type`.
        """
        return None

    @abstractmethod
    def get_produced_type(self) -> TypeInformation:
        """Return the type of the elements."""


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Passes bytes through.

    >>> ByteArraySchema().serialize(b"kelp")
    b'kelp'
    """

    def serialize(self, element: Any) -> bytes:
        if not isinstance(element, bytes | bytearray):
            raise TypeError(f"ByteArraySchema writes bytes, not {type(element).__name__}: map the stream first")
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        return message

    def get_produced_type(self) -> TypeInformation:
        return Types.BINARY()


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Strings as text.

    >>> SimpleStringSchema().serialize("kelp")
    b'kelp'

    Args:
        charset: The encoding.

    Raises:
        ConfigurationError: There is no such encoding.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        try:
            "".encode(charset)
        except LookupError as error:
            raise ConfigurationError(f"SimpleStringSchema: there is no charset {charset!r}.") from error
        self._charset = charset

    def serialize(self, element: Any) -> bytes:
        if not isinstance(element, str):
            raise TypeError(f"SimpleStringSchema writes strings, not {type(element).__name__}: map the stream first")
        return element.encode(self._charset)

    def deserialize(self, message: bytes) -> str:
        return message.decode(self._charset)

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()


class RowFieldExtractorSchema(SerializationSchema):
    """Serializes one field of a row that has bytes, for instance the key of a record that is a row of key and value.

    >>> RowFieldExtractorSchema(0).serialize((b"key", b"value"))
    b'key'

    Args:
        field_index: Position of the field, which has bytes, or None where the target supports absent values.

    Raises:
        ValueError: The position is negative.
    """

    def __init__(self, field_index: int) -> None:
        if field_index < 0:
            raise ValueError(f"the position of a field is at least 0, not {field_index}")
        self._field_index = field_index

    def serialize(self, element: Any) -> bytes | None:
        if not isinstance(element, tuple):
            raise TypeError(f"RowFieldExtractorSchema takes fields of rows, not of {type(element).__name__}")
        if self._field_index >= len(element):
            raise ValueError(f"a row of {len(element)} fields has no field {self._field_index}")
        found = element[self._field_index]
        if found is not None and not isinstance(found, bytes | bytearray):
            raise TypeError(f"field {self._field_index} is {type(found).__name__}, not bytes: map the stream first")
        return None if found is None else bytes(found)


class JsonNumber(str):
    """A number as its text in JSON, in place of Python's form."""

    __slots__ = ()


class Encoder(ABC):
    r"""Encodes elements for a file. It is pickled into tasks.

    >>> Encoder.json_encoder().encode(Row(word="kelp", n=3)).decode()
    '{"word": "kelp", "n": 3}\n'
    """

    @abstractmethod
    def encode(self, element: Any) -> bytes:
        """Return the bytes of an element in the file, including the end of the line.

        Args:
            element: An element of the stream.
        """

    def with_text(self, text: Callable[[Any], str]) -> Encoder:
        """Return an encoder that formats elements with `text`; self if the encoder does not write their text."""
        return self

    def with_kinds(self) -> Encoder:
        """Return an encoder for rows of changes; self if the encoder does not write kinds."""
        return self

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """Return an encoder of text lines: elements of declared types as Flink formats them, others by `str`.

        Args:
            charset_name: The encoding.

        Raises:
            ConfigurationError: There is no such encoding.
        """
        return _StringEncoder(charset_name)

    @staticmethod
    def json_encoder() -> Encoder:
        """Return an encoder of JSON lines: one JSON object per row.

        Dates and times are ISO 8601, decimals are strings, because JSON numbers lose digits, and bytes are base64. Rows
        of changes have their kind as the last field, `row_kind`, from 0 to 3.
        """
        return _JsonEncoder()


class _StringEncoder(Encoder):
    def __init__(self, charset: str, text: Callable[[Any], str] = str) -> None:
        try:
            codecs.lookup(charset)
        except LookupError as error:
            raise ConfigurationError(f"There is no character set {charset!r}.") from error
        self._charset = charset
        self._text = text

    def encode(self, element: Any) -> bytes:
        return f"{self._text(element)}\n".encode(self._charset)

    def with_text(self, text: Callable[[Any], str]) -> Encoder:
        return _StringEncoder(self._charset, text)


class _JsonEncoder(Encoder):
    def encode(self, element: Any) -> bytes:
        return (json_text(element) + "\n").encode()

    def with_kinds(self) -> Encoder:
        return _JsonChangeEncoder()


class _JsonChangeEncoder(_JsonEncoder):
    def encode(self, element: Any) -> bytes:
        return super().encode(as_dict_with_kind(element))


def as_dict_with_kind(row: Any) -> dict[str, Any]:
    """Return the fields of a row of changes as a dict, with the kind as the last one."""
    return {**row.as_dict(), ROW_KIND: row.get_row_kind().value}


def nonfinite_to_text(value: Any, text: Callable[[float], str]) -> Any:
    """Return a value in which NaN and infinities, which JSON does not have, are texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else text(value)
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, Mapping):
        return {name: nonfinite_to_text(part, text) for name, part in value.items()}
    return [nonfinite_to_text(part, text) for part in value] if isinstance(value, list | tuple) else value


def json_text(element: Any) -> str:
    """Return an element as JSON on one line.

    Raises:
        ValueError: The element has NaN or an infinity.
        TypeError: The element has a value without a JSON form.
    """
    return json.dumps(_plain(element, _simple), ensure_ascii=False, allow_nan=False)


def flink_json_text(element: Any) -> str:
    """Return an element as Flink's JSON: no spaces, decimals as numbers, times in UTC with a Z."""
    plain = _plain(element, _simple_in_flink)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace(f'"{_MARK}', "").replace(f'{_MARK}"', "")


def _plain(value: Any, simple: Callable[[Any], Any]) -> Any:
    """Return the JSON value of an element; `simple` converts values without parts."""
    if hasattr(value, "as_dict"):
        return {name: _plain(part, simple) for name, part in value.as_dict().items()}
    if isinstance(value, dict):
        return {str(name): _plain(part, simple) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, simple) for part in value]
    return simple(value)


def _simple(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _simple_in_flink(value: Any) -> Any:
    if isinstance(value, JsonNumber):
        if value in _NO_NUMBERS:
            raise ValueError(f"{value} is not a number in JSON")
        return f"{_MARK}{value}{_MARK}"
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not a number in JSON")
        return f"{_MARK}{value}{_MARK}"
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, datetime.datetime | datetime.time):
        return f"{value.isoformat()}Z"
    return _simple(value)
