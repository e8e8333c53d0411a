"""Reading JSON into the fields of a type, as a typed server does: for the API server double."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.testing.kubernetes.status import bad_request

Json = dict[str, Any]
Schema = dict[str, Any]


class Kind:
    """What a field holds; `go` is the name that a real server gives it in its errors."""

    go = ""


class Text(Kind):
    """A JSON string."""

    go = "string"


class Bytes(Kind):
    """A base64 string."""

    go = "string"


class Number(Kind):
    """A JSON integer."""

    go = "int32"


class Flag(Kind):
    """A JSON boolean."""

    go = "bool"


class Moment(Kind):
    """A time with microseconds (MicroTime) or seconds (Time)."""

    go = "string"


class Anything(Kind):
    """Kept as it is."""

    go = "object"


@dataclass(frozen=True)
class Mapping:
    """An object from any string to one type."""

    value: type[Kind]


@dataclass(frozen=True)
class Sequence:
    """An array of one type."""

    value: type[Kind]


class Decoder:
    """Reads one JSON object into the fields of its type.

    Attributes:
        unknown: the paths that were dropped.
    """

    def __init__(self, kind: str, version: str) -> None:
        self._kind = kind
        self._version = version
        self.unknown: list[str] = []

    def decode(self, schema: Any, value: object, path: str) -> Any:
        """The value as the type sees it; None if it is absent or null."""
        if value is None or schema is Anything:
            return value
        if isinstance(schema, dict):
            return self._object(schema, value, path)
        if isinstance(schema, Mapping):
            entries = self._check(value, dict, "map[string]" + schema.value.go, path)
            return {key: self.decode(schema.value, entry, path) for key, entry in entries.items() if entry is not None}
        if isinstance(schema, Sequence):
            items = self._check(value, list, "[]" + schema.value.go, path)
            return [self.decode(schema.value, item, path) for item in items]
        return self._scalar(schema, value, path)

    def _object(self, schema: Schema, value: object, path: str) -> Json:
        fields = self._check(value, dict, self._kind, path)
        self.unknown.extend(f"{path}.{key}".lstrip(".") for key in fields if key not in schema)
        read = {key: self.decode(schema[key], fields[key], f"{path}.{key}") for key in schema if key in fields}
        # A typed server does not keep empty maps and lists.
        return {
            key: entry
            for key, entry in read.items()
            if entry is not None and (entry or not isinstance(schema[key], (Mapping, Sequence)))
        }

    def _scalar(self, schema: Any, value: object, path: str) -> Any:
        if schema is Flag:
            return self._check(value, bool, "bool", path)
        if schema is Number:
            if isinstance(value, bool):
                raise self._mismatch(value, "int32", path)
            return self._check(value, int, "int32", path)
        text: str = self._check(value, str, schema.go, path)
        if schema is Bytes:
            try:
                base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise bad_request(f"{self._handled()}: illegal base64 data: {error}") from error
        if schema is Moment:
            try:
                datetime.fromisoformat(text)
            except ValueError as error:
                raise bad_request(f'{self._handled()}: parsing time "{text}" as RFC3339 failed') from error
        return text

    def _handled(self) -> str:
        return f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}'

    def _mismatch(self, value: object, go: str, path: str) -> Exception:
        names = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
        found = names[type(value)]
        field = f"{self._kind}{path}"
        return bad_request(
            f"{self._handled()}: json: cannot unmarshal {found} into Go struct field {field} of type {go}"
        )

    def _check(self, value: object, expected: type, go: str, path: str) -> Any:
        if not isinstance(value, expected):
            raise self._mismatch(value, go, path)
        return value
