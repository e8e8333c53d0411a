"""Read the state of an operator key by key, with the states and classes of a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime.function.user_function import Function, KeyedProcessFunction, RuntimeContext
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator import OperatorInstance, OperatorSubtask, SubtaskInfo
from holdfast.state.backend import AbstractKeyedStateBackend, load_state_backend
from holdfast.state.environment import Environment
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH
from holdfast.state.timer_service import EVENT, PROCESSING, TIMER_PREFIX, USER_TIMERS
from holdfast.state.timers import TIMESTAMP
from holdfast.state.version import StateVersion
from holdfast.state_processor.state_table import StoredOperator
from holdfast.storage.scheme import file_system_for
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.program_classes import pickle_program, unpickle_program

_KEYS_AT_ONCE = 8192


@dataclass(frozen=True)
class KeyedStateReaderContext:
    """The timers of a key, in milliseconds since 1970.

    >>> KeyedStateReaderContext(event_time_timers=(1_000,)).registered_event_time_timers()
    {1000}

    Attributes:
        event_time_timers: Times of the event-time timers that functions have registered.
        processing_time_timers: Times of the processing-time timers.
    """

    event_time_timers: tuple[int, ...] = ()
    processing_time_timers: tuple[int, ...] = ()

    def registered_event_time_timers(self) -> set[int]:
        return set(self.event_time_timers)

    def registered_processing_time_timers(self) -> set[int]:
        return set(self.processing_time_timers)


class KeyedStateReaderFunction(Function, ABC):
    """Reads the state of one key after the other; for `SavepointReader.read_keys`.

    >>> from holdfast.state import ValueStateDescriptor
    >>> class Counts(KeyedStateReaderFunction):
    ...     def open(self, runtime_context):
    ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
    ...
    ...     def read_key(self, key, context):
    ...         yield key, self.count.value(), context.registered_event_time_timers()
    """

    @abstractmethod
    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states to read, declared as in the program."""

    @abstractmethod
    def read_key(self, key: Any, context: KeyedStateReaderContext) -> Iterable[Any]:
        """Yield results for a key, whose states are the current ones. Writes are discarded."""


class _Reading(KeyedProcessFunction):
    def __init__(self, function: KeyedStateReaderFunction) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        key, context = value
        yield from self._function.read_key(key, context) or ()

    def close(self) -> None:
        self._function.close()


def read_keys(
    operator: StoredOperator, key_groups: Iterable[KeyGroupRange], function: KeyedStateReaderFunction
) -> Iterator[Any]:
    """Yield the results of a function for each key that has a state or a timer; each key once.

    Raises:
        UserFunctionError: The function raised.
        StateMigrationError: It declares a state with an incompatible type.
        CorruptFileError: A run is damaged.
    """
    pickled = pickle_program(_Reading(function))
    undeclared = PickledTypeInformation()
    for groups in key_groups:
        info = SubtaskInfo(
            uid=operator.metadata.uid,
            name=operator.metadata.uid,
            max_parallelism=operator.metadata.max_parallelism,
            processing_time=operator.now,
            is_restored=True,
            has_past=True,
        )
        reading, _ = unpickle_program(pickled)
        spec = OperatorSpec(reading, "process", True, undeclared, undeclared)
        backend = _backend(operator, info, groups)
        version = StateVersion(operator.metadata.runs).for_range(groups)
        backend.open_version(version, file_system_for(operator.root), operator.root)
        instance = OperatorInstance(spec, info, _backend(operator, info, groups))
        try:
            subtask = OperatorSubtask(instance, info, backend)
            keys, timers = _keys(operator, groups), _timers(operator, groups)
            for start in range(0, keys.num_rows, _KEYS_AT_ONCE):
                part = keys.slice(start, _KEYS_AT_ONCE).combine_chunks()
                dict_keys = operator.key.from_storage(part.column(KEY).combine_chunks())
                elements = [(operator.key.user_key(key), timers.get(key, _NO_TIMERS)) for key in dict_keys]
                yield from subtask.process(elements, dict_keys, part.column(HASH).to_numpy())
        finally:
            instance.close()
            backend.dispose()


_NO_TIMERS = KeyedStateReaderContext()


def _keys(operator: StoredOperator, groups: KeyGroupRange) -> pa.Table:
    """Return the distinct keys of all states and timers."""
    tables = [
        rows.select([HASH, KEY])
        for form in operator.forms.values()
        for rows in operator.rows(form, groups, None, expired=False)
    ]
    if not tables:
        return pa.table({HASH: pa.array([], pa.uint64()), KEY: operator.key.storage_array([])})
    return pa.concat_tables(tables).group_by([HASH, KEY], use_threads=False).aggregate([])


def _timers(operator: StoredOperator, groups: KeyGroupRange) -> dict[Any, KeyedStateReaderContext]:
    found: dict[Any, dict[str, list[int]]] = {}
    for domain in (EVENT, PROCESSING):
        form = operator.forms.get(f"{TIMER_PREFIX}{domain}_{USER_TIMERS}")
        for rows in () if form is None else operator.rows(form, groups, None, expired=False):
            keys = operator.key.from_storage(rows.column(KEY).combine_chunks())
            for key, time in zip(keys, rows.column(TIMESTAMP).to_pylist(), strict=True):
                found.setdefault(key, {EVENT: [], PROCESSING: []})[domain].append(time)
    return {key: KeyedStateReaderContext(tuple(own[EVENT]), tuple(own[PROCESSING])) for key, own in found.items()}


def _backend(operator: StoredOperator, info: SubtaskInfo, groups: KeyGroupRange) -> AbstractKeyedStateBackend:
    environment = Environment(
        job_id="", operator=info.uid, max_parallelism=info.max_parallelism, processing_time=info.processing_time
    )
    return load_state_backend(Configuration({"state.backend.type": "columnar"})).create_keyed_state_backend(
        environment, "", info.uid, operator.key, info.max_parallelism, groups, None
    )
