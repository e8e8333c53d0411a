"""Read the state of one Flink operator, over all of its subtasks, as Arrow tables; and convert it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import HoldfastError, NotExistError, OutputTypeError, StateError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.state.descriptor import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.state.timer_service import EVENT, PROCESSING, TIMER_PREFIX, USER_TIMERS
from holdfast.state_processor.bootstrap import (
    KeyedStateTransformation,
    OperatorTransformation,
    StateBootstrapTransformation,
)
from holdfast.state_processor.flink.metadata import FlinkFiles, FlinkOperator
from holdfast.state_processor.flink.serializer_snapshot import decoder_of
from holdfast.state_processor.flink.state import (
    AGGREGATING,
    BROADCAST,
    LIST,
    MAP,
    REDUCING,
    SPLIT,
    TIMERS,
    UNION,
    FlinkOperatorState,
    FlinkRows,
    FlinkState,
    SubtaskState,
    read_elements,
    read_operator_states,
)
from holdfast.types.composite import RowTypeInformation, StructTypeInformation
from holdfast.types.opaque import OpaqueTypeInformation, PickledTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

PYTHON: Final = "python-state-"
_TIMERS: Final = "_timer_state/"
_KIND_OF_PYTHON: Final = {LIST: "python", MAP: "python map"}


class OperatorReader:
    """Reads the state of one operator."""

    def __init__(self, operator: FlinkOperator, files: FlinkFiles) -> None:
        self.operator = operator
        self._files = files

    @cached_property
    def _subtasks(self) -> list[SubtaskState]:
        return [SubtaskState(handle, *self._files.read(handle.stream)) for handle in self.operator.keyed]

    @cached_property
    def _keyed(self) -> dict[str, FlinkState]:
        found: dict[str, FlinkState] = {}
        for subtask in self._subtasks:
            for state in subtask.states:
                known = found.setdefault(state.name, state)
                if known.kind != state.kind or known.has_stamps != state.has_stamps:
                    raise StateError(f"State {state.name!r} differs between the subtasks of {self.operator.label!r}.")
        return found

    @cached_property
    def _operator_states(self) -> dict[str, FlinkOperatorState]:
        return {
            state.name: state
            for handle in self.operator.operator_states
            for state in read_operator_states(handle, *self._files.read(handle.stream))
            if state.name in handle.states
        }

    @property
    def is_python(self) -> bool:
        """Whether it is a PyFlink operator in process mode, whose key is a row with one field."""
        return any(name.startswith(PYTHON) for name in self._keyed)

    @property
    def key_type(self) -> TypeInformation | None:
        """The type of its keys; None if it has no keyed state."""
        for state in self._keyed.values():
            kind = state.key.value_type
            return _component_type(kind) if self.is_python and _is_single(kind) else kind
        return None

    def states(self) -> dict[str, str]:
        keyed = {
            name.removeprefix(PYTHON): _KIND_OF_PYTHON[state.kind] if name.startswith(PYTHON) else state.kind
            for name, state in self._keyed.items()
        }
        return {**keyed, **{name: state.mode for name, state in self._operator_states.items()}}

    def keyed_state(self, name: str) -> FlinkState:
        """Return a keyed state.

        Raises:
            NotExistError: There is none of this name.
        """
        state = self._keyed.get(name) or self._keyed.get(f"{PYTHON}{name}")
        if state is None:
            raise NotExistError(
                f"Operator {self.operator.label!r} of Flink has no keyed state {name!r}; it has {self.states()}."
            )
        return state

    def operator_state(self, name: str) -> FlinkOperatorState:
        return self._operator_states[name]

    def problems(self) -> dict[str, str]:
        """Return the reasons why states cannot be read, by name of the state; "" for what is no state."""
        found: dict[str, str] = {}
        if self.operator.unread:
            found[""] = f"It has {' and '.join(self.operator.unread)}, which only Flink can read."
        try:
            states: list[FlinkState | FlinkOperatorState] = [*self._keyed.values(), *self._operator_states.values()]
        except StateError as error:
            return {**found, "": " ".join(filter(None, [found.get(""), str(error)]))}
        return found | {state.name: state.problem for state in states if state.problem is not None}

    def read(self, state: str | StateDescriptor[Any], key_type: Any = None) -> pa.Table:
        """Return a keyed state as a table; see `FlinkSavepointReader.read_keyed_state`."""
        descriptor = state if isinstance(state, StateDescriptor) else None
        name = state if isinstance(state, str) else state.name
        known = self.keyed_state(name)
        if known.kind == TIMERS:
            raise StateError(f"{name!r} are timers: read them with read_timers().")
        rows = self._rows(known)
        columns = self._keys(rows, known, key_type)
        if descriptor is not None and known.name.startswith(PYTHON):
            _decode(rows, known, descriptor, self._state_label(name))
            value, map_key = descriptor.type_info, getattr(descriptor, "key_type_info", None)
            is_list = isinstance(descriptor, ListStateDescriptor)
        else:
            assert known.value is not None
            value, is_list = known.value.value_type, known.kind == LIST
            map_key = None if known.map_key is None else known.map_key.value_type
        if map_key is not None:
            columns["map_key"] = array_of(rows.map_keys, map_key, self._state_label(name))
        columns["value"] = (_lists if is_list else array_of)(rows.values, value, self._state_label(name))
        if known.has_stamps:
            kind = pa.list_(pa.int64()) if is_list else pa.int64()
            columns["stamp"] = pa.array(rows.stamps, kind)
        return pa.table(columns)

    def read_timers(self, key_type: Any = None, services: Sequence[str] | None = None) -> pa.Table:
        """Return the timers as a table; see `FlinkSavepointReader.read_timers`."""
        tables = []
        for state in self._keyed.values():
            domain, _, service = state.name.removeprefix(_TIMERS).partition("_")
            if state.kind != TIMERS or (services is not None and service not in services):
                continue
            rows = self._rows(state)
            columns = self._keys(rows, state, key_type)
            count = len(rows.keys)
            columns["domain"], columns["service"] = pa.array([domain] * count), pa.array([service] * count)
            columns["timestamp"] = pa.array(rows.stamps, pa.int64())
            tables.append(pa.table(columns))
        if not tables:
            raise NotExistError(f"Operator {self.operator.label!r} of Flink has no timers; it has {self.states()}.")
        return pa.concat_tables(tables, promote_options="permissive")

    def read_operator_state(self, name: str, mode: str) -> pa.Table:
        """Return an operator state as a table.

        Raises:
            NotExistError: There is none of this name and mode.
        """
        state = self._operator_states.get(name)
        if state is None or state.mode != mode:
            raise NotExistError(
                f"Operator {self.operator.label!r} of Flink has no {mode} state {name!r}; it has {self.states()}."
            )
        parts = [
            read_elements(handle, *self._files.read(handle.stream), name) for handle in self.operator.operator_states
        ]
        if state.key is None:
            # Every subtask writes only its own elements, those of a union list too.
            elements = [one for part in parts for one in part]
            return pa.table({"value": array_of(elements, state.value.value_type, self._state_label(name))})
        assert mode == BROADCAST
        pairs = next((part for part in parts if part), [])
        return pa.table(
            {
                "key": array_of([key for key, _ in pairs], state.key.value_type, self._state_label(name)),
                "value": array_of([value for _, value in pairs], state.value.value_type, self._state_label(name)),
            }
        )

    def _state_label(self, name: str) -> str:
        return f"{name} of operator {self.operator.label} in {self._files.directory}"

    def _rows(self, state: FlinkState) -> FlinkRows:
        rows = FlinkRows.empty()
        for subtask in self._subtasks:
            rows.extend(subtask.rows(state.name, self.operator.max_parallelism))
        return rows

    def _keys(self, rows: FlinkRows, state: FlinkState, key_type: Any) -> dict[str, pa.Array]:
        kind, keys = state.key.value_type, rows.keys
        if self.is_python and _is_single(kind):
            kind, keys = _component_type(kind), [key[0] for key in keys]
        if key_type is not None:
            kind, decode = to_type(key_type), decoder_of(PickledTypeInformation())
            keys = [decode(len(key).to_bytes(4, "big") + key, self._state_label("its keys")) for key in keys]
        columns = {
            "key_group": pa.array(rows.key_groups, pa.int32()),
            "key": array_of(keys, kind, self._state_label("its keys")),
        }
        if state.has_namespace:
            columns["window_start"] = pa.array([start for start, _ in rows.namespaces], pa.int64())
            columns["window_end"] = pa.array([end for _, end in rows.namespaces], pa.int64())
        return columns


def _is_single(kind: TypeInformation) -> bool:
    return isinstance(kind, RowTypeInformation) and len(kind.types) == 1


def _component_type(kind: TypeInformation) -> TypeInformation:
    assert isinstance(kind, RowTypeInformation)
    return kind.types[0]


def _decode(rows: FlinkRows, state: FlinkState, descriptor: StateDescriptor[Any], where: str) -> None:
    """Decode bytes of PyFlink's coders to values; a list of one element becomes that element."""
    if isinstance(descriptor, MapStateDescriptor) != (state.kind == MAP):
        raise StateError(
            f"State {where} is {'a' if state.kind == MAP else 'not a'} map, but its descriptor says otherwise."
        )
    value = decoder_of(descriptor.type_info)
    if isinstance(descriptor, MapStateDescriptor):
        map_key = decoder_of(descriptor.key_type_info or PickledTypeInformation())
        rows.map_keys = [map_key(data, where) for data in rows.map_keys]
        rows.values = [None if data is None else value(data, where) for data in rows.values]
        return
    lists = [[value(data, where) for data in elements] for elements in rows.values]
    if isinstance(descriptor, ListStateDescriptor):
        rows.values = lists
        return
    longest = max(map(len, lists), default=1)
    if longest != 1 or not all(lists):
        raise StateError(f"State {where} has {longest} elements for a key, so it is no {descriptor.kind.value} state.")
    rows.values = [elements[0] for elements in lists]
    rows.stamps = [stamps[0] for stamps in rows.stamps]


