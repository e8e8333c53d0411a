"""The interface of declared types, the serializer of their values, and the types without parts.

Those are numbers, text, bytes, dates and times, decimals; and `Instant`.
"""

from __future__ import annotations

import decimal
import json
import math
import numbers
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, CorruptFileError, OutputTypeError, StateMigrationError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.types import tagged
from holdfast.types.serializer import (
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
)

Compatibility = TypeSerializerSchemaCompatibility[Any]


class TypeInformation(ABC):
    """The type of values in a stream, a field or a state.

    Python values have one *adopted* form each: `adopt` checks a value and returns it as it would be read back after it
    was stored. None is valid for every type.
    """

    contains_rows: bool = False
    """Whether there are Rows in adopted values, or they are Rows: a program may change these."""

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type, as Spark expects it from a Python operator with this type."""

    @property
    @abstractmethod
    def ddl(self) -> str:
        """The type as Spark SQL writes it."""

    @property
    @abstractmethod
    def is_immutable(self) -> bool:
        """Whether adopted values may be shared: they never change, or are Rows, which keep their original values."""

    @abstractmethod
    def to_json(self) -> Any:
        """Return a JSON value from which `type_from_json` restores this type."""

    @abstractmethod
    def adopt(self, value: Any) -> Any:
        """Check one value and return it in adopted form; exact, but slow.

        Raises:
            OutputTypeError: The value does not have this type; `field` is the path to the wrong part.
        """

    @abstractmethod
    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert a column of Python values to Arrow.

        Raises:
            OutputTypeError: A value does not have this type.
            pyarrow.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError: The same, for the column.
        """

    @abstractmethod
    def read(self, array: pa.Array) -> list[Any]:
        """Convert an array of exactly `arrow_type` to Python values; callers use `to_list`."""

    def to_list(self, array: pa.Array) -> list[Any]:
        """Convert an Arrow array to Python values; one of another layout or time zone is cast first."""
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if array.type != self.arrow_type:
            array = array.cast(self.arrow_type)
        return self.read(array)

    def copy(self, value: Any) -> Any:
        """Return a value that shares nothing mutable with this adopted one, with the original contents of Rows."""
        return value if self.is_immutable else self.adopt(value)

    def to_plain(self, value: Any) -> Any:
        """Return an adopted value in a form that `tagged.encode` accepts."""
        return value

    def from_plain(self, plain: Any) -> Any:
        """Return the value from the result of `to_plain`, as `tagged.decode` read it back."""
        return self.adopt(plain)

    def resolve_compatibility(self, old: TypeInformation) -> Compatibility:
        """Return whether this type can read state of the old type."""
        if self == old:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return self._resolve_other(old)

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        return TypeSerializerSchemaCompatibility.incompatible(f"{old} cannot become {self}")

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        """Convert a value of the old type, where `resolve_compatibility` requires migration."""
        return self.adopt(value)

    def create_serializer(self) -> TypeSerializer[Any]:
        """Return a serializer of single values of this type."""
        return ValueSerializer(self)

    def mismatch(self, value: Any, reason: str = "") -> OutputTypeError:
        """Return the error for a value that does not have this type."""
        text = f"{value!r:.200} of class {type(value).__name__!r} is not of the declared type {self!s:.300}"
        return OutputTypeError(None, f"{text}: {reason}" if reason else text, declared=str(self))

    def __str__(self) -> str:
        return self.ddl

    def __repr__(self) -> str:
        return f"<{self}>"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TypeInformation) and self.to_json() == other.to_json())

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))


def nested_error(error: OutputTypeError, step: str) -> OutputTypeError:
    """Return the error of a part as an error of the whole, with the path to the part."""
    inner = error.field or ""
    path = step + (f".{inner}" if inner and not inner.startswith("[") else inner)
    return OutputTypeError(error.uid, str(error), row=error.row, field=path, declared=error.declared)


