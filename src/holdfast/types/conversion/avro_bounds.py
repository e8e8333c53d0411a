"""Bounds of an Avro schema that others have made, so that neither it nor a message of it can have any size.

What reads Avro goes as deep as a message says, on a stack that ends the process where it ends, and makes anew what a
name stands for in each place that has the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from holdfast.kernel.malformed import DEEPEST

MOST_PARTS: Final = 20_000


class _Size(NamedTuple):
    """Of a type, with what its names stand for."""

    depth: int = 1
    parts: int = 1
    has_bytes: bool = True


def require_bounded_avro(schema: Any) -> None:
    """Makes sure that messages of a schema, and what is made of it, have a bound.

    Args:
        schema: The schema, as JSON that was parsed. Names that it does not define may stand for anything.

    Raises:
        ValueError: It has itself inside it, is nested too deeply, is too large, or has lists of what needs no bytes.
        KeyError, TypeError, RecursionError: It is no schema.
    """
    _Bounds().size(schema, "")


def full_name(name: str, namespace: str) -> str:
    """The name of a type, with the namespace in which it was found if it has none of its own."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


class _Bounds:
    """Measures one schema; remembers the types that it names, None while one is being measured."""

    def __init__(self) -> None:
        self._named: dict[str, _Size | None] = {}

    def size(self, schema: Any, namespace: str) -> _Size:
        if isinstance(schema, str):
            return self._of_name(schema, namespace)
        if isinstance(schema, list):
            return _together([self.size(branch, namespace) for branch in schema], has_bytes=True)
        if not isinstance(schema, Mapping) or "type" not in schema:
            return _Size()  # which is no schema, as its reader tells
        kind = schema["type"]
        if kind == "array":
            items = self.size(schema["items"], namespace)
            if not items.has_bytes:
                raise ValueError(
                    f"{_told(schema['items'])!r} has no bytes, so a message of ten may have any number of them"
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
            raise ValueError(f"{name!r} has itself inside it, so nothing bounds how deep a message goes")
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
    if found.depth >= DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} times")
    return found._replace(depth=found.depth + 1)


def _together(sizes: list[_Size], *, has_bytes: bool) -> _Size:
    parts = 1 + sum(size.parts for size in sizes)
    if parts > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS} parts, where each name counts as what it stands for")
    return _Size(max((size.depth for size in sizes), default=0), parts, has_bytes)


def _told(schema: Any) -> Any:
    return schema.get("name", schema) if isinstance(schema, Mapping) else schema
