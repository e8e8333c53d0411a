"""The state of one operator of Flink, over all of its subtasks, as Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import NotExistError, OutputTypeError, StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.state.declaration.descriptor import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from holdfast.state_processor.flink.flink_files import FlinkFiles
from holdfast.state_processor.flink.flink_metadata import FlinkOperator
from holdfast.state_processor.flink.keyed_state import (
    LIST,
    MAP,
    TIMERS,
    FlinkRows,
    FlinkState,
    SubtaskState,
)
from holdfast.state_processor.flink.operator_state import (
    BROADCAST,
    FlinkOperatorState,
    read_elements,
    read_operator_states,
)
from holdfast.state_processor.flink.pyflink_coder import decoder_of
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import (
    PickledTypeInformation,
    RowTypeInformation,
    TypeInformation,
)

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
                    raise StateError(f"State {state.name!r} is another one in each subtask of {self.operator.label!r}.")
        return found

    @cached_property
    def _of_operator(self) -> dict[str, FlinkOperatorState]:
        return {
            state.name: state
            for handle in self.operator.operator_states
            for state in read_operator_states(handle, *self._files.read(handle.stream))
            if state.name in handle.states
        }

    @property
    def is_python(self) -> bool:
        """Whether it is an operator of PyFlink in process mode, whose key is a row with one field."""
        return any(name.startswith(PYTHON) for name in self._keyed)

    @property
    def key_type(self) -> TypeInformation | None:
        """The type of its keys; None if it has no keyed state."""
        for state in self._keyed.values():
            kind = state.key.value_type
            return _part(kind) if self.is_python and _is_single(kind) else kind
        return None

    def states(self) -> dict[str, str]:
        """Return the kind of each state by name."""
        keyed = {
            name.removeprefix(PYTHON): _KIND_OF_PYTHON[state.kind] if name.startswith(PYTHON) else state.kind
            for name, state in self._keyed.items()
        }
        return {**keyed, **{name: state.mode for name, state in self._of_operator.items()}}

    def keyed_state(self, name: str) -> FlinkState:
        """Return what is known of a keyed state.

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
        """Return what is known of an operator state that is there."""
        return self._of_operator[name]

    def problems(self) -> dict[str, str]:
        """Return what cannot be read, and why, by the name of the state; what is no state by the empty name."""
        found: dict[str, str] = {}
        if self.operator.unread:
            found[""] = f"It has {' and '.join(self.operator.unread)}, which only Flink can read."
        try:
            states: list[FlinkState | FlinkOperatorState] = [*self._keyed.values(), *self._of_operator.values()]
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
            _decode(rows, known, descriptor, self._place(name))
            value, map_key = descriptor.type_info, getattr(descriptor, "key_type_info", None)
            is_list = isinstance(descriptor, ListStateDescriptor)
        else:
            assert known.value is not None
            value, is_list = known.value.value_type, known.kind == LIST
            map_key = None if known.map_key is None else known.map_key.value_type
        if map_key is not None:
            columns["map_key"] = array_of(rows.map_keys, map_key, self._place(name))
        columns["value"] = (_lists if is_list else array_of)(rows.values, value, self._place(name))
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
        """Return an operator state as a table."""
        state = self._of_operator.get(name)
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
            return pa.table({"value": array_of(elements, state.value.value_type, self._place(name))})
        assert mode == BROADCAST
        pairs = next((part for part in parts if part), [])
        return pa.table(
            {
                "key": array_of([key for key, _ in pairs], state.key.value_type, self._place(name)),
                "value": array_of([value for _, value in pairs], state.value.value_type, self._place(name)),
            }
        )

    def _place(self, name: str) -> str:
        return f"{name} of operator {self.operator.label} in {self._files.directory}"

    def _rows(self, state: FlinkState) -> FlinkRows:
        rows = FlinkRows.empty()
        for subtask in self._subtasks:
            rows.extend(subtask.rows(state.name, self.operator.max_parallelism))
        return rows

    def _keys(self, rows: FlinkRows, state: FlinkState, key_type: Any) -> dict[str, pa.Array]:
        kind, keys = state.key.value_type, rows.keys
        if self.is_python and _is_single(kind):
            kind, keys = _part(kind), [key[0] for key in keys]
        if key_type is not None:
            kind, decode = to_type(key_type), decoder_of(PickledTypeInformation())
            keys = [decode(len(key).to_bytes(4, "big") + key, self._place("its keys")) for key in keys]
        columns = {
            "key_group": pa.array(rows.key_groups, pa.int32()),
            "key": array_of(keys, kind, self._place("its keys")),
        }
        if state.has_namespace:
            columns["window_start"] = pa.array([start for start, _ in rows.namespaces], pa.int64())
            columns["window_end"] = pa.array([end for _, end in rows.namespaces], pa.int64())
        return columns


def _is_single(kind: TypeInformation) -> bool:
    return isinstance(kind, RowTypeInformation) and len(kind.types) == 1


def _part(kind: TypeInformation) -> TypeInformation:
    assert isinstance(kind, RowTypeInformation)
    return kind.types[0]


def _decode(rows: FlinkRows, state: FlinkState, descriptor: StateDescriptor[Any], where: str) -> None:
    """Turn bytes of PyFlink's coders into values, and lists of one element into that element."""
    if isinstance(descriptor, MapStateDescriptor) != (state.kind == MAP):
        raise StateError(
            f"State {where} is {'a' if state.kind == MAP else 'no'} map, and its descriptor says otherwise."
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
    except (OutputTypeError, pa.ArrowException, *MALFORMED) as error:
        raise StateError(f"{name} has a value that does not fit: {error}") from error


def _lists(values: Sequence[Sequence[Any]], kind: TypeInformation, name: str) -> pa.Array:
    offsets = [0]
    for elements in values:
        offsets.append(offsets[-1] + len(elements))
    flat = array_of([one for elements in values for one in elements], kind, name)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
