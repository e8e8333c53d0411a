"""Values without parts: which ones a simple type takes, and how they are read.

TIMESTAMP values are `datetime` objects with the time zone UTC, TIMESTAMP_NTZ values are naive ones. A naive datetime
given for a TIMESTAMP is taken as UTC; one with a time zone is refused for a TIMESTAMP_NTZ. The Arrow type of
TIMESTAMP always says UTC: Spark reads the instant, whatever the session's time zone is.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import OutputTypeError
from holdfast.types.instant import Instant

_NONE: Final = type(None)
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = 86_400_000_000_000
"""Nanoseconds, as times of day are counted."""
_DAYS: Final = range(date.min.toordinal() - _EPOCH.toordinal(), date.max.toordinal() - _EPOCH.toordinal() + 1)
_MICROSECONDS: Final = range(
    (datetime.min - _EPOCH) // timedelta(microseconds=1), (datetime.max - _EPOCH) // timedelta(microseconds=1) + 1
)
"""Since 1970, those that Python has: of the years 1 to 9999. NumPy hands out the numbers of all others."""


def with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """Put None where the array is null."""
    if array.null_count:
        for position in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[position] = None
    return values


def read_objects(array: pa.Array) -> list[Any]:
    """Return the values of an array as NumPy has them as objects."""
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
    _require(array.view(pa.int32()), _DAYS, "date", "days after 1970 are no date in the years 1 to 9999")
    return read_objects(array)


def _microseconds(array: pa.Array, kind: str) -> pa.Array:
    numbers = array.cast(pa.int64())
    _require(numbers, _MICROSECONDS, kind, "microseconds after 1970 are no time in the years 1 to 9999")
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
    # Arrow would make 00:00:00 of 24:00:00
    _require(array.cast(pa.int64()), range(_DAY), "time", "nanoseconds after midnight are no time of a day")
    return list(array.cast(pa.time64("us")).to_pylist())


@dataclass(frozen=True)
class Atom:
    """What tells one simple type from another."""

    name: str
    arrow: pa.DataType
    # Exact classes that need no further look; anything else takes the slow way through `adopt`.
    plain: frozenset[type]
    adopt: Callable[[Any], Any]
    read: Callable[[pa.Array], list[Any]]
    # Whether the fast way was right for values of the plain classes; None where it always is.
    holds: Callable[[Sequence[Any], pa.Array], bool] | None = None


def _none_infinite(values: Sequence[Any], array: pa.Array) -> bool:
    # Arrow rounds what does not fit into 32 bits to infinity.
    return not np.isinf(array.to_numpy(zero_copy_only=False)).any()


def _none_zoned(values: Sequence[Any], array: pa.Array) -> bool:
    return all(value is None or value.tzinfo is None for value in values)


# Below, exact classes are looked at first: isinstance() with abstract classes costs several times more.


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
        value.encode()  # refuses lone surrogates
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
"""As java.sql.Timestamp in PyFlink: stored as a timestamp, but a datetime without a time zone to a program, in UTC."""
