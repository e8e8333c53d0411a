"""Fields that are matched by name: what a row or record takes over from an older one."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.information.abstract_type import Compatibility, TypeInformation, type_from_json
from holdfast.types.serializer import TypeSerializerSchemaCompatibility

Defaults = Mapping[str, Any]
Aliases = Mapping[str, Sequence[str]]


class Fields(Protocol):
    """A type with named fields.

    Attributes:
        names: In their order.
        types: One a name.
        defaults: What older records without a field get for it.
        aliases: Earlier names of fields.
    """

    names: tuple[str, ...]
    types: tuple[TypeInformation, ...]
    defaults: Defaults
    aliases: Aliases


def adopted_defaults(
    names: Sequence[str], types: Sequence[TypeInformation], defaults: Defaults | None
) -> dict[str, Any]:
    """Check the values that new fields get in older state.

    Raises:
        ConfigurationError: A default is for no field, or not of its field's type.
    """
    types_by_name = dict(zip(names, types, strict=True))
    adopted = {}
    for name, value in (defaults or {}).items():
        if name not in types_by_name:
            raise ConfigurationError(f"There is a default {value!r} for {name!r}; the fields are {list(names)!r}.")
        try:
            adopted[name] = types_by_name[name].adopt(value)
        except OutputTypeError as error:
            raise ConfigurationError(f"The default of field {name!r}: {error}") from error
    return adopted


def fields_to_json(new: Fields, defaults: Defaults, aliases: Aliases) -> list[dict[str, Any]]:
    """Return fields in order, with what an older record that lacks them needs."""
    fields = []
    for name, part in zip(new.names, new.types, strict=True):
        field: dict[str, Any] = {"name": name, "type": part.to_json()}
        if name in defaults:
            field["default"] = _as_text(part.to_array([defaults[name]]))
        if aliases.get(name):
            field["aliases"] = list(aliases[name])
        fields.append(field)
    return fields


def fields_from_json(
    fields: Iterable[Mapping[str, Any]],
) -> tuple[list[str], list[TypeInformation], dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return names, types, defaults and aliases again."""
    names: list[str] = []
    types: list[TypeInformation] = []
    defaults: dict[str, Any] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    for field in fields:
        name, part = field["name"], type_from_json(field["type"])
        names.append(name)
        types.append(part)
        if "default" in field:
            defaults[name] = part.to_list(_from_text(field["default"]))[0]
        if field.get("aliases"):
            aliases[name] = tuple(field["aliases"])
    return names, types, defaults, aliases


def _as_text(column: pa.Array) -> str:
    """Return a column as an Arrow stream, which every tool reads."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("default", column.type)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], ["default"]))
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _from_text(text: str) -> pa.Array:
    return pa.ipc.open_stream(base64.b64decode(text)).read_all().column(0).combine_chunks()


def sources(new: Fields, old: Fields) -> list[int | None]:
    """Return for each field where it stands in the older record: by its name, else by an alias; None if it is new."""
    at = {name: position for position, name in enumerate(old.names)}
    found: list[int | None] = []
    for name in new.names:
        candidates = (name, *new.aliases.get(name, ()))
        found.append(next((at[candidate] for candidate in candidates if candidate in at), None))
    return found


def resolve_fields(new: Fields, old: Fields) -> Compatibility:
    """Say whether fields can be taken over: those that both have must be compatible, others come and go."""
    places = sources(new, old)
    answers = [
        part.resolve_compatibility(old.types[place])
        for part, place in zip(new.types, places, strict=True)
        if place is not None
    ]
    if not answers and new.names and old.names:
        return TypeSerializerSchemaCompatibility.incompatible(f"{old} and {new} have no field in common")
    if old.names != new.names:
        changed = f"fields {list(old.names)!r} become {list(new.names)!r}"
        answers.append(TypeSerializerSchemaCompatibility.compatible_after_migration(changed))
    return TypeSerializerSchemaCompatibility.worst(answers)


def migrate_fields(new: Fields, old: Fields, items: Sequence[Any]) -> list[Any]:
    """Take the values of fields over; a new one gets its default, or None."""
    parts = []
    for name, part, place in zip(new.names, new.types, sources(new, old), strict=True):
        if place is None:
            default = new.defaults.get(name)
            parts.append(None if default is None else part.copy(default))
        else:
            parts.append(part.migrate(items[place], old.types[place]))
    return parts
