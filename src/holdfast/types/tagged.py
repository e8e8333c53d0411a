"""A self-describing binary form of plain Python values, without pickle.

As the form of **values** it keeps what Python distinguishes. As the form of **keys** it is canonical: equal keys have
equal bytes. Kinds are distinct (``1``, ``True``, ``1.0`` and ``Decimal(1)`` are four keys), but ``0.0`` equals
``-0.0``, all NaNs are equal, ``Decimal("1.0")`` equals ``Decimal("1.00")``, an instant is the same in every time zone,
entries of a dict and elements of a set have no order, a set equals the frozenset of the same elements, and a NumPy
number equals the same Python number. Values of other classes cannot be keys, because two equal ones need not have equal
bytes.

Each value is a tag of one byte and its content; content of variable length starts with its length as a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import numpy as np

_DOUBLE: Final = struct.Struct(">d")
_DATE: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
CANONICAL_NAN: Final = struct.unpack(">d", bytes.fromhex("7ff8000000000000"))[0]
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_DEPTH: Final = 64
_NUMBERS: Final = (np.bool_, np.integer, np.floating)


class TaggedValueError(ValueError):
    """A value has no tagged form, or bytes are not a tagged value."""


def encode_key(value: Any) -> bytes:
    """Return the canonical bytes of a key.

    Raises:
        TaggedValueError: The value or a part of it has a class that keys cannot have.
    """
    out = bytearray()
    _write(value, out, True, 0)
    return bytes(out)


def encode(value: Any) -> bytes:
    """Return the bytes of a plain value, of the same classes as keys.

    Raises:
        TaggedValueError: The value or a part of it has another class.
    """
    out = bytearray()
    _write(value, out, False, 0)
    return bytes(out)


def decode(data: bytes) -> Any:
    """Return the value of tagged bytes; rows become tuples.

    Raises:
        TaggedValueError: The bytes are not exactly one tagged value.
    """
    try:
        value, end = _read(data, 0)
    except (IndexError, struct.error, ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise TaggedValueError(f"These bytes are not a tagged value: {data[:64]!r}.") from error
    if end != len(data):
        raise TaggedValueError(f"{len(data) - end} bytes too many after a tagged value: {data[:64]!r}.")
    return value


def _write(value: Any, out: bytearray, canonical: bool, depth: int) -> None:
    kind = type(value)
    writer = _WRITERS.get(kind)
    if writer is None:
        for base, candidate in _WRITERS.items():
            # A datetime is a date by inheritance only.
            if isinstance(value, base) and not (base is date and isinstance(value, datetime)):
                writer = candidate
                break
        else:
            if canonical and isinstance(value, _NUMBERS) and not isinstance(value, np.timedelta64):
                plain = value.item()
                if type(plain) in (bool, int, float):
                    _write(plain, out, canonical, depth)
                    return
            raise TaggedValueError(_refusal(value, canonical))
    if depth > _MAX_DEPTH:
        raise TaggedValueError(f"A value is nested more than {_MAX_DEPTH} levels deep.")
    writer(value, out, canonical, depth)


def _refusal(value: Any, canonical: bool) -> str:
    kind = type(value)
    if isinstance(value, Enum):
        instead = "Take its name or its value"
    elif hasattr(kind, "__dataclass_fields__"):
        instead = f"Declare the type: key_type={kind.__name__} in key_by()" if canonical else "Declare the type"
    else:
        instead = "Convert it, or declare the type"
    return (
        f"{value!r:.200} of class {kind.__name__!r} cannot be (part of) a {'key' if canonical else 'value'} without a "
        "declared type: equal values need not have equal bytes. Possible are None, bool, int, float, "
        "str, bytes, date, datetime, time, timedelta, Decimal, UUID, and tuples, lists, sets and dicts of them. "
        f"{instead}."
    )


def _varint(number: int, out: bytearray) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _block(tag: bytes, content: bytes, out: bytearray) -> None:
    out += tag
    _varint(len(content), out)
    out += content


def _write_none(value: None, out: bytearray, canonical: bool, depth: int) -> None:
    out += b"N"


def _write_bool(value: bool, out: bytearray, canonical: bool, depth: int) -> None:
    out += b"T" if value else b"F"


def _write_int(value: int, out: bytearray, canonical: bool, depth: int) -> None:
    magnitude = value if value >= 0 else ~value
    _block(b"i", value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True), out)


def _write_float(value: float, out: bytearray, canonical: bool, depth: int) -> None:
    if canonical:
        value = CANONICAL_NAN if value != value else value + 0.0  # which makes -0.0 to 0.0
    out += b"d"
    out += _DOUBLE.pack(value)


def _write_str(value: str, out: bytearray, canonical: bool, depth: int) -> None:
    try:
        _block(b"s", value.encode(), out)
    except UnicodeEncodeError as error:
        raise TaggedValueError(f"{value!r:.200} has a lone surrogate, which UTF-8 cannot hold.") from error


def _write_bytes(value: bytes, out: bytearray, canonical: bool, depth: int) -> None:
    _block(b"b", bytes(value), out)


def _write_date(value: date, out: bytearray, canonical: bool, depth: int) -> None:
    out += b"D"
    out += _DATE.pack(value.toordinal() - _EPOCH_DAY)


def _write_decimal(value: Decimal, out: bytearray, canonical: bool, depth: int) -> None:
    if canonical and value.is_finite():
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        while len(digits) > 1 and digits[-1] == 0:
            digits, exponent = digits[:-1], exponent + 1
        value = Decimal((sign, digits, exponent)) if any(digits) else Decimal(0)
    _block(b"c", str(value).encode(), out)


def _write_tuple(value: tuple[Any, ...], out: bytearray, canonical: bool, depth: int) -> None:
    out += b"t"
    _varint(len(value), out)
    for item in value:
        _write(item, out, canonical, depth + 1)


def _write_datetime(value: datetime, out: bytearray, canonical: bool, depth: int) -> None:
    out += b"n" if value.tzinfo is None else b"z"
    out += _LONG.pack((value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND)


def _write_time(value: time, out: bytearray, canonical: bool, depth: int) -> None:
    if value.tzinfo is not None:
        raise TaggedValueError(f"{value!r} has a time zone; a time of day has none.")
    out += b"h"
    out += _LONG.pack(((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond)


def _write_timedelta(value: timedelta, out: bytearray, canonical: bool, depth: int) -> None:
    microseconds = value // _MICROSECOND
    if not -(1 << 63) <= microseconds < 1 << 63:
        raise TaggedValueError(f"{value!r} is longer than 64 bits of microseconds can say.")
    out += b"e"
    out += _LONG.pack(microseconds)


def _write_list(value: list[Any], out: bytearray, canonical: bool, depth: int) -> None:
    out += b"l"
    _varint(len(value), out)
    for item in value:
        _write(item, out, canonical, depth + 1)


def _write_dict(value: dict[Any, Any], out: bytearray, canonical: bool, depth: int) -> None:
    out += b"m"
    _varint(len(value), out)
    entries = []
    for key, item in value.items():
        entry = bytearray()
        _write(key, entry, canonical, depth + 1)
        _write(item, entry, canonical, depth + 1)
        entries.append(entry)
    out += b"".join(sorted(entries) if canonical else entries)


def _write_set(value: set[Any] | frozenset[Any], out: bytearray, canonical: bool, depth: int) -> None:
    out += b"f" if canonical or isinstance(value, frozenset) else b"S"
    _varint(len(value), out)
    elements = []
    for item in value:
        element = bytearray()
        _write(item, element, canonical, depth + 1)
        elements.append(element)
    out += b"".join(sorted(elements))


def _write_uuid(value: UUID, out: bytearray, canonical: bool, depth: int) -> None:
    out += b"u"
    out += value.bytes


# In this order for instances of subclasses: bool before int, datetime before date.
_WRITERS: Final[dict[type, Callable[[Any, bytearray, bool, int], None]]] = {
    type(None): _write_none,
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bytes: _write_bytes,
    datetime: _write_datetime,
    date: _write_date,
    Decimal: _write_decimal,
    tuple: _write_tuple,
    time: _write_time,
    timedelta: _write_timedelta,
    list: _write_list,
    dict: _write_dict,
    bytearray: _write_bytes,
    UUID: _write_uuid,
    frozenset: _write_set,
    set: _write_set,
}


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


def _read_block(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_varint(data, at)
    end = at + length
    if end > len(data):
        raise IndexError
    return data[at:end], end


def _read_items(data: bytes, at: int, per_item: int = 1) -> tuple[list[Any], int]:
    count, at = _read_varint(data, at)
    items = []
    for _ in range(count * per_item):
        item, at = _read(data, at)
        items.append(item)
    return items, at


def _read(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    constant = _CONSTANTS.get(tag, _MISSING)
    if constant is not _MISSING:
        return constant, at
    fixed = _FIXED.get(tag)
    if fixed is not None:
        layout, convert = fixed
        return convert(layout.unpack_from(data, at)[0]), at + layout.size
    variable = _VARIABLE.get(tag)
    if variable is not None:
        content, at = _read_block(data, at)
        return variable(content), at
    if tag == ord("m"):
        items, at = _read_items(data, at, 2)
        return dict(zip(items[::2], items[1::2], strict=True)), at
    if tag == ord("t"):
        items, at = _read_items(data, at)
        return tuple(items), at
    if tag == ord("l"):
        return _read_items(data, at)
    collected = _COLLECTED.get(tag)
    if collected is not None:
        items, at = _read_items(data, at)
        return collected(items), at
    raise ValueError(f"unknown tag {tag}")


def _time_of_day(microseconds: int) -> time:
    return (_EPOCH + timedelta(microseconds=microseconds)).time()


_MISSING: Final = object()
_CONSTANTS: Final[dict[int, Any]] = {ord("N"): None, ord("T"): True, ord("F"): False}
_FIXED: Final[dict[int, tuple[struct.Struct, Callable[[Any], Any]]]] = {
    ord("d"): (_DOUBLE, float),
    ord("D"): (_DATE, lambda days: date.fromordinal(days + _EPOCH_DAY)),
    ord("n"): (_LONG, lambda micros: _EPOCH + timedelta(microseconds=micros)),
    ord("z"): (_LONG, lambda micros: _EPOCH_UTC + timedelta(microseconds=micros)),
    ord("h"): (_LONG, _time_of_day),
    ord("e"): (_LONG, lambda micros: timedelta(microseconds=micros)),
    ord("u"): (struct.Struct("16s"), lambda content: UUID(bytes=content)),
}
_COLLECTED: Final[dict[int, Callable[[list[Any]], Any]]] = {ord("f"): frozenset, ord("S"): set}
_VARIABLE: Final[dict[int, Callable[[bytes], Any]]] = {
    ord("i"): lambda content: int.from_bytes(content, "big", signed=True),
    ord("s"): lambda content: content.decode(),
    ord("b"): bytes,
    ord("c"): lambda content: Decimal(content.decode()),
}