_readers: dict[str, Callable[[dict[str, Any]], TypeInformation]] = {}


def register_type(kind: str, reader: Callable[[dict[str, Any]], TypeInformation]) -> None:
    """Let `type_from_json` read documents whose ``type`` is `kind`."""
    _readers[kind] = reader


def type_from_json(document: Any) -> TypeInformation:
    """Restore a type from the result of `to_json`: a name, or an object with a ``type``.

    Raises:
        StateMigrationError: The document is of a newer release, or damaged.
    """
    content = {"type": document} if isinstance(document, str) else document
    kind = content.get("type") if isinstance(content, dict) else None
    reader = _readers.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise _unknown(document)
    try:
        return reader(content)
    except (*PARSE_ERRORS, ConfigurationError, pa.ArrowException, OSError) as error:
        raise _unknown(document) from error


def _unknown(document: Any) -> StateMigrationError:
    return StateMigrationError(
        f"{reprlib.repr(document)} is not a type that this release knows. Upgrade, or check the file."
    )


class ValueSerializer(TypeSerializer[Any]):
    """Serializes single values of a declared type in a self-describing form, without pickle."""

    def __init__(self, type_information: TypeInformation) -> None:
        self.type_information = type_information

    def serialize(self, value: Any) -> bytes:
        """Return the bytes of a value.

        Raises:
            OutputTypeError: The value does not have the declared type.
        """
        return tagged.encode(self.type_information.to_plain(self.type_information.adopt(value)))

    def deserialize(self, data: bytes) -> Any:
        """Return the value from bytes that `serialize` returned.

        Raises:
            CorruptFileError: They are other bytes.
        """
        try:
            return self.type_information.from_plain(tagged.decode(data))
        except (tagged.TaggedValueError, OutputTypeError) as error:
            raise CorruptFileError(f"value of {self.type_information}", None, str(error)) from error

    def is_immutable_type(self) -> bool:
        return self.type_information.is_immutable and not self.type_information.contains_rows

    def copy(self, value: Any) -> Any:
        kind = self.type_information
        return kind.copy(kind.adopt(value)) if kind.contains_rows else kind.copy(value)

    def duplicate(self) -> ValueSerializer:
        """Return self, which has no mutable state."""
        return self

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        return ValueSerializerSnapshot(self.type_information)


class ValueSerializerSnapshot(TypeSerializerSnapshot[Any]):
    """The snapshot of a `ValueSerializer`: the type."""

    def __init__(self, type_information: TypeInformation | None = None) -> None:
        self._type = type_information

    @property
    def type_information(self) -> TypeInformation:
        if self._type is None:
            raise StateMigrationError("The snapshot was not read yet.")
        return self._type

    def get_current_version(self) -> int:
        return 1

    def write_snapshot(self) -> Any:
        return self.type_information.to_json()

    def read_snapshot(self, read_version: int, content: Any) -> None:
        self._type = type_from_json(content)

    def restore_serializer(self) -> TypeSerializer[Any]:
        return ValueSerializer(self.type_information)

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        if not isinstance(old_serializer_snapshot, ValueSerializerSnapshot):
            return TypeSerializerSchemaCompatibility.incompatible(
                f"written by {old_serializer_snapshot.to_json()['class']!r}, now declared as {self.type_information}"
            )
        return self.type_information.resolve_compatibility(old_serializer_snapshot.type_information)


_DAY: Final = 86_400_000_000_000
"""Nanoseconds in a day."""
# Numbers that fit exactly into a wider type.
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
MAX_CHAR_LENGTH: Final = 1 << 20
"""A bound, because values are padded to a length that may come from a file or a server."""
MAX_DECIMAL_PRECISION: Final = 38
_MORE: Final = (
    "Declare DECIMAL(precision, scale) with more of the 38 digits there, or PICKLED_BYTE_ARRAY for any number of digits"
)
_INTEGER_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


