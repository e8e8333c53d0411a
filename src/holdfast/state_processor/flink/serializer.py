"""Serializers of Flink: they read its bytes, and have the type of the values in Holdfast."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

from holdfast.errors import ConfigurationError, CorruptFileError, StateError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.types.avro import LogicalType, avro_type, full_name, logical_type_of
from holdfast.types.type_information import TypeInformation, decimal_from_unscaled
from holdfast.types.types import Types

# Bytes as Java's `DataOutput` and Flink's serializers write them.

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_FLOAT: Final = struct.Struct(">f")
_DOUBLE: Final = struct.Struct(">d")
_HIGH_BIT: Final = 0x80
_CHARS_OF_A_STRING: Final = 5  # bytes of the number of them, at most
VARIABLE: Final = -1
_T = TypeVar("_T")
_NO_LONG: Final = -(1 << 63)
_NO_INT: Final = -(1 << 31)
_BYTE_OF_NULL: Final = 1
_OF_A_ZONE: Final = ("SqlDate", "SqlTime")
_LONGEST_DECIMAL: Final = 32
_NAME: Final = "AvroSerializer"


class DataInput:
    """Reads values one after the other; missing or wrong bytes are an error that names the file.

    Args:
        data: The bytes.
        path: The file, for errors.
        base: Their offset in the file; None if it is unknown.
    """

    __slots__ = ("_base", "_data", "path", "position")

    def __init__(self, data: bytes, path: str, base: int | None = 0) -> None:
        self._data = data
        self.path = path
        self.position = 0
        self._base = base

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def corrupt(self, message: str) -> CorruptFileError:
        """Return the error for wrong bytes at the current place."""
        return CorruptFileError(self.path, None if self._base is None else self._base + self.position, message)

    def take(self, count: int) -> bytes:
        """Read a number of bytes."""
        end = self.position + count
        if count < 0 or end > len(self._data):
            raise self.corrupt(f"{count} bytes should follow, and {self.remaining} do.")
        found = self._data[self.position : end]
        self.position = end
        return found

    def byte(self) -> int:
        """Read an unsigned byte."""
        if self.position >= len(self._data):
            raise self.corrupt("it ends in the middle of a value.")
        found = self._data[self.position]
        self.position += 1
        return found

    def boolean(self) -> bool:
        found = self.byte()
        if found > 1:
            raise self.corrupt(f"a boolean is 0 or 1, not {found}.")
        return found == 1

    def signed_byte(self) -> int:
        """Read a signed byte."""
        found = self.byte()
        return found - 256 if found >= _HIGH_BIT else found

    def short(self) -> int:
        return int(_SHORT.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def long(self) -> int:
        return int(_LONG.unpack(self.take(8))[0])

    def float32(self) -> float:
        return float(_FLOAT.unpack(self.take(4))[0])

    def double(self) -> float:
        return float(_DOUBLE.unpack(self.take(8))[0])

    def count(self, least: int = 1) -> int:
        """Read how many values follow.

        Args:
            least: Bytes that each of them has at least, so that no number is believed for which there is no room.
        """
        found = self.int32()
        if found < 0 or found * least > self.remaining:
            raise self.corrupt(f"{found} values should follow, for which there is no room.")
        return found

    def utf(self) -> str:
        """Read text as `DataOutput.writeUTF` writes it: each UTF-16 unit encoded by itself."""
        data = self.take(self.short() & 0xFFFF)
        try:
            units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except ValueError as error:
            raise self.corrupt(f"a text is not encoded as Java does it: {error}.") from error

    def string(self) -> str | None:
        """Read text as Flink's `StringValue` writes it: a length and UTF-16 units of variable size."""
        length = self._variable(_CHARS_OF_A_STRING)
        if length == 0:
            return None
        length -= 1
        if length > self.remaining:
            raise self.corrupt(f"a text of {length} characters should follow, for which there is no room.")
        plain = self._data[self.position : self.position + length]
        if plain.isascii():
            self.position += length
            return plain.decode("ascii")
        units = b"".join(self._unit() for _ in range(length))
        try:
            return units.decode("utf-16-le")
        except ValueError as error:
            raise self.corrupt(f"a text is no UTF-16: {error}.") from error

    def variable(self) -> int:
        """Read a varint of up to 64 bits: seven bits a byte, the lowest first."""
        return self._variable(9)

    def _unit(self) -> bytes:
        unit = self._variable(3)
        if unit > 0xFFFF:
            raise self.corrupt(f"{unit:#x} is no character.")
        return unit.to_bytes(2, "little")

    def _variable(self, most: int) -> int:
        found = shift = 0
        for _ in range(most):
            part = self.byte()
            found |= (part & 0x7F) << shift
            if part < _HIGH_BIT:
                return found
            shift += 7
        raise self.corrupt("a number has no end.")

    def require_end(self, of: str) -> None:
        """Raise an error if bytes remain."""
        if self.remaining:
            raise self.corrupt(f"{self.remaining} bytes follow after {of}.")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class FlinkSerializer:
    """A serializer, as described in a savepoint.

    Attributes:
        name: The class in Java, without its package.
        type: Type of its values here; None if they cannot be read, or are no values (a namespace).
        length: Bytes of each value; -1 if that varies.
        read: Reads one value.
        parts: The serializers that it is made of.
        problem: Why its values cannot be read; None if they can.
    """

    name: str
    type: TypeInformation | None
    length: int
    read: Callable[[DataInput], Any]
    parts: tuple[FlinkSerializer, ...] = ()
    problem: str | None = None

    @property
    def value_type(self) -> TypeInformation:
        """The type of its values.

        Raises:
            StateError: They cannot be read.
        """
        if self.type is None:
            raise StateError(self.problem or f"{self.name} has no values that state can have.")
        return self.type


