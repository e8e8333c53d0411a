"""How elements become bytes and bytes elements at the edge of a job, under PyFlink's names.

Unlike a `TypeSerializer`, which state is kept by, a schema knows no versions: what it writes is read by others.
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

from holdfast.errors import ConfigurationError
from holdfast.types.changelog_type import ROW_KIND
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types


class SerializationSchema(ABC):
    """Makes bytes of elements. It is pickled into tasks; `open` is called there, once for each subtask and epoch."""

    def open(self) -> None:  # noqa: B027 - most schemas have nothing to open
        """Makes what cannot be pickled."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes | None:
        """The bytes of an element; None where the place that they go to knows an absent value."""


class DeserializationSchema(ABC):
    """Makes elements of bytes. It is pickled into tasks; `open` is called there, once for each subtask and epoch."""

    def open(self) -> None:  # noqa: B027 - most schemas have nothing to open
        """Makes what cannot be pickled."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """The element that bytes stand for.

        Raises:
            ValueError: They stand for none.
        """

    def deserialize_all(self, message: bytes) -> Sequence[Any]:
        """The elements that bytes stand for: as a rule one, none if `deserialize` returns None.

        Override it where one message is several elements; `deserialize` is not called then.

        Raises:
            ValueError: They stand for none.
        """
        element = self.deserialize(message)
        return () if element is None else (element,)

    @abstractmethod
    def get_produced_type(self) -> TypeInformation:
        """The type of the elements."""


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes as they are."""

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

    Args:
        charset: How text is encoded.

    Raises:
        ConfigurationError: There is no such encoding.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        try:
            "".encode(charset)
        except LookupError as error:
            raise ConfigurationError(f"SimpleStringSchema knows no charset {charset!r}.") from error
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
    """The bytes in one field of a row, such as the key of a record that is a row of key and value.

    Args:
        field_index: Position of the field, which must hold bytes, or None where the place that they go to knows that.

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
            raise ValueError(f"there is no field {self._field_index} in a row of {len(element)} fields")
        found = element[self._field_index]
        if found is not None and not isinstance(found, bytes | bytearray):
            raise TypeError(f"field {self._field_index} holds {type(found).__name__}, not bytes: map the stream first")
        return None if found is None else bytes(found)


# How elements become lines of a file, under PyFlink's name.

_MARK: Final = "\udc00"
"""Half a character, which no text of a declared type has: marks texts that are to stand without their quotes."""

_NO_NUMBERS: Final = frozenset(("NaN", "Infinity", "-Infinity"))


class JsonNumber(str):
    """A number as it is to stand in JSON, instead of what Python makes of it."""

    __slots__ = ()


class Encoder(ABC):
    """Makes the bytes of an element as they stand in a file, the end of the line included. It is pickled into tasks."""

    @abstractmethod
    def encode(self, element: Any) -> bytes:
        """The bytes of an element."""

    def with_text(self, text: Callable[[Any], str]) -> Encoder:
        """What encodes elements that are shown by `text`: this encoder, unless their text is what it writes."""
        return self

    def with_kinds(self) -> Encoder:
        """What encodes rows of changes: this encoder, unless their kinds are not in what it writes."""
        return self

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """The text of an element, on a line of its own: as Flink shows it if it has a declared type, else as `str`.

        Raises:
            ConfigurationError: There is no such character set.
        """
        return _StringEncoder(charset_name)

    @staticmethod
    def json_encoder() -> Encoder:
        """A JSON object of each row, on a line of its own: JSON lines.

        Dates and times are ISO 8601, decimals are strings, because JSON numbers lose digits, and bytes are base64. Rows
        of changes have their kind as a last field, `row_kind`, from 0 to 3.
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
        return super().encode(with_kind(element))


def with_kind(row: Any) -> dict[str, Any]:
    """The fields of a row of changes, and what it does to a table as the last one."""
    return {**row.as_dict(), ROW_KIND: row.get_row_kind().value}


def nonfinite_to_text(value: Any, text: Callable[[float], str]) -> Any:
    """A value in which numbers that JSON has not, NaN and the infinities, are texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else text(value)
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, Mapping):
        return {name: nonfinite_to_text(part, text) for name, part in value.items()}
    return [nonfinite_to_text(part, text) for part in value] if isinstance(value, list | tuple) else value


def json_text(element: Any) -> str:
    """JSON of an element, on one line.

    Raises:
        ValueError: It has a number that JSON has not (NaN, infinity).
        TypeError: It has a value that JSON has no form for.
    """
    return json.dumps(_plain(element, _simple), ensure_ascii=False, allow_nan=False)


def flink_json_text(element: Any) -> str:
    """The same as Flink's JSON of rows has it: no spaces, decimals as numbers, times in UTC with a Z at their end."""
    plain = _plain(element, _simple_in_flink)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace(f'"{_MARK}', "").replace(f'{_MARK}"', "")


def _plain(value: Any, simple: Callable[[Any], Any]) -> Any:
    """A value of JSON that stands for one of a stream, and what `simple` returns for one without parts."""
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
            raise ValueError(f"{value} is no number of JSON")
        return f"{_MARK}{value}{_MARK}"
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is no number of JSON")
        return f"{_MARK}{value}{_MARK}"
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, datetime.datetime | datetime.time):
        return f"{value.isoformat()}Z"
    return _simple(value)