@dataclass(frozen=True)
class Instant:
    """A point in time, as in PyFlink. It may be emitted where the type is `Types.INSTANT()`.

    Elements that arrive are datetimes, as `to_datetime` returns them.

    Attributes:
        seconds: Seconds since 1970-01-01 UTC.
        nanos: Nanoseconds after that.
    """

    seconds: int
    nanos: int

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """Return the instant at a number of milliseconds since 1970."""
        return Instant(epoch_milli // 1000, epoch_milli % 1000 * 1_000_000)

    def to_epoch_milli(self) -> int:
        """Return the milliseconds since 1970, rounded down."""
        return self.seconds * 1000 + self.nanos // 1_000_000

    def to_datetime(self) -> datetime:
        """Return the instant as a datetime in UTC, rounded down to microseconds."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds, microseconds=self.nanos // 1000)

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"


# TIMESTAMP values are datetimes with the time zone UTC, TIMESTAMP_NTZ values have no time zone. A datetime without one
# is taken as UTC for a TIMESTAMP; one with a time zone is rejected for a TIMESTAMP_NTZ. The Arrow type of TIMESTAMP
# always says UTC: Spark reads the instant, whatever the session's time zone is.

_NONE: Final = type(None)
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = range(date.min.toordinal() - _EPOCH.toordinal(), date.max.toordinal() - _EPOCH.toordinal() + 1)
_MICROSECONDS: Final = range(
    (datetime.min - _EPOCH) // timedelta(microseconds=1), (datetime.max - _EPOCH) // timedelta(microseconds=1) + 1
)
"""Python's datetimes, of the years 1 to 9999, since 1970. NumPy returns plain numbers for all others."""


def with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """Replace values by None, in place, where the array is null."""
    if array.null_count:
        for position in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[position] = None
    return values


def read_objects(array: pa.Array) -> list[Any]:
    """Return the values of an array as NumPy's Python objects."""
    result: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return result


def _read_numbers(array: pa.Array) -> list[Any]:
    if not array.null_count:
        return read_objects(array)
    return with_nulls(read_objects(array.fill_null(0)), array)


def _read_booleans(array: pa.Array) -> list[Any]:
    return read_objects(array) if not array.null_count else list(array.to_pylist())


def _require(numbers: pa.Array, known: range, kind: str, reason: str) -> None:
    ends = pc.min_max(numbers)
    for found in (ends["min"].as_py(), ends["max"].as_py()):
        if found is not None and found not in known:
            raise OutputTypeError(None, f"{found} {reason}", declared=kind)


def _read_days(array: pa.Array) -> list[Any]:
    _require(array.view(pa.int32()), _DAYS, "date", "days after 1970 are not a date in the years 1 to 9999")
    return read_objects(array)


def _microseconds(array: pa.Array, kind: str) -> pa.Array:
    numbers = array.cast(pa.int64())
    _require(numbers, _MICROSECONDS, kind, "microseconds after 1970 are not a time in the years 1 to 9999")
    return numbers


def _read_instants(array: pa.Array) -> list[Any]:
    # Adding to the epoch is ten times faster than giving each naive datetime a time zone.
    since = _microseconds(array, "timestamp").fill_null(0).to_numpy().astype("timedelta64[us]").tolist()
    return with_nulls([_EPOCH_UTC + delta for delta in since], array)


def _read_local(array: pa.Array) -> list[Any]:
    _microseconds(array, "timestamp_ntz")
    return read_objects(array)


def _read_naive(array: pa.Array) -> list[Any]:
    return _read_local(array.cast(pa.timestamp("us")))


def _read_times(array: pa.Array) -> list[Any]:
    # Arrow would convert 24:00:00 to 00:00:00
    _require(array.cast(pa.int64()), range(_DAY), "time", "nanoseconds after midnight are not a time of day")
    return list(array.cast(pa.time64("us")).to_pylist())


@dataclass(frozen=True)
class Atom:
    """The differences between simple types."""

    name: str
    arrow: pa.DataType
    # Exact classes on the fast path; values of other classes go through `adopt`.
    plain: frozenset[type]
    adopt: Callable[[Any], Any]
    read: Callable[[pa.Array], list[Any]]
    # Checks the result of the fast path; None where it is always right.
    is_exact: Callable[[Sequence[Any], pa.Array], bool] | None = None


def _none_infinite(values: Sequence[Any], array: pa.Array) -> bool:
    # Arrow rounds numbers that do not fit into 32 bits to infinity.
    return not np.isinf(array.to_numpy(zero_copy_only=False)).any()


def _none_zoned(values: Sequence[Any], array: pa.Array) -> bool:
    return all(value is None or value.tzinfo is None for value in values)


# The exact class is compared first: isinstance() with an abstract class costs several times more.


def _whole(bits: int) -> Callable[[Any], Any]:
    limit = 1 << (bits - 1)

    def adopt(value: Any) -> int:
        result: int = value
        if type(value) is not int:
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
                raise TypeError("a whole number is needed")
            result = int(value)
        if not -limit <= result < limit:
            raise ValueError(f"it does not fit into {bits} bits")
        return result

    return adopt


def _truth(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError("True or False is needed")
    return bool(value)


def _floating(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError("a number is needed")
    result = float(value)
    if isinstance(value, numbers.Integral) and int(result) != int(value):
        raise ValueError("a float cannot hold it exactly")
    return result


def _single(value: Any) -> float:
    number = _floating(value)
    with np.errstate(over="ignore"):
        result = float(np.float32(number))
    if math.isinf(result) and not math.isinf(number):
        raise ValueError("it does not fit into 32 bits")
    if isinstance(value, numbers.Integral) and int(result) != int(value):
        raise ValueError("a float of 32 bits cannot hold it exactly")
    return result


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("text is needed")
    if not value.isascii():
        value.encode()  # raises for lone surrogates
    return str.__str__(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes are needed")
    return bytes(value)


def _day(value: Any) -> date:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise TypeError("a date without a time is needed")
    return value


def _instant(value: Any) -> datetime:
    if isinstance(value, Instant):
        return value.to_datetime()
    if not isinstance(value, datetime):
        raise TypeError("a datetime is needed")
    return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).replace(fold=0)


def _naive(value: Any) -> datetime:
    return _instant(value).replace(tzinfo=None)


def _local(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError("a datetime is needed")
    if value.tzinfo is not None:
        raise TypeError("a datetime without a time zone is needed")
    return value.replace(fold=0)


def _time(value: Any) -> time:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise TypeError("a time without a time zone is needed")
    return value.replace(fold=0)


def _delta(value: Any) -> timedelta:
    if not isinstance(value, timedelta):
        raise TypeError("a timedelta is needed")
    if not -(1 << 63) <= value // timedelta(microseconds=1) < 1 << 63:
        raise ValueError("64 bits of microseconds cannot hold it")
    return value


def _of(*classes: type) -> frozenset[type]:
    return frozenset({*classes, _NONE})


ATOMS: Final[dict[str, Atom]] = {
    atom.name: atom
    for atom in (
        Atom("boolean", pa.bool_(), _of(bool), _truth, _read_booleans),
        Atom("tinyint", pa.int8(), _of(int), _whole(8), _read_numbers),
        Atom("smallint", pa.int16(), _of(int), _whole(16), _read_numbers),
        Atom("int", pa.int32(), _of(int), _whole(32), _read_numbers),
        Atom("bigint", pa.int64(), _of(int), _whole(64), _read_numbers),
        Atom("float", pa.float32(), _of(float), _single, _read_numbers, _none_infinite),
        Atom("double", pa.float64(), _of(float), _floating, _read_numbers),
        Atom("string", pa.string(), _of(str), _text, read_objects),
        Atom("binary", pa.binary(), _of(bytes), _bytes, read_objects),
        Atom("date", pa.date32(), _of(date), _day, _read_days),
        Atom("timestamp", pa.timestamp("us", tz="UTC"), _of(datetime), _instant, _read_instants),
        Atom("timestamp_ntz", pa.timestamp("us"), _of(datetime), _local, _read_local, _none_zoned),
        Atom("time", pa.time64("ns"), _of(time), _time, _read_times, _none_zoned),
        Atom("interval day to second", pa.duration("us"), _of(timedelta), _delta, read_objects),
    )
}

SQL_TIMESTAMP: Final = Atom("timestamp", pa.timestamp("us", tz="UTC"), _of(datetime), _naive, _read_naive)
"""As java.sql.Timestamp in PyFlink: stored as a timestamp, but a UTC datetime without a time zone for programs."""


class AtomicTypeInformation(TypeInformation):
    """A simple type, known by its name in Spark SQL."""

    is_immutable = True
    ddl = ""
    arrow_type = pa.null()

    def __init__(self, name: str) -> None:
        self._atom = ATOMS[name]
        self.ddl = name
        self.arrow_type = self._atom.arrow

    @property
    def name(self) -> str:
        """The name in Spark SQL."""
        return self._atom.name

    def to_json(self) -> Any:
        return self._atom.name

    def adopt(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self._atom.adopt(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.mismatch(value, str(error)) from None

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert a column. Only values of exactly the expected classes take the fast path."""
        atom = self._atom
        if atom.plain.issuperset(map(type, values)):
            array = pa.array(values, atom.arrow)
            if atom.is_exact is None or atom.is_exact(values, array):
                return array
        return pa.array([self.adopt(value) for value in values], atom.arrow)

    def read(self, array: pa.Array) -> list[Any]:
        return self._atom.read(array)

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if isinstance(old, AtomicTypeInformation) and self.name in _WIDER.get(old.name, ()):
            return TypeSerializerSchemaCompatibility.compatible_after_migration(f"{old} becomes {self}")
        if self.name == "string" and isinstance(old, CharTypeInformation):
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return super()._resolve_other(old)

    def __reduce__(self) -> tuple[Any, ...]:
        return AtomicTypeInformation, (self._atom.name,)


class CharTypeInformation(AtomicTypeInformation):
    """Text of a fixed length, padded with spaces; a string to Spark."""

    def __init__(self, length: int = 1) -> None:
        super().__init__("string")
        if not 1 <= length <= MAX_CHAR_LENGTH:
            raise ConfigurationError(f"The length of CHAR is 1 or more, up to {MAX_CHAR_LENGTH}, not {length!r:.40}.")
        self.length = length

    def to_json(self) -> Any:
        return {"type": "char", "length": self.length}

    def adopt(self, value: Any) -> Any:
        text = super().adopt(value)
        if text is not None and len(text) > self.length:
            raise self.mismatch(value, f"it is longer than {self.length}")
        return text if text is None else text.ljust(self.length)

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([self.adopt(value) for value in values], self.arrow_type)

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if isinstance(old, CharTypeInformation) and old.length < self.length:
            return TypeSerializerSchemaCompatibility.compatible_after_migration(f"{old} becomes {self}")
        return TypeSerializerSchemaCompatibility.incompatible(f"{old} cannot become {self}")

    def __str__(self) -> str:
        return f"char({self.length})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CharTypeInformation, (self.length,)


class SqlTimestampTypeInformation(AtomicTypeInformation):
    """Timestamps that a program sees as UTC datetimes without a time zone; Spark and files have instants.

    Equal to the type of instants: their stored values are the same.
    """

    def __init__(self) -> None:
        super().__init__("timestamp")
        self._atom = SQL_TIMESTAMP

    def __reduce__(self) -> tuple[Any, ...]:
        return SqlTimestampTypeInformation, ()


class CollatedStringTypeInformation(AtomicTypeInformation):
    """Text with a Spark collation, which compares by other rules than bytes; it cannot be a key."""

    def __init__(self, collation: str) -> None:
        super().__init__("string")
        self.collation = collation.upper()
        self.ddl = f"string collate {self.collation}"

    def to_json(self) -> Any:
        return {"type": "collated", "collation": self.collation}

    def __reduce__(self) -> tuple[Any, ...]:
        return CollatedStringTypeInformation, (self.collation,)


for _name in ATOMS:
    register_type(_name, lambda document: AtomicTypeInformation(document["type"]))
register_type("char", lambda document: CharTypeInformation(document["length"]))
register_type("collated", lambda document: CollatedStringTypeInformation(document["collation"]))


_WIDE: Final = decimal.Context(prec=200)


def decimal_from_unscaled(unscaled: int, scale: int) -> Decimal:
    """Return a decimal with all of its digits; Python's decimal arithmetic rounds to 28."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


class DecimalTypeInformation(TypeInformation):
    """Decimal numbers of a fixed precision and scale; `as_int` ones are Python integers."""

    is_immutable = True
    ddl = ""
    arrow_type = pa.null()

    def __init__(self, precision: int = MAX_DECIMAL_PRECISION, scale: int = 18, *, as_int: bool = False) -> None:
        if not (1 <= precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision):
            raise ConfigurationError(
                f"DECIMAL has a precision from 1 to {MAX_DECIMAL_PRECISION} and a scale from 0 to the precision, not "
                f"{precision!r} and {scale!r}."
            )
        self.precision = precision
        self.scale = scale
        self.as_int = as_int
        self.ddl = f"decimal({precision},{scale})"
        self.arrow_type = pa.decimal128(precision, scale)
        self._unit = Decimal((0, (1,), -scale))

    def to_json(self) -> Any:
        document = {"type": "decimal", "precision": self.precision, "scale": self.scale}
        return document | {"as_int": True} if self.as_int else document

    def adopt(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise self.mismatch(value, "a Decimal or a whole number is needed")
        if self.as_int and not isinstance(value, int):
            raise self.mismatch(value, "a whole number is needed")
        try:
            result = Decimal(value).quantize(self._unit, context=_WIDE)
        except decimal.InvalidOperation:
            raise self.mismatch(value, "it is not finite, or too large") from None
        if result != value:
            raise self.mismatch(value, f"it has more than {self.scale} digits after the point. {_MORE}")
        if result.adjusted() >= self.precision - self.scale and result:
            raise self.mismatch(
                value, f"it has more than {self.precision - self.scale} digits before the point. {_MORE}"
            )
        return int(result) if self.as_int else result

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        if not {int if self.as_int else Decimal, type(None)}.issuperset(map(type, values)):
            values = [self.adopt(value) for value in values]
        return pa.array(values, self.arrow_type)

    def read(self, array: pa.Array) -> list[Any]:
        values = read_objects(array)
        return [value if value is None else int(value) for value in values] if self.as_int else values

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        digits = -1
        if isinstance(old, DecimalTypeInformation) and old.scale <= self.scale and old.as_int == self.as_int:
            digits = old.precision - old.scale
        elif isinstance(old, AtomicTypeInformation):
            digits = _INTEGER_DIGITS.get(old.name, -1)
        if 0 <= digits <= self.precision - self.scale:
            return TypeSerializerSchemaCompatibility.compatible_after_migration(f"{old} becomes {self}")
        return super()._resolve_other(old)

    def __reduce__(self) -> tuple[Any, ...]:
        return _decimal, (self.precision, self.scale, self.as_int)


def _decimal(precision: int, scale: int, as_int: bool) -> DecimalTypeInformation:
    # Pickled state may name this function: keep it.
    return DecimalTypeInformation(precision, scale, as_int=as_int)


register_type(
    "decimal",
    lambda document: _decimal(document["precision"], document["scale"], document.get("as_int", False)),
)
