"""State that was written under an older declaration.

Each run keeps the *form* in which it was written: the type of the values, and whether stamps stand beside them. The
segment's schema also names the forms before that one, oldest first, so that what one change after the other has done
to a value does not depend on which runs have been merged in between. A segment of an older form is brought through all
later ones when rows of it are decoded, and when it is merged with newer segments. Nothing else reads or rewrites it.

Only a program says what may follow what, so compatibility is checked where it asks for the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, StateMigrationError, UserFunctionError
from holdfast.state.descriptor import StateKind
from holdfast.types.migration import in_lists, migrate_column, reconfigured
from holdfast.types.serializer import TypeSerializerSchemaCompatibility
from holdfast.types.type_information import TypeInformation, type_from_json

TYPE: Final = "type"
TTL: Final = "ttl"
SINCE: Final = "since"
FORMER: Final = "former"


@dataclass(frozen=True, eq=False)
class Form:
    """How values stand in a segment.

    Attributes:
        document: Their type as JSON.
        ttl: Whether stamps stand beside them.
        since: Processing time at which a time to live was switched on; None if it always was, or is not.
        declared: The type, where a program has declared it.
    """

    document: Any
    ttl: bool
    since: int | None = None
    declared: TypeInformation | None = None

    @cached_property
    def type(self) -> TypeInformation:
        """The type."""
        return type_from_json(self.document) if self.declared is None else self.declared

    def to_json(self) -> dict[str, Any]:
        """Return the form as part of a segment's schema."""
        return {TYPE: self.document, TTL: self.ttl, **({} if self.since is None else {SINCE: self.since})}

    @cached_property
    def shape(self) -> Any:
        """The type without the defaults of fields, which say nothing about what stands in columns."""
        return _without_defaults(self.document)

    def is_same(self, other: Form) -> bool:
        """Whether columns of both look the same and mean the same."""
        return self.ttl == other.ttl and self.shape == other.shape

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Form:
        """Read the form of a segment."""
        return cls(schema[TYPE], schema[TTL], schema.get(SINCE))


def forms_of(schema: Mapping[str, Any]) -> list[Form]:
    """Return the forms that a segment's schema names, its own one last."""
    return [*map(Form.of, schema.get(FORMER, ())), Form.of(schema)]


def is_prefix_of(some: Sequence[Form], forms: Sequence[Form]) -> bool:
    """Whether a state with some forms has become, or may become, one with others."""
    return len(some) <= len(forms) and all(a.is_same(b) for a, b in zip(some, forms, strict=False))


