"""Transformations that make state of tables and of rows, for `SavepointWriter`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigurationError, StateError
from holdfast.runtime.function.user_function import (
    CheckpointedFunction,
    KeyedProcessFunction,
    KeySelector,
    ProcessFunction,
    ReduceLike,
)
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.window.evictor import Evictor
from holdfast.runtime.window.trigger import Trigger
from holdfast.runtime.window.window_assigner import MergingWindowAssigner, WindowAssigner
from holdfast.runtime.window_operator.batch_aggregate import BatchAggregateFunction
from holdfast.runtime.window_operator.pane_operator import create_pane_operator
from holdfast.runtime.window_operator.window_operator import WINDOW_CONTENTS, WindowEvaluation, WindowOperator
from holdfast.state.descriptor import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from holdfast.state.operator_snapshot import Mode
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type
from holdfast.types.types import Types

# Functions that make state row by row.

__all__ = ["BroadcastStateBootstrapFunction", "KeyedStateBootstrapFunction", "StateBootstrapFunction"]
TimeOf = str | Callable[[Any], int]
"""The event time of a row: a column, of milliseconds or timestamps, or a function of the row."""
Data = Any
"""An Arrow table or record batch, a Spark DataFrame, or for functions also a list of elements."""


class KeyedStateBootstrapFunction(KeyedProcessFunction, ABC):
    """Writes keyed state and timers, row by row.

    `open` gets the runtime context, from which it gets its states, as a `KeyedProcessFunction` does.

    >>> import tempfile
    >>> from holdfast.state import ValueStateDescriptor
    >>> from holdfast.state_processor import SavepointReader, SavepointWriter
    >>> class Totals(KeyedStateBootstrapFunction):
    ...     def open(self, context):
    ...         self.total = context.get_state(ValueStateDescriptor("total", "bigint", 0))
    ...
    ...     def process_element(self, value, ctx):
    ...         self.total.update(self.total.value() + value["n"])
    >>> table = pa.table({"user": ["ada", "ada"], "n": [3, 4]})
    >>> totals = OperatorTransformation.bootstrap_with(table).key_by("user").transform(Totals())
    >>> path = SavepointWriter.new_savepoint().with_operator("visits", totals).write(f"{tempfile.mkdtemp()}/s")
    >>> SavepointReader.read(None, path).read_keyed_state("visits", "total", columns=["key", "value"]).to_pylist()
    [{'key': 'ada', 'value': 7}]
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Write state for one row.

        Args:
            value: The row.
            ctx: Has the current key and a timer service. Timers are written; they do not fire here, even if they are
                due.
        """


class StateBootstrapFunction(ProcessFunction, CheckpointedFunction, ABC):
    """Writes operator state: lists that are split over subtasks, unions, and broadcast maps.

    `initialize_state` gets states from the operator state store of its context. `snapshot_state` is called once, after
    the last row.

    >>> import tempfile
    >>> from holdfast.state import ListStateDescriptor
    >>> from holdfast.state_processor import SavepointReader, SavepointWriter
    >>> class Pending(StateBootstrapFunction):
    ...     def initialize_state(self, context):
    ...         store = context.get_operator_state_store()
    ...         self.pending = store.get_list_state(ListStateDescriptor("pending", "string"))
    ...
    ...     def process_element(self, value, ctx):
    ...         self.pending.add(value)
    ...
    ...     def snapshot_state(self, context):
    ...         pass
    >>> pending = OperatorTransformation.bootstrap_with(["a", "b"]).transform(Pending())
    >>> path = SavepointWriter.new_savepoint().with_operator("sink", pending).write(f"{tempfile.mkdtemp()}/s")
    >>> SavepointReader.read(None, path).read_list_state("sink", "pending").to_pylist()
    [{'value': 'a'}, {'value': 'b'}]
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
        """Write state for one row."""


