"""Evolution of state that was written under an older declaration.

Each run keeps the *form* in which it was written: the type of the values, and whether they have timestamps for a time
to live. The schema of a segment also lists the earlier forms, oldest first, so that the result of successive changes
does not depend on which runs were merged in between. A segment of an older form is converted through all later forms
when its rows are decoded, and when it is merged with newer segments.

Only a program knows which type may follow another, so compatibility is checked when a program requests the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, StateMigrationError, UserFunctionError
from holdfast.state.descriptor import StateKind
from holdfast.types.migration import migrate_column, reconfigure, with_elements
from holdfast.types.serializer import TypeSerializerSchemaCompatibility
from holdfast.types.type_information import TypeInformation, type_from_json

TYPE: Final = "type"
TTL: Final = "ttl"
SINCE: Final = "since"
FORMER: Final = "former"


@dataclass(frozen=True, eq=False)
class Form:
    """Form of the values in a segment.

    Attributes:
        document: Their type as JSON.
        ttl: Whether they have timestamps of the last use.
        since: Processing time at which a time to live was enabled; None if it always was, or is not.
        declared: The type, if a program has declared it.
    """

    document: Any
    ttl: bool
    since: int | None = None
    declared: TypeInformation | None = None

    @cached_property
    def type(self) -> TypeInformation:
        return type_from_json(self.document) if self.declared is None else self.declared

    def to_json(self) -> dict[str, Any]:
        return {TYPE: self.document, TTL: self.ttl, **({} if self.since is None else {SINCE: self.since})}

    @cached_property
    def shape(self) -> Any:
        """The type without the defaults of fields, which do not affect the columns."""
        return _without_defaults(self.document)

    def is_same(self, other: Form) -> bool:
        """Return whether columns of both forms have the same layout and meaning."""
        return self.ttl == other.ttl and self.shape == other.shape

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Form:
        return cls(schema[TYPE], schema[TTL], schema.get(SINCE))


def forms_of(schema: Mapping[str, Any]) -> list[Form]:
    """Return the forms of a segment's schema, the current one last."""
    return [*map(Form.of, schema.get(FORMER, ())), Form.of(schema)]


def combine_forms(newest: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[Form]:
    """Return the forms of a schema, with the history of the longest other schema that leads to its form.

    Subtasks write on their own. The newest run may be of a subtask that never had an older value: it has neither the
    earlier forms nor the time at which a time to live was enabled, which values of other subtasks need.
    """
    forms = forms_of(newest)
    present = forms[-1]
    for schema in others:
        known = forms_of(schema)
        while known and not known[-1].is_same(present):
            known.pop()
        if len(known) > len(forms):
            forms = [*known[:-1], replace(present, since=known[-1].since)]
    return forms


def is_prefix_of(some: Sequence[Form], forms: Sequence[Form]) -> bool:
    """Return whether a state with some forms has evolved, or can evolve, to the other forms."""
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
    """Converts columns of one form to a later one.

    Args:
        forms: The form of the columns, all forms between, and the target form.
        kind: Kind of the state.
    """

    def __init__(self, forms: Sequence[Form], kind: StateKind) -> None:
        self._forms = forms
        self._in_lists = kind is StateKind.LIST

    def convert(self, value: pa.Array, stamp: pa.Array | None, ops: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """Return the converted values and timestamps of some rows.

        Args:
            value: The column of values; of lists of them for list state.
            stamp: The column of timestamps, None if the form has none.
            ops: The operation of each row.
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
        """Check that each step works in a process without the classes of the program.

        Raises:
            StateMigrationError: A step does not.
        """
        for before, after in zip(self._forms, self._forms[1:], strict=False):
            answer = after.type.resolve_compatibility(before.type)
            if answer.is_incompatible():
                raise StateMigrationError(f"State {name!r} cannot be read from {path!r}: {answer.reason}.")

    def _migrated(self, value: pa.Array, old: TypeInformation, new: TypeInformation) -> pa.Array:
        if not self._in_lists:
            return migrate_column(value, old, new)
        return with_elements(value, migrate_column(value.flatten(), old, new), _list_of(value, new))

    def _stamps(self, value: pa.Array, ops: pa.Array, since: int) -> pa.Array:
        """Return timestamps for values without: they count as last used when the time to live was enabled."""
        if self._in_lists:
            return with_elements(value, pa.array(np.full(len(value.flatten()), since, np.int64)))
        return pc.if_else(pc.equal(ops, 0), pa.scalar(since, pa.int64()), pa.scalar(None, pa.int64()))


def _list_of(lists: pa.Array, element: TypeInformation) -> pa.DataType:
    return pa.list_(pa.field(lists.type.value_field.name, element.arrow_type))


def find_conversion(schema: Mapping[str, Any], forms: Sequence[Form], kind: StateKind) -> Conversion | None:
    """Return the conversion of a segment to the last of some forms, None if none is needed.

    Args:
        schema: Schema of the segment.
        forms: The forms that a program or a newer segment knows, oldest first.
        kind: Kind of the state.

    Raises:
        StateMigrationError: The forms are not compatible.
    """
    own = forms_of(schema)
    if is_prefix_of(own, forms):
        path = [own[-1], *forms[len(own) :]]
    elif own[-1].is_same(forms[-1]):
        return None
    else:
        # Subtasks may have seen different forms in between; then convert in one step.
        path = [own[-1], forms[-1]]
        answer = path[-1].type.resolve_compatibility(path[0].type)
        if answer.is_incompatible():
            raise StateMigrationError(
                f"State was written with the value type {str(path[0].type)!r} and later with {str(path[-1].type)!r}, "
                f"which is not compatible: {answer.reason}. Give the new state another name."
            )
    return Conversion(path, kind) if len(path) > 1 else None


def evolve_forms(name: str, declared: Form, stored: Sequence[tuple[Mapping[str, Any], str]], now: int) -> list[Form]:
    """Return the forms of a state after a program has requested it.

    Args:
        name: Name of the state.
        declared: The declared form.
        stored: Schema and path of each segment, oldest first.
        now: Processing time.

    Raises:
        StateMigrationError: The declared serializer is not compatible with a stored type.
        UserFunctionError: A serializer snapshot of the user raised.
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
    """Return the type for values of an older form: the declared type, or the one that its snapshot reconfigures.

    Raises:
        StateMigrationError: The types are not compatible.
        UserFunctionError: A serializer snapshot of the user raised.
    """
    answer = check_compatibility(name, declared, before.type)
    if answer.is_incompatible():
        why = f": {answer.reason}" if answer.reason else ""
        raise StateMigrationError(
            f"State {name!r} was written with the value type {str(before.type)!r} (by {path!r}), the program "
            f"declares {str(declared)!r}, which is not compatible{why}. Declare it as it was, or give the new state "
            "another name."
        )
    return reconfigure(declared, before.type)


def check_compatibility(
    name: str, new: TypeInformation, old: TypeInformation
) -> TypeSerializerSchemaCompatibility[Any]:
    """Return whether a type can read values of an older one.

    Raises:
        UserFunctionError: A serializer snapshot of the user raised.
    """
    try:
        return new.resolve_compatibility(old)
    except HoldfastError:
        raise
    except Exception as error:
        raise UserFunctionError(
            name,
            None,
            None,
            f"The snapshot of the serializer of state {name!r} raised {type(error).__name__} when it checked "
            f"{str(old)!r}: {error}",
        ) from error
