"""Operator state that was written under an older declaration: it is converted when it is read, and written again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import StateMigrationError
from holdfast.state.declaration.descriptor import StateDescriptor
from holdfast.state.layout.evolution import asked
from holdfast.state.operator.operator_snapshot import SnapshotChunk, StoredState
from holdfast.types.conversion.migration import migrate_column, reconfigured
from holdfast.types.information.type_information import TypeInformation, type_from_json
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import codec_from_json


@dataclass(frozen=True)
class _Form:
    """A type in which values were written.

    Attributes:
        mark: What chunks of it have as their type.
        type: The type.
        one_by_one: Whether each value must be read as that type, because the bytes mean something else from now on.
    """

    mark: Any
    type: TypeInformation
    one_by_one: bool


@dataclass(frozen=True)
class Reading:
    """How what is stored becomes what is declared.

    Attributes:
        is_older: Whether it, or a part of it, was written in another form than it will be from now on.
        forms: The types in which values were written, where they are not all of the one to be used from now on.
        value: The type to be used from now on; None for the declared one.
        key_before: Codec of the keys of a broadcast map in which they were written, where it was another one.
        key_types: Their types then and now.
    """

    is_older: bool = False
    forms: tuple[_Form, ...] = ()
    value: TypeInformation | None = None
    key_before: KeyCodec | None = None
    key_types: tuple[TypeInformation, TypeInformation] | None = None

    def values(self, column: pa.Array, chunk: SnapshotChunk) -> pa.Array:
        """Convert the values of a chunk."""
        value = self.value
        if value is None or not self.forms:
            return column
        form = next(form for form in self.forms if form.mark == chunk.type)
        if form.one_by_one:
            return value.to_array([value.migrate(item, form.type) for item in form.type.to_list(column)])
        return migrate_column(column, form.type, value)

    def keys(self, column: pa.Array, codec: KeyCodec) -> list[Any]:
        """Return the dict keys of a column of map keys."""
        if self.key_before is None or self.key_types is None:
            return codec.from_storage(column)
        before, (old, new) = self.key_before, self.key_types
        return [codec.dict_key(new.migrate(before.user_key(key), old)) for key in before.from_storage(column)]


def reading_of(descriptor: StateDescriptor[Any], stored: StoredState, keys: KeyCodec | None = None) -> Reading:
    """Return how a state is read.

    Args:
        descriptor: What the program declares.
        stored: The state in the snapshot.
        keys: Codec of the keys of a broadcast map.

    Raises:
        StateMigrationError: A declared type cannot take over.
        UserFunctionError: A user's snapshot raised.
    """
    value = declared = descriptor.type_info
    key: Any = None if keys is None else stored.description["key"]
    key_before = None if keys is None or key == keys.to_json() else codec_from_json(key)
    key_types = None if key_before is None else _key_types(descriptor, key)
    written = _written(stored)
    if [document for _, document in written] == [declared.to_json()]:
        return Reading(key_before is not None, key_before=key_before, key_types=key_types)
    before = [(mark, type_from_json(document)) for mark, document in written]
    for _, old in before:
        if old != value:
            answer = asked(descriptor.name, value, old)
            if answer.is_incompatible():
                raise _refused(descriptor, "elements" if keys is None else "values", old, declared, answer.reason)
            value = reconfigured(value, old)
    if all(old == value for _, old in before):
        return Reading(key_before is not None, value=value, key_before=key_before, key_types=key_types)
    one_by_one = [len(before) > 1 and _reads_otherwise(descriptor.name, value, old) for _, old in before]
    forms = tuple(_Form(*form, one) for form, one in zip(before, one_by_one, strict=True))
    return Reading(True, forms, value, key_before, key_types)


def _written(stored: StoredState) -> list[tuple[Any, Any]]:
    """What marks the chunks of each type, and the type as JSON, the type of the last chunk last."""
    found: list[tuple[Any, Any]] = []
    for chunk in reversed(stored.chunks):
        form = chunk.type, stored.type_of(chunk)
        if form not in found:
            found.insert(0, form)
    return found or [(None, stored.description["type"])]


def _reads_otherwise(name: str, value: TypeInformation, old: TypeInformation) -> bool:
    """Whether a type that took over from several, one after the other, still cannot read what one of them wrote."""
    return old != value and (asked(name, value, old).is_incompatible() or reconfigured(value, old) is not value)


def _key_types(descriptor: Any, stored: Mapping[str, Any]) -> tuple[TypeInformation, TypeInformation]:
    before = None if stored["kind"] == "tagged" else type_from_json(stored["type"])
    now = descriptor.key_type_info
    if before is None or now is None:
        raise _refused(descriptor, "keys", before or "keys without a type", now or "keys without a type", "")
    answer = asked(descriptor.name, now, before)
    if answer.is_incompatible():
        raise _refused(descriptor, "keys", before, now, answer.reason)
    return before, now


def _refused(
    descriptor: StateDescriptor[Any], what: str, before: object, now: object, reason: str
) -> StateMigrationError:
    why = f": {reason}" if reason else ""
    return StateMigrationError(
        f"The {what} of operator state {descriptor.name!r} were written as {str(before)!r}, the program declares "
        f"{str(now)!r}, which cannot take over{why}. Declare it as it was, or give the new state another name."
    )