class BroadcastStateBootstrapFunction(StateBootstrapFunction, ABC):
    """Writes broadcast state. Each subtask of the job gets all of it.

    `initialize_state` gets the states from its context, and `process_element` writes to them.

    >>> from holdfast.state import MapStateDescriptor
    >>> class Rates(BroadcastStateBootstrapFunction):
    ...     def initialize_state(self, context):
    ...         store = context.get_operator_state_store()
    ...         self.rates = store.get_broadcast_state(MapStateDescriptor("rates", "string", "double"))
    ...
    ...     def process_element(self, value, ctx):
    ...         self.rates.put(*value)
    >>> rates = OperatorTransformation.bootstrap_with([("eur", 1.1)]).transform(Rates())
    """

    def snapshot_state(self, context: Any) -> None:
        """Do nothing: broadcast state is written by `put`."""


@dataclass(frozen=True)
class SourcePositions:
    """The positions of sources of another program, for `SavepointWriter.with_source_positions`.

    >>> positions = SparkQueryReader.read(spark, "/checkpoints/query").source_positions(["clicks"])  # doctest: +SKIP

    Attributes:
        streaming: The positions as a checkpoint has them, without the files.
        files: Files of the sources beside the positions, by name.
    """

    streaming: Mapping[str, Any]
    files: Mapping[str, bytes]


# Rows in windows: the job's own operator makes their state.


@dataclass(frozen=True)
class WindowBootstrap:
    """The windows that rows are put into.

    Attributes:
        assigner: Assigns windows to a row.
        trigger: The job's trigger; None for the assigner's default.
        evictor: The job's evictor; with one, windows keep all elements.
        contents: Makes the descriptor of the contents of a window from the type of the rows.
        time_of: The event time of a row; None for none.
        aggregates: The aggregates of `aggregate_batches` by name; empty for windows by element.
    """

    assigner: WindowAssigner[Any, Any]
    contents: Callable[[TypeInformation], StateDescriptor[Any]]
    trigger: Trigger[Any, Any] | None = None
    evictor: Evictor[Any, Any] | None = None
    time_of: TimeOf | None = None
    aggregates: Mapping[str, BatchAggregateFunction] = field(default_factory=dict)

    def spec(self, element_type: TypeInformation) -> OperatorSpec:
        """Return the job's operator for rows of a type; its windows are not evaluated.

        Raises:
            ConfigurationError: Aggregates do not fit the columns or the windows.
        """
        if self.aggregates:
            panes = create_pane_operator(self.assigner, self.aggregates, element_type, None, None)
            return OperatorSpec(panes, "panes", True, element_type, panes.output_type)
        trigger = self.trigger or self.assigner.get_default_trigger(None)
        contents = self.contents(element_type)
        if self.evictor is not None:
            contents = ListStateDescriptor(WINDOW_CONTENTS, Types.TUPLE([element_type, Types.LONG()]))
        operator = WindowOperator(self.assigner, trigger, contents, WindowEvaluation(None), evictor=self.evictor)
        return OperatorSpec(operator, "window", True, element_type, PickledTypeInformation())


