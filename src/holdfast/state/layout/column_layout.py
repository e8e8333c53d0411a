"""How the state of one descriptor lies in the segments of runs.

Columns: ``hash`` (uint64), ``key`` (the key codec's type), ``namespace`` (binary, where state has namespaces),
``map_key`` (the map key's type, null in a clear), ``op`` (int8), ``value`` (the declared type; a list of it for list
state), ``stamp`` (int64, milliseconds of the last use; a list for list state; where state expires). Sorted by hash,
key, namespace and map key. A row speaks about all older runs: put replaces, delete removes, append extends a list,
clear removes all entries of a map.

A segment may have an older form than the program declares; see `holdfast.state.layout.evolution`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import StateMigrationError
from holdfast.state.declaration.descriptor import MapStateDescriptor, StateDescriptor, StateKind
from holdfast.state.layout.evolution import (
    FORMER,
    SINCE,
    TTL,
    TYPE,
    Conversion,
    Form,
    are_first_of,
    continued,
    conversion,
    forms_of,
)
from holdfast.state.layout.stored_schema import require_schema
from holdfast.state.layout.value_codec import ValueCodec, classes_of, value_codec_for
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, Segment
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import key_codec_for, shown_key_type

NAMESPACE: Final = "namespace"
MAP_KEY: Final = "map_key"
OP: Final = "op"
VALUE: Final = "value"
STAMP: Final = "stamp"
TIME_TO_LIVE: Final = "time_to_live"


class Op(IntEnum):
    """What a row does to what older runs say."""

    PUT = 0
    DELETE = 1
    APPEND = 2
    CLEAR = 3


@dataclass(frozen=True, eq=False)
class StateLayout:
    """The form of one state in files.

    Attributes:
        name: Of the state.
        kind: Of the state.
        key: Codec of the operator's keys.
        value: Codec of values, elements or accumulators.
        map_key: Codec of the keys of map state.
        namespace: Serializer snapshot of the namespaces as JSON; None for state without.
        ttl: Whether values have the time of their last use beside them.
        queryable: The name under which the state can be queried, None if it cannot.
        time_to_live: Milliseconds after which compaction may drop what was not used; None if it must not.
        forms: How it was declared before, oldest first, and how it is declared now.
        is_news: Whether no run says yet how it is declared now.
    """

    name: str
    kind: StateKind
    key: KeyCodec
    value: ValueCodec
    map_key: KeyCodec | None = None
    namespace: Any = None
    ttl: bool = False
    queryable: str | None = None
    time_to_live: int | None = None
    forms: tuple[Form, ...] = ()
    is_news: bool = False

    @classmethod
    def of(cls, descriptor: StateDescriptor[Any], key: KeyCodec, namespace: Any = None) -> StateLayout:
        """Return the layout of a descriptor's state."""
        ttl = descriptor.ttl_config
        map_key = key_codec_for(descriptor.key_type_info) if isinstance(descriptor, MapStateDescriptor) else None
        value = value_codec_for(descriptor.type_info)
        return cls(
            descriptor.name,
            descriptor.kind,
            key,
            value,
            map_key,
            namespace,
            ttl.is_enabled(),
            descriptor.queryable_state_name,
            ttl.ttl if ttl.is_enabled() and ttl.cleanup_strategies.in_compaction else None,
            (Form(value.type.to_json(), ttl.is_enabled(), None, value.type),),
        )

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What a footer says about the segment."""
        form = self.forms[-1]
        schema: dict[str, Any] = {
            "kind": self.kind.value,
            TYPE: form.document,
            "map_key": None if self.map_key is None else self.map_key.to_json(),
            "namespace": self.namespace,
            TTL: form.ttl,
        }
        former = [one.to_json() for one in self.forms[:-1]] or None
        # Query servers and compaction know a job by its files only.
        for name, value in (
            ("queryable", self.queryable),
            (TIME_TO_LIVE, self.time_to_live),
            (SINCE, form.since),
            (FORMER, former),
        ):
            if value is not None:
                schema[name] = value
        return schema

    def after(self, stored: Sequence[tuple[Mapping[str, Any], str]], now: int) -> StateLayout:
        """Return the layout of the state as it goes on from what runs say.

        Args:
            stored: What each segment says about itself, and the path of its run, oldest first.
            now: Processing time.

        Raises:
            StateMigrationError: Kind, map keys or namespaces differ, or the value type cannot take over.
        """
        if all(schema == self.schema for schema, _ in stored):
            return self
        for schema, path in stored:
            require_schema(schema, self.name, path)
            self._check(schema, path)
        forms = tuple(continued(self.name, self.forms[-1], stored, now))
        result = replace(self, value=value_codec_for(forms[-1].type), forms=forms)
        for schema, _ in stored:
            result.conversion(schema)
        known = [forms_of(schema) for schema, _ in stored]
        documents = [[form.to_json() for form in one] for one in known]
        is_said = [form.to_json() for form in forms] in documents
        # Compaction, which knows files only, must not go on dropping what is to live longer now.
        is_said &= not stored or stored[-1][0].get(TIME_TO_LIVE) == self.time_to_live
        return result if is_said else replace(result, is_news=True)

    def _check(self, stored: Mapping[str, Any], path: str) -> None:
        for part, what in _PARTS.items():
            before, now = stored.get(part), self.schema[part]
            if before != now:
                raise StateMigrationError(
                    f"State {self.name!r} was written with {what} {_short(before)} (by {path!r}), the program declares "
                    f"{_short(now)}. Declare it as it was, or give the new state another name."
                )

    def conversion(self, stored: Mapping[str, Any]) -> Conversion | None:
        """Return what brings columns of a segment into today's form, None if nothing has to be done.

        Raises:
            StateMigrationError: It is not possible.
        """
        known = self._conversions.get(id(stored))
        if known is None:
            found = None if stored == self.schema else conversion(stored, self.forms, self.kind)
            # The schema is kept beside it, so no other one can have its id.
            known = self._conversions[id(stored)] = (stored, found)
        return known[1]

    @cached_property
    def _conversions(self) -> dict[int, tuple[Mapping[str, Any], Conversion | None]]:
        return {}

    def can_read(self, stored: Mapping[str, Any]) -> bool:
        """Whether a segment can be decoded into what was decoded before by this layout.

        It need not be of the same program: what another one of the job's name declares has nothing to do with this.
        """
        if stored == self.schema:
            return True
        is_alike = all(stored.get(part) == self.schema[part] for part in _PARTS)
        return is_alike and are_first_of(forms_of(stored), self.forms)

    def makes_the_same(self, other: StateLayout) -> bool:
        """Whether cells that another layout has decoded are those that this one decodes.

        The schema names no class of a program, and a program that was changed may have another one of the same name.
        """
        return self.schema == other.schema and classes_of(self.value.type) == classes_of(other.value.type)

    def empty_table(self) -> pa.Table:
        """Return a segment without rows."""
        columns = {HASH: pa.array([], pa.uint64()), KEY: self.key.storage_array([])}
        if self.namespace is not None:
            columns[NAMESPACE] = pa.array([], pa.binary())
        if self.map_key is not None:
            columns[MAP_KEY] = self.map_key.storage_array([])
        columns |= self.encode([], lists=self.kind is StateKind.LIST)
        return pa.table(columns | {OP: pa.array([], pa.int8())})

    def encode(self, cells: Sequence[Any], *, lists: bool = False) -> dict[str, pa.Array]:
        """Convert cells to their columns.

        Args:
            cells: Stored values, or None; with a time to live pairs of stored value and stamp; lists of these.
            lists: Whether the cells are lists.

        Raises:
            Exception: A value does not fit the type; which one, `blame` finds out.
        """
        if lists:
            offsets = _offsets(cells)
            flat = self.encode(list(chain.from_iterable(cell or () for cell in cells)))
            return {name: pa.ListArray.from_arrays(offsets, array) for name, array in flat.items()}
        if not self.ttl:
            return {VALUE: self.value.to_array(cells)}
        values = [None if cell is None else cell[0] for cell in cells]
        stamps = pa.array([None if cell is None else cell[1] for cell in cells], pa.int64())
        return {VALUE: self.value.to_array(values), STAMP: stamps}

    def decode(self, segment: Segment, rows: pa.Array) -> list[Any]:
        """Convert some rows of a segment back to cells."""
        table, convert = segment.table, self.conversion(segment.entry.schema)
        columns = [_taken(table, name, rows) for name in (VALUE, STAMP) if name in table.column_names]
        if convert is not None:
            stamp = columns[1] if len(columns) > 1 else None
            value, stamp = convert.convert(columns[0], stamp, _taken(table, OP, rows))
            columns = [value] if stamp is None else [value, stamp]
        if self.kind is not StateKind.LIST:
            return self._decode(columns)
        offsets = columns[0].offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        flat = self._decode([column.values.slice(first, last - first) for column in columns])
        return [flat[start - first : end - first] for start, end in pairwise(offsets.tolist())]

    def _decode(self, columns: list[pa.Array]) -> list[Any]:
        values = self.value.to_stored(columns[0])
        if not self.ttl:
            return values
        stamps = columns[1].to_pylist()
        return [None if stamp is None else (value, stamp) for value, stamp in zip(values, stamps, strict=True)]

    def blame(self, stored: Iterable[Any]) -> tuple[int, Exception] | None:
        """Return the position of the first stored value that does not fit the type, and why; None if all do."""
        for position, item in enumerate(stored):
            try:
                self.value.to_array([item])
            except Exception as error:
                return position, error
        return None


_PARTS: Final = {"kind": "kind", "map_key": "the map key type", "namespace": "the namespace"}


def _taken(table: pa.Table, name: str, rows: pa.Array) -> pa.Array:
    taken = table.column(name).take(rows)
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def _offsets(cells: Sequence[Any]) -> pa.Array:
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell) if cell else 0 for cell in cells], out=ends[1:])
    return pa.array(ends)


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and value.get("kind") in ("atomic", "composite", "tagged"):
        return shown_key_type(value)
    return value if isinstance(value, str) else json.dumps(value)
