"""Avro schemas as types. Only the schema is used: in state a record is a struct, and no Avro is encoded."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from holdfast.errors import ConfigurationError
from holdfast.kernel.parsing import MAX_NESTING, PARSE_ERRORS
from holdfast.types.composite import AvroRecordTypeInformation
from holdfast.types.type_information import TypeInformation, decimal_from_unscaled
from holdfast.types.types import Types

MAX_PARTS: Final = 20_000


class _Size(NamedTuple):
    """The size of a type, with named types in it counted in full."""

    depth: int = 1
    parts: int = 1
    has_bytes: bool = True


def check_bounded_schema(schema: Any) -> None:
    """Check that a schema, and the messages of a schema, have bounded depth and size.

    A schema may come from others. An Avro reader recurses as deep as a message says, on a stack whose overflow ends the
    process, and expands a named type at each use.

    Args:
        schema: The schema as parsed JSON. Names that it does not define are accepted.

    Raises:
        ValueError: The schema is recursive, too deep or too large, or has an array of items without bytes.
        KeyError, TypeError, RecursionError: It is not a schema.
    """
    _Bounds().size(schema, "")


def full_name(name: str, namespace: str) -> str:
    """Return the full name of a type: a name without a namespace gets the enclosing one."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


class _Bounds:
    """Measures one schema. Maps named types to their size; None while one is being measured."""

    def __init__(self) -> None:
        self._named: dict[str, _Size | None] = {}

    def size(self, schema: Any, namespace: str) -> _Size:
        if isinstance(schema, str):
            return self._of_name(schema, namespace)
        if isinstance(schema, list):
            return _together([self.size(branch, namespace) for branch in schema], has_bytes=True)
        if not isinstance(schema, Mapping) or "type" not in schema:
            return _Size()  # not a schema, which the reader reports
        kind = schema["type"]
        if kind == "array":
            items = self.size(schema["items"], namespace)
            if not items.has_bytes:
                raise ValueError(
                    f"{_name_of(schema['items'])!r} takes no bytes, so a short message may have any number of them"
                )
            return _around([items], has_bytes=True)
        if kind == "map":
            return _around([self.size(schema["values"], namespace)], has_bytes=True)
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_named(schema, full_name(schema["name"], schema.get("namespace", namespace)))
        return self.size(kind, namespace)

    def _of_name(self, name: str, namespace: str) -> _Size:
        full = full_name(name, namespace)
        known = self._named.get(full if full in self._named else name, _Size(has_bytes=name != "null"))
        if known is None:
            raise ValueError(f"{name!r} contains itself, so messages have no greatest depth")
        return known

    def _of_named(self, schema: Mapping[str, Any], full: str) -> _Size:
        if schema["type"] in ("enum", "fixed"):
            found = _Size(has_bytes=schema.get("size") != 0)
        else:
            self._named[full] = None
            inner = full.rpartition(".")[0]
            fields = [self.size(field["type"], inner) for field in schema["fields"]]
            found = _around(fields, has_bytes=any(field.has_bytes for field in fields))
        self._named[full] = found
        return found


def _around(sizes: list[_Size], *, has_bytes: bool) -> _Size:
    found = _together(sizes, has_bytes=has_bytes)
    if found.depth >= MAX_NESTING:
        raise ValueError(f"it is nested more than {MAX_NESTING} times")
    return found._replace(depth=found.depth + 1)


def _together(sizes: list[_Size], *, has_bytes: bool) -> _Size:
    parts = 1 + sum(size.parts for size in sizes)
    if parts > MAX_PARTS:
        raise ValueError(f"it has more than {MAX_PARTS} parts, with named types counted at each use")
    return _Size(max((size.depth for size in sizes), default=0), parts, has_bytes)


def _name_of(schema: Any) -> Any:
    return schema.get("name", schema) if isinstance(schema, Mapping) else schema


