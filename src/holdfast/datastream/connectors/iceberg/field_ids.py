"""The ids by which a table of Iceberg knows its columns, in the files that tasks write.

A column may get another name, and its old name may be given to a new one. A file without ids is read by names: its
values would be those of the new column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

ID: Final = b"PARQUET:field_id"

Ids = Mapping[str, Any]
"""By the name of each field its id and those of its parts, `[3, {"element": [4, {}]}]`; a JSON value."""


def ids_of(parts: Sequence[Any]) -> dict[str, Any]:
    """The ids of fields of a schema of Iceberg."""
    return {part.name: [part.field_id, ids_of(_parts_of(part.field_type))] for part in parts}


def _parts_of(kind: Any) -> Sequence[Any]:
    found = getattr(kind, "fields", None) or [
        getattr(kind, name, None) for name in ("element_field", "key_field", "value_field")
    ]
    return [part for part in found if part is not None]


def with_ids(schema: pa.Schema, ids: Ids, but: str | None = None) -> pa.Schema:
    """A schema of a stream in which each field says which one of the table it is, but for one that is not written."""
    return pa.schema([field if field.name == but else _with_ids(field, ids[field.name]) for field in schema])


def names_now(schema: pa.Schema, parts: Sequence[Any]) -> dict[str, str | None]:
    """What a table calls the columns of rows that were staged, by the names that they had; None if it has dropped one.

    Args:
        schema: Of the rows. Staged by an older version they say no ids, and keep their names.
        parts: The fields of the table's schema.
    """
    names = {part.field_id: part.name for part in parts}
    ids = {field.name: (field.metadata or {}).get(ID) for field in schema}
    return {name: name if number is None else names.get(int(number)) for name, number in ids.items()}


def _with_ids(field: pa.Field, found: tuple[int, Ids]) -> pa.Field:
    number, parts = found
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_ids(part, parts[part.name]) for part in map(kind.field, range(kind.num_fields))])
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_ids(kind.value_field, parts["element"]))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_ids(kind.key_field, parts["key"]), _with_ids(kind.item_field, parts["value"]))
    return field.with_type(kind).with_metadata({ID: str(number).encode()})
