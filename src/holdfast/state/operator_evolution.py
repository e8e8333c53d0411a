"""Operator state that was written under an older declaration: it is converted when it is read, and written again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import StateMigrationError
from holdfast.state.descriptor import StateDescriptor
from holdfast.state.evolution import asked
from holdfast.types.key import KeyCodec, codec_from_json
from holdfast.types.migration import migrate_column, reconfigured
from holdfast.types.type_information import TypeInformation, type_from_json


@dataclass(frozen=True)
class Reading:
    """How what is stored becomes what is declared.

    Attributes:
        is_older: Whether it was written under another declaration.
        before: The type in which values were written.
        value: The type to be used from now on; None for the declared one.
        key_before: Codec of the keys of a broadcast map in which they were written, where it was another one.
        key_types: Their types then and now.
    """

    is_older: bool = False
    before: TypeInformation | None = None
    value: TypeInformation | None = None
    key_before: KeyCodec | None = None
    key_types: tuple[TypeInformation, TypeInformation] | None = None

    def values(self, column: pa.Array) -> pa.Array:
        """Convert a column of values."""
        if self.before is None or self.value is None:
            return column
        return migrate_column(column, self.before, self.value)

    def keys(self, column: pa.Array, codec: KeyCodec) -> list[Any]:
        """Return the dict keys of a column of map keys."""
        if self.key_before is None or self.key_types is None:
            return codec.from_storage(column)
        before, (old, new) = self.key_before, self.key_types
        return [codec.dict_key(new.migrate(before.user_key(key), old)) for key in before.from_storage(column)]


def reading_of(descriptor: StateDescriptor[Any], stored: Mapping[str, Any], keys: KeyCodec | None = None) -> Reading:
    """Return how a state is read.

    Args:
        descriptor: What the program declares.
        stored: What the snapshot says about the state.
        keys: Codec of the keys of a broadcast map.

    Raises:
        StateMigrationError: A declared type cannot take over.
        UserFunctionError: A user's snapshot raised.
    """
    declared = descriptor.type_info
    key_before = None if keys is None or stored["key"] == keys.to_json() else codec_from_json(stored["key"])
    key_types = None if key_before is None else _key_types(descriptor, stored["key"])
    if stored["type"] == declared.to_json():
        return Reading(key_before is not None, key_before=key_before, key_types=key_types)
    before = type_from_json(stored["type"])
    answer = asked(descriptor.name, declared, before)
    if answer.is_incompatible():
        raise _refused(descriptor, "elements" if keys is None else "values", before, declared, answer.reason)
    return Reading(True, before, reconfigured(declared, before), key_before, key_types)


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