class WindowedStateTransformation:
    """Keyed rows in windows: `key_by(...).window(assigner)`. Call the method that the job calls on its windows.

    Args:
        window: The window assigner of the job.
        time_of: The event time of a row.
        made: Makes the transformation.

    Raises:
        ConfigurationError: It is no window assigner, or windows of event time lack `assign_timestamps`.
    """

    def __init__(self, window: WindowAssigner[Any, Any], time_of: TimeOf | None, made: Callable[..., Any]) -> None:
        if not isinstance(window, WindowAssigner):
            raise ConfigurationError(
                "Windows are made by an instance of WindowAssigner, for instance "
                f"TumblingEventTimeWindows.of(Time.minutes(1)), not by {window!r}."
            )
        if window.is_event_time() and time_of is None:
            raise ConfigurationError(
                "Windows of event time need the time of each row: call assign_timestamps('column') before key_by()."
            )
        self._window = WindowBootstrap(window, _elements, time_of=time_of)
        self._made = made

    def trigger(self, trigger: Trigger[Any, Any]) -> WindowedStateTransformation:
        """Set the job's trigger, if it has another than the assigner's default.

        Raises:
            ConfigurationError: It is no trigger, or cannot merge, and the windows merge.
        """
        if not isinstance(trigger, Trigger):
            raise ConfigurationError(f"trigger() takes an instance of Trigger, not {trigger!r}.")
        if isinstance(self._window.assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise ConfigurationError(f"The windows merge, but {type(trigger).__name__} cannot merge windows.")
        self._window = replace(self._window, trigger=trigger)
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> WindowedStateTransformation:
        """Set the job's evictor; windows then keep all elements.

        Raises:
            ConfigurationError: It is no evictor.
        """
        if not isinstance(evictor, Evictor):
            raise ConfigurationError(f"evictor() takes an instance of Evictor, not {evictor!r}.")
        self._window = replace(self._window, evictor=evictor)
        return self

    def reduce(self, reduce_function: ReduceLike) -> Any:
        """Return the state of windows that the job reduces; the function that gets the result does not matter."""
        return self._with(lambda element_type: ReducingStateDescriptor(WINDOW_CONTENTS, reduce_function, element_type))

    def aggregate(self, aggregate_function: AggregateFunction, accumulator_type: Any = None) -> Any:
        """Return the state of windows that the job aggregates.

        Args:
            aggregate_function: The job's function.
            accumulator_type: The type of accumulators that the job declares.
        """
        kind = Types.ROW(accumulator_type) if isinstance(accumulator_type, list) else accumulator_type
        descriptor: AggregatingStateDescriptor[Any, Any, Any] = AggregatingStateDescriptor(
            WINDOW_CONTENTS, aggregate_function, kind
        )
        return self._with(lambda element_type: descriptor)

    def aggregate_batches(self, **aggregates: BatchAggregateFunction) -> Any:
        """Return the state of windows that the job aggregates by columns.

        Args:
            **aggregates: The aggregates by the names that the job gives them.

        Raises:
            ConfigurationError: There are none, or a trigger or an evictor is set.
        """
        if not aggregates or self._window.trigger is not None or self._window.evictor is not None:
            raise ConfigurationError(
                "aggregate_batches() takes aggregates by the names of their columns, for instance n=CountAggregate(), "
                "and goes with the default trigger and without an evictor."
            )
        return self._made(replace(self._window, aggregates=aggregates))

    def apply(self, window_function: Any = None) -> Any:
        """Return the state of windows that keep all elements for a function, which is not called here."""
        return self._with(_elements)

    def process(self, process_window_function: Any = None) -> Any:
        """Return the state of windows that keep all elements for a function, which is not called here."""
        return self._with(_elements)

    def _with(self, contents: Callable[[TypeInformation], StateDescriptor[Any]]) -> Any:
        return self._made(replace(self._window, contents=contents))


def _elements(element_type: TypeInformation) -> StateDescriptor[Any]:
    return ListStateDescriptor(WINDOW_CONTENTS, element_type)


# Transformations: tables whose columns are state, or rows for a function.


@dataclass(frozen=True)
class KeyBy:
    """How rows are keyed, as in `DataStream.key_by`.

    Attributes:
        columns: Names of columns; empty with a selector.
        selector: Python function of a row.
        key_type: Type of the key; None for that of the columns, or with a selector for untyped Python keys.
        untyped: Whether the key of columns is an untyped Python key.
    """

    columns: tuple[str, ...] = ()
    selector: Callable[[Any], Any] | None = None
    key_type: TypeInformation | None = None
    untyped: bool = False


@dataclass(frozen=True)
class TableState:
    """One state of a table: its descriptor and its columns; with `domain` it is timers."""

    descriptor: StateDescriptor[Any] | None
    value: str
    map_key: str | None = None
    stamp: str | None = None
    domain: str | None = None

    @property
    def name(self) -> str:
        """The name of the state; of timers a description."""
        return f"timers of {self.domain} time" if self.descriptor is None else self.descriptor.name


@dataclass(frozen=True)
class KeyedTable:
    """A keyed table: its columns are states, or a function or windows make state of its rows."""

    data: Data
    key: KeyBy
    states: tuple[TableState, ...] = ()
    function: KeyedStateBootstrapFunction | None = None
    element_type: TypeInformation | None = None
    window: WindowBootstrap | None = None

    @property
    def is_by_row(self) -> bool:
        """Whether Python processes each row."""
        return self.function is not None or self.window is not None


@dataclass(frozen=True)
class OperatorTable:
    """A table that is operator state, or rows for a function that writes it."""

    data: Data
    descriptor: StateDescriptor[Any] | None = None
    mode: Mode = Mode.SPLIT_DISTRIBUTE
    value: str = "value"
    key: str = "key"
    function: StateBootstrapFunction | None = None
    element_type: TypeInformation | None = None


class StateBootstrapTransformation:
    """All state of one operator, made of tables. Immutable: each method returns a new one.

    `OperatorTransformation` begins one. Nothing is read or computed before the savepoint is written.

    >>> from holdfast.state import ValueStateDescriptor
    >>> rows = OperatorTransformation.bootstrap_with(pa.table({"user": ["ada"], "n": [3], "at": [1_000]}))
    >>> counts = rows.key_by("user").to_state(ValueStateDescriptor("count", "bigint"), "n").to_timers("at")
    """

    def __init__(self, keyed: Sequence[KeyedTable] = (), operator: Sequence[OperatorTable] = ()) -> None:
        self.keyed = tuple(keyed)
        self.operator = tuple(operator)
        self.max_parallelism: int | None = None

    def set_max_parallelism(self, max_parallelism: int) -> StateBootstrapTransformation:
        """Set the number of key groups of this operator; default: that of the writer."""
        made = StateBootstrapTransformation(self.keyed, self.operator)
        made.max_parallelism = max_parallelism
        return made

    def to_state(
        self, descriptor: StateDescriptor[Any], value: str, *, map_key: str | None = None, stamp: str | None = None
    ) -> StateBootstrapTransformation:
        """Add a state from columns of the last table.

        Args:
            descriptor: The state as the job declares it.
            value: Column of the values. Of a list state it has lists, or elements, one a row; of a map state the values
                of entries, or without `map_key` whole maps.
            map_key: Column of the keys of map entries.
            stamp: Column of the times of last use in milliseconds since 1970, for state with a time to live.

        Raises:
            ConfigurationError: The last table is for a function, or not keyed.
        """
        return self._with(TableState(descriptor, value, map_key, stamp))

    def to_timers(self, time: str, domain: str = "processing") -> StateBootstrapTransformation:
        """Add timers of the keys from a column of the last table.

        Args:
            time: Column of the times: milliseconds since 1970, or timestamps.
            domain: "event" or "processing".

        Raises:
            ConfigurationError: The last table is for a function, or not keyed.
        """
        return self._with(TableState(None, time, domain=domain))

    def and_also(self, other: StateBootstrapTransformation) -> StateBootstrapTransformation:
        """Add the state of another transformation to the same operator; both may not have the same state."""
        made = StateBootstrapTransformation((*self.keyed, *other.keyed), (*self.operator, *other.operator))
        made.max_parallelism = self.max_parallelism or other.max_parallelism
        return made

    def _with(self, state: TableState) -> StateBootstrapTransformation:
        if not self.keyed or self.keyed[-1].is_by_row:
            raise ConfigurationError(
                f"State {state.name!r} needs a table that is keyed, and no function or window: write "
                "OperatorTransformation.bootstrap_with(table).key_by('column').to_state(...)."
            )
        last = self.keyed[-1]
        made = StateBootstrapTransformation(
            (*self.keyed[:-1], replace(last, states=(*last.states, state))), self.operator
        )
        made.max_parallelism = self.max_parallelism
        return made

    def require_distinct(self, uid: str) -> None:
        """Raise an error if a state is made twice.

        Raises:
            StateError: A state is made twice.
        """
        names = [state.name for table in self.keyed for state in table.states]
        names += [table.descriptor.name for table in self.operator if table.descriptor is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StateError(f"Operator {uid!r} would get {twice} twice. Each state is made of one table.")


class OperatorTransformation:
    """The start of the state of an operator: `OperatorTransformation.bootstrap_with(data)`.

    >>> from holdfast.state import ListStateDescriptor
    >>> rows = OperatorTransformation.bootstrap_with(pa.table({"value": ["a", "b"]}))
    >>> pending = rows.to_list_state(ListStateDescriptor("pending", "string"))
    """

    @staticmethod
    def bootstrap_with(data: Data) -> OneInputStateTransformation:
        """Begin with rows.

        Args:
            data: An Arrow table or record batch, a Spark DataFrame, or a list of elements for a function. Columns of a
                DataFrame are written by Spark tasks in parallel.

        Returns:
            The rows; `key_by`, `transform` and the other methods make state of them.
        """
        return OneInputStateTransformation(data)


class OneInputStateTransformation:
    """Rows to write as state."""

    def __init__(self, data: Data, time_of: TimeOf | None = None) -> None:
        self._data = data
        self._time_of = time_of

    def assign_timestamps(self, time_of: TimeOf) -> OneInputStateTransformation:
        """Assign event times to the rows, for windows of event time.

        Args:
            time_of: A column of milliseconds since 1970 or timestamps, or a function of a row that returns
                milliseconds.

        Raises:
            ConfigurationError: It is neither.
        """
        if not (callable(time_of) or (isinstance(time_of, str) and time_of)):
            raise ConfigurationError(f"assign_timestamps() takes a column or a function of a row, not {time_of!r}.")
        return OneInputStateTransformation(self._data, time_of)

    def key_by(
        self, key_selector: str | Iterable[str] | Any, key_type: Any = None, *, untyped: bool = False
    ) -> KeyedStateTransformation:
        """Key the rows as `DataStream.key_by` of the job does. Keys of another type would be in other key groups.

        Args:
            key_selector: A column, several columns, or a function of a row.
            key_type: Type of the key. Default: that of the columns; of a function, keys without a declared type.
            untyped: Whether a column becomes a key without a declared type, for a job that keys by a function.

        Raises:
            ConfigurationError: The arguments contradict each other.
        """
        declared = None if key_type is None else to_type(key_type)
        if untyped and declared is not None:
            raise ConfigurationError("A key is untyped or has a key_type: give one of them.")
        if isinstance(key_selector, KeySelector):
            return KeyedStateTransformation(self._data, self._time_of, KeyBy((), key_selector.get_key, declared))
        if callable(key_selector):
            return KeyedStateTransformation(self._data, self._time_of, KeyBy((), key_selector, declared))
        columns = (key_selector,) if isinstance(key_selector, str) else tuple(key_selector)
        if not columns or not all(isinstance(name, str) for name in columns):
            raise ConfigurationError(f"key_by() takes columns or a function of a row, not {key_selector!r}.")
        return KeyedStateTransformation(self._data, self._time_of, KeyBy(columns, None, declared, untyped))

    def transform(self, function: StateBootstrapFunction, element_type: Any = None) -> StateBootstrapTransformation:
        """Write operator state by a function, row by row, in this process.

        Args:
            function: The function.
            element_type: Type of the elements of a list; rows of tables have their columns.

        Raises:
            ConfigurationError: It is no `StateBootstrapFunction`.
        """
        if not isinstance(function, StateBootstrapFunction):
            raise ConfigurationError(
                f"State of an operator without keys is written by a StateBootstrapFunction, not {function!r}. Call "
                "key_by() first for keyed state."
            )
        kind = None if element_type is None else to_type(element_type)
        return StateBootstrapTransformation((), (OperatorTable(self._data, function=function, element_type=kind),))

    def to_list_state(self, descriptor: ListStateDescriptor[Any], value: str = "value") -> StateBootstrapTransformation:
        """Write a column as a list state that is split over the subtasks."""
        return self._operator(descriptor, Mode.SPLIT_DISTRIBUTE, value)

    def to_union_list_state(
        self, descriptor: ListStateDescriptor[Any], value: str = "value"
    ) -> StateBootstrapTransformation:
        """Write a column as a union list state, which each subtask gets whole."""
        return self._operator(descriptor, Mode.UNION, value)

    def to_broadcast_state(
        self, descriptor: MapStateDescriptor[Any, Any], key: str = "key", value: str = "value"
    ) -> StateBootstrapTransformation:
        """Write two columns as a broadcast state."""
        return self._operator(descriptor, Mode.BROADCAST, value, key)

    def _operator(self, descriptor: Any, mode: Mode, value: str, key: str = "key") -> StateBootstrapTransformation:
        wanted = MapStateDescriptor if mode is Mode.BROADCAST else ListStateDescriptor
        if not isinstance(descriptor, wanted):
            raise ConfigurationError(f"This state needs a {wanted.__name__}, not {descriptor!r}.")
        return StateBootstrapTransformation((), (OperatorTable(self._data, descriptor, mode, value, key),))


class KeyedStateTransformation:
    """Keyed rows to write as state."""

    def __init__(self, data: Data, time_of: TimeOf | None, key: KeyBy) -> None:
        self._data = data
        self._time_of = time_of
        self._key = key

    def transform(
        self, function: KeyedStateBootstrapFunction, element_type: Any = None
    ) -> StateBootstrapTransformation:
        """Write keyed state and timers by a function, row by row; of a DataFrame in Spark tasks.

        Args:
            function: The function.
            element_type: Type of the elements of a list; rows of tables have their columns.

        Raises:
            ConfigurationError: It is no `KeyedStateBootstrapFunction`.
        """
        if not isinstance(function, KeyedStateBootstrapFunction):
            raise ConfigurationError(f"Keyed state is written by a KeyedStateBootstrapFunction, not {function!r}.")
        kind = None if element_type is None else to_type(element_type)
        return StateBootstrapTransformation((KeyedTable(self._data, self._key, (), function, kind),))

    def window(
        self, window_assigner: WindowAssigner[Any, Any], element_type: Any = None
    ) -> WindowedStateTransformation:
        """Put the rows into windows, and write the state of the job's window operator; of a DataFrame in Spark tasks.

        Args:
            window_assigner: The job's window assigner. Windows of event time need `assign_timestamps` before `key_by`.
            element_type: Type of the job's elements; default: rows with the columns of the table.

        Raises:
            ConfigurationError: It is no window assigner, or rows have no event time.
        """
        kind = None if element_type is None else to_type(element_type)

        def made(window: WindowBootstrap) -> StateBootstrapTransformation:
            return StateBootstrapTransformation((KeyedTable(self._data, self._key, (), None, kind, window),))

        return WindowedStateTransformation(window_assigner, self._time_of, made)

    def to_state(
        self, descriptor: StateDescriptor[Any], value: str, *, map_key: str | None = None, stamp: str | None = None
    ) -> StateBootstrapTransformation:
        """Write columns as a state, without Python for each row; see `StateBootstrapTransformation.to_state`."""
        return self._empty().to_state(descriptor, value, map_key=map_key, stamp=stamp)

    def to_timers(self, time: str, domain: str = "processing") -> StateBootstrapTransformation:
        """Write a column as times of timers; see `StateBootstrapTransformation.to_timers`."""
        return self._empty().to_timers(time, domain)

    def _empty(self) -> StateBootstrapTransformation:
        if self._key.selector is not None:
            raise ConfigurationError(
                "State of columns is keyed by columns. For a key that a function computes, add it as a column, and "
                "say untyped=True if the job has no key_type."
            )
        return StateBootstrapTransformation((KeyedTable(self._data, self._key),))


def as_table(data: Data) -> pa.Table | None:
    """Return Arrow data as a table; None if it is no Arrow data."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return pa.table(dict(data))
    return None
