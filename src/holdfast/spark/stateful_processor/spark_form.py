"""Values in the form in which Spark's processors have them, where Holdfast has another one."""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from pyspark.sql import Row

from holdfast.types.information.type_information import (
    AtomicTypeInformation,
    ListTypeInformation,
    MapTypeInformation,
    RowTypeInformation,
    TypeInformation,
)

Convert = Callable[[Any], Any]
Names = tuple[str, ...]

_new = tuple.__new__


@cache
def row_class(columns: Names) -> type[Row]:
    """The class of Spark's rows with these columns: as `Row` in all, but a field is found without a search."""
    fields: dict[str, Any] = {
        name: _tuplegetter(at, f"Field {name}.") for at, name in enumerate(columns) if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**fields, "__fields__": list(columns), "__module__": Row.__module__})


def of_input(described: TypeInformation) -> Convert | None:
    """Return what makes of a value what Spark's rows have; None if it stays. There structs are dicts."""
    return _each(described, None, lambda names, values: dict(zip(names, values, strict=True)))


def of_state(described: TypeInformation) -> Convert | None:
    """Return what makes of a value what Spark's state gives; None if it stays.

    There structs are rows, and instants have no time zone: they are in that of the worker.
    """
    return _each(described, _local, lambda names, values: _new(row_class(names), values))


def into_state(described: TypeInformation) -> Convert | None:
    """Return what prepares a value for state; None if it stays. An instant without a time zone is in the worker's."""
    return _each(described, _instant, None)


def _each(
    described: TypeInformation, instant: Convert | None, struct: Callable[[Names, Sequence[Any]], Any] | None
) -> Convert | None:
    """Return what converts the parts of a value, and what they are parts of; None where nothing is to be done.

    Args:
        described: The type.
        instant: Converts instants, if they are to be.
        struct: Makes a struct of its names and values; plain sequences without it.
    """
    convert: Convert | None = None
    if isinstance(described, AtomicTypeInformation):
        if type(described) is AtomicTypeInformation and described.name == "timestamp":
            convert = instant
    elif isinstance(described, RowTypeInformation):
        convert = _of_struct(described, instant, struct)
    elif isinstance(described, ListTypeInformation):
        part = _each(described.element_type, instant, struct)
        if part is not None:
            convert = partial(_listed, part)
    elif isinstance(described, MapTypeInformation):
        # A dict is no key of a map, so where structs become dicts keys stay.
        key = None if instant is None else _each(described.key_type, instant, struct)
        part = _each(described.value_type, instant, struct)
        if key is not None or part is not None:
            convert = partial(_mapped, key or _same, part or _same)
    return None if convert is None else partial(_unless_null, convert)


def _unless_null(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _listed(part: Convert, values: Sequence[Any]) -> list[Any]:
    return [part(value) for value in values]


def _mapped(key: Convert, part: Convert, values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key(at): part(value) for at, value in values.items()}


def _of_struct(
    described: RowTypeInformation, instant: Convert | None, struct: Callable[[Names, Sequence[Any]], Any] | None
) -> Convert | None:
    parts = [_each(part, instant, struct) for part in described.types]
    if struct is None and not any(parts):
        return None
    converts, names, arrange = [part or _same for part in parts], described.names, described.arrange

    def convert(value: Any) -> Any:
        values = tuple([part(item) for part, item in zip(converts, arrange(value), strict=True)])
        return values if struct is None else struct(names, values)

    return convert


def _same(value: Any) -> Any:
    return value


def _local(instant: datetime) -> datetime:
    return instant.astimezone().replace(tzinfo=None)


def _instant(given: Any) -> Any:
    return given.astimezone(UTC) if isinstance(given, datetime) and given.tzinfo is None else given
