"""The type of changelog streams: rows with a `RowKind`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.types.composite import RowTypeInformation
from holdfast.types.row import Row, RowKind, field_names_of, make_rows, original, row_class
from holdfast.types.type_information import (
    AtomicTypeInformation,
    TypeInformation,
    register_type,
    type_from_json,
    with_nulls,
)

ROW_KIND: Final = "row_kind"
"""The column of kinds, the last one: `RowKind` by its number."""


class ChangelogTypeInformation(RowTypeInformation):
    """Rows with a kind, which is not a field of the rows but the last column of their batches.

    Args:
        names: Names of the fields, without the kind.
        types: Types of the fields.

    Raises:
        ConfigurationError: There are no fields, or one has the name of the kind's column.
    """

    def __init__(self, names: Iterable[str], types: Iterable[TypeInformation]) -> None:
        self.plain = RowTypeInformation(names, types)
        fields = self.plain.names
        if not fields or ROW_KIND in fields:
            raise ConfigurationError(
                f"Rows of changes have fields, and none of them is called {ROW_KIND!r}, which is the column of their "
                f"kinds; not {list(fields)!r}."
            )
        super().__init__([*fields, ROW_KIND], [*self.plain.types, AtomicTypeInformation("tinyint")])
        self.is_immutable = False
        self._rows = [row_class(fields, kind) for kind in RowKind]
        self._numbers: dict[type, int] = {row: number for number, row in enumerate(self._rows)}
        self._blank = (*[None] * len(fields), RowKind.INSERT.value)

    @property
    def row_type(self) -> type[Any]:
        """The class of rows that are inserted."""
        return self._rows[0]

    def make_rows(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        *fields, kinds = columns
        if not any(kinds):
            return make_rows(self._rows[0], fields)
        return [self._rows[kind or 0].make(row) for kind, row in zip(kinds, zip(*fields, strict=True), strict=True)]

    def columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Turn rows into columns, unchecked, with the column of kinds as the last."""
        kinds = list(map(type, values))
        if not self._numbers.keys() >= set(kinds):
            values = [self.arrange(value) for value in values]
            return list(zip(*values, strict=True)) if values else [()] * len(self.types)
        fields: list[Sequence[Any]] = list(zip(*values, strict=True)) if values else [()] * len(self.plain.types)
        return [*fields, [self._numbers[kind] for kind in kinds]]

    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values of a row and its kind; a tuple or dict without a kind is an insert."""
        if isinstance(value, Mapping):
            fields = {name: item for name, item in value.items() if name != ROW_KIND}
            return [*self.plain.arrange(fields), self._number(value, value.get(ROW_KIND, RowKind.INSERT))]
        if isinstance(value, Row):
            names = type(value)._names
            if names[-1:] == (ROW_KIND,) and len(value) == len(self.types):
                return [*self.plain.arrange(row_class(names[:-1]).make(value[:-1])), self._number(value, value[-1])]
            inserted = row_class(names).make(value)
            return [*self.plain.arrange(inserted), value.get_row_kind().value]
        if isinstance(value, (tuple, list)) and len(value) == len(self.types) and not field_names_of(type(value)):
            return [*value[:-1], self._number(value, value[-1])]
        return [*self.plain.arrange(value), RowKind.INSERT.value]

    def adopt(self, value: Any) -> Any:
        if value is None:
            return None
        *fields, kind = self.arrange(value)
        return self._rows[kind].make(self.plain.adopt(tuple(fields)))

    def copy(self, value: Any) -> Any:
        if value is None:
            return None
        row = original(value)
        return type(row).make(self.plain.copy(tuple(row)))

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        columns = self.columns([self._blank if value is None else value for value in values])
        arrays = [part.to_array(column) for part, column in zip(self.types, columns, strict=True)]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type), mask=missing)

    def read(self, array: pa.Array) -> list[Any]:
        columns = [part.to_list(column) for part, column in zip(self.types, array.flatten(), strict=True)]
        return with_nulls(self.make_rows(columns), array)

    def to_plain(self, value: Any) -> Any:
        return None if value is None else (*self.plain.to_plain(value), value.get_row_kind().value)

    def from_plain(self, plain: Any) -> Any:
        if plain is None:
            return None
        if not isinstance(plain, tuple) or len(plain) != len(self.types):
            raise self.mismatch(plain)
        return self._rows[self._number(plain, plain[-1])].make(self.plain.from_plain(plain[:-1]))

    def to_json(self) -> Any:
        return {"type": "changelog", "rows": self.plain.to_json()}

    def with_types(self, types: Sequence[TypeInformation]) -> RowTypeInformation:
        return ChangelogTypeInformation(self.plain.names, types[:-1])

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        if value is None or not isinstance(old, ChangelogTypeInformation):
            return super().migrate(value, old)
        return self._rows[value.get_row_kind().value].make(self.plain.migrate(tuple(value), old.plain))

    def _number(self, value: Any, kind: Any) -> int:
        if isinstance(kind, RowKind):
            return int(kind.value)
        for known in RowKind:
            if (kind == known.value and type(kind) is int) or kind == str(known):
                return int(known.value)
        raise self.mismatch(value, f"its kind is {kind!r}; kinds are {', '.join(map(str, RowKind))}")

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangelogTypeInformation, (self.plain.names, self.plain.types)


def _read(document: dict[str, Any]) -> TypeInformation:
    rows = type_from_json(document["rows"])
    assert isinstance(rows, RowTypeInformation)
    return ChangelogTypeInformation(rows.names, rows.types)


register_type("changelog", _read)