def array_of(values: Sequence[Any], kind: TypeInformation, name: str) -> pa.Array:
    """Return values as a column.

    Raises:
        StateError: One of them is none of this type, such as a decimal with too many digits.
    """
    try:
        return kind.to_array([kind.adopt(value) for value in values])
    except (OutputTypeError, pa.ArrowException, *PARSE_ERRORS) as error:
        raise StateError(f"{name} has a value that does not fit: {error}") from error


def _lists(values: Sequence[Sequence[Any]], kind: TypeInformation, name: str) -> pa.Array:
    offsets = [0]
    for elements in values:
        offsets.append(offsets[-1] + len(elements))
    flat = array_of([one for elements in values for one in elements], kind, name)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)


# The conversion of an operator.

_OWN_TIMERS: Final = {f"{TIMER_PREFIX}{domain}_{USER_TIMERS}": domain for domain in (EVENT, PROCESSING)}
_ANY_TIME: Final = StateTtlConfig.new_builder(1).disable_cleanup_in_background().build()
"""A savepoint says that state has a time to live, but not how long, both in Flink and here."""


class ImportedOperator:
    """An operator with the settings of its conversion.

    Args:
        reader: Reads its state.
        uid: Its uid in the new savepoint.
        left_out: Names of operators, and of states as `UID/STATE`, that are not converted.
        descriptors: The descriptors of a PyFlink program.
        key_names: Names of the parts of its key.
        key_type: Type of its keys, where the program has none.
    """

    def __init__(
        self,
        reader: OperatorReader,
        uid: str,
        left_out: set[str],
        descriptors: Sequence[StateDescriptor[Any]],
        key_names: Sequence[str],
        key_type: Any,
    ) -> None:
        self._reader = reader
        self.uid = uid
        self._left_out = left_out
        self._descriptors = {one.name: one for one in descriptors}
        self._key_names = tuple(key_names)
        self._key_type = key_type

    @property
    def key_groups(self) -> int:
        """The number of its key groups in Flink."""
        return self._reader.operator.max_parallelism

    @property
    def is_left_out(self) -> bool:
        return bool({self.uid, self._reader.operator.operator_id} & self._left_out)

    def names(self) -> Iterator[str]:
        """Yield all names of it and its states."""
        yield self.uid
        yield self._reader.operator.operator_id
        try:
            states = self._reader.states()
        except StateError:
            return
        yield from (f"{self.uid}/{state}" for state in states)

    def problems(self) -> list[str]:
        """Return the reasons why it cannot be converted, one line for each."""
        found = self._reader.problems()
        lines = [f"{self.uid}: {found.pop('')}"] if "" in found else []
        if self._reader.operator.uid is None and self.uid == self._reader.operator.operator_id:
            lines.append(f"{self.uid}: The savepoint has no uids. Pass its uid in `uids`, or leave it out.")
        if lines:
            return lines
        unknown = sorted(set(self._descriptors) - set(self._reader.states()))
        if unknown:
            lines.append(f"{self.uid}: It has no states {unknown}, for which there are descriptors.")
        for name, kind in self._kept():
            problem = found.get(name) or self._problem_of(name, kind)
            if problem is not None:
                lines.append(f"{self.uid}/{name}: {problem}")
        return lines

    def transformation(self) -> StateBootstrapTransformation:
        """Return the transformation that makes its state.

        Raises:
            HoldfastError: The state cannot be read, or does not fit.
        """
        made = StateBootstrapTransformation()
        for name, kind in self._kept():
            try:
                made = made.and_also(self._state(name, kind))
            except HoldfastError as error:
                error.add_note(f"It is state {name!r} of operator {self.uid!r} of Flink.")
                raise
        return made

    def _kept(self) -> list[tuple[str, str]]:
        states = self._reader.states().items()
        return [(name, kind) for name, kind in states if f"{self.uid}/{name}" not in self._left_out]

    def _problem_of(self, name: str, kind: str) -> str | None:
        if kind.startswith("python") and name not in self._descriptors:
            return "It is state of PyFlink, whose type the savepoint does not have. Pass its descriptor in `states`."
        if kind in (SPLIT, UNION, BROADCAST):
            return None
        state = self._reader.keyed_state(name)
        if kind == TIMERS and name not in _OWN_TIMERS:
            return self._problem_of_timers(state)
        if state.has_namespace:
            return "It is state of windows, which cannot be made here yet."
        return None

    def _problem_of_timers(self, state: FlinkState) -> str | None:
        service = state.name.removeprefix(TIMER_PREFIX).partition("_")[2]
        if not self._reader.read_timers(services=[service]).num_rows:
            return None
        return f"These are timers of {service!r} and not of a function."

    def _state(self, name: str, kind: str) -> StateBootstrapTransformation:
        if kind in (SPLIT, UNION, BROADCAST):
            return self._operator_state(name, kind)
        if kind == TIMERS:
            return self._timers(name)
        descriptor = self._descriptors.get(name)
        state = self._reader.keyed_state(name)
        table = self._reader.read(descriptor or name, self._key_type)
        if descriptor is None or not state.name.startswith(PYTHON):
            descriptor = _descriptor(state)
        elif isinstance(descriptor.type_info, PickledTypeInformation):
            descriptor = _with_pickled_values(descriptor)
        stamp = None
        if state.has_stamps:
            descriptor.enable_time_to_live(_ANY_TIME)
            stamp = "stamp"
        map_key = "map_key" if "map_key" in table.column_names else None
        keyed = self._keyed(table)
        return keyed.to_state(descriptor, "value", map_key=map_key, stamp=stamp)

    def _timers(self, name: str) -> StateBootstrapTransformation:
        domain = _OWN_TIMERS.get(name)
        table = self._reader.read_timers(self._key_type, services=[USER_TIMERS])
        of_domain = table.filter(pa.compute.equal(table.column("domain"), domain or ""))
        if not of_domain.num_rows:
            return StateBootstrapTransformation()
        return self._keyed(of_domain).to_timers("timestamp", str(domain))

    def _keyed(self, table: pa.Table) -> KeyedStateTransformation:
        key = self._reader.key_type if self._key_type is None else to_type(self._key_type)
        if not isinstance(key, StructTypeInformation):
            return OperatorTransformation.bootstrap_with(table).key_by("key", key)
        names = self._key_names or key.names
        if len(names) != len(key.names):
            raise StateError(
                f"A key has {len(key.names)} parts {list(key.names)}, but {len(names)} names were set: {list(names)}."
            )
        struct = table.column("key").combine_chunks()
        columns = {f"key {name}": part for name, part in zip(names, struct.flatten(), strict=True)}
        whole = pa.table({**columns, **{name: table.column(name) for name in table.column_names if name != "key"}})
        renamed = whole.rename_columns([name.removeprefix("key ") for name in whole.column_names])
        return OperatorTransformation.bootstrap_with(renamed).key_by(list(names))

    def _operator_state(self, name: str, mode: str) -> StateBootstrapTransformation:
        table = self._reader.read_operator_state(name, mode)
        begun = OperatorTransformation.bootstrap_with(table)
        value = _types(self._reader, name)
        if mode == BROADCAST:
            return begun.to_broadcast_state(MapStateDescriptor(name, *value))
        if mode == UNION:
            return begun.to_union_list_state(ListStateDescriptor(name, *value))
        return begun.to_list_state(ListStateDescriptor(name, *value))


