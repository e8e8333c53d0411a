"""Types with a fixed number of fields: rows and tuples."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.changed_row import CHANGES, original
from holdfast.types.information.abstract_type import (
    Compatibility,
    TypeInformation,
    nested_error,
    register_type,
    type_from_json,
)
from holdfast.types.information.atom import with_nulls
from holdfast.types.information.field_migration import (
    Aliases,
    Defaults,
    adopted_defaults,
    fields_from_json,
    fields_to_json,
    migrate_fields,
    resolve_fields,
)
from holdfast.types.row import Row, field_names_of, make_rows, row_class
from holdfast.types.row_kind import RowKind
from holdfast.types.serializer import TypeSerializerSchemaCompatibility

_NAMES_OF_SPARK: Final = attrgetter("__fields__")
_ROWS_AT_ONCE: Final = 512
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(name: str) -> str:
    """Return a field's name as Spark SQL writes it."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def transposed(rows: Sequence[Any]) -> list[Sequence[Any]]:
    """Turn rows into columns. Some at a time: an iterator for each of many rows does not fit into caches.

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
    """What rows, tuples and records have in common: a fixed number of fields.

    Attributes:
        defaults: What a field gets where an older value has none, None unless it is here.
        aliases: Older names of a field.
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
                    f"{part!r} is not a type. Use Types.* or holdfast.types.conversion.convert.to_type()."
                )
        fields = [pa.field(name, part.arrow_type) for name, part in zip(self.names, self.types, strict=True)]
        self.arrow_type = pa.struct(fields)
        parts = (f"{quoted(name)}: {part.ddl}" for name, part in zip(self.names, self.types, strict=True))
        self.ddl = f"struct<{', '.join(parts)}>"
        self.is_immutable = all(part.is_immutable for part in self.types)
        self.bears_rows = any(part.bears_rows for part in self.types)
        self._adopts = [part.adopt for part in self.types]

    @property
    @abstractmethod
    def row_type(self) -> type[Any]:
        """The class of values."""

    @abstractmethod
    def with_types(self, types: Sequence[TypeInformation]) -> StructTypeInformation:
        """Return the same with other types of the fields."""

    @abstractmethod
    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values of one element in the order of the fields, not yet checked.

        Raises:
            OutputTypeError: It is not such an element, or its fields are others.
        """

    def columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Turn elements into columns, not yet checked; None is not an element here.

        Raises:
            OutputTypeError, ValueError: An element has other fields.
        """
        if not values:
            return [()] * len(self.types)
        kinds = set(map(type, values))
        if not all(self.is_in_order(kind) for kind in kinds) and not self._name_themselves(values, kinds):
            values = [self.arrange(value) for value in values]
        columns = transposed(values)
        if len(columns) != len(self.types):
            raise ValueError(f"{len(columns)} fields instead of {len(self.types)}")
        return columns

    def _name_themselves(self, values: Sequence[Any], kinds: set[type]) -> bool:
        """Whether each element has names of its own, and they are the declared ones in their order."""
        return False

    def is_in_order(self, kind: type) -> bool:
        """Whether all elements of a class have their values in the order of the fields."""
        return issubclass(kind, (tuple, list))

    def get_field_index(self, field_name: str) -> int:
        """Return the position of a field; -1 if there is none of this name."""
        return self.names.index(field_name) if field_name in self.names else -1

    def get_field_names(self) -> list[str]:
        """Return the names of the fields."""
        return list(self.names)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields."""
        return list(self.types)

    def adopt(self, value: Any) -> Any:
        """Check one element and all of its fields."""
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
        """Return an element whose parts are copies."""
        if CHANGES and self.bears_rows:
            value = original(value)
        if value is None or self.is_immutable:
            return value
        return tuple.__new__(self.row_type, [part.copy(item) for part, item in zip(self.types, value, strict=True)])

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert a column of elements."""
        nothing = (None,) * len(self.types)
        columns = self.columns([nothing if value is None else value for value in values])
        arrays = [part.to_array(column) for part, column in zip(self.types, columns, strict=True)]
        missing = pa.array([value is None for value in values], pa.bool_())
        if not arrays:
            return pa.array([None if value is None else {} for value in values], self.arrow_type)
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type), mask=missing)

    def read(self, array: pa.Array) -> list[Any]:
        """Convert an array to Python."""
        # flatten() carries the nulls of the whole into the parts, field() does not; either will do here.
        columns = [part.to_list(column) for part, column in zip(self.types, array.flatten(), strict=True)]
        if not columns:
            return with_nulls([tuple.__new__(self.row_type) for _ in range(len(array))], array)
        return with_nulls(make_rows(self.row_type, columns), array)

    def to_plain(self, value: Any) -> Any:
        """Return a plain tuple."""
        if value is None:
            return None
        return tuple(part.to_plain(item) for part, item in zip(self.types, value, strict=True))

    def from_plain(self, plain: Any) -> Any:
        """Make an element again."""
        if plain is None:
            return None
        if not isinstance(plain, tuple) or len(plain) != len(self.types):
            raise self.mismatch(plain)
        return tuple.__new__(
            self.row_type, (part.from_plain(item) for part, item in zip(self.types, plain, strict=True))
        )


