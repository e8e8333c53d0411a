"""The type of rows that a JSON schema describes, as PyFlink takes it."""

from __future__ import annotations

import json
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.types.information.type_information import RowTypeInformation, TypeInformation, Types

_UNIONS: Final = ("allOf", "anyOf", "not", "extends", "disallow")
_FORMATS: Final = {"date": Types.SQL_DATE, "time": Types.SQL_TIME, "date-time": Types.SQL_TIMESTAMP}
_DEEPEST: Final = 100
_MOST_PARTS: Final = 20_000


def row_type_of_json_schema(schema: str) -> RowTypeInformation:
    """Return the type of what a JSON schema describes.

    Objects are rows and arrays lists. Numbers, whole ones too, are decimals, as in Flink. References within the schema
    are followed; a union may only be one of a type and null.

    Raises:
        ConfigurationError: It is no JSON, no schema of an object, or has no such type.
    """
    try:
        root = json.loads(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"json_schema() takes a JSON schema as a text: {error}") from None
    found = _Schema(root).type_of("<root>", root)
    if not isinstance(found, RowTypeInformation) or not found.names:
        raise ConfigurationError(f"json_schema() takes the schema of an object with properties, not of {found}.")
    return found


class _Schema:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0

    def type_of(self, place: str, node: Any) -> TypeInformation:
        """The type of a node."""
        if not isinstance(node, dict) or place.count("/") > _DEEPEST:
            raise ConfigurationError(f"json_schema(): {place:.200} is no schema, or one without end.")
        self._parts += 1  # few references, each to two others, may stand for any number
        if self._parts > _MOST_PARTS:
            raise ConfigurationError(f"json_schema(): it has more than {_MOST_PARTS} parts, with what it refers to.")
        if any(union in node for union in _UNIONS):
            raise ConfigurationError(f"json_schema(): {place} is a union or an extension, of which there is no type.")
        if "$ref" in node and "type" not in node:
            return self.type_of(f"{place}/$ref", self._referred(place, str(node["$ref"])))
        declared = node.get("type", [])
        kinds = [declared] if isinstance(declared, str) else list(declared)
        types = [self._of_kind(place, kind, node) for kind in kinds if kind != "null"]
        types += [self.type_of(f"{place}/oneOf", one) for one in node.get("oneOf", ()) if one != {"type": "null"}]
        if not types or any(one != types[0] for one in types):
            raise ConfigurationError(f"json_schema(): {place} needs one type, which may be in a union with null.")
        return types[0]

    def _referred(self, place: str, reference: str) -> Any:
        found = self._root
        try:
            for step in reference.removeprefix("#").split("/")[1:]:
                found = found[step]
        except (KeyError, TypeError):
            raise ConfigurationError(f"json_schema(): {place} refers to {reference!r}, which is not in it.") from None
        return found

    def _of_kind(self, place: str, kind: str, node: Any) -> TypeInformation:
        if kind == "string":
            return _text(place, node)
        if kind in ("number", "integer"):
            return Types.BIG_DEC()
        if kind == "boolean":
            return Types.BOOLEAN()
        if kind == "object":
            fields = node.get("properties", {})
            return Types.ROW_NAMED(list(fields), [self.type_of(f"{place}/{name}", fields[name]) for name in fields])
        if kind == "array" and isinstance(node.get("items"), dict):
            return Types.OBJECT_ARRAY(self.type_of(f"{place}/items", node["items"]))
        raise ConfigurationError(f"json_schema(): {place} is of type {kind!r}, and of a list 'items' is one schema.")


def _text(place: str, node: Any) -> TypeInformation:
    if "format" in node:
        return _FORMATS.get(node["format"], Types.STRING)()
    encoding = node.get("contentEncoding")
    if encoding not in (None, "base64"):
        raise ConfigurationError(f"json_schema(): {place} has the encoding {encoding!r}, not 'base64'.")
    return Types.STRING() if encoding is None else Types.PRIMITIVE_ARRAY(Types.BYTE())
