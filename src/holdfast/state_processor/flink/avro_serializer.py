"""Records of Avro as Flink keeps them: in the order of the schema, with numbers of a fixed length."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.state_processor.flink.data_input import DataInput
from holdfast.state_processor.flink.serializer import VARIABLE, FlinkSerializer, unreadable
from holdfast.types.conversion.avro import Logical, avro_type, logical_of
from holdfast.types.conversion.avro_bounds import full_name

_Read = Callable[[DataInput], Any]
_LONGEST_DECIMAL: Final = 32
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
        plain = self._plain(schema, schema["type"], namespace)
        logical = logical_of(schema)
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


def _converted(plain: _Read, logical: Logical, name: str) -> _Read:
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
