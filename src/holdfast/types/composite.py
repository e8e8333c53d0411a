"""Types with named fields: rows, tuples, dataclasses and Avro records, and how older values of them are migrated."""

from __future__ import annotations

import base64
import dataclasses
import re
import typing
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.row import CHANGES, Row, RowKind, field_names_of, make_rows, original, row_class
from holdfast.types.serializer import TypeSerializerSchemaCompatibility
from holdfast.types.type_information import (
    Compatibility,
    TypeInformation,
    nested_error,
    register_type,
    type_from_json,
    with_nulls,
)

Defaults = Mapping[str, Any]
Aliases = Mapping[str, Sequence[str]]
_ROWS_AT_ONCE: Final = 512
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Fields(Protocol):
    """A type with named fields.

    Attributes:
        names: Names of the fields, in order.
        types: Types of the fields, in order.
        defaults: Values of fields that an older record does not have.
        aliases: Former names of fields.
    """

    names: tuple[str, ...]
    types: tuple[TypeInformation, ...]
    defaults: Defaults
    aliases: Aliases


def adopted_defaults(
    names: Sequence[str], types: Sequence[TypeInformation], defaults: Defaults | None
) -> dict[str, Any]:
    """Check and normalise the values that new fields get in older state.

    Raises:
        ConfigurationError: A default is for an unknown field, or not of its field's type.
    """
    types_by_name = dict(zip(names, types, strict=True))
    adopted = {}
    for name, value in (defaults or {}).items():
        if name not in types_by_name:
            raise ConfigurationError(
                f"The default {value!r} is for the unknown field {name!r}; the fields are {list(names)!r}."
            )
        try:
            adopted[name] = types_by_name[name].adopt(value)
        except OutputTypeError as error:
            raise ConfigurationError(f"The default of field {name!r}: {error}") from error
    return adopted


def fields_to_json(new: Fields, defaults: Defaults, aliases: Aliases) -> list[dict[str, Any]]:
    """Return the fields in order, with their defaults and aliases."""
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
    """Return names, types, defaults and aliases from the result of `fields_to_json`."""
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
    """Return a column as an Arrow stream in base64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("default", column.type)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], ["default"]))
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _from_text(text: str) -> pa.Array:
    return pa.ipc.open_stream(base64.b64decode(text)).read_all().column(0).combine_chunks()


def source_positions(new: Fields, old: Fields) -> list[int | None]:
    """Return the position of each field in the older record, by its name or else an alias; None for a new field."""
    at = {name: position for position, name in enumerate(old.names)}
    found: list[int | None] = []
    for name in new.names:
        candidates = (name, *new.aliases.get(name, ()))
        found.append(next((at[candidate] for candidate in candidates if candidate in at), None))
    return found


def resolve_fields(new: Fields, old: Fields) -> Compatibility:
    """Resolve the compatibility of fields: those in both must be compatible, others may be added or removed."""
    answers = []
    for name, part, place in zip(new.names, new.types, source_positions(new, old), strict=True):
        if place is not None:
            answer = part.resolve_compatibility(old.types[place])
            if answer.is_incompatible():
                reason = f": {answer.reason}" if answer.reason else ""
                return TypeSerializerSchemaCompatibility.incompatible(f"field {name!r}{reason}")
            answers.append(answer)
    if not answers and new.names and old.names:
        return TypeSerializerSchemaCompatibility.incompatible(f"{old} and {new} have no field in common")
    if old.names != new.names:
        changed = f"fields {list(old.names)!r} become {list(new.names)!r}"
        answers.append(TypeSerializerSchemaCompatibility.compatible_after_migration(changed))
    return TypeSerializerSchemaCompatibility.worst(answers)


def migrate_fields(new: Fields, old: Fields, items: Sequence[Any]) -> list[Any]:
    """Return the values of the new fields; an added field gets its default, or None."""
    parts = []
    for name, part, place in zip(new.names, new.types, source_positions(new, old), strict=True):
        if place is None:
            default = new.defaults.get(name)
            parts.append(None if default is None else part.copy(default))
        else:
            parts.append(part.migrate(items[place], old.types[place]))
    return parts


_NAMES_OF_SPARK: Final = attrgetter("__fields__")


def quote_name(name: str) -> str:
    """Return a field's name as Spark SQL writes it."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def transpose(rows: Sequence[Any]) -> list[Sequence[Any]]:
    """Turn rows into columns, some rows at a time: an iterator per row of many rows does not fit into CPU caches.

    Raises:
        ValueError: Rows have different numbers of fields.
    """
    if len(rows) <= _ROWS_AT_ONCE:
        return list(zip(*rows, strict=True))
    columns: list[list[Any]] = [list(column) for column in zip(*rows[:_ROWS_AT_ONCE], strict=True)]
    for start in range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE):
        for column, part in zip(columns, zip(*rows[start : start + _ROWS_AT_ONCE], strict=True), strict=True):
            column.extend(part)
    return list(columns)


