"""What a user says that is to become state: tables with their columns, and functions."""

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

# What users subclass to make state row by row, where columns are not enough.

__all__ = ["BroadcastStateBootstrapFunction", "KeyedStateBootstrapFunction", "StateBootstrapFunction"]


class KeyedStateBootstrapFunction(KeyedProcessFunction, ABC):
    """Writes keyed state and timers for each row of its key.

    `open` gets the runtime context, from which it takes its states, as a `KeyedProcessFunction` does.
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Write state for one row.

        Args:
            value: The row.
            ctx: Has the current key and a timer service. Timers are written and do not fire here, however old.
        """


class StateBootstrapFunction(ProcessFunction, CheckpointedFunction, ABC):
    """Writes operator state: lists that are dealt out, unions, and broadcast maps.

    `initialize_state` takes states from the operator state store of its context, `snapshot_state` is called once after
    the last row.
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
        """Write state for one row."""


class BroadcastStateBootstrapFunction(StateBootstrapFunction, ABC):
    """Writes broadcast state; `process_element` gets the states from the context that `initialize_state` was given.

    Each subtask of the job will have the whole of it.
    """

    def snapshot_state(self, context: Any) -> None:
        """Nothing is to be done: a broadcast state is written when it is put."""


# Where the sources of a job are to begin, as a savepoint that is made says it.


@dataclass(frozen=True)
class SourcePositions:
    """Positions of sources that somebody else has read, for `SavepointWriter.with_source_positions`.

    `SparkQueryReader.source_positions` makes them.

    Attributes:
        streaming: As a checkpoint has them, but for the files.
        files: What the sources remember beside that, by name.
    """

    streaming: Mapping[str, Any]
    files: Mapping[str, bytes]


# Rows that become the state of windows, by the operator that the job has.

TimeOf = str | Callable[[Any], int]
"""The event time of a row: a column, of milliseconds or timestamps, or a function of the row."""


@dataclass(frozen=True)
class WindowBootstrap:
    """Which windows rows are put into, and how.

    Attributes:
        assigner: Says which windows a row belongs to.
        trigger: Of the job; None for the default of the assigner.
        evictor: Of the job; with one all elements are kept.
        contents: Makes the descriptor of what a window keeps, of the type of the rows.
        time_of: The event time of a row; None for none.
        aggregates: Of `aggregate_batches`, by name; none where windows go by element.
    """

    assigner: WindowAssigner[Any, Any]
    contents: Callable[[TypeInformation], StateDescriptor[Any]]
    trigger: Trigger[Any, Any] | None = None
    evictor: Evictor[Any, Any] | None = None
    time_of: TimeOf | None = None
    aggregates: Mapping[str, BatchAggregateFunction] = field(default_factory=dict)

    def spec(self, element_type: TypeInformation) -> OperatorSpec:
        """The operator of the job, for rows of a type; nothing is computed of its windows.

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
    """Keyed rows in windows: `key_by(...).window(assigner)`. How the job computes them says what windows keep.

    Args:
        window: Which windows.
        made: Makes the transformation of it.
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
        """Set the trigger that the job has instead of the assigner's default.

        Raises:
            ConfigurationError: It is none, or does not go with windows that merge.
        """
        if not isinstance(trigger, Trigger):
            raise ConfigurationError(f"trigger() takes an instance of Trigger, not {trigger!r}.")
        if isinstance(self._window.assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise ConfigurationError(f"The windows merge, and {type(trigger).__name__} does not go with that.")
        self._window = replace(self._window, trigger=trigger)
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> WindowedStateTransformation:
        """Set the evictor that the job has; then windows keep all of their elements, whatever is computed of them.

        Raises:
            ConfigurationError: It is none.
        """
        if not isinstance(evictor, Evictor):
            raise ConfigurationError(f"evictor() takes an instance of Evictor, not {evictor!r}.")
        self._window = replace(self._window, evictor=evictor)
        return self

    def reduce(self, reduce_function: ReduceLike) -> Any:
        """Return state of windows that are reduced; what is made of the result is no matter here."""
        return self._with(lambda element_type: ReducingStateDescriptor(WINDOW_CONTENTS, reduce_function, element_type))

    def aggregate(self, aggregate_function: AggregateFunction, accumulator_type: Any = None) -> Any:
        """Return state of windows that are aggregated, with accumulators of the type that the job declares."""
        kind = Types.ROW(accumulator_type) if isinstance(accumulator_type, list) else accumulator_type
        descriptor: AggregatingStateDescriptor[Any, Any, Any] = AggregatingStateDescriptor(
            WINDOW_CONTENTS, aggregate_function, kind
        )
        return self._with(lambda element_type: descriptor)

    def aggregate_batches(self, **aggregates: BatchAggregateFunction) -> Any:
        """Return state of windows that are aggregated by columns, with the names that the job gives them.

        Raises:
            ConfigurationError: There are none, or the job could not have them with a trigger or an evictor.
        """
        if not aggregates or self._window.trigger is not None or self._window.evictor is not None:
            raise ConfigurationError(
                "aggregate_batches() takes aggregates by the names of their columns, for instance n=CountAggregate(), "
                "and goes with the default trigger and without an evictor."
            )
        return self._made(replace(self._window, aggregates=aggregates))

    def apply(self, window_function: Any = None) -> Any:
        """Return state of windows that keep all elements for a function, which is not called."""
        return self._with(_elements)

    def process(self, process_window_function: Any = None) -> Any:
        """Return state of windows that keep all elements for a function, which is not called."""
        return self._with(_elements)

    def _with(self, contents: Callable[[TypeInformation], StateDescriptor[Any]]) -> Any:
        return self._made(replace(self._window, contents=contents))


def _elements(element_type: TypeInformation) -> StateDescriptor[Any]:
    return ListStateDescriptor(WINDOW_CONTENTS, element_type)


# What becomes the state of an operator: tables whose columns are state, or rows for a function that writes it.

Data = Any
"""An Arrow table or record batch, a Spark DataFrame, or for functions also a list of elements."""


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
    """One state of a table: its descriptor and the columns that hold it; `domain` makes it timers."""

    descriptor: StateDescriptor[Any] | None
    value: str
    map_key: str | None = None
    stamp: str | None = None
    domain: str | None = None

    @property
    def name(self) -> str:
        """The name of the state, or what its timers are."""
        return f"timers of {self.domain} time" if self.descriptor is None else self.descriptor.name


@dataclass(frozen=True)
class KeyedTable:
    """A table that is keyed, with the states in its columns, or what makes state of its rows: a function or windows."""

    data: Data
    key: KeyBy
    states: tuple[TableState, ...] = ()
    function: KeyedStateBootstrapFunction | None = None
    element_type: TypeInformation | None = None
    window: WindowBootstrap | None = None

    @property
    def is_by_row(self) -> bool:
        """Whether each row is looked at."""
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
    """All state of one operator, made of tables. `OperatorTransformation` begins one; each method returns a new one.

    Nothing is read or computed before the savepoint is written.
    """

    def __init__(self, keyed: Sequence[KeyedTable] = (), operator: Sequence[OperatorTable] = ()) -> None:
        self.keyed = tuple(keyed)
        self.operator = tuple(operator)
        self.max_parallelism: int | None = None

    def set_max_parallelism(self, max_parallelism: int) -> StateBootstrapTransformation:
        """Set the number of key groups of this operator, over that of the writer."""
        made = StateBootstrapTransformation(self.keyed, self.operator)
        made.max_parallelism = max_parallelism
        return made

    def to_state(
        self, descriptor: StateDescriptor[Any], value: str, *, map_key: str | None = None, stamp: str | None = None
    ) -> StateBootstrapTransformation:
        """Let columns of the last table be one more state.

        Args:
            descriptor: The state as the job declares it.
            value: Column of values; of a list state lists, or elements, one a row; of a map state the values of its
                entries, or without `map_key` whole maps.
            map_key: Column of the keys of map entries.
            stamp: Column of the times of last use in milliseconds, for state with a time to live.

        Raises:
            ConfigurationError: The last table is for a function, or no keyed one.
        """
        return self._with(TableState(descriptor, value, map_key, stamp))

    def to_timers(self, time: str, domain: str = "processing") -> StateBootstrapTransformation:
        """Let a column of the last table be times of timers of the keys.

        Args:
            time: Column of the times, in milliseconds since 1970 or timestamps.
            domain: "event" or "processing".

        Raises:
            ConfigurationError: The last table is for a function, or no keyed one.
        """
        return self._with(TableState(None, time, domain=domain))

    def and_also(self, other: StateBootstrapTransformation) -> StateBootstrapTransformation:
        """Add the state of another transformation to the same operator; no state may be in both."""
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
        """Make sure that no state is made twice.

        Raises:
            StateError: One is.
        """
        names = [state.name for table in self.keyed for state in table.states]
        names += [table.descriptor.name for table in self.operator if table.descriptor is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StateError(f"Operator {uid!r} would get {twice} twice. Each state is made of one table.")


class OperatorTransformation:
    """Where the state of an operator begins: `OperatorTransformation.bootstrap_with(data)`."""

    @staticmethod
    def bootstrap_with(data: Data) -> OneInputStateTransformation:
        """Take rows for state.

        Args:
            data: An Arrow table or record batch, a Spark DataFrame, or a list of elements for a function. State of
                columns of a DataFrame is written by Spark tasks in parallel.
        """
        return OneInputStateTransformation(data)


class OneInputStateTransformation:
    """Rows that are to become state."""

    def __init__(self, data: Data, time_of: TimeOf | None = None) -> None:
        self._data = data
        self._time_of = time_of

    def assign_timestamps(self, time_of: TimeOf) -> OneInputStateTransformation:
        """Give each row its event time, which windows of event time go by.

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
        """Key the rows, as `DataStream.key_by` of the job does; another type of key is another place.

        Args:
            key_selector: A column, several columns, or a function of a row.
            key_type: Type of the key. Without it, that of the columns; what a function returns is then a key without a
                declared type.
            untyped: Whether a column is to be a key without a declared type, as the job has with a function.

        Raises:
            ConfigurationError: The arguments do not go together.
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
        """Let a function write operator state, row by row, in this process.

        Raises:
            ConfigurationError: It is none.
        """
        if not isinstance(function, StateBootstrapFunction):
            raise ConfigurationError(
                f"State of an operator without keys is written by a StateBootstrapFunction, not {function!r}. Call "
                "key_by() first for keyed state."
            )
        kind = None if element_type is None else to_type(element_type)
        return StateBootstrapTransformation((), (OperatorTable(self._data, function=function, element_type=kind),))

    def to_list_state(self, descriptor: ListStateDescriptor[Any], value: str = "value") -> StateBootstrapTransformation:
        """Let a column be an operator list that is dealt out over the subtasks."""
        return self._operator(descriptor, Mode.SPLIT_DISTRIBUTE, value)

    def to_union_list_state(
        self, descriptor: ListStateDescriptor[Any], value: str = "value"
    ) -> StateBootstrapTransformation:
        """Let a column be an operator list that every subtask gets whole."""
        return self._operator(descriptor, Mode.UNION, value)

    def to_broadcast_state(
        self, descriptor: MapStateDescriptor[Any, Any], key: str = "key", value: str = "value"
    ) -> StateBootstrapTransformation:
        """Let two columns be a broadcast state."""
        return self._operator(descriptor, Mode.BROADCAST, value, key)

    def _operator(self, descriptor: Any, mode: Mode, value: str, key: str = "key") -> StateBootstrapTransformation:
        wanted = MapStateDescriptor if mode is Mode.BROADCAST else ListStateDescriptor
        if not isinstance(descriptor, wanted):
            raise ConfigurationError(f"This state needs a {wanted.__name__}, not {descriptor!r}.")
        return StateBootstrapTransformation((), (OperatorTable(self._data, descriptor, mode, value, key),))


class KeyedStateTransformation:
    """Keyed rows that are to become state."""

    def __init__(self, data: Data, time_of: TimeOf | None, key: KeyBy) -> None:
        self._data = data
        self._time_of = time_of
        self._key = key

    def transform(
        self, function: KeyedStateBootstrapFunction, element_type: Any = None
    ) -> StateBootstrapTransformation:
        """Let a function write keyed state and timers, row by row; of a DataFrame in Spark tasks.

        Args:
            function: The function.
            element_type: Type of the elements of a list, which then are read as a job reads them; the rows of tables
                have their columns.

        Raises:
            ConfigurationError: It is no such function.
        """
        if not isinstance(function, KeyedStateBootstrapFunction):
            raise ConfigurationError(f"Keyed state is written by a KeyedStateBootstrapFunction, not {function!r}.")
        kind = None if element_type is None else to_type(element_type)
        return StateBootstrapTransformation((KeyedTable(self._data, self._key, (), function, kind),))

    def window(
        self, window_assigner: WindowAssigner[Any, Any], element_type: Any = None
    ) -> WindowedStateTransformation:
        """Put the rows into windows, whose state is that of the job's operator of windows; of a DataFrame in tasks.

        Args:
            window_assigner: That of the job. Windows of event time need `assign_timestamps` before `key_by`.
            element_type: Type of the elements that the job has; without it rows have the columns of the table.

        Raises:
            ConfigurationError: It is none, or rows have no event time.
        """
        kind = None if element_type is None else to_type(element_type)

        def made(window: WindowBootstrap) -> StateBootstrapTransformation:
            return StateBootstrapTransformation((KeyedTable(self._data, self._key, (), None, kind, window),))

        return WindowedStateTransformation(window_assigner, self._time_of, made)

    def to_state(
        self, descriptor: StateDescriptor[Any], value: str, *, map_key: str | None = None, stamp: str | None = None
    ) -> StateBootstrapTransformation:
        """Let columns be a state, without Python for each row; see `StateBootstrapTransformation.to_state`."""
        return self._empty().to_state(descriptor, value, map_key=map_key, stamp=stamp)

    def to_timers(self, time: str, domain: str = "processing") -> StateBootstrapTransformation:
        """Let a column be times of timers; see `StateBootstrapTransformation.to_timers`."""
        return self._empty().to_timers(time, domain)

    def _empty(self) -> StateBootstrapTransformation:
        if self._key.selector is not None:
            raise ConfigurationError(
                "State of columns is keyed by columns. For a key that a function computes, add it as a column, and "
                "say untyped=True if the job has no key_type."
            )
        return StateBootstrapTransformation((KeyedTable(self._data, self._key),))


def as_table(data: Data) -> pa.Table | None:
    """Return Arrow data as a table, None if it is something else."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return pa.table(dict(data))
    return None