_PRIMITIVES: Final[dict[str, Callable[[], TypeInformation]]] = {
    "boolean": Types.BOOLEAN,
    "int": Types.INT,
    "long": Types.LONG,
    "float": Types.FLOAT,
    "double": Types.DOUBLE,
    "bytes": Types.BINARY,
    "string": Types.STRING,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class LogicalType(NamedTuple):
    """A logical type.

    Attributes:
        type: Returns the type of its values.
        value: Converts a value of the underlying Avro type; raises ValueError or ArithmeticError if it cannot.
    """

    type: Callable[[], TypeInformation]
    value: Callable[[Any], Any]


def _day(days: int) -> date:
    return date(1970, 1, 1) + timedelta(days=days)


def _moment(unit: int) -> Callable[[int], datetime]:
    return lambda count: _EPOCH + timedelta(microseconds=count * unit)


def _local(unit: int) -> Callable[[int], datetime]:
    return lambda count: (_EPOCH + timedelta(microseconds=count * unit)).replace(tzinfo=None)


def _time_of_day(unit: int) -> Callable[[int], time]:
    def convert(count: int) -> time:
        if not 0 <= count * unit < 86_400_000_000:
            raise ValueError(f"{count} is after the end of a day")
        return (_EPOCH + timedelta(microseconds=count * unit)).time()

    return convert


_LOGICAL: Final[dict[Any, LogicalType]] = {
    ("int", "date"): LogicalType(Types.SQL_DATE, _day),
    ("int", "time-millis"): LogicalType(Types.SQL_TIME, _time_of_day(1000)),
    ("long", "time-micros"): LogicalType(Types.SQL_TIME, _time_of_day(1)),
    ("long", "timestamp-millis"): LogicalType(Types.INSTANT, _moment(1000)),
    ("long", "timestamp-micros"): LogicalType(Types.INSTANT, _moment(1)),
    ("long", "local-timestamp-millis"): LogicalType(Types.TIMESTAMP_NTZ, _local(1000)),
    ("long", "local-timestamp-micros"): LogicalType(Types.TIMESTAMP_NTZ, _local(1)),
}
"""By the underlying type and the name. All others are read and written as their underlying type."""


def logical_type_of(schema: Mapping[str, Any]) -> LogicalType | None:
    """Return the logical type that a schema names; None for none, and for one that is treated as its underlying type.

    Raises:
        KeyError, TypeError: It is a decimal without a precision, or not a name.
        ConfigurationError: It is a decimal of more digits than its fixed size holds.
    """
    kind, name = schema["type"], schema.get("logicalType")
    if not isinstance(kind, str):
        return None
    if name != "decimal" or kind not in ("bytes", "fixed"):
        return _LOGICAL.get((kind, name))
    precision, scale = schema["precision"], schema.get("scale", 0)
    if kind == "fixed" and 10**precision > 1 << (8 * schema["size"] - 1):
        raise ConfigurationError(f"{schema['size']} bytes do not hold a decimal of {precision} digits.")

    def value(data: bytes) -> Decimal:
        return decimal_from_unscaled(int.from_bytes(data, "big", signed=True), scale)

    return LogicalType(lambda: Types.DECIMAL(precision, scale), value)


def avro_type(schema: str | Mapping[str, Any]) -> AvroRecordTypeInformation:
    """Return the type of the records of an Avro schema.

    Args:
        schema: The schema of a record, as JSON text or parsed.

    Raises:
        ConfigurationError: It is not the schema of a record, is not bounded (for instance recursive), or has a part
            that state cannot have, such as a union of several types.
    """
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The Avro schema is not JSON: {error}.") from error
    try:
        check_bounded_schema(document)
        found = _Reader().read(document, "").type
    except PARSE_ERRORS as error:
        raise ConfigurationError(
            f"The Avro schema {reprlib.repr(document)} is not a bounded schema of a record: {error!r:.300}."
        ) from error
    if not isinstance(found, AvroRecordTypeInformation):
        raise ConfigurationError(f"The Avro schema {document!r} is not that of a record.")
    return found


class _Part(NamedTuple):
    """A type, and a function that converts a default from JSON to a value."""

    type: TypeInformation
    default: Callable[[Any], Any]


class _Reader:
    """Reads one schema, and keeps the types that it names."""

    def __init__(self) -> None:
        self._named: dict[str, _Part] = {}

    def read(self, schema: Any, namespace: str) -> _Part:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._name(schema, namespace)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise ConfigurationError(f"{schema!r} is not an Avro schema.")
        kind, logical = schema["type"], logical_type_of(schema)
        if kind == "array":
            items = self.read(schema["items"], namespace)
            return _Part(Types.LIST(items.type), lambda value: list(map(items.default, value)))
        if kind == "map":
            values = self.read(schema["values"], namespace)
            of_map = Types.MAP(Types.STRING(), values.type)
            return _Part(of_map, lambda value: {name: values.default(item) for name, item in value.items()})
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind not in ("enum", "fixed"):
            plain = self.read(kind, namespace)
            return plain if logical is None else _of_logical(logical, plain)
        found = _Part(Types.STRING(), _same) if kind == "enum" else _Part(Types.BINARY(), _bytes)
        found = found if logical is None else _of_logical(logical, found)
        self._named[full_name(schema["name"], schema.get("namespace", namespace))] = found
        return found

    def _union(self, schema: list[Any], namespace: str) -> _Part:
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ConfigurationError(
                f"The Avro union {schema!r} has {len(branches)} types beside null, state takes exactly one. Make it a "
                "record with one optional field for each."
            )
        # None belongs to every type.
        found = self.read(branches[0], namespace)
        return found._replace(default=lambda value: None if value is None else found.default(value))

    def _name(self, name: str, namespace: str) -> _Part:
        if name in _PRIMITIVES:
            return _Part(_PRIMITIVES[name](), _bytes if name == "bytes" else _same)
        found = self._named.get(full_name(name, namespace), self._named.get(name))
        if found is None:
            raise ConfigurationError(f"The Avro schema names {name!r}, which is not defined before.")
        return found

    def _field(self, name: str, schema: Any, namespace: str) -> _Part:
        try:
            return self.read(schema, namespace)
        except ConfigurationError as error:
            raise ConfigurationError(f"Field {name!r} of an Avro record: {error}") from None
        except PARSE_ERRORS as error:
            raise ConfigurationError(f"Field {name!r} of an Avro record has an invalid schema: {error!r}.") from error

    def _record(self, schema: Mapping[str, Any], namespace: str) -> _Part:
        full = full_name(schema["name"], schema.get("namespace", namespace))
        inner = full.rpartition(".")[0]
        names: list[str] = []
        parts: list[_Part] = []
        defaults, aliases = {}, {}
        for field in schema["fields"]:
            name = field["name"]
            part = self._field(name, field["type"], inner)
            names.append(name)
            parts.append(part)
            if "default" in field:
                defaults[name] = _default(name, field["default"], part)
            if field.get("aliases"):
                aliases[name] = tuple(field["aliases"])
        former = [alias.rpartition(".")[2] for alias in schema.get("aliases", ())]
        types = [part.type for part in parts]
        by_name = dict(zip(names, parts, strict=True))
        found = _Part(
            AvroRecordTypeInformation(full.rpartition(".")[2], names, types, defaults, aliases, former),
            lambda value: {name: by_name[name].default(item) for name, item in value.items()},
        )
        self._named[full] = found
        return found


def _default(name: str, value: Any, part: _Part) -> Any:
    """Return a default as a value; None is valid for every type."""
    try:
        return None if value is None else part.default(value)
    except PARSE_ERRORS as error:
        raise ConfigurationError(
            f"The default {value!r:.80} of field {name!r} is not of type {part.type}: {error}."
        ) from error


def _of_logical(logical: LogicalType, plain: _Part) -> _Part:
    return _Part(logical.type(), lambda value: logical.value(plain.default(value)))


def _same(value: Any) -> Any:
    return value


def _bytes(value: str) -> bytes:
    """Avro writes bytes as text of the first 256 characters."""
    return value.encode("latin-1")