def _types(reader: OperatorReader, name: str) -> list[TypeInformation]:
    state = reader.operator_state(name)
    return [part.value_type for part in (state.key, state.value) if part is not None]


def _descriptor(state: FlinkState) -> StateDescriptor[Any]:
    assert state.value is not None
    kind = state.value.value_type
    if state.kind == LIST:
        return ListStateDescriptor(state.name, kind)
    if state.kind == MAP:
        assert state.map_key is not None
        return MapStateDescriptor(state.name, state.map_key.value_type, kind)
    if state.kind == REDUCING:
        return ReducingStateDescriptor(state.name, _never, kind)
    if state.kind == AGGREGATING:
        return AggregatingStateDescriptor(state.name, _NoFunction(), kind)
    return ValueStateDescriptor(state.name, kind)


def _never(*_: Any) -> Any:
    raise AssertionError("the function of a state is not called when it is written")


class _NoFunction:
    create_accumulator = add = get_result = merge = staticmethod(_never)


class _PickledBefore(OpaqueTypeInformation):
    """A type of values that are pickled already."""

    def dump(self, value: Any) -> bytes:
        return bytes(value)

    def to_json(self) -> Any:
        return PickledTypeInformation().to_json()


def _with_pickled_values(descriptor: StateDescriptor[Any]) -> StateDescriptor[Any]:
    kind = _PickledBefore()
    if isinstance(descriptor, MapStateDescriptor):
        return MapStateDescriptor(descriptor.name, descriptor.key_type_info, kind)
    if isinstance(descriptor, ReducingStateDescriptor):
        return ReducingStateDescriptor(descriptor.name, _never, kind)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return AggregatingStateDescriptor(descriptor.name, _NoFunction(), kind)
    return type(descriptor)(descriptor.name, kind)
