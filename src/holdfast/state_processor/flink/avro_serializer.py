"""Records of Avro as Flink keeps them: in the order of the schema, with numbers of a fixed length."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.state_processor.flink.data_input import DataInput
from holdfast.state_processor.flink.serializer import VARIABLE, FlinkSerializer, scaled, unreadable
from holdfast.types.conversion.avro import avro_type
from holdfast.types.conversion.avro_bounds import full_name

_Read = Callable[[DataInput], Any]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAME: Final = "AvroSerializer"


def avro_serializer(schema: str | None) -> FlinkSerializer:
    """Return the serializer of the records of a schema; one that reads nothing, with the reason, if it cannot be."""
    try:
        document = json.loads(schema or "")
        kind = avro_type(document)
        return FlinkSerializer(_NAME, kind, VARIABLE, _Reads().of(document, ""))
    except ConfigurationError as error:
        return unreadable(_NAME, str(error))
    except MALFORMED as error:
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
        kind, logical = schema["type"], schema.get("logicalType")
        plain = self._plain(schema, kind, namespace)
        convert = _decimal(schema) if logical == "decimal" else _LOGICAL.get(logical)
        if convert is None:
            return plain
        made = convert

        def read(source: DataInput) -> Any:
            try:
                return made(plain(source))
            except (ValueError, OverflowError, ArithmeticError) as error:
                raise source.corrupt(f"a value of {logical} is none: {error}.") from error

        return read

    def _plain(self, schema: Mapping[str, Any], kind: Any, namespace: str) -> _Read:
        if kind == "array":
            return _blocks(self.of(schema["items"], namespace), list)
        if kind == "map":
            value = self.of(schema["values"], namespace)
            return _blocks(lambda source: (_text(source), value(source)), dict)
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind == "enum":
            read = _enum(tuple(schema["symbols"]))
        elif kind == "fixed":
            size = int(schema["size"])

            def read(source: DataInput) -> Any:
                return source.take(size)
        else:
            return self.of(kind, namespace)
        self._named[full_name(schema["name"], schema.get("namespace", namespace))] = read
        return read

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


def _decimal(schema: Mapping[str, Any]) -> Callable[[bytes], Decimal]:
    scale = int(schema.get("scale", 0))

    def convert(data: bytes) -> Decimal:
        if len(data) > 32:
            raise StateError("A decimal has more digits than one has here, 38.")
        return scaled(int.from_bytes(data, "big", signed=True), scale)

    return convert


def _moment(unit: int) -> Callable[[int], datetime]:
    return lambda count: _EPOCH + timedelta(microseconds=count * unit)


def _local(unit: int) -> Callable[[int], datetime]:
    return lambda count: (_EPOCH + timedelta(microseconds=count * unit)).replace(tzinfo=None)


def _time_of_day(unit: int) -> Callable[[int], time]:
    def convert(count: int) -> time:
        if not 0 <= count * unit < 86_400_000_000:
            raise ValueError(f"{count} is behind the end of a day")
        return (_EPOCH + timedelta(microseconds=count * unit)).time()

    return convert


_PRIMITIVES: Final[dict[str, _Read]] = {
    "boolean": DataInput.boolean,
    "int": DataInput.int32,
    "long": DataInput.long,
    "float": DataInput.float32,
    "double": DataInput.double,
    "bytes": lambda source: source.take(source.int32()),
    "string": _text,
}
_LOGICAL: Final[dict[Any, Callable[[Any], Any]]] = {
    "date": lambda days: date(1970, 1, 1) + timedelta(days=days),
    "time-millis": _time_of_day(1000),
    "time-micros": _time_of_day(1),
    "timestamp-millis": _moment(1000),
    "timestamp-micros": _moment(1),
    "local-timestamp-millis": _local(1000),
    "local-timestamp-micros": _local(1),
}
