"""Read serializer snapshots of Flink (`TypeSerializerSnapshot`), which describe serializers in a savepoint."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from holdfast.errors import CorruptFileError, StateError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.state_processor.flink.serializer import (
    SIMPLE,
    DataInput,
    FlinkSerializer,
    avro_serializer,
    enum_of,
    list_of,
    map_of,
    nullable,
    pojo_of,
    row_of,
    tuple_of,
    unreadable,
)
from holdfast.state_processor.flink.serializer import FlinkSerializer as _Serializer
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation, TupleTypeInformation
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.row import Row, revive
from holdfast.types.type_information import DecimalTypeInformation, SqlTimestampTypeInformation, TypeInformation
from holdfast.types.types import Types

TTL: Final = "TtlSerializer"
_COMPOSITE: Final = 911108
_NESTED: Final = 1333245
_OPTIONAL_MAP: Final = 0x4F2C69A3D70
_DEEPEST: Final = 60
_TYPEUTILS: Final = "org.apache.flink.api.common.typeutils."
_RUNTIME: Final = "org.apache.flink.api.java.typeutils.runtime."
_Read = Callable[[DataInput], Any]
_FORMS: Final = "org.apache.flink.api.common.typeutils.base."
_DAY: Final = 86_400_000


def read_snapshot(source: DataInput) -> FlinkSerializer:
    """Read what stands in front of state: the version of the form, and a snapshot.

    Raises:
        StateError: This release does not know the serializer, so it cannot know where its snapshot ends.
        CorruptFileError: It is damaged.
    """
    version = source.int32()
    if version != 2:
        raise source.corrupt(f"the snapshot of a serializer is in version {version}, not in version 2.")
    return read_versioned(source)


def read_versioned(source: DataInput, depth: int = 0) -> FlinkSerializer:
    """Read a snapshot: the name of its class, its version and its content. Errors are those of `read_snapshot`."""
    if depth > _DEEPEST:
        raise source.corrupt(f"serializers are nested more than {_DEEPEST} times.")
    name = source.utf()
    version = source.int32()
    simple = SIMPLE.get(name)
    if simple is not None:
        if version not in (2, 3):
            raise source.corrupt(f"the snapshot {name} is in version {version}.")
        if version == 2:
            source.utf()
        return simple
    known = _SNAPSHOTS.get(name)
    if known is None:
        raise StateError(
            f"The serializer whose snapshot is {name!r:.300} is not known, so nothing behind it in file "
            f"{source.path!r} can be read."
        )
    return known(source, version, depth + 1)


def _composite(
    outer: Callable[[DataInput, int], Any], make: Callable[[Any, tuple[FlinkSerializer, ...]], FlinkSerializer]
) -> Callable[[DataInput, int, int], FlinkSerializer]:
    def read(source: DataInput, version: int, depth: int) -> FlinkSerializer:
        if version != 3 or source.int32() != _COMPOSITE:
            raise source.corrupt("the snapshot of a serializer of several parts does not begin as one.")
        found = outer(source, source.int32())
        if source.int32() != _NESTED or source.int32() != 1:
            raise source.corrupt("the snapshots of the parts of a serializer do not begin as such.")
        parts = tuple(read_versioned(source, depth) for _ in range(source.count(6)))
        try:
            return make(found, parts)
        except (TypeError, IndexError, ValueError) as error:  # not as many as it should have
            raise source.corrupt(f"a serializer has {len(parts)} parts.") from error

    return read


def _nothing(source: DataInput, version: int) -> None:
    return None


def _class(source: DataInput, version: int) -> str:
    return _short(source.utf())


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _row_kind(source: DataInput, version: int) -> bool:
    return source.boolean() if version > 3 else version == 3


def _pojo(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    if version != 2:
        raise source.corrupt(f"the snapshot of a POJO is in version {version}.")
    name = _short(source.utf())
    fields = _optional_map(source, depth, has_keys=True)
    subclasses = [*_optional_map(source, depth, has_keys=False), *_optional_map(source, depth, has_keys=False)]
    missing = [field for field, serializer in fields if serializer is None]
    if missing:
        return unreadable(name, f"The savepoint does not have the serializers of the fields {missing} of {name}.")
    del subclasses  # values of theirs say so themselves
    return pojo_of(name, [field for field, _ in fields], [one for _, one in fields if one is not None])


def _optional_map(source: DataInput, depth: int, has_keys: bool) -> list[tuple[str, FlinkSerializer | None]]:
    """Read names and snapshots. Each snapshot is framed, so an unknown one is skipped."""
    found: list[tuple[str, FlinkSerializer | None]] = []
    for name, frame in _frames(source):
        serializer: FlinkSerializer | None = None
        if frame is not None:
            try:
                serializer = read_versioned(frame, depth)
            except StateError as error:
                serializer = unreadable(name, str(error))
        found.append((name, serializer))
    return found


def _frames(source: DataInput) -> list[tuple[str, DataInput | None]]:
    if source.long() != _OPTIONAL_MAP:
        raise source.corrupt("a map of serializers does not begin as one.")
    found: list[tuple[str, DataInput | None]] = []
    for _ in range(source.count(4)):
        name = source.utf()
        if source.boolean():
            source.take(source.int32())
        frame = DataInput(source.take(source.int32()), source.path, None) if source.boolean() else None
        found.append((name, frame))
    return found


def _kryo(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    name = source.utf()
    for _ in range(3):
        _frames(source)
    return unreadable(
        "KryoSerializer",
        f"Values of {name} are written by Kryo, which only the classes of the Java program can read. Give the state "
        "a POJO, a tuple, a row or an Avro record before the savepoint, or leave the state out.",
    )


def _enum(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    name = _short(source.utf())
    return enum_of(name, [source.utf() for _ in range(source.count(2))])


def _avro(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    if version == 1:
        return avro_serializer(source.utf())
    if version == 2:
        source.utf()
        return avro_serializer(source.utf())
    if version == 3:
        source.string()
        return avro_serializer(source.string())
    raise source.corrupt(f"the snapshot of an Avro serializer is in version {version}.")


def _ttl_aware(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    source.boolean()
    return read_versioned(source, depth)


def _ttl(outer: Any, parts: tuple[FlinkSerializer, ...]) -> FlinkSerializer:
    _, value = parts
    return replace(tuple_of(TTL, parts), name=TTL, problem=value.problem)


def _timers(outer: Any, parts: tuple[FlinkSerializer, ...]) -> FlinkSerializer:
    key, namespace = parts
    return FlinkSerializer("TimerSerializer", None, -1, lambda source: None, (key, namespace))


def _generic(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    name = source.utf()
    return unreadable(_short(name), f"Values of {name} are written by the class itself, which only Java can read.")


_SNAPSHOTS: Final[dict[str, Callable[[DataInput, int, int], FlinkSerializer]]] = {
    f"{_TYPEUTILS}base.ListSerializerSnapshot": _composite(
        _nothing, lambda _, parts: list_of("ListSerializer", parts[0])
    ),
    f"{_TYPEUTILS}base.MapSerializerSnapshot": _composite(_nothing, lambda _, parts: map_of("MapSerializer", *parts)),
    f"{_TYPEUTILS}base.GenericArraySerializerSnapshot": _composite(
        _class, lambda _, parts: list_of("GenericArraySerializer", parts[0], has_nulls=True)
    ),
    f"{_TYPEUTILS}base.SetSerializerSnapshot": _composite(
        _nothing, lambda _, parts: unreadable("SetSerializer", "Sets have no counterpart here: keep a map or a list.")
    ),
    f"{_RUNTIME}TupleSerializerSnapshot": _composite(_class, tuple_of),
    f"{_RUNTIME}RowSerializer$RowSerializerSnapshot": _composite(_row_kind, lambda kind, parts: row_of(parts, kind)),
    f"{_RUNTIME}NullableSerializer$NullableSerializerSnapshot": _composite(
        lambda source, version: source.int32(), lambda padding, parts: nullable(parts[0], padding)
    ),
    f"{_RUNTIME}PojoSerializerSnapshot": _pojo,
    f"{_RUNTIME}kryo.KryoSerializerSnapshot": _kryo,
    f"{_RUNTIME}ValueSerializer$ValueSerializerSnapshot": _generic,
    f"{_TYPEUTILS}base.EnumSerializer$EnumSerializerSnapshot": _enum,
    "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot": _avro,
    "org.apache.flink.runtime.state.ArrayListSerializerSnapshot": _composite(
        _nothing, lambda _, parts: list_of("ArrayListSerializer", parts[0])
    ),
    "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot": _composite(_nothing, _ttl),
    "org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot": _ttl_aware,
    "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot": _composite(_nothing, _timers),
}


# PyFlink in process mode writes bytes of its coders; the savepoint does not have their types.

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
    """An unpickler of plain classes only: a pickle can name any function to be called."""

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


def _coded_row_kind(value: int) -> None:
    if value != 0:
        raise StateError("A pickled row is a change other than an insertion; a Row has no kind.")


def _pickled(source: DataInput) -> Any:
    data = source.take(source.int32())
    try:
        return _Plain(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ImportError, MemoryError, *PARSE_ERRORS) as error:
        raise source.corrupt(f"a pickled value is none: {error!r:.200}.") from error


_ROWS: Final = {"_create_row": _row, "RowKind": _coded_row_kind}
_OTHERS: Final[dict[TypeInformation, _Read]] = {
    Types.STRING(): _text,
    Types.BINARY(): lambda source: source.take(source.int32()),
    Types.SQL_DATE(): _date,
    Types.SQL_TIME(): _time,
}
