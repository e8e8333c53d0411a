"""What becomes of an operator of Flink: the tables of its states, and what stands against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import HoldfastError, StateError
from holdfast.state.declaration.descriptor import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.declaration.ttl_config import StateTtlConfig
from holdfast.state.timer.timer_service import EVENT, PROCESSING, TIMER_PREFIX, USER_TIMERS
from holdfast.state_processor.bootstrap.bootstrap_transformation import (
    KeyedStateTransformation,
    OperatorTransformation,
    StateBootstrapTransformation,
)
from holdfast.state_processor.flink.flink_operator import PYTHON, OperatorReader
from holdfast.state_processor.flink.keyed_state import AGGREGATING, LIST, MAP, REDUCING, TIMERS, FlinkState
from holdfast.state_processor.flink.operator_state import BROADCAST, SPLIT, UNION
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import (
    OpaqueTypeInformation,
    PickledTypeInformation,
    StructTypeInformation,
    TypeInformation,
)

_OWN_TIMERS: Final = {f"{TIMER_PREFIX}{domain}_{USER_TIMERS}": domain for domain in (EVENT, PROCESSING)}
_ANY_TIME: Final = StateTtlConfig.new_builder(1).disable_cleanup_in_background().build()
"""How long state lives is not in a savepoint, neither of Flink nor here: only that it does."""


class ImportedOperator:
    """An operator with all that was said about how it is taken over.

    Args:
        reader: Reads its state.
        uid: The uid that it is to have.
        left_out: Names of operators, and of states as `UID/STATE`, that stay behind.
        descriptors: Those of a PyFlink program.
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
        """How many key groups it has in Flink."""
        return self._reader.operator.max_parallelism

    @property
    def is_left_out(self) -> bool:
        """Whether all of it stays behind."""
        return bool({self.uid, self._reader.operator.operator_id} & self._left_out)

    def names(self) -> Iterator[str]:
        """Return all names that it and its states have."""
        yield self.uid
        yield self._reader.operator.operator_id
        try:
            states = self._reader.states()
        except StateError:
            return
        yield from (f"{self.uid}/{state}" for state in states)

    def problems(self) -> list[str]:
        """Return what stands against it, one line for each."""
        found = self._reader.problems()
        lines = [f"{self.uid}: {found.pop('')}"] if "" in found else []
        if self._reader.operator.uid is None and self.uid == self._reader.operator.operator_id:
            lines.append(f"{self.uid}: The savepoint does not tell its uid. Name it in uids, or leave it out.")
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
        """Return what its state is to be.

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
            return "It is state of PyFlink, whose type the savepoint does not tell. Give its descriptor in states."
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
            descriptor = _kept_pickled(descriptor)
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
            raise StateError(f"A key has the parts {list(key.names)}, which {list(names)} cannot be the names of.")
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
    """Values that are pickled already."""

    def dump(self, value: Any) -> bytes:
        """Return the bytes as they are."""
        return bytes(value)

    def to_json(self) -> Any:
        """Return the name of what they are."""
        return PickledTypeInformation().to_json()


def _kept_pickled(descriptor: StateDescriptor[Any]) -> StateDescriptor[Any]:
    kind = _PickledBefore()
    if isinstance(descriptor, MapStateDescriptor):
        return MapStateDescriptor(descriptor.name, descriptor.key_type_info, kind)
    if isinstance(descriptor, ReducingStateDescriptor):
        return ReducingStateDescriptor(descriptor.name, _never, kind)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return AggregatingStateDescriptor(descriptor.name, _NoFunction(), kind)
    return type(descriptor)(descriptor.name, kind)
