"""How values of a declared type live in memory and in columns of a run.

User code must never hold a reference into state, and what it reads must be what it would read after a restart. So a
value is *adopted* when it is written (checked, brought into the form that would be read back) and *exposed* when it is
read. Values that cannot change are shared and cost neither; others are copied; those without a declared type are
encoded. What is in memory in between is called the stored form; None stands for no value and is never adopted.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from holdfast.types.changed_row import CHANGES, original, originals, settled
from holdfast.types.information.record_type import DataclassTypeInformation, RecordTypeInformation
from holdfast.types.information.type_information import (
    AtomicTypeInformation,
    ChangelogTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    ListTypeInformation,
    MapTypeInformation,
    OpaqueTypeInformation,
    PickledTypeInformation,
    SerializerTypeInformation,
    StructTypeInformation,
    TypeInformation,
)

# Instances of exactly these classes are in the form that would be read back, as far as one can tell without looking at
# the value; what does not fit after all (a number of 65 bits, a time zone) is found when the column is written.
_EXACT: Final[dict[str, type]] = {
    "boolean": bool,
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "double": float,
    "string": str,
    "binary": bytes,
    "date": date,
    "timestamp_ntz": datetime,
    "time": time,
    "interval day to second": timedelta,
}
# Pickled values of these classes are kept as they are: they cannot change, and pickling them is all that it costs.
_PROTOCOL: Final = pickle.HIGHEST_PROTOCOL
_ATOMIC: Final = frozenset({bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal})


class _Nothing:
    """A class without instances: no value is exactly of it."""


class ValueCodec(ABC):
    """Adopts and exposes the values of one state.

    Attributes:
        type: The declared type.
        exact: Class whose instances are their own stored form and may be shared.
    """

    exact: type = _Nothing

    def __init__(self, type_info: TypeInformation) -> None:
        self.type = type_info

    @abstractmethod
    def adopt(self, value: Any) -> Any:
        """Return the stored form of a value that is not None.

        Raises:
            Exception: It is not of the declared type; whatever a user's serializer raises.
        """

    @abstractmethod
    def expose(self, stored: Any) -> Any:
        """Return the value of a stored form that is not None."""

    @property
    def shares(self) -> bool:
        """Whether the stored form is the value itself, which cannot change."""
        return False

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert stored forms, or None, to a column."""
        return self.type.to_array(stored)

    def to_stored(self, array: pa.Array) -> list[Any]:
        """Convert a column to stored forms, None where it is null."""
        return self.type.to_list(array)


class SharedCodec(ValueCodec):
    """Values that cannot change."""

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        self.exact = exact_class(type_info)

    def adopt(self, value: Any) -> Any:
        """Check a value and bring it into the form that would be read back."""
        return self.type.adopt(value)

    def expose(self, stored: Any) -> Any:
        """Return the value itself."""
        return stored

    @property
    def shares(self) -> bool:
        """Nobody can change them."""
        return True


class RowCodec(SharedCodec):
    """Rows whose fields cannot change, and tuples of such rows.

    Who reads one may change it, for himself: what is in state is what the row was (`original`). So what is read or
    written goes through here once a row was changed in this process.
    """

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        self._whole = self.exact
        if isinstance(type_info, StructTypeInformation) and any(part.bears_rows for part in type_info.types):
            self.exact = _Nothing  # rows within may have been changed: its class does not tell

    def adopt(self, value: Any) -> Any:
        """Check a value as it is now, and bring it into the form that would be read back."""
        now = settled(value) if CHANGES else value
        return now if type(now) is self._whole else self.type.adopt(now)

    def expose(self, stored: Any) -> Any:
        """Return the value as it was written."""
        return original(stored) if CHANGES else stored

    @property
    def shares(self) -> bool:
        """What is in memory may be a row that somebody has changed."""
        return False

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert what was written."""
        return super().to_array(originals(stored) if CHANGES else stored)


class CopyCodec(ValueCodec):
    """Values of a declared type that can change: lists, maps, and rows with such fields."""

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        plain = isinstance(type_info, ListTypeInformation | MapTypeInformation) and _is_exact(type_info)
        self._copied_as: type = _Nothing
        if plain:
            self._copied_as = list if isinstance(type_info, ListTypeInformation) else dict

    def adopt(self, value: Any) -> Any:
        """Return a copy, checked throughout where its parts need it."""
        if type(value) is not self._copied_as:
            return self.type.adopt(value)
        return self.type.copy(settled(value) if CHANGES else value)

    def expose(self, stored: Any) -> Any:
        """Return a copy, of rows as they were written."""
        return self.type.copy(stored)

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert what was written."""
        return super().to_array(originals(stored) if CHANGES and self.type.bears_rows else stored)


