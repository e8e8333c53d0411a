"""Avro schemas as types. Only the schema is needed: in state a record is a struct, and no Avro is encoded."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.malformed import MALFORMED
from holdfast.types.conversion.avro_bounds import full_name, require_bounded_avro
from holdfast.types.information.record_type import AvroRecordTypeInformation
from holdfast.types.information.type_information import TypeInformation, Types

_PRIMITIVES: Final[dict[str, Callable[[], TypeInformation]]] = {
    "boolean": Types.BOOLEAN,
    "int": Types.INT,
    "long": Types.LONG,
    "float": Types.FLOAT,
    "double": Types.DOUBLE,
    "bytes": Types.BINARY,
    "string": Types.STRING,
}
_LOGICAL: Final[dict[str, Callable[[], TypeInformation]]] = {
    "date": Types.SQL_DATE,
    "time-millis": Types.SQL_TIME,
    "time-micros": Types.SQL_TIME,
    "timestamp-millis": Types.INSTANT,
    "timestamp-micros": Types.INSTANT,
    "local-timestamp-millis": Types.TIMESTAMP_NTZ,
    "local-timestamp-micros": Types.TIMESTAMP_NTZ,
}


def avro_type(schema: str | Mapping[str, Any]) -> AvroRecordTypeInformation:
    """Return the type of the records of an Avro schema.

    Args:
        schema: The schema of a record, as JSON text or already parsed.

    Raises:
        ConfigurationError: It is no schema of a record, has itself inside it or another thing without bounds, or a part
            that state cannot have, such as a union of several types.
    """
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The Avro schema is no JSON: {error}.") from error
    try:
        require_bounded_avro(document)
        found = _Reader().read(document, "")
    except MALFORMED as error:
        raise ConfigurationError(
            f"The Avro schema {reprlib.repr(document)} is no schema of a record that can be read: {error!r:.300}."
        ) from error
    if not isinstance(found, AvroRecordTypeInformation):
        raise ConfigurationError(f"The Avro schema {document!r} is not that of a record.")
    return found


class _Reader:
    """Reads one schema; remembers the types that it names."""

    def __init__(self) -> None:
        self._named: dict[str, TypeInformation] = {}

    def read(self, schema: Any, namespace: str) -> TypeInformation:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._name(schema, namespace)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise ConfigurationError(f"{schema!r} is no Avro schema.")
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal":
            return Types.DECIMAL(schema["precision"], schema.get("scale", 0))
        if logical in _LOGICAL:
            return _LOGICAL[logical]()
        if kind == "array":
            return Types.LIST(self.read(schema["items"], namespace))
        if kind == "map":
            return Types.MAP(Types.STRING(), self.read(schema["values"], namespace))
        if kind in ("enum", "fixed"):
            found = Types.STRING() if kind == "enum" else Types.BINARY()
            self._named[full_name(schema["name"], schema.get("namespace", namespace))] = found
            return found
        return self._record(schema, namespace) if kind in ("record", "error") else self.read(kind, namespace)

    def _union(self, schema: list[Any], namespace: str) -> TypeInformation:
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ConfigurationError(
                f"The Avro union {schema!r} has {len(branches)} types beside null, state takes exactly one. Make it a "
                "record with one optional field for each."
            )
        # None belongs to every type.
        return self.read(branches[0], namespace)

    def _name(self, name: str, namespace: str) -> TypeInformation:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]()
        found = self._named.get(full_name(name, namespace), self._named.get(name))
        if found is None:
            raise ConfigurationError(f"The Avro schema names {name!r}, which is not defined before.")
        return found

    def _record(self, schema: Mapping[str, Any], namespace: str) -> AvroRecordTypeInformation:
        full = full_name(schema["name"], schema.get("namespace", namespace))
        inner = full.rpartition(".")[0]
        names, types, defaults, aliases = [], [], {}, {}
        for field in schema["fields"]:
            name, part = field["name"], self.read(field["type"], inner)
            names.append(name)
            types.append(part)
            if "default" in field:
                defaults[name] = _default(field["default"], part)
            if field.get("aliases"):
                aliases[name] = tuple(field["aliases"])
        former = [alias.rpartition(".")[2] for alias in schema.get("aliases", ())]
        found = AvroRecordTypeInformation(full.rpartition(".")[2], names, types, defaults, aliases, former)
        self._named[full] = found
        return found


def _default(value: Any, part: TypeInformation) -> Any:
    """Return a default as a value: Avro writes bytes as text of the first 256 characters."""
    return value.encode("latin-1") if isinstance(value, str) and part == Types.BINARY() else value