class RowTypeInformation(StructTypeInformation):
    """Rows with named fields; as a stream's element type, one Arrow column a field.

    Args:
        names: Of the fields.
        types: Of the fields.
        defaults: What fields get in state that was written without them; None for those that are not here.
    """

    def __init__(
        self, names: Iterable[str], types: Iterable[TypeInformation], defaults: Defaults | None = None
    ) -> None:
        super().__init__(names, types)
        self.bears_rows = True
        if defaults:
            self.defaults = adopted_defaults(self.names, self.types, defaults)
        self._row_class = row_class(self.names) if self.names else Row
        self._names_of_spark = list(self.names)
        self._unnamed = tuple(f"f{position}" for position in range(len(self.names)))
        self._positional = self.names == self._unnamed
        self.arrow_schema = pa.schema(list(self.arrow_type))

    @property
    def row_type(self) -> type[Any]:
        """The class of the rows."""
        return self._row_class

    def make_rows(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Make rows of their columns, which are adopted."""
        return make_rows(self.row_type, columns)

    @property
    def schema_ddl(self) -> str:
        """The fields as Spark SQL writes the schema of a table."""
        return ", ".join(f"{quoted(name)} {part.ddl}" for name, part in zip(self.names, self.types, strict=True))

    def field_names(self) -> list[str]:
        """Return the names of the fields."""
        return list(self.names)

    def to_json(self) -> Any:
        """Return the fields in order."""
        return {"type": "row", "fields": fields_to_json(self, self.defaults, self.aliases)}

    def with_types(self, types: Sequence[TypeInformation]) -> RowTypeInformation:
        """Return the same with other types of the fields."""
        return RowTypeInformation(self.names, types, self.defaults)

    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values in order: by name where the element has names, else by position."""
        kind = type(value)
        if (kind is self._row_class or kind is tuple or kind is list) and len(value) == len(self.types):
            ordered: Sequence[Any] = value
            return ordered
        # Rows of PySpark carry their names in the instance.
        if getattr(value, "__fields__", None) == self._names_of_spark and len(value) == len(self.types):
            as_declared: Sequence[Any] = value
            return as_declared
        if isinstance(value, Row) and value.get_row_kind() is not RowKind.INSERT:
            raise self.mismatch(
                value, "its kind would be lost, because this type has none: declare Types.CHANGELOG(...), or insert it"
            )
        if isinstance(value, Mapping):
            order = self.order_of(tuple(value))
            return list(value.values()) if order is None else [value[name] for name in self.names]
        if not isinstance(value, (tuple, list)):
            raise self.mismatch(value, "a Row, tuple, list or dict is needed")
        names = field_names_of(type(value)) or tuple(getattr(value, "__fields__", ()))
        if len(value) != len(self.types):
            raise self.mismatch(value, f"it has {len(value)} fields instead of {len(self.types)}")
        order = self.order_of(names)
        if order is None:
            return value
        items = tuple(value)
        return [items[position] for position in order]

    def is_in_order(self, kind: type) -> bool:
        """Whether all elements of a class have their values in the order of the fields."""
        if kind is tuple or kind is list or kind is Row:
            return True
        if issubclass(kind, Row) and kind._kind is not RowKind.INSERT:
            return False
        # Rows of PySpark are tuples without names in the class, but with names in the instance.
        names = field_names_of(kind)
        return bool(names) and self.order_of(names) is None

    def _name_themselves(self, values: Sequence[Any], kinds: set[type]) -> bool:
        """Whether they are rows of PySpark with the declared names: looked at all together, for there are many."""
        if len(kinds) != 1 or not isinstance(values[0], tuple) or not hasattr(values[0], "__fields__"):
            return False
        try:
            return all(map(eq, map(_NAMES_OF_SPARK, values), repeat(self._names_of_spark)))
        except AttributeError:
            return False

    def order_of(self, names: tuple[str, ...]) -> list[int] | None:
        """Return where the fields stand in elements with these names; None if by position.

        Raises:
            OutputTypeError: The names are others than the declared ones.
        """
        if not names or names == self.names:
            return None
        if set(names) == set(self.names):
            return [names.index(name) for name in self.names]
        # Rows of a type without names have these: they are taken by position, as in PyFlink.
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
        """Take fields over by name; new ones have their default, or None, removed ones are dropped."""
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
        """The class of values, which is tuple."""
        return tuple

    def to_json(self) -> Any:
        """Return the types of the parts."""
        return {"type": "tuple", "types": [part.to_json() for part in self.types]}

    def with_types(self, types: Sequence[TypeInformation]) -> TupleTypeInformation:
        """Return the same with other types of the parts."""
        return TupleTypeInformation(types)

    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values in order."""
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
        """Convert each part."""
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