class StructTypeInformation(TypeInformation):
    """The base class of rows, tuples and records: a fixed number of fields.

    Attributes:
        defaults: Values of fields that an older value does not have; None for fields that are not listed.
        aliases: Former names of fields.
    """

    ddl = ""
    arrow_type = pa.null()
    is_immutable = False
    defaults: Defaults = MappingProxyType({})
    aliases: Aliases = MappingProxyType({})

    def __init__(self, names: Iterable[str], types: Iterable[TypeInformation]) -> None:
        self.names = tuple(names)
        self.types = tuple(types)
        if len(self.names) != len(self.types):
            raise ConfigurationError(f"{len(self.names)} names for {len(self.types)} types: {list(self.names)!r}.")
        if len(set(self.names)) != len(self.names):
            raise ConfigurationError(f"The names of fields must differ: {list(self.names)!r}.")
        for part in self.types:
            if not isinstance(part, TypeInformation):
                raise ConfigurationError(
                    f"{part!r} is not a type. Use Types.* or holdfast.types.type_parser.to_type()."
                )
        fields = [pa.field(name, part.arrow_type) for name, part in zip(self.names, self.types, strict=True)]
        self.arrow_type = pa.struct(fields)
        parts = (f"{quote_name(name)}: {part.ddl}" for name, part in zip(self.names, self.types, strict=True))
        self.ddl = f"struct<{', '.join(parts)}>"
        self.is_immutable = all(part.is_immutable for part in self.types)
        self.contains_rows = any(part.contains_rows for part in self.types)
        self._adopts = [part.adopt for part in self.types]

    @property
    @abstractmethod
    def row_type(self) -> type[Any]:
        """The class of values."""

    @abstractmethod
    def with_types(self, types: Sequence[TypeInformation]) -> StructTypeInformation:
        """Return the same type with other types of the fields."""

    @abstractmethod
    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values of an element in the order of the fields, unchecked.

        Raises:
            OutputTypeError: It is not such an element, or has other fields.
        """

    def columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Turn elements into columns, unchecked; None is not an element here.

        Raises:
            OutputTypeError, ValueError: An element has other fields.
        """
        if not values:
            return [()] * len(self.types)
        kinds = set(map(type, values))
        if not all(self.is_in_order(kind) for kind in kinds) and not self._have_declared_names(values, kinds):
            values = [self.arrange(value) for value in values]
        columns = transpose(values)
        if len(columns) != len(self.types):
            raise ValueError(f"{len(columns)} fields instead of {len(self.types)}")
        return columns

    def _have_declared_names(self, values: Sequence[Any], kinds: set[type]) -> bool:
        """Return whether each element has its own names, which are the declared ones in order."""
        return False

    def is_in_order(self, kind: type) -> bool:
        """Return whether all elements of a class have their values in the order of the fields."""
        return issubclass(kind, (tuple, list))

    def get_field_index(self, field_name: str) -> int:
        """Return the position of a field, -1 if there is none of this name."""
        return self.names.index(field_name) if field_name in self.names else -1

    def get_field_names(self) -> list[str]:
        """Return the names of the fields."""
        return list(self.names)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields."""
        return list(self.types)

    def adopt(self, value: Any) -> Any:
        if value is None:
            return None
        items = self.arrange(value)
        try:
            return tuple.__new__(self.row_type, [adopt(item) for adopt, item in zip(self._adopts, items, strict=True)])
        except OutputTypeError:
            for name, part, item in zip(self.names, self.types, items, strict=True):
                try:
                    part.adopt(item)
                except OutputTypeError as error:
                    raise nested_error(error, name) from None
            raise

    def copy(self, value: Any) -> Any:
        if CHANGES and self.contains_rows:
            value = original(value)
        if value is None or self.is_immutable:
            return value
        return tuple.__new__(self.row_type, [part.copy(item) for part, item in zip(self.types, value, strict=True)])

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        nothing = (None,) * len(self.types)
        columns = self.columns([nothing if value is None else value for value in values])
        arrays = [part.to_array(column) for part, column in zip(self.types, columns, strict=True)]
        missing = pa.array([value is None for value in values], pa.bool_())
        if not arrays:
            return pa.array([None if value is None else {} for value in values], self.arrow_type)
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type), mask=missing)

    def read(self, array: pa.Array) -> list[Any]:
        # flatten() propagates the nulls of the struct into its fields, field() does not; either works here.
        columns = [part.to_list(column) for part, column in zip(self.types, array.flatten(), strict=True)]
        if not columns:
            return with_nulls([tuple.__new__(self.row_type) for _ in range(len(array))], array)
        return with_nulls(make_rows(self.row_type, columns), array)

    def to_plain(self, value: Any) -> Any:
        if value is None:
            return None
        return tuple(part.to_plain(item) for part, item in zip(self.types, value, strict=True))

    def from_plain(self, plain: Any) -> Any:
        if plain is None:
            return None
        if not isinstance(plain, tuple) or len(plain) != len(self.types):
            raise self.mismatch(plain)
        return tuple.__new__(
            self.row_type, (part.from_plain(item) for part, item in zip(self.types, plain, strict=True))
        )


class RowTypeInformation(StructTypeInformation):
    """Rows with named fields. As a stream's type it has one Arrow column per field.

    Args:
        names: Names of the fields.
        types: Types of the fields.
        defaults: Values of fields in state that was written without them; None for fields that are not listed.

    Raises:
        ConfigurationError: The numbers of names and types differ, a name occurs twice, or a default is invalid.
    """

    def __init__(
        self, names: Iterable[str], types: Iterable[TypeInformation], defaults: Defaults | None = None
    ) -> None:
        super().__init__(names, types)
        self.contains_rows = True
        if defaults:
            self.defaults = adopted_defaults(self.names, self.types, defaults)
        self._row_class = row_class(self.names) if self.names else Row
        self._names_of_spark = list(self.names)
        self._unnamed = tuple(f"f{position}" for position in range(len(self.names)))
        self._positional = self.names == self._unnamed
        self.arrow_schema = pa.schema(list(self.arrow_type))

    @property
    def row_type(self) -> type[Any]:
        return self._row_class

    def make_rows(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Return rows from columns of adopted values."""
        return make_rows(self.row_type, columns)

    @property
    def schema_ddl(self) -> str:
        """The fields as Spark SQL writes the schema of a table."""
        return ", ".join(f"{quote_name(name)} {part.ddl}" for name, part in zip(self.names, self.types, strict=True))

    def field_names(self) -> list[str]:
        """Return the names of the fields."""
        return list(self.names)

    def to_json(self) -> Any:
        return {"type": "row", "fields": fields_to_json(self, self.defaults, self.aliases)}

    def with_types(self, types: Sequence[TypeInformation]) -> RowTypeInformation:
        return RowTypeInformation(self.names, types, self.defaults)

    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values in order: by name where the element has names, else by position."""
        kind = type(value)
        if (kind is self._row_class or kind is tuple or kind is list) and len(value) == len(self.types):
            ordered: Sequence[Any] = value
            return ordered
        # Rows of PySpark have their names in the instance.
        if getattr(value, "__fields__", None) == self._names_of_spark and len(value) == len(self.types):
            as_declared: Sequence[Any] = value
            return as_declared
        if isinstance(value, Row) and value.get_row_kind() is not RowKind.INSERT:
            raise self.mismatch(
                value,
                "its kind would be lost, because this type has none. Declare Types.CHANGELOG(...), or insert it",
            )
        if isinstance(value, Mapping):
            order = self.order_of(tuple(value))
            return list(value.values()) if order is None else [value[name] for name in self.names]
        if not isinstance(value, (tuple, list)):
            example = ", such as (value,)" if len(self.types) == 1 else ""
            raise self.mismatch(value, f"a Row, tuple, list or dict is needed{example}")
        names = field_names_of(type(value)) or tuple(getattr(value, "__fields__", ()))
        if len(value) != len(self.types):
            raise self.mismatch(value, f"it has {len(value)} fields instead of {len(self.types)}")
        order = self.order_of(names)
        if order is None:
            return value
        items = tuple(value)
        return [items[position] for position in order]

    def is_in_order(self, kind: type) -> bool:
        if kind is tuple or kind is list or kind is Row:
            return True
        if issubclass(kind, Row) and kind._kind is not RowKind.INSERT:
            return False
        # Rows of PySpark are tuples without names in the class, but with names in the instance.
        names = field_names_of(kind)
        return bool(names) and self.order_of(names) is None

    def _have_declared_names(self, values: Sequence[Any], kinds: set[type]) -> bool:
        """Return whether all are rows of PySpark with the declared names; checked in one pass over all of them."""
        if len(kinds) != 1 or not isinstance(values[0], tuple) or not hasattr(values[0], "__fields__"):
            return False
        try:
            return all(map(eq, map(_NAMES_OF_SPARK, values), repeat(self._names_of_spark)))
        except AttributeError:
            return False

    def order_of(self, names: tuple[str, ...]) -> list[int] | None:
        """Return the positions of the fields in elements with these names; None if the order is the declared one.

        Raises:
            OutputTypeError: The names are not the declared ones.
        """
        if not names or names == self.names:
            return None
        if set(names) == set(self.names):
            return [names.index(name) for name in self.names]
        # Rows of types without names have the names f0, f1, ...: they match by position, as in PyFlink.
        if (self._positional and len(names) == len(self.names)) or names == self._unnamed:
            return None
        missing = [name for name in self.names if name not in names]
        unknown = [name for name in names if name not in self.names]
        raise OutputTypeError(
            None,
            f"an element has the fields {list(names)!r}, declared is {self}: "
            f"missing are {missing!r}, unknown are {unknown!r}",
            declared=str(self),
        )

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if not isinstance(old, RowTypeInformation):
            return super()._resolve_other(old)
        return resolve_fields(self, old)

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        """Match fields by name: a new one gets its default, or None; a removed one is dropped."""
        if value is None:
            return None
        assert isinstance(old, RowTypeInformation)
        return self._row_class.make(migrate_fields(self, old, value))

    def __reduce__(self) -> tuple[Any, ...]:
        return RowTypeInformation, (self.names, self.types, dict(self.defaults))


class TupleTypeInformation(StructTypeInformation):
    """Plain tuples of fixed length; a struct with fields f0, f1 and so on."""

    def __init__(self, types: Iterable[TypeInformation]) -> None:
        parts = tuple(types)
        super().__init__([f"f{position}" for position in range(len(parts))], parts)

    @property
    def row_type(self) -> type[Any]:
        return tuple

    def to_json(self) -> Any:
        return {"type": "tuple", "types": [part.to_json() for part in self.types]}

    def with_types(self, types: Sequence[TypeInformation]) -> TupleTypeInformation:
        return TupleTypeInformation(types)

    def arrange(self, value: Any) -> Sequence[Any]:
        if not isinstance(value, (tuple, list)):
            raise self.mismatch(value, "a tuple is needed")
        if len(value) != len(self.types):
            raise self.mismatch(value, f"it has {len(value)} parts instead of {len(self.types)}")
        return value

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if not isinstance(old, TupleTypeInformation) or len(old.types) != len(self.types):
            return super()._resolve_other(old)
        return TypeSerializerSchemaCompatibility.worst(
            part.resolve_compatibility(before) for part, before in zip(self.types, old.types, strict=True)
        )

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        if value is None:
            return None
        assert isinstance(old, TupleTypeInformation)
        return tuple(
            part.migrate(item, before) for part, item, before in zip(self.types, value, old.types, strict=True)
        )

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.types))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return TupleTypeInformation, (self.types,)


def _read_row(document: dict[str, Any]) -> TypeInformation:
    names, types, defaults, _ = fields_from_json(document["fields"])
    return RowTypeInformation(names, types, defaults)


register_type("row", _read_row)
register_type("tuple", lambda document: TupleTypeInformation(map(type_from_json, document["types"])))


# Records are dataclasses, and the dicts of Avro schemas. In files both are structs, which every tool reads. The files
# name no class that must be imported: without the class a dataclass is read as a `Row`.


class RecordTypeInformation(StructTypeInformation):
    """Values with named fields that are not tuples.

    Args:
        name: Name of the class or schema. State with another name is another record.
        names: Names of the fields.
        types: Types of the fields.
        defaults: Values of fields in state that was written without them.
        aliases: Former names of fields.
    """

    def __init__(
        self,
        name: str,
        names: Iterable[str],
        types: Iterable[TypeInformation],
        defaults: Defaults | None = None,
        aliases: Aliases | None = None,
    ) -> None:
        super().__init__(names, types)
        self.name = name
        # Changed rows are not searched for in records, so a record with rows is copied.
        self.is_immutable = self.is_immutable and not self.contains_rows
        self._owned = [part.adopt if part.contains_rows else part.copy for part in self.types]
        self.defaults = adopted_defaults(self.names, self.types, defaults)
        self.aliases = dict(aliases or {})

    @property
    def row_type(self) -> type[Any]:
        """The class of rows with the same fields."""
        return row_class(self.names)

    @abstractmethod
    def make(self, items: Sequence[Any]) -> Any:
        """Return a record from the adopted values of its fields in order."""

    def check_equality(self) -> None:
        """Check that two records are equal exactly if all of their fields are, which keys need.

        Raises:
            ConfigurationError: They are not.
        """
        raise ConfigurationError(f"Keys cannot be {self}: key by its fields, or by a Row or tuple of them.")

    def is_in_order(self, kind: type) -> bool:
        return False

    def adopt(self, value: Any) -> Any:
        if value is None:
            return None
        adopted = []
        for name, adopt, item in zip(self.names, self._adopts, self.arrange(value), strict=True):
            try:
                adopted.append(adopt(item))
            except OutputTypeError as error:
                raise nested_error(error, name) from None
        return self.make(adopted)

    def copy(self, value: Any) -> Any:
        if CHANGES and self.contains_rows:
            value = original(value)
        if value is None or self.is_immutable:
            return value
        return self.make([owned(item) for owned, item in zip(self._owned, self.arrange(value), strict=True)])

    def read(self, array: pa.Array) -> list[Any]:
        columns = [part.to_list(column) for part, column in zip(self.types, array.flatten(), strict=True)]
        rows: Iterable[Sequence[Any]] = zip(*columns, strict=True) if columns else [()] * len(array)
        return with_nulls([self.make(items) for items in rows], array)

    def to_plain(self, value: Any) -> Any:
        return None if value is None else super().to_plain(self.arrange(value))

    def from_plain(self, plain: Any) -> Any:
        if plain is None:
            return None
        if not isinstance(plain, tuple) or len(plain) != len(self.types):
            raise self.mismatch(plain)
        return self.make([part.from_plain(item) for part, item in zip(self.types, plain, strict=True)])

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        """Match fields by name: a new one gets its default, or None; a removed one is dropped."""
        if value is None:
            return None
        assert isinstance(old, RecordTypeInformation)
        return self.make(migrate_fields(self, old, old.arrange(value)))

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if type(old) is not type(self) or not isinstance(old, RecordTypeInformation):
            return super()._resolve_other(old)
        if not self._follows(old.name):
            return TypeSerializerSchemaCompatibility.incompatible(
                f"its class or schema was {old.name!r} and is {self.name!r} now; keep the name"
            )
        return resolve_fields(self, old)

    def _follows(self, name: str) -> bool:
        return name == self.name

    def _from_mapping(self, value: Mapping[str, Any]) -> list[Any]:
        missing = [name for name in self.names if name not in value and name not in self.defaults]
        unknown = [name for name in value if name not in self.names]
        if missing or unknown:
            raise self.mismatch(value, f"missing are {missing!r}, unknown are {unknown!r}")
        return [value[name] if name in value else self.defaults[name] for name in self.names]

    def _document(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "name": self.name, "fields": fields_to_json(self, self.defaults, self.aliases), **more}


class DataclassTypeInformation(RecordTypeInformation):
    """Instances of a dataclass.

    The class is identified by its name without its module, so a script may become a module. Where the class is unknown,
    for instance in a query server, records are Rows.
    """

    def __init__(
        self,
        name: str,
        names: Iterable[str],
        types: Iterable[TypeInformation],
        defaults: Defaults | None = None,
        dataclass: type[Any] | None = None,
    ) -> None:
        super().__init__(name, names, types, defaults)
        self.dataclass = dataclass
        if dataclass is None:  # records are Rows then
            self.is_immutable, self.contains_rows = all(part.is_immutable for part in self.types), True
        frozen = dataclass is None or bool(dataclass.__dataclass_params__.frozen)
        self.is_immutable = self.is_immutable and frozen

    def make(self, items: Sequence[Any]) -> Any:
        """Return an instance without calling the constructor, as unpickling does."""
        if self.dataclass is None:
            return tuple.__new__(self.row_type, items)
        made = object.__new__(self.dataclass)
        for name, item in zip(self.names, items, strict=True):
            object.__setattr__(made, name, item)
        return made

    def arrange(self, value: Any) -> Sequence[Any]:
        if self.dataclass is not None and type(value) is self.dataclass:
            return [getattr(value, name) for name in self.names]
        if isinstance(value, Mapping):
            return self._from_mapping(value)
        if isinstance(value, tuple) and len(value) == len(self.names):
            return value
        kind = type(value)
        # A class of the main module that was pickled by value may exist twice.
        same_name = dataclasses.is_dataclass(kind) and kind.__qualname__ == self.name
        if same_name and tuple(field.name for field in dataclasses.fields(kind)) == self.names:
            return [getattr(value, name) for name in self.names]
        raise self.mismatch(value, f"an instance of the dataclass {self.name!r} is needed")

    def check_equality(self) -> None:
        """Check that the class compares all of its fields and nothing else."""
        kind = self.dataclass
        if kind is None:
            return
        ignored = [field.name for field in dataclasses.fields(kind) if not field.compare]
        code = getattr(kind.__eq__, "__code__", None)
        if ignored or code is None or code.co_filename != _GENERATED.__code__.co_filename:
            raise ConfigurationError(
                f"Keys cannot be {kind.__qualname__}: "
                + (f"its fields {ignored!r} do not take part in ==. " if ignored else "it has an == of its own. ")
                + "Key by a tuple of what makes two of them equal."
            )

    def with_types(self, types: Sequence[TypeInformation]) -> DataclassTypeInformation:
        return DataclassTypeInformation(self.name, self.names, types, self.defaults, self.dataclass)

    def to_json(self) -> Any:
        return self._document("dataclass")

    def __str__(self) -> str:
        return f"dataclass {self.name} {self.ddl}"

    def __reduce__(self) -> tuple[Any, ...]:
        return DataclassTypeInformation, (self.name, self.names, self.types, dict(self.defaults), self.dataclass)


class AvroRecordTypeInformation(RecordTypeInformation):
    """Records of an Avro schema, as dicts.

    A new field needs a default, as Avro requires; `aliases` of fields and of the record are former names.
    """

    def __init__(
        self,
        name: str,
        names: Iterable[str],
        types: Iterable[TypeInformation],
        defaults: Defaults | None = None,
        aliases: Aliases | None = None,
        former_names: Iterable[str] = (),
    ) -> None:
        super().__init__(name, names, types, defaults, aliases)
        self.former_names = tuple(former_names)
        self.is_immutable = False

    def make(self, items: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.names, items, strict=True))

    def arrange(self, value: Any) -> Sequence[Any]:
        if not isinstance(value, Mapping):
            raise self.mismatch(value, "a dict is needed")
        return self._from_mapping(value)

    def with_types(self, types: Sequence[TypeInformation]) -> AvroRecordTypeInformation:
        return AvroRecordTypeInformation(self.name, self.names, types, self.defaults, self.aliases, self.former_names)

    def to_json(self) -> Any:
        return self._document("avro", **({"former_names": list(self.former_names)} if self.former_names else {}))

    def _follows(self, name: str) -> bool:
        return name == self.name or name in self.former_names

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        answer = super()._resolve_other(old)
        if answer.is_incompatible() or not isinstance(old, AvroRecordTypeInformation):
            return answer
        added = [name for name, place in zip(self.names, source_positions(self, old), strict=True) if place is None]
        without = [name for name in added if name not in self.defaults]
        if not without:
            return answer
        return TypeSerializerSchemaCompatibility.incompatible(
            f"the new fields {without!r} of {self.name!r} have no default in the schema"
        )

    def __str__(self) -> str:
        return f"avro {self.name} {self.ddl}"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.name, self.names, self.types, dict(self.defaults), dict(self.aliases), self.former_names)
        return AvroRecordTypeInformation, fields


_GENERATED: Final = dataclasses.make_dataclass("_Plain", ["field"]).__eq__
"""A generated ==, whose code is in another file than one that a program defines."""

_in_progress: Final[list[type[Any]]] = []


def dataclass_type(described: type[Any], to_type: Callable[[Any], TypeInformation]) -> TypeInformation:
    """Return the type of a dataclass; fields with unknown annotations are pickled.

    Args:
        described: The class.
        to_type: Returns the type of an annotation.
    """
    if described in _in_progress:
        # A class that contains itself has no struct type.
        return PickledTypeInformation()
    _in_progress.append(described)
    try:
        fields = dataclasses.fields(described)
        hints = _hints(described)
        types = [to_type(hints[field.name]) for field in fields]
    finally:
        _in_progress.pop()
    defaults = {}
    for field in fields:
        # A class of the main module is pickled by value, including MISSING, which is then another object.
        if not isinstance(field.default, type(dataclasses.MISSING)):
            defaults[field.name] = field.default
            continue
        factory: Any = field.default_factory
        if not isinstance(factory, type(dataclasses.MISSING)):
            defaults[field.name] = factory()
    return DataclassTypeInformation(
        described.__qualname__, [field.name for field in fields], types, defaults, described
    )


def _hints(described: type[Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(described)
    except NameError:
        # An annotation names something local to where the class was defined: such fields are pickled.
        return {
            field.name: None if isinstance(field.type, str) else field.type for field in dataclasses.fields(described)
        }


def _read_dataclass(document: dict[str, Any]) -> TypeInformation:
    names, types, defaults, _ = fields_from_json(document["fields"])
    return DataclassTypeInformation(document["name"], names, types, defaults)


def _read_avro(document: dict[str, Any]) -> TypeInformation:
    fields = fields_from_json(document["fields"])
    return AvroRecordTypeInformation(document["name"], *fields, document.get("former_names", ()))


register_type("dataclass", _read_dataclass)
register_type("avro", _read_avro)
