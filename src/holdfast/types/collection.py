"""Types of lists and maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.row import CHANGES, original
from holdfast.types.serializer import TypeSerializerSchemaCompatibility
from holdfast.types.type_information import (
    Compatibility,
    TypeInformation,
    nested_error,
    register_type,
    type_from_json,
    with_nulls,
)


class ListTypeInformation(TypeInformation):
    """Lists whose elements have one type; also Flink's arrays."""

    is_immutable = False
    ddl = ""
    arrow_type = pa.null()

    def __init__(self, element_type: TypeInformation) -> None:
        self.element_type = element_type
        self.ddl = f"array<{element_type.ddl}>"
        self.contains_rows = element_type.contains_rows
        self.arrow_type = pa.list_(pa.field("element", element_type.arrow_type))

    def to_json(self) -> Any:
        return {"type": "array", "element": self.element_type.to_json()}

    def adopt(self, value: Any) -> Any:
        if value is None:
            return None
        adopt, items = self.element_type.adopt, self._checked(value)
        try:
            return [adopt(item) for item in items]
        except OutputTypeError:
            for position, item in enumerate(items):
                self._check_part(item, position)
            raise

    def copy(self, value: Any) -> Any:
        if CHANGES and self.contains_rows:
            value = original(value)
        if value is None or self.element_type.is_immutable:
            return value if value is None else list(value)
        return [self.element_type.copy(item) for item in value]

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        lists = [() if value is None else self._checked(value) for value in values]
        elements = self.element_type.to_array(list(chain.from_iterable(lists)))
        return pa.ListArray.from_arrays(offsets_of(values, lists), elements, type=self.arrow_type)

    def read(self, array: pa.Array) -> list[Any]:
        if not len(array):
            return []  # Java leaves the buffer of offsets empty then, so that they are whatever lies there
        offsets = array.offsets.to_numpy()
        flat = self.element_type.to_list(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        bounds = (offsets - offsets[0]).tolist()
        lists = [flat[start:end] for start, end in pairwise(bounds)]
        return with_nulls(lists, array)

    def to_plain(self, value: Any) -> Any:
        return None if value is None else [self.element_type.to_plain(item) for item in value]

    def from_plain(self, plain: Any) -> Any:
        return None if plain is None else [self.element_type.from_plain(item) for item in self._checked(plain)]

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if not isinstance(old, ListTypeInformation):
            return super()._resolve_other(old)
        return self.element_type.resolve_compatibility(old.element_type)

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        assert isinstance(old, ListTypeInformation)
        return None if value is None else [self.element_type.migrate(item, old.element_type) for item in value]

    def __reduce__(self) -> tuple[Any, ...]:
        return ListTypeInformation, (self.element_type,)

    def _checked(self, value: Any) -> Sequence[Any]:
        if isinstance(value, (list, tuple)):
            return value
        if isinstance(value, np.ndarray) and value.ndim == 1:
            result: list[Any] = value.tolist()
            return result
        raise self.mismatch(value, "a list is needed")

    def _check_part(self, item: Any, position: int) -> None:
        try:
            self.element_type.adopt(item)
        except OutputTypeError as error:
            raise nested_error(error, f"[{position}]") from None


class MapTypeInformation(TypeInformation):
    """Dicts whose keys have one type and whose values have another; None cannot be a key."""

    is_immutable = False
    ddl = ""
    arrow_type = pa.null()

    def __init__(self, key_type: TypeInformation, value_type: TypeInformation) -> None:
        if not key_type.is_immutable:
            raise ConfigurationError(f"The keys of a map must be hashable, {key_type} is not. Use a row or a tuple.")
        self.key_type = key_type
        self.value_type = value_type
        self.ddl = f"map<{key_type.ddl}, {value_type.ddl}>"
        self.contains_rows = key_type.contains_rows or value_type.contains_rows
        self.arrow_type = pa.map_(
            pa.field("key", key_type.arrow_type, nullable=False), pa.field("value", value_type.arrow_type)
        )

    def to_json(self) -> Any:
        return {"type": "map", "key": self.key_type.to_json(), "value": self.value_type.to_json()}

    def adopt(self, value: Any) -> Any:
        if value is None:
            return None
        result = {}
        for key, item in self._checked(value).items():
            try:
                result[self.key_type.adopt(key)] = self.value_type.adopt(item)
            except OutputTypeError as error:
                raise nested_error(error, f"[{key!r:.50}]") from None
        return result

    def copy(self, value: Any) -> Any:
        if CHANGES and self.contains_rows:
            value = original(value)
        if value is None or self.value_type.is_immutable:
            return value if value is None else dict(value)
        return {key: self.value_type.copy(item) for key, item in value.items()}

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        maps: list[Mapping[Any, Any]] = [{} if value is None else self._checked(value) for value in values]
        keys = self.key_type.to_array(list(chain.from_iterable(maps)))
        items = self.value_type.to_array(list(chain.from_iterable(one.values() for one in maps)))
        return pa.MapArray.from_arrays(offsets_of(values, maps), keys, items, type=self.arrow_type)

    def read(self, array: pa.Array) -> list[Any]:
        if not len(array):
            return []  # Java leaves the buffer of offsets empty then, so that they are whatever lies there
        offsets = array.offsets.to_numpy()
        first, count = offsets[0], offsets[-1] - offsets[0]
        keys = self.key_type.to_list(array.keys.slice(first, count))
        items = self.value_type.to_list(array.items.slice(first, count))
        bounds = (offsets - first).tolist()
        maps = [dict(zip(keys[start:end], items[start:end], strict=True)) for start, end in pairwise(bounds)]
        return with_nulls(maps, array)

    def to_plain(self, value: Any) -> Any:
        if value is None:
            return None
        return {self.key_type.to_plain(key): self.value_type.to_plain(item) for key, item in value.items()}

    def from_plain(self, plain: Any) -> Any:
        if plain is None:
            return None
        pairs = self._checked(plain).items()
        return {self.key_type.from_plain(key): self.value_type.from_plain(item) for key, item in pairs}

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if not isinstance(old, MapTypeInformation):
            return super()._resolve_other(old)
        return TypeSerializerSchemaCompatibility.worst(
            [self.key_type.resolve_compatibility(old.key_type), self.value_type.resolve_compatibility(old.value_type)]
        )

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        if value is None:
            return None
        assert isinstance(old, MapTypeInformation)
        return {
            self.key_type.migrate(key, old.key_type): self.value_type.migrate(item, old.value_type)
            for key, item in value.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return MapTypeInformation, (self.key_type, self.value_type)

    def _checked(self, value: Any) -> Mapping[Any, Any]:
        if not isinstance(value, Mapping):
            raise self.mismatch(value, "a dict is needed")
        if None in value:
            raise self.mismatch(value, "None is no key")
        return value


def offsets_of(values: Sequence[Any], parts: Sequence[Any]) -> pa.Array:
    """Return the offsets of a list or map column, with nulls where the value is None."""
    ends = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    missing = np.array([*(value is None for value in values), False], bool)
    return pa.array(ends, pa.int32(), mask=missing)


register_type("array", lambda document: ListTypeInformation(type_from_json(document["element"])))
register_type(
    "map", lambda document: MapTypeInformation(type_from_json(document["key"]), type_from_json(document["value"]))
)