def unreadable(name: str, problem: str) -> FlinkSerializer:
    """Return a serializer whose values cannot be read."""

    def read(source: DataInput) -> Any:
        raise StateError(problem)

    return FlinkSerializer(name, None, VARIABLE, read, problem=problem)


def _instant(source: DataInput) -> datetime | None:
    seconds, nanoseconds = source.long(), source.int32()
    if seconds == _NO_LONG and nanoseconds == _NO_INT:
        return None
    return _at(source, seconds * 1_000_000, nanoseconds)


def _date_and_time(source: DataInput) -> datetime | None:  # java.util.Date, milliseconds
    found = source.long()
    return None if found == _NO_LONG else _at(source, found * 1000, 0)


def _sql_timestamp(source: DataInput) -> datetime | None:
    found = source.long()
    if found == _NO_LONG:
        source.int32()
        return None
    moment = _at(source, found // 1000 * 1_000_000, source.int32())
    return moment.replace(tzinfo=None)


def _at(source: DataInput, microseconds: int, nanoseconds: int) -> datetime:
    if nanoseconds % 1000:
        raise StateError(
            f"A time has {nanoseconds} nanoseconds in file {source.path!r}; a timestamp has whole microseconds here."
        )
    try:
        return _EPOCH + timedelta(microseconds=microseconds + nanoseconds // 1000)
    except OverflowError as error:
        raise source.corrupt(f"a time is {microseconds} microseconds from 1970.") from error


def _local_date(source: DataInput) -> date | None:
    year = source.int32()
    month_and_day = source.short()
    if year == _NO_INT:
        return None
    return _made(source, lambda: date(year, month_and_day >> 8, month_and_day & 0xFF))


def _local_time(source: DataInput) -> time | None:
    hour = source.signed_byte()
    minute_and_second, nanoseconds = source.short(), source.int32()
    if hour == -128:
        return None
    if nanoseconds % 1000:
        raise StateError(f"A time of day has {nanoseconds} nanoseconds; it has whole microseconds here.")
    return _made(source, lambda: time(hour, minute_and_second >> 8, minute_and_second & 0xFF, nanoseconds // 1000))


def _local_date_time(source: DataInput) -> datetime | None:
    day, of_day = _local_date(source), _local_time(source)
    if day is None or of_day is None:
        return None
    return datetime.combine(day, of_day)


def _made(source: DataInput, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except (ValueError, OverflowError) as error:
        raise source.corrupt(f"a date or time is none: {error}.") from error


def _big_integer(source: DataInput) -> int | None:
    length = source.int32()
    if length < 4:
        if length < 0:
            raise source.corrupt(f"a number has {length} bytes.")
        return (None, 0, 1, 10)[length]
    return int.from_bytes(source.take(length - 4), "big", signed=True)


def _big_decimal(source: DataInput) -> Decimal | None:
    unscaled = _big_integer(source)
    if unscaled is None:
        return None
    scale = source.int32()
    if not -1000 <= scale <= 1000 or abs(unscaled) >= 10**76:
        raise StateError(f"A number in file {source.path!r} has more digits than a decimal has here, 38.")
    return decimal_from_unscaled(unscaled, scale)


def _boxed_string(source: DataInput) -> str | None:
    return source.string()


def _char(source: DataInput) -> str:
    return chr(source.short() & 0xFFFF)


_READS: Final[dict[str, tuple[TypeInformation, int, Callable[[DataInput], Any]]]] = {
    "Boolean": (Types.BOOLEAN(), 1, DataInput.boolean),
    "Byte": (Types.BYTE(), 1, DataInput.signed_byte),
    "Short": (Types.SHORT(), 2, DataInput.short),
    "Int": (Types.INT(), 4, DataInput.int32),
    "Long": (Types.LONG(), 8, DataInput.long),
    "Float": (Types.FLOAT(), 4, DataInput.float32),
    "Double": (Types.DOUBLE(), 8, DataInput.double),
    "Char": (Types.STRING(), 2, _char),
    "String": (Types.STRING(), VARIABLE, _boxed_string),
    "BigInt": (Types.BIG_INT(), VARIABLE, _big_integer),
    "BigDec": (Types.BIG_DEC(), VARIABLE, _big_decimal),
    "Date": (Types.INSTANT(), 8, _date_and_time),
    "Instant": (Types.INSTANT(), 12, _instant),
    "SqlTimestamp": (Types.SQL_TIMESTAMP(), 12, _sql_timestamp),
    "LocalDate": (Types.SQL_DATE(), 6, _local_date),
    "LocalTime": (Types.SQL_TIME(), 7, _local_time),
    "LocalDateTime": (Types.TIMESTAMP_NTZ(), 13, _local_date_time),
}


def _array_of(element: FlinkSerializer) -> Callable[[DataInput], Any]:
    def read(source: DataInput) -> list[Any]:
        one = element.read
        return [one(source) for _ in range(source.count(max(1, element.length)))]

    return read


def _simple() -> dict[str, FlinkSerializer]:
    base = "org.apache.flink.api.common.typeutils.base."
    found: dict[str, FlinkSerializer] = {}
    for name, (kind, length, read) in _READS.items():
        serializer = FlinkSerializer(f"{name}Serializer", kind, length, read)
        found[f"{base}{name}Serializer${name}SerializerSnapshot"] = serializer
        if name in ("Boolean", "Short", "Int", "Long", "Float", "Double", "Char"):
            array = f"{name}PrimitiveArraySerializer"
            found[f"{base}array.{array}${array}Snapshot"] = FlinkSerializer(
                array, Types.LIST(kind), VARIABLE, _array_of(serializer)
            )
    for name in _OF_A_ZONE:
        found[f"{base}{name}Serializer${name}SerializerSnapshot"] = unreadable(
            f"{name}Serializer",
            f"{name} values are counted in the time zone that Flink's JVM had, and the savepoint does not say which.",
        )
    string = found[f"{base}StringSerializer$StringSerializerSnapshot"]
    found[f"{base}array.StringArraySerializer$StringArraySerializerSnapshot"] = FlinkSerializer(
        "StringArraySerializer", Types.LIST(Types.STRING()), VARIABLE, _array_of(string)
    )
    found[f"{base}array.BytePrimitiveArraySerializer$BytePrimitiveArraySerializerSnapshot"] = FlinkSerializer(
        "BytePrimitiveArraySerializer", Types.BINARY(), VARIABLE, lambda source: source.take(source.int32())
    )
    wrapper = "org.apache.flink.streaming.api.utils.ByteArrayWrapperSerializer"
    found[f"{wrapper}$ByteArrayWrapperSerializerSnapshot"] = FlinkSerializer(
        "ByteArrayWrapperSerializer", Types.BINARY(), VARIABLE, lambda source: source.take(source.int32())
    )
    found["org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"] = FlinkSerializer(
        "VoidNamespaceSerializer", None, 0, lambda source: source.take(1) and None
    )
    window = "org.apache.flink.streaming.api.windowing.windows.TimeWindow$Serializer$TimeWindowSerializerSnapshot"
    found[window] = FlinkSerializer("TimeWindow.Serializer", None, 16, lambda source: (source.long(), source.long()))
    return found


SIMPLE: Final = _simple()
"""Serializers without parameters, by the class of their snapshots."""


def list_of(name: str, element: FlinkSerializer, has_nulls: bool = False) -> FlinkSerializer:
    """Return the serializer of a list or an array of objects."""
    plain = _array_of(element)

    def with_nulls(source: DataInput) -> list[Any]:
        one = element.read
        return [None if source.boolean() else one(source) for _ in range(source.count())]

    return _composite(name, (element,), Types.LIST, with_nulls if has_nulls else plain)


def map_of(name: str, key: FlinkSerializer, value: FlinkSerializer) -> FlinkSerializer:
    """Return the serializer of a map, whose values may be null."""

    def read(source: DataInput) -> dict[Any, Any]:
        found = {}
        for _ in range(source.count(_BYTE_OF_NULL + max(0, key.length))):
            item = key.read(source)
            found[_hashable(item)] = None if source.boolean() else value.read(source)
        return found

    return _composite(name, (key, value), Types.MAP, read)


def _hashable(item: Any) -> Any:
    try:
        hash(item)
    except TypeError as error:
        raise StateError(f"A map has keys of {type(item).__name__}, which a map cannot have here.") from error
    return item


def tuple_of(name: str, fields: Sequence[FlinkSerializer]) -> FlinkSerializer:
    """Return the serializer of a tuple of Flink, which has no nulls."""
    fields = tuple(fields)
    reads = [field.read for field in fields]
    length = VARIABLE if any(field.length < 0 for field in fields) else sum(field.length for field in fields)

    def read(source: DataInput) -> tuple[Any, ...]:
        return tuple(one(source) for one in reads)

    return _composite(name, fields, lambda *types: Types.TUPLE(types), read, length)


def row_of(fields: Sequence[FlinkSerializer], has_kind: bool) -> FlinkSerializer:
    """Return the serializer of a row: a mask of the null fields, and the other fields."""
    fields = tuple(fields)
    offset = 2 if has_kind else 0
    bits = offset + len(fields)
    size = -(-bits // 8)

    def read(source: DataInput) -> tuple[Any, ...]:
        mask = int.from_bytes(source.take(size), "big")
        nulls = [bool(mask >> (8 * size - 1 - bit) & 1) for bit in range(bits)]
        if any(nulls[:offset]):
            raise StateError(f"A row in file {source.path!r} is a change other than an insertion; a Row has no kind.")
        return tuple(None if null else one.read(source) for null, one in zip(nulls[offset:], fields, strict=True))

    return _composite("RowSerializer", fields, lambda *types: Types.ROW(types), read)


def pojo_of(name: str, names: Sequence[str], fields: Sequence[FlinkSerializer]) -> FlinkSerializer:
    """Return the serializer of a POJO, whose values become rows with the names of its fields."""
    fields = tuple(fields)

    def read(source: DataInput) -> tuple[Any, ...] | None:
        flags = source.byte()
        if flags == 1:
            return None
        if flags != 2:
            raise StateError(
                f"A {name} in file {source.path!r} is an object of a subclass: the savepoint does not have its fields."
            )
        return tuple(None if source.boolean() else one.read(source) for one in fields)

    return _composite(f"PojoSerializer<{name}>", fields, lambda *types: Types.ROW_NAMED(names, types), read)


def nullable(inner: FlinkSerializer, padding: int) -> FlinkSerializer:
    """Return a serializer that has a null in front of another."""

    def read(source: DataInput) -> Any:
        if source.boolean():
            source.take(padding)
            return None
        return inner.read(source)

    length = 1 + padding if padding else VARIABLE
    return _composite("NullableSerializer", (inner,), lambda kind: kind, read, length)


def enum_of(name: str, constants: Sequence[str]) -> FlinkSerializer:
    """Return the serializer of an enum, whose values become the names of its constants."""

    def read(source: DataInput) -> str:
        position = source.int32()
        if not 0 <= position < len(constants):
            raise source.corrupt(f"{name} has no constant {position}.")
        return constants[position]

    return FlinkSerializer(f"EnumSerializer<{name}>", Types.STRING(), 4, read)


def _composite(
    name: str,
    parts: tuple[FlinkSerializer, ...],
    kind: Callable[..., TypeInformation],
    read: Callable[[DataInput], Any],
    length: int = VARIABLE,
) -> FlinkSerializer:
    for part in parts:
        if part.type is None:
            problem = part.problem or f"{part.name} has no values that state can have."
            made = unreadable(name, problem)
            return FlinkSerializer(name, None, VARIABLE, made.read, parts, problem)
    try:
        return FlinkSerializer(name, kind(*(part.value_type for part in parts)), length, read, parts)
    except ConfigurationError as error:
        return FlinkSerializer(name, None, VARIABLE, read, parts, str(error))


# Avro records: in the order of the schema, with numbers of a fixed length.

_Read = Callable[[DataInput], Any]


def avro_serializer(schema: str | None) -> FlinkSerializer:
    """Return the serializer of the records of a schema; one that reads nothing, with the reason, if it cannot be."""
    try:
        document = json.loads(schema or "")
        kind = avro_type(document)
        return FlinkSerializer(_NAME, kind, VARIABLE, _Reads().of(document, ""))
    except ConfigurationError as error:
        return unreadable(_NAME, str(error))
    except PARSE_ERRORS as error:
        return unreadable(_NAME, f"The schema of an Avro record is none: {error!r:.200}")


class _Reads:
    """Makes what reads values of a schema; remembers the types that it names."""

    def __init__(self) -> None:
        self._named: dict[str, _Read] = {}

    def of(self, schema: Any, namespace: str) -> _Read:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._named[full_name(schema, namespace)]
        plain = self._plain(schema, schema["type"], namespace)
        logical = logical_type_of(schema)
        found = plain if logical is None else _converted(plain, logical, str(schema["logicalType"]))
        if schema["type"] in ("enum", "fixed"):
            self._named[full_name(schema["name"], schema.get("namespace", namespace))] = found
        return found

    def _plain(self, schema: Mapping[str, Any], kind: Any, namespace: str) -> _Read:
        if kind == "array":
            return _blocks(self.of(schema["items"], namespace), list)
        if kind == "map":
            value = self.of(schema["values"], namespace)
            return _blocks(lambda source: (_text(source), value(source)), dict)
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind == "enum":
            return _enum(tuple(schema["symbols"]))
        if kind == "fixed":
            size = int(schema["size"])
            return lambda source: source.take(size)
        return self.of(kind, namespace)

    def _union(self, schema: list[Any], namespace: str) -> _Read:
        branches = [None if branch == "null" else self.of(branch, namespace) for branch in schema]

        def read(source: DataInput) -> Any:
            branch = source.int32()
            if not 0 <= branch < len(branches):
                raise source.corrupt(f"a union has no branch {branch}.")
            chosen = branches[branch]
            return None if chosen is None else chosen(source)

        return read

    def _record(self, schema: Mapping[str, Any], namespace: str) -> _Read:
        full = full_name(schema["name"], schema.get("namespace", namespace))
        fields: list[tuple[str, _Read]] = []

        def read(source: DataInput) -> dict[str, Any]:
            return {name: field(source) for name, field in fields}

        self._named[full] = read
        inner = full.rpartition(".")[0]
        fields += [(field["name"], self.of(field["type"], inner)) for field in schema["fields"]]
        return read


def _text(source: DataInput) -> str:
    data = source.take(source.int32())
    try:
        return data.decode()
    except ValueError as error:
        raise source.corrupt(f"a text is not UTF-8: {error}.") from error


def _blocks(read: _Read, make: Callable[[list[Any]], Any]) -> _Read:
    def blocks(source: DataInput) -> Any:
        found: list[Any] = []
        while True:
            count = source.variable()
            if count == 0:
                return make(found)
            if count > source.remaining:  # each value has a byte at least: there are no lists of nulls here
                raise source.corrupt(f"{count} values should follow, for which there is no room.")
            found += [read(source) for _ in range(count)]

    return blocks


def _enum(symbols: tuple[str, ...]) -> _Read:
    def read(source: DataInput) -> str:
        position = source.int32()
        if not 0 <= position < len(symbols):
            raise source.corrupt(f"an enum has no symbol {position}.")
        return symbols[position]

    return read


def _converted(plain: _Read, logical: LogicalType, name: str) -> _Read:
    def read(source: DataInput) -> Any:
        data = plain(source)
        if isinstance(data, bytes) and len(data) > _LONGEST_DECIMAL:
            raise StateError("A decimal has more digits than one has here, 38.")
        try:
            return logical.value(data)
        except (ValueError, OverflowError, ArithmeticError) as error:
            raise source.corrupt(f"a value of {name} is none: {error}.") from error

    return read


_PRIMITIVES: Final[dict[str, _Read]] = {
    "boolean": DataInput.boolean,
    "int": DataInput.int32,
    "long": DataInput.long,
    "float": DataInput.float32,
    "double": DataInput.double,
    "bytes": lambda source: source.take(source.int32()),
    "string": _text,
}