class Encoded(bytes):
    """The bytes of a value that only Python can read."""

    __slots__ = ()


class OpaqueCodec(ValueCodec):
    """Values that are pickled, or that a user's serializer writes: encoded when written, decoded when read.

    Attributes:
        kept: Classes whose instances are their own stored form, and are pickled when the run is written.
    """

    def __init__(self, type_info: OpaqueTypeInformation) -> None:
        super().__init__(type_info)
        self._dump = type_info.dump
        self._load = type_info.load
        self.kept = _ATOMIC if isinstance(type_info, PickledTypeInformation) else frozenset()

    def adopt(self, value: Any) -> Any:
        """Return the encoded value, or a number or text as it is."""
        return value if type(value) in self.kept else Encoded(self._dump(value))

    def expose(self, stored: Any) -> Any:
        """Return a new object every time."""
        return self._load(stored) if type(stored) is Encoded else stored

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert to a column of bytes."""
        # Only what was kept as it is is not encoded yet, and plain pickle is right for that, and fast.
        return pa.array(
            [item if item is None or type(item) is Encoded else pickle.dumps(item, _PROTOCOL) for item in stored],
            self.type.arrow_type,
        )

    def to_stored(self, array: pa.Array) -> list[Any]:
        """Take the bytes as they are."""
        return [item if item is None else Encoded(item) for item in array.to_pylist()]


def value_codec_for(type_info: TypeInformation) -> ValueCodec:
    """Return the codec of a declared type."""
    if isinstance(type_info, OpaqueTypeInformation) and not type_info.is_immutable:
        return OpaqueCodec(type_info)
    if not type_info.is_immutable:
        return CopyCodec(type_info)
    return RowCodec(type_info) if type_info.bears_rows else SharedCodec(type_info)


def exact_class(type_info: TypeInformation) -> type:
    """Return the class whose instances are their own stored form and may be shared; one without instances if none."""
    if isinstance(type_info, RecordTypeInformation | ChangelogTypeInformation):
        return _Nothing
    if isinstance(type_info, StructTypeInformation):
        return type_info.row_type if _is_exact(type_info) else _Nothing
    if isinstance(type_info, DecimalTypeInformation):
        return int if type_info.as_int else _Nothing
    if type(type_info) in (AtomicTypeInformation, CollatedStringTypeInformation):
        assert isinstance(type_info, AtomicTypeInformation)
        return _EXACT.get(type_info.name, _Nothing)
    return _Nothing


def _is_exact(type_info: TypeInformation) -> bool:
    """Whether values of the right classes are in the form that would be read back, with all their parts."""
    if isinstance(type_info, RecordTypeInformation | ChangelogTypeInformation):
        return False
    if isinstance(type_info, StructTypeInformation):
        return all(map(_is_exact, type_info.types))
    if isinstance(type_info, ListTypeInformation):
        return _is_exact(type_info.element_type)
    if isinstance(type_info, MapTypeInformation):
        return _is_exact(type_info.key_type) and _is_exact(type_info.value_type)
    return isinstance(type_info, OpaqueTypeInformation) or exact_class(type_info) is not _Nothing


def classes_of(type_info: TypeInformation) -> list[Any]:
    """Return the classes that make objects of columns, parts included: types that look alike there may have others."""
    found: list[Any] = [type(type_info)]
    parts: Sequence[TypeInformation] = ()
    if isinstance(type_info, DataclassTypeInformation):
        found.append(type_info.dataclass)
    if isinstance(type_info, SerializerTypeInformation):
        found.append(type(type_info.serializer))
    elif isinstance(type_info, ListTypeInformation):
        parts = (type_info.element_type,)
    elif isinstance(type_info, MapTypeInformation):
        parts = (type_info.key_type, type_info.value_type)
    elif isinstance(type_info, StructTypeInformation):
        parts = type_info.types
    return [*found, *(one for part in parts for one in classes_of(part))]
