"""What PyFlink writes in process mode: values as bytes of its coders, whose types the savepoint does not tell."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from holdfast.errors import CorruptFileError, StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.state_processor.flink.data_input import DataInput
from holdfast.state_processor.flink.serializer import SIMPLE, row_of
from holdfast.state_processor.flink.serializer import FlinkSerializer as _Serializer
from holdfast.types.information.atomic_type import SqlTimestampTypeInformation
from holdfast.types.information.type_information import (
    DecimalTypeInformation,
    ListTypeInformation,
    MapTypeInformation,
    PickledTypeInformation,
    RowTypeInformation,
    TupleTypeInformation,
    TypeInformation,
    Types,
)
from holdfast.types.row import Row, revive

_Read = Callable[[DataInput], Any]
_FORMS: Final = "org.apache.flink.api.common.typeutils.base."
_SAME_AS_IN_JAVA: Final = {
    Types.BYTE(): "Byte",
    Types.SHORT(): "Short",
    Types.INT(): "Int",
    Types.LONG(): "Long",
    Types.FLOAT(): "Float",
    Types.DOUBLE(): "Double",
    Types.BOOLEAN(): "Boolean",
    Types.INSTANT(): "Instant",
}
_SAFE: Final = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("datetime", "date"): date,
    ("datetime", "datetime"): datetime,
    ("datetime", "time"): time,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("decimal", "Decimal"): Decimal,
}
_DAY: Final = 86_400_000


def decoder_of(kind: TypeInformation) -> Callable[[bytes, str], Any]:
    """Return what reads the bytes that PyFlink's coder of a type has written.

    PyFlink writes lists with a byte for each element that may be null, and arrays of primitives without; one type
    stands for both here. So both ways are tried, and the one that ends where the bytes end is the right one.

    Args:
        kind: The type. The function takes bytes, and where they come from. It raises CorruptFileError for bytes that
            are no such value, and StateError for a value of a class that is not loaded here.

    Raises:
        StateError: PyFlink has no such type.
    """
    ways = [_reader_of(kind, has_nulls) for has_nulls in ((True, False) if _has_lists(kind) else (True,))]

    def decode(data: bytes, path: str) -> Any:
        found: list[Any] = []
        refused: CorruptFileError | None = None
        for read in ways:
            source = DataInput(data, path, None)
            try:
                value = read(source)
                source.require_end("a value, so its type is another one")
            except CorruptFileError as error:
                refused = refused or error
            else:
                found.append(value)
        if not found:
            raise refused or CorruptFileError(path, None, "there is no value.")
        if len(found) > 1 and found[0] != found[1]:
            raise StateError(
                f"A list in {path} can be one with nulls or an array of primitives, and means something else in each."
            )
        return found[0]

    return decode


def _has_lists(kind: TypeInformation) -> bool:
    if isinstance(kind, ListTypeInformation):
        return True
    if isinstance(kind, MapTypeInformation):
        return _has_lists(kind.key_type) or _has_lists(kind.value_type)
    return any(map(_has_lists, getattr(kind, "types", ())))


def _reader_of(kind: TypeInformation, has_nulls: bool) -> _Read:
    if isinstance(kind, SqlTimestampTypeInformation):  # first, because it is equal to the type of instants
        return _sql_timestamp
    name = _SAME_AS_IN_JAVA.get(kind)
    if name is not None:
        return SIMPLE[f"{_FORMS}{name}Serializer${name}SerializerSnapshot"].read
    if isinstance(kind, PickledTypeInformation):
        return _pickled
    if isinstance(kind, DecimalTypeInformation):
        return DataInput.long if kind == Types.BIG_INT() else _decimal
    if isinstance(kind, RowTypeInformation):
        fields = [_Serializer("field", part, -1, _reader_of(part, has_nulls)) for part in kind.types]
        return row_of(fields, has_kind=True).read
    if isinstance(kind, TupleTypeInformation):
        reads = [_reader_of(part, has_nulls) for part in kind.types]
        return lambda source: tuple(read(source) for read in reads)
    if isinstance(kind, ListTypeInformation):
        return _list(_reader_of(kind.element_type, has_nulls), has_nulls)
    if isinstance(kind, MapTypeInformation):
        return _map(_reader_of(kind.key_type, has_nulls), _reader_of(kind.value_type, has_nulls))
    known = _OTHERS.get(kind)
    if known is None:
        raise StateError(f"PyFlink has no coder for {kind}, so no state of that type can be in its savepoint.")
    return known


def _text(source: DataInput) -> str:
    data = source.take(source.int32())
    try:
        return data.decode()
    except ValueError as error:
        raise source.corrupt(f"a text is not UTF-8: {error}.") from error


def _decimal(source: DataInput) -> Decimal:
    text = _text(source)
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise source.corrupt(f"{text!r:.60} is no number.") from error


def _date(source: DataInput) -> date:
    days = source.int32()
    try:
        return date(1970, 1, 1) + timedelta(days=days)
    except OverflowError as error:
        raise source.corrupt(f"a day is {days} days from 1970.") from error


def _time(source: DataInput) -> time:
    milliseconds = source.int32()
    if not 0 <= milliseconds < _DAY:
        raise source.corrupt(f"{milliseconds} milliseconds are no time of day.")
    return (datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)).time()


def _sql_timestamp(source: DataInput) -> datetime:
    milliseconds = source.long()
    try:
        return datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise source.corrupt(f"a time is {milliseconds} milliseconds from 1970.") from error


def _list(one: _Read, has_nulls: bool) -> _Read:
    if has_nulls:
        return lambda source: [one(source) if source.boolean() else None for _ in range(source.count())]
    return lambda source: [one(source) for _ in range(source.count())]


def _map(key: _Read, value: _Read) -> _Read:
    def read(source: DataInput) -> dict[Any, Any]:
        found = {}
        for _ in range(source.count()):
            item = key(source)
            try:
                hash(item)
            except TypeError as error:
                raise StateError(f"A map has keys of {type(item).__name__}, which a map cannot have here.") from error
            found[item] = None if source.boolean() else value(source)
        return found

    return read


class _Plain(pickle.Unpickler):
    """Reads values of plain classes and nothing else: a pickle can name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _SAFE.get((module, name)) or _ROWS[name if module == "pyflink.common.types" else ""]
        except KeyError:
            raise StateError(
                f"A pickled value is of {module}.{name}, and nothing of a program is loaded here. Let the state have "
                "a type before the savepoint, or leave it out."
            ) from None


def _row(fields: Any, values: Any, kind: Any = None) -> Row:
    return revive(tuple(fields), tuple(values)) if fields else Row(*values)


def _row_kind(value: int) -> None:
    if value != 0:
        raise StateError("A pickled row is a change other than an insertion; a Row has no kind.")


def _pickled(source: DataInput) -> Any:
    data = source.take(source.int32())
    try:
        return _Plain(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ImportError, MemoryError, *MALFORMED) as error:
        raise source.corrupt(f"a pickled value is none: {error!r:.200}.") from error


_ROWS: Final = {"_create_row": _row, "RowKind": _row_kind}
_OTHERS: Final[dict[TypeInformation, _Read]] = {
    Types.STRING(): _text,
    Types.BINARY(): lambda source: source.take(source.int32()),
    Types.SQL_DATE(): _date,
    Types.SQL_TIME(): _time,
}