def _without_defaults(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {
            name: [{key: _without_defaults(part) for key, part in field.items() if key != "default"} for field in value]
            if name == "fields"
            else _without_defaults(value)
            for name, value in document.items()
        }
    return [_without_defaults(part) for part in document] if isinstance(document, list) else document


class Conversion:
    """Brings columns of one form into a later one.

    Args:
        forms: The form that the columns have, all between, and the one that they are to have.
        kind: Of the state.
    """

    def __init__(self, forms: Sequence[Form], kind: StateKind) -> None:
        self._forms = forms
        self._in_lists = kind is StateKind.LIST

    def convert(self, value: pa.Array, stamp: pa.Array | None, ops: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """Convert the values and stamps of some rows.

        Args:
            value: The column of values; of lists of them for list state.
            stamp: The column of stamps, None if the form has none.
            ops: What each row does.
        """
        for before, after in zip(self._forms, self._forms[1:], strict=False):
            if before.shape != after.shape:
                value = self._migrated(value, before.type, after.type)
            if not after.ttl:
                stamp = None
            elif stamp is None:
                stamp = self._stamps(value, ops, after.since or 0)
        return value, stamp

    def verify(self, name: str, path: str) -> None:
        """Check that each step is possible for a process that does not know the program's classes.

        Raises:
            StateMigrationError: One is not.
        """
        for before, after in zip(self._forms, self._forms[1:], strict=False):
            answer = after.type.resolve_compatibility(before.type)
            if answer.is_incompatible():
                raise StateMigrationError(f"State {name!r} cannot be read from {path!r}: {answer.reason}.")

    def _migrated(self, value: pa.Array, old: TypeInformation, new: TypeInformation) -> pa.Array:
        if not self._in_lists:
            return migrate_column(value, old, new)
        return in_lists(value, migrate_column(value.flatten(), old, new), _list_of(value, new))

    def _stamps(self, value: pa.Array, ops: pa.Array, since: int) -> pa.Array:
        """What has no stamp yet was last used when the time to live was switched on."""
        if self._in_lists:
            return in_lists(value, pa.array(np.full(len(value.flatten()), since, np.int64)))
        return pc.if_else(pc.equal(ops, 0), pa.scalar(since, pa.int64()), pa.scalar(None, pa.int64()))


def _list_of(lists: pa.Array, element: TypeInformation) -> pa.DataType:
    return pa.list_(pa.field(lists.type.value_field.name, element.arrow_type))


def find_conversion(schema: Mapping[str, Any], forms: Sequence[Form], kind: StateKind) -> Conversion | None:
    """Return what brings columns of a segment into the last of some forms; None if nothing has to be done.

    Args:
        schema: Of the segment.
        forms: Those that a program or a newer segment knows, oldest first.
        kind: Of the state.

    Raises:
        StateMigrationError: One cannot take over from the other.
    """
    own = forms_of(schema)
    if is_prefix_of(own, forms):
        path = [own[-1], *forms[len(own) :]]
    elif own[-1].is_same(forms[-1]):
        return None
    else:
        # Subtasks may have seen other forms in between; then it is one step.
        path = [own[-1], forms[-1]]
        answer = path[-1].type.resolve_compatibility(path[0].type)
        if answer.is_incompatible():
            raise StateMigrationError(
                f"State was written with the value type {str(path[0].type)!r} and later with {str(path[-1].type)!r}, "
                f"which cannot take over: {answer.reason}. Give the new state another name."
            )
    return Conversion(path, kind) if len(path) > 1 else None


def evolve_forms(name: str, declared: Form, stored: Sequence[tuple[Mapping[str, Any], str]], now: int) -> list[Form]:
    """Return the forms that a program knows after it has asked for a state that was written before.

    Args:
        name: Of the state.
        declared: What the program declares.
        stored: Schema and path of each segment, oldest first.
        now: Processing time.

    Raises:
        StateMigrationError: The serializer that is declared cannot take over from one that has written.
        UserFunctionError: A user's snapshot raised.
    """
    known: list[Form] = []
    for schema, _ in stored:
        forms = forms_of(schema)
        if len(forms) >= len(known):
            known = forms
    if not known:
        return [declared]
    latest = known[-1]
    kept = declared.type
    if latest.shape != declared.shape:
        kept = reconfigured_type(name, declared.type, latest, stored[-1][1])
    since = latest.since if latest.ttl else now
    form = Form(kept.to_json(), declared.ttl, since if declared.ttl else None, kept)
    if latest.is_same(form):
        return [*known[:-1], form]
    return [*known, form]


def reconfigured_type(name: str, declared: TypeInformation, before: Form, path: str) -> TypeInformation:
    """Return the type to be used over values of an older form, the declared one or one that its snapshot gives.

    Raises:
        StateMigrationError: It cannot take over.
        UserFunctionError: A user's snapshot raised.
    """
    answer = check_compatibility(name, declared, before.type)
    if answer.is_incompatible():
        why = f": {answer.reason}" if answer.reason else ""
        raise StateMigrationError(
            f"State {name!r} was written with the value type {str(before.type)!r} (by {path!r}), the program declares "
            f"{str(declared)!r}, which cannot take over{why}. Declare it as it was, or give the new state another name."
        )
    return reconfigured(declared, before.type)


def check_compatibility(
    name: str, new: TypeInformation, old: TypeInformation
) -> TypeSerializerSchemaCompatibility[Any]:
    """Ask a type whether it can take over from another one; what a user's snapshot raises is named."""
    try:
        return new.resolve_compatibility(old)
    except HoldfastError:
        raise
    except Exception as error:
        raise UserFunctionError(
            name,
            None,
            None,
            f"The snapshot of the serializer of state {name!r} raised {type(error).__name__} when it was asked about "
            f"{str(old)!r}: {error}",
        ) from error
