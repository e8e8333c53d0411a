"""How elements become bytes and bytes elements at the edge of a job, under PyFlink's names.

Unlike a `TypeSerializer`, which state is kept by, a schema knows no versions: what it writes is read by others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.types.information.type_information import TypeInformation, Types


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
