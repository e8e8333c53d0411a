"""Migration of columns of an older type to a newer one, a whole column at a time.

`TypeInformation.resolve_compatibility` decides whether it is possible; `TypeInformation.migrate` does the same for
single values. Only values with a pickled or custom-serialized part are migrated one by one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import StructTypeInformation, TupleTypeInformation, source_positions
from holdfast.types.opaque import SerializerTypeInformation
from holdfast.types.type_information import AtomicTypeInformation, CharTypeInformation, TypeInformation


def migrate_column(array: pa.Array, old: TypeInformation, new: TypeInformation) -> pa.Array:
    """Migrate a column.

    Args:
        array: The column, of the older type.
        old: The older type.
        new: The newer type, which must be compatible after migration.

    Raises:
        OutputTypeError, UserFunctionError: A value cannot be migrated.
    """
    if new == old:
        return array
    if isinstance(new, CharTypeInformation):
        return pc.utf8_rpad(array, new.length, " ")
    if isinstance(new, AtomicTypeInformation) and isinstance(old, AtomicTypeInformation):
        return array.cast(new.arrow_type)
    if isinstance(new, ListTypeInformation) and isinstance(old, ListTypeInformation):
        return _migrate_list(array, old, new)
    if isinstance(new, MapTypeInformation) and isinstance(old, MapTypeInformation):
        return _migrate_map(array, old, new)
    if isinstance(new, StructTypeInformation) and isinstance(old, StructTypeInformation):
        return _migrate_struct(array, old, new)
    if (
        isinstance(new, SerializerTypeInformation)
        and not new.resolve_compatibility(old).is_compatible_after_migration()
    ):
        return array
    return new.to_array([new.migrate(value, old) for value in old.to_list(array)])


def with_elements(lists: pa.Array, elements: pa.Array, list_type: pa.DataType | None = None) -> pa.Array:
    """Return lists with the lengths and nulls of other lists, and with other elements."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    kind = pa.list_(elements.type) if list_type is None else list_type
    return pa.ListArray.from_arrays(_offsets(lists, lengths), elements, type=kind)


def reconfigure(new: TypeInformation, old: TypeInformation) -> TypeInformation:
    """Return the type to use for state of an older type.

    It differs from `new` only if a user's serializer must be replaced by a reconfigured one.
    """
    if new == old:
        return new
    if isinstance(new, SerializerTypeInformation):
        answer = new.resolve_compatibility(old)
        if answer.is_compatible_with_reconfigured_serializer():
            return SerializerTypeInformation(answer.get_reconfigured_serializer())
    elif isinstance(new, ListTypeInformation) and isinstance(old, ListTypeInformation):
        element = reconfigure(new.element_type, old.element_type)
        return new if element is new.element_type else ListTypeInformation(element)
    elif isinstance(new, MapTypeInformation) and isinstance(old, MapTypeInformation):
        item = reconfigure(new.value_type, old.value_type)
        return new if item is new.value_type else MapTypeInformation(new.key_type, item)
    elif isinstance(new, StructTypeInformation) and isinstance(old, StructTypeInformation):
        parts = [
            part if place is None else reconfigure(part, old.types[place])
            for part, place in zip(new.types, _places(new, old), strict=True)
        ]
        return new if all(a is b for a, b in zip(parts, new.types, strict=True)) else new.with_types(parts)
    return new


def _places(new: StructTypeInformation, old: StructTypeInformation) -> list[int | None]:
    return list(range(len(old.types))) if isinstance(new, TupleTypeInformation) else source_positions(new, old)


def _migrate_list(array: pa.Array, old: ListTypeInformation, new: ListTypeInformation) -> pa.Array:
    # flatten() skips elements of null lists and outside the slice.
    return with_elements(array, migrate_column(array.flatten(), old.element_type, new.element_type), new.arrow_type)


def _migrate_map(array: pa.Array, old: MapTypeInformation, new: MapTypeInformation) -> pa.Array:
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    offsets = array.offsets.to_numpy()
    lengths = np.where(valid, np.diff(offsets), 0)
    # Position of each entry; entries of null maps are skipped.
    before = np.cumsum(lengths) - lengths
    taken = pa.array(np.repeat(offsets[:-1] - before, lengths) + np.arange(int(lengths.sum())))
    keys = migrate_column(array.keys.take(taken), old.key_type, new.key_type)
    items = migrate_column(array.items.take(taken), old.value_type, new.value_type)
    return pa.MapArray.from_arrays(_offsets(array, lengths), keys, items, type=new.arrow_type)


def _migrate_struct(array: pa.Array, old: StructTypeInformation, new: StructTypeInformation) -> pa.Array:
    # flatten() propagates the nulls of the struct into its fields.
    columns = array.flatten()
    parts = []
    for name, part, place in zip(new.names, new.types, _places(new, old), strict=True):
        default = new.defaults.get(name)
        if place is not None:
            parts.append(migrate_column(columns[place], old.types[place], part))
        elif default is None:
            parts.append(pa.nulls(len(array), part.arrow_type))
        else:
            parts.append(part.to_array([default]).take(pa.array(np.zeros(len(array), np.int64))))
    if not parts:
        return pa.nulls(len(array), new.arrow_type) if array.null_count else new.to_array([()] * len(array))
    return pa.StructArray.from_arrays(parts, fields=list(new.arrow_type), mask=array.is_null())


def _offsets(array: pa.Array, lengths: np.typing.NDArray[np.int64]) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    missing = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(ends, pa.int32(), mask=missing)
