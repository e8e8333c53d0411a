"""The rows of a state as a table for users: keys, map keys and values in columns of their own types."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.errors import ConfigurationError, NotExistError, OutputTypeError, StateError, StateMigrationError
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange, key_group_of, key_groups_of
from holdfast.runtime.exchange.owned_file import read_owned
from holdfast.state.compaction import merge_state, merge_timers
from holdfast.state.descriptor import StateKind
from holdfast.state.evolution import forms_of
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op
from holdfast.state.operator_snapshot import (
    InlineSnapshotStore,
    Mode,
    OperatorSnapshot,
    SnapshotChunk,
    StoredState,
    read_chunk,
    translate_read_errors,
)
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH, RunReader, Segment, open_run
from holdfast.state.timer_service import TIMER_PREFIX
from holdfast.state.timers import TIMESTAMP
from holdfast.state_processor.state_form import StateForm, cast_array
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.scheme import file_system_for
from holdfast.types.collection import ListTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import CompositeKeyCodec, KeyCodec, TaggedKeyCodec, codec_from_json
from holdfast.types.migration import migrate_column
from holdfast.types.opaque import seal_json
from holdfast.types.type_information import TypeInformation, type_from_json
from holdfast.types.types import Types

_VALUE: Final = "value"
_KEY: Final = "key"
Hashes = npt.NDArray[np.uint64]
_KINDS_OF_VALUES: Final = (Op.PUT.value, Op.APPEND.value)
KEY_GROUP: Final = "key_group"
DOMAIN: Final = "domain"
SERVICE: Final = "service"
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"


@dataclass(frozen=True)
class OperatorStateTable:
    """The operator state of one operator.

    Attributes:
        root: The directory that paths of files are relative to.
        metadata: The operator's part of the document.
    """

    root: str
    metadata: OperatorMetadata

    @staticmethod
    def kinds(metadata: OperatorMetadata) -> dict[str, str]:
        """Return the mode of each state by name."""
        return {name: state.mode.value for snapshot in _snapshots(metadata) for name, state in snapshot.states.items()}

    def read(self, name: str, mode: Mode) -> pa.Table:
        """Return a state as a whole.

        Raises:
            NotExistError: There is no such state of this mode.
            CorruptFileError: A file is damaged.
        """
        kinds = self.kinds(self.metadata)
        if kinds.get(name) != mode.value:
            known = kinds or "none"
            raise NotExistError(
                f"Operator {self.metadata.uid!r} has no operator state {name!r} that is {mode.value!r}; it has {known}."
            )
        states = [snapshot.states[name] for snapshot in _snapshots(self.metadata) if name in snapshot.states]
        if mode is Mode.BROADCAST:
            states = states[:1]  # any copy is the whole
        elif mode is Mode.UNION:
            copies = [state for state in states if state.is_handed_out]
            states = [*copies[:1], *(state for state in states if not state.is_handed_out)]
        kind = self._common_type(states)
        if mode is Mode.BROADCAST:
            return self._broadcast(states[0], kind)
        columns = [self._value(state, chunk, kind) for state in states for chunk in state.chunks]
        return pa.table({_VALUE: pa.chunked_array(columns, kind.arrow_type)})

    def _common_type(self, states: Sequence[StoredState]) -> TypeInformation:
        """Return the type to which all elements can be converted; after a change some subtasks have the old one."""
        described = [state.type_of(chunk) for state in states for chunk in state.chunks]
        kinds = [
            type_from_json(seal_json(one)) for one in (*(state.description["type"] for state in states), *described)
        ]
        for kind in reversed(kinds):
            if not any(kind.resolve_compatibility(other).is_incompatible() for other in kinds if other != kind):
                return kind
        return kinds[len(states) - 1]  # reading says which two do not fit

    def _broadcast(self, state: StoredState, kind: TypeInformation) -> pa.Table:
        codec = codec_from_json(state.description["key"])
        key_type: Any = getattr(codec, "key_type", None)
        keys, values = [], []
        for chunk in state.chunks:
            column = self._load(chunk).column(_KEY).combine_chunks()
            if isinstance(codec, CompositeKeyCodec):
                column = codec.key_type.to_array([codec.user_key(key) for key in codec.from_storage(column)])
            keys.append(column)
            values.append(self._value(state, chunk, kind))
        stored = codec.storage_type if key_type is None else key_type.arrow_type
        return pa.table({_KEY: pa.chunked_array(keys, stored), _VALUE: pa.chunked_array(values, kind.arrow_type)})

    def _value(self, state: StoredState, chunk: SnapshotChunk, kind: TypeInformation) -> pa.Array:
        with translate_read_errors(self.metadata.uid):
            column = self._load(chunk).column(_VALUE).combine_chunks()
        own = type_from_json(seal_json(state.type_of(chunk)))
        if own == kind:
            return column
        answer = kind.resolve_compatibility(own)
        if answer.is_incompatible():
            raise StateMigrationError(
                f"Operator state of {self.metadata.uid!r} has elements of the types {own} and {kind}, which are not "
                "brought into one form without the program."
            )
        return cast_array(migrate_column(column, own, kind), kind.arrow_type)

    def _load(self, chunk: SnapshotChunk) -> pa.Table:
        if chunk.is_inline:
            return read_chunk(InlineSnapshotStore().read(chunk.data), chunk, self.metadata.uid)
        return read_chunk(_owned(self.root, chunk.data), chunk, self.metadata.uid)


def _owned(root: str, data: Mapping[str, Any]) -> bytes:
    # Only paths of files count here, so any job's id will do.
    directory = JobDirectory(file_system_for(root), root, JobID.from_name(root), create_subdir=False)
    return read_owned(directory, data)


def _snapshots(metadata: OperatorMetadata) -> Iterator[OperatorSnapshot]:
    for subtask in metadata.subtasks:
        if subtask is not None and "states" in subtask:
            yield OperatorSnapshot.from_json(subtask)


@dataclass(frozen=True)
class Keys:
    """Requested keys, in the form of files."""

    stored: pa.Array
    hashes: tuple[int, ...]

    @classmethod
    def of(cls, codec: KeyCodec, wanted: Sequence[Any]) -> Keys:
        """Return keys that a user gives.

        Raises:
            NullKeyError, OutputTypeError: One cannot be a key.
        """
        dict_keys = list(dict.fromkeys(codec.dict_key(key) for key in wanted))
        return cls(codec.storage_array(dict_keys), tuple(codec.hashes(dict_keys).tolist()))


@dataclass(frozen=True)
class StoredOperator:
    """One operator of a savepoint; it can be pickled.

    Attributes:
        root: The directory that paths of runs are relative to.
        metadata: The operator's part of the document.
        now: Processing time of the savepoint.
    """

    root: str
    metadata: OperatorMetadata
    now: int

    @cached_property
    def key(self) -> KeyCodec:
        """Codec of the keys.

        Raises:
            StateError: The operator has no keyed state.
        """
        if self.metadata.key is None:
            raise StateError(f"Operator {self.metadata.uid!r} has no keyed state.")
        return codec_from_json(self.metadata.key)

    @cached_property
    def forms(self) -> dict[str, StateForm]:
        """The states by name, in the form of the newest run."""
        found: dict[str, StateForm] = {}
        for run in reversed(self._runs):
            for name in run.segment_names():
                if name not in found:
                    segment = run.segment(name)
                    assert segment is not None
                    found[name] = StateForm.stored(name, segment.entry.schema, self.key, run.path)
        return dict(sorted(found.items()))

    def form(self, name: str) -> StateForm:
        """Return the form of a state.

        Raises:
            NotExistError: There is no such state.
        """
        form = self.forms.get(name)
        if form is None:
            raise NotExistError(
                f"Operator {self.metadata.uid!r} has no keyed state {name!r} in the savepoint; it has "
                f"{list(self.forms)}."
            )
        return form

    def wanted_groups(self, key_groups: Any, keys: Keys | None) -> list[KeyGroupRange]:
        """Return the ranges of key groups that have to be read.

        Args:
            key_groups: One, or several, as a user gives them; None for all.
            keys: Keys that are wanted; None for all.

        Raises:
            ConfigurationError: There is no such key group.
        """
        most = self.metadata.max_parallelism
        wanted = set(range(most)) if key_groups is None else _numbers(key_groups)
        if not wanted <= set(range(most)):
            raise ConfigurationError(
                f"Operator {self.metadata.uid!r} has the key groups 0 to {most - 1}, not {sorted(wanted)[-1]}."
            )
        if keys is not None:
            wanted &= {key_group_of(hash64, most) for hash64 in keys.hashes}
        # Numbers that follow each other have the same distance from their position.
        runs = groupby(enumerate(sorted(wanted)), lambda pair: pair[1] - pair[0])
        ranges = ([group for _, group in pairs] for _, pairs in runs)
        return [KeyGroupRange(groups[0], groups[-1]) for groups in ranges]

    def rows(
        self, form: StateForm, key_groups: KeyGroupRange, keys: Keys | None, *, expired: bool
    ) -> Iterator[pa.Table]:
        """Yield the rows of a state that are there, sorted by hash, in the columns of a segment.

        Args:
            form: The state.
            key_groups: Only these.
            keys: Only these; None for all.
            expired: Whether what has expired is told of as well.

        Raises:
            CorruptFileError: A run is damaged.
            NotExistError: A run is gone.
        """
        if form.is_timers:
            merged = merge_timers(form.name, self._runs[::-1], key_groups, is_oldest=True)
            if merged is not None:
                yield merged.table if keys is None else _only(merged.table, keys)
            return
        found = [segment for run in reversed(self._runs) for segment in run.newest_first(form.name)]
        parts = [(segment, segment.range(key_groups)) for segment in found]
        for some in _of_keys(parts, keys):
            table = self._merged(form, some, expired)
            if table is not None and table.num_rows:
                yield table if keys is None else _only(table, keys)

    def _merged(self, form: StateForm, parts: list[tuple[Segment, slice]], expired: bool) -> pa.Table | None:
        filled = [(segment, rows) for segment, rows in parts if rows.stop > rows.start]
        if not filled:
            return None
        segment, rows = filled[0]
        if len(filled) == 1 and segment.entry.schema == form.schema and not form.has_stamps:
            table = segment.table.slice(rows.start, rows.stop - rows.start)
            keep = pc.is_in(table.column(OP), pa.array(_KINDS_OF_VALUES, pa.int8()))
            if form.kind is StateKind.LIST:
                keep = pc.and_(keep, pc.greater(pc.list_value_length(table.column(VALUE)), 0))
            return table if pc.all(keep).as_py() else table.filter(keep)
        for segment, _ in filled:
            _require_readable(segment, form)
        # The newest segment says in which form the result is, also where it has no rows.
        if filled[0][0] is not parts[0][0]:
            filled.insert(0, (parts[0][0], slice(parts[0][1].start, parts[0][1].start)))
        others = [segment.entry.schema for segment, _ in parts]
        merged = merge_state(filled, True, None if expired else self.now, form.schema, others)
        return None if merged is None else merged.table

    @cached_property
    def _runs(self) -> list[RunReader]:
        fs = file_system_for(self.root)
        return [open_run(fs, self.root, run) for run in self.metadata.runs]

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredOperator, (self.root, self.metadata, self.now)


def _require_readable(segment: Segment, form: StateForm) -> None:
    """Raise an error if converting rows to the newest form needs a class of a program, or a pickle."""
    older, newer = ([one.to_json() for one in forms_of(schema)] for schema in (segment.entry.schema, form.schema))
    if older != newer and seal_json([older, newer]) != [older, newer]:
        raise StateMigrationError(
            f"State {form.name!r} has values that only the program can bring into the form that it declares now. Let "
            "the job run until they are compacted, and take a savepoint then."
        )


def _numbers(key_groups: Any) -> set[int]:
    given = [key_groups] if isinstance(key_groups, int) else list(key_groups)
    if not all(type(group) is int and group >= 0 for group in given):
        raise ConfigurationError(f"Key groups are whole numbers from 0 on, one or several, not {key_groups!r:.200}.")
    return set(given)


def _of_keys(parts: list[tuple[Segment, slice]], keys: Keys | None) -> Iterator[list[tuple[Segment, slice]]]:
    """Yield the rows to be merged: all at once, or for requested keys hash by hash."""
    if not parts:
        return
    if keys is None:
        yield parts
        return
    for hash64 in sorted(set(keys.hashes)):
        wanted = np.uint64(hash64)
        some = []
        for segment, rows in parts:
            hashes = segment.hash[rows]
            first, end = (int(np.searchsorted(hashes, wanted, side=side)) for side in ("left", "right"))
            some.append((segment, slice(rows.start + first, rows.start + end)))
        yield some


def _only(table: pa.Table, keys: Keys) -> pa.Table:
    """Remove other keys that have the same hash."""
    return table.filter(pc.is_in(table.column(KEY), keys.stored))


def only_namespaces(table: pa.Table, namespaces: Sequence[bytes] | None) -> pa.Table:
    """Return the rows of some namespaces; None means all."""
    if namespaces is None:
        return table
    return table.filter(pc.is_in(table.column(NAMESPACE), pa.array(list(namespaces), pa.binary())))


def hash_column(table: pa.Table) -> Hashes:
    """Return the hashes of some rows."""
    hashes: Hashes = table.column(HASH).to_numpy()
    return hashes


@dataclass(frozen=True)
class StateTable:
    """One state of an operator as a table; it can be pickled.

    Attributes:
        operator: The operator.
        form: The state.
        keys: Only these; None for all.
        namespaces: Only these; None for all.
        columns: Only these, in this order; None for all.
        key_type: The type of keys without a declared type; None leaves them as bytes.
        map_key_type: The same for map keys.
        expired: Whether what has expired is told of as well.
    """

    operator: StoredOperator
    form: StateForm
    keys: Keys | None = None
    namespaces: tuple[bytes, ...] | None = None
    columns: tuple[str, ...] | None = None
    key_type: TypeInformation | None = None
    map_key_type: TypeInformation | None = None
    expired: bool = False

    @property
    def type(self) -> RowTypeInformation:
        """The columns and their types.

        Raises:
            ConfigurationError: There is no such column.
        """
        fields = self._fields()
        names = tuple(fields) if self.columns is None else self.columns
        unknown = [name for name in names if name not in fields]
        if unknown or not names:
            raise ConfigurationError(f"State {self.form.name!r} has the columns {list(fields)}, not {unknown}.")
        return RowTypeInformation(names, [fields[name] for name in names])

    def _fields(self) -> dict[str, TypeInformation]:
        form = self.form
        fields: dict[str, TypeInformation] = {
            KEY_GROUP: Types.INT(),
            KEY: _key_type(form.key, self.key_type, "key_type"),
        }
        if form.is_timers:
            own: dict[str, TypeInformation] = {DOMAIN: Types.STRING(), SERVICE: Types.STRING()}
            return {**fields, **own, TIMESTAMP: Types.LONG(), NAMESPACE: Types.BINARY()}
        if form.has_namespace:
            fields[NAMESPACE] = Types.BINARY()
        if form.has_time_windows:
            fields |= {WINDOW_START: Types.LONG(), WINDOW_END: Types.LONG()}
        if form.map_key is not None:
            fields[MAP_KEY] = _key_type(form.map_key, self.map_key_type, "map_key_type")
        assert form.value is not None
        is_list = form.kind is StateKind.LIST
        fields[VALUE] = ListTypeInformation(form.value) if is_list else form.value
        if form.has_stamps:
            fields[STAMP] = ListTypeInformation(Types.LONG()) if is_list else Types.LONG()
        return fields

    def read(self, key_groups: Sequence[KeyGroupRange]) -> Iterator[pa.Table]:
        """Yield the rows of some key groups.

        Raises:
            CorruptFileError: A run is damaged.
            NotExistError: A run is gone.
            OutputTypeError: Keys are of another type than was said.
        """
        for groups in key_groups:
            for rows in self.operator.rows(self.form, groups, self.keys, expired=self.expired):
                yield self.as_columns(only_namespaces(rows, self.namespaces))

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of the column of values."""
        return self._fields()[VALUE].arrow_type

    def as_columns(self, rows: pa.Table) -> pa.Table:
        """Return rows of a segment in the columns of the table."""
        schema = self.type.arrow_schema
        arrays = [self._column(field.name, rows, field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _column(self, name: str, rows: pa.Table, wanted: pa.DataType) -> Any:
        form = self.form
        if name == KEY_GROUP:
            return pa.array(key_groups_of(hash_column(rows), self.operator.metadata.max_parallelism), pa.int32())
        if name in (DOMAIN, SERVICE):
            domain, _, service = form.name.removeprefix(TIMER_PREFIX).partition("_")
            return pa.array([domain if name == DOMAIN else service], pa.string()).take(
                pa.array([0] * rows.num_rows, pa.int32())
            )
        if name in (WINDOW_START, WINDOW_END):
            return pa.array(window_bounds(rows.column(NAMESPACE))[:, int(name == WINDOW_END)])
        column = rows.column(name)
        if name == KEY:
            return _user_keys(form.key, column, self.key_type)
        if name == MAP_KEY:
            assert form.map_key is not None
            return _user_keys(form.map_key, column, self.map_key_type)
        return column if column.type == wanted else column.cast(wanted)


def window_bounds(namespaces: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return start and end of time windows, in milliseconds, from their namespaces.

    Raises:
        StateError: A namespace is no time window.
    """
    lengths = pc.binary_length(namespaces)
    if len(namespaces) and (namespaces.null_count or pc.min_max(lengths).as_py() != {"min": 16, "max": 16}):
        raise StateError("A namespace is to be a window of time, and does not have its 16 bytes.")
    content = b"".join(namespaces.to_pylist())
    return np.frombuffer(content, ">i8").reshape(-1, 2).astype(np.int64)


def _key_type(codec: KeyCodec, said: TypeInformation | None, argument: str) -> TypeInformation:
    """Return the type of a column of keys; without a declared type bytes, unless the user gives one."""
    if isinstance(codec, TaggedKeyCodec):
        return Types.BINARY() if said is None else said
    kind: TypeInformation = codec.key_type  # type: ignore[attr-defined]
    if said is not None and said != kind:
        raise ConfigurationError(f"{argument} is for keys without a declared type; these are {kind}, not {said}.")
    return kind


def _user_keys(codec: KeyCodec, column: pa.ChunkedArray, said: TypeInformation | None) -> Any:
    is_tagged = isinstance(codec, TaggedKeyCodec)
    if not (isinstance(codec, CompositeKeyCodec) or (is_tagged and said is not None)):
        return column
    kind = said if is_tagged else codec.key_type  # type: ignore[attr-defined]
    assert kind is not None
    values = [codec.user_key(key) for key in codec.from_storage(column.combine_chunks())]
    try:
        return kind.to_array([kind.adopt(value) for value in values])
    except (OutputTypeError, pa.ArrowException, TypeError) as error:
        raise OutputTypeError(
            None, f"Not all keys are {kind}: {error} Leave key_type out to get their bytes."
        ) from error


# JSON has no dates, decimals and bytes.


def json_value(value: Any) -> Any:
    """Return a JSON value for a value that JSON does not have, as `default` of `json.dumps`: for bytes base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, Decimal) else repr(value)
