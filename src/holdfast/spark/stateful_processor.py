"""Spark's `StatefulProcessor` on Holdfast's state: runs the processors of `transformWithState` unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import MIN_WATERMARK, TimestampAssigner, WatermarkStrategy
from holdfast.runtime.function.user_function import GroupFunction, KeyedProcessFunction, RuntimeContext
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.spark.frame import element_type_of
from holdfast.spark.processor_state import (
    TIME_MODES,
    PandasFrames,
    RowForm,
    SparkRows,
    StatefulProcessorHandle,
    TimeMode,
    input_converter,
)
from holdfast.state.descriptor import StateDescriptor
from holdfast.state.layout import exact_class
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

NO_TIME = -1
"""What Spark says of a time that a query does not have."""

_NO_TIMES = TimerValues(NO_TIME, NO_TIME)
_OUTPUT_MODES: Final = ("append", "update")
_PLAIN_KEYS: Final = (bool, int, str, bytes)
_DELAY: Final = "spark.watermarkDelayMs"
"""Where Spark keeps the delay of `withWatermark` in the metadata of the column."""


class ProcessorFunction(GroupFunction):
    """Calls a `StatefulProcessor` as Spark does: once a key and epoch with all its rows, then for each expired timer.

    Args:
        processor: The user's.
        time_mode: The time domain of timers.
        form: The form of the processor's input and output: rows, or frames of pandas.
        columns: Columns of its rows.
        key_types: Key types of the columns of the key.
        key_at: Positions of the columns of the key in an element; None if they are there in another form.
        event_time: Returns that of a row, which is dropped if it is late; None where no row is late.
        has_initial_state: Whether elements have a row in their first field, or else a row of initial state in their
            second.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        time_mode: TimeMode,
        form: RowForm,
        columns: tuple[str, ...],
        key_types: tuple[TypeInformation, ...],
        *,
        key_at: tuple[int, ...] | None,
        event_time: Callable[[Any], int | None] | None,
        has_initial_state: bool,
    ) -> None:
        self._processor = processor
        self._time_mode = time_mode
        self._form = form
        self._columns = columns
        self._key_at = key_at
        self._key_forms = tuple(map(input_converter, key_types))
        self._event_time = event_time
        self._has_initial_state = has_initial_state

    def open(self, runtime_context: RuntimeContext) -> None:
        self._handle = StatefulProcessorHandle(runtime_context, self._time_mode)
        self._processor.init(self._handle)
        self._handle.opened()
        self.dropped_states = self._handle.given_up

    def close(self) -> None:
        self._processor.close()

    def process_group(self, values: Sequence[Any], ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Call the processor with the initial state of a key, then with its rows that are not late."""
        self._handle.context = ctx
        first, at = values[0], self._key_at
        key = (
            self._key_of(ctx) if at is None else (first[at[0]],) if len(at) == 1 else tuple([first[one] for one in at])
        )
        times = self._times(ctx)
        rows = values
        if self._has_initial_state:
            for state in self._form.initial([element[1] for element in values if element[1] is not None]):
                self._processor.handleInitialState(key, state, times)
            rows = [element[0] for element in values if element[0] is not None]
        if self._event_time is not None:
            rows = self._in_time(rows, ctx, self._event_time)
        if not rows:
            return ()
        if len(rows[0]) > len(self._columns):
            rows = [row[: len(self._columns)] for row in rows]
        given = self._form.given(rows, self._columns)
        return self._form.emitted(self._processor.handleInputRows(key, given, times))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        self._handle.context = ctx
        expired = ExpiredTimerInfo(timestamp)
        return self._form.emitted(self._processor.handleExpiredTimer(self._key_of(ctx), self._times(ctx), expired))

    def _key_of(self, ctx: KeyedProcessFunction.Context) -> tuple[Any, ...]:
        key, forms = ctx.get_current_key(), self._key_forms
        parts = key if len(forms) > 1 else (key,)
        return tuple([part if form is None else form(part) for form, part in zip(forms, parts, strict=True)])

    def _times(self, ctx: KeyedProcessFunction.Context) -> TimerValues:
        if self._time_mode == "none":
            return _NO_TIMES
        timers = ctx.timer_service()
        watermark = timers.current_watermark() if self._time_mode == "eventtime" else 0
        return TimerValues(timers.current_processing_time(), 0 if watermark == MIN_WATERMARK else watermark)

    def _in_time(
        self, rows: Sequence[Any], ctx: KeyedProcessFunction.Context, of_row: Callable[[Any], int | None]
    ) -> Sequence[Any]:
        watermark = ctx.timer_service().current_watermark()
        timed = ((row, of_row(row)) for row in rows)
        return [row for row, time in timed if time is None or time > watermark]


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ProcessorInput:
    """The columns of the elements that a processor receives.

    Attributes:
        row_type: Type of its rows. Elements are these, with further columns behind, or have one in their first field.
        keys: The columns of the elements that are the key.
        event_time: The column of the rows that has a watermark; None for none.
        delay: Milliseconds by which the watermark is behind.
        state_type: Type of rows of initial state, in the second field of elements; None if there are none.
        is_timed: Whether the elements have timestamps and watermarks already.
    """

    row_type: RowTypeInformation
    keys: tuple[str, ...]
    event_time: str | None = None
    delay: int = 0
    state_type: RowTypeInformation | None = None
    is_timed: bool = False


@dataclass(frozen=True)
class OutputTime(TimestampAssigner):
    """The event time of a processor's output: a column of it, or else the time that it has.

    Attributes:
        column: The column.
        at: Its position.
    """

    column: str
    at: int

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        found = event_time_at(self.at)(value)
        return record_timestamp if found is None else found


@dataclass(frozen=True)
class Processor:
    """A processor and its output; make one with `checked`."""

    processor: StatefulProcessor
    output_type: RowTypeInformation
    time_mode: TimeMode
    output_event_time: str | None
    in_pandas: bool

    @staticmethod
    def checked(
        processor: Any, output: Any, output_mode: str, time_mode: str, output_event_time: str, in_pandas: bool
    ) -> Processor:
        """Check what a program passed.

        Raises:
            ConfigurationError: An argument is none that Spark takes.
        """
        checked_processor(processor)
        if str(output_mode).lower() not in _OUTPUT_MODES:
            raise ConfigurationError(f"outputMode is 'Append' or 'Update', not {output_mode!r}.")
        mode: Any = str(time_mode).lower()
        if mode not in TIME_MODES:
            raise ConfigurationError(f"timeMode is 'None', 'ProcessingTime' or 'EventTime', not {time_mode!r}.")
        output_type = to_type(output)
        if not isinstance(output_type, RowTypeInformation):
            raise ConfigurationError(f"outputStructType is a StructType or 'name type, ...', not {output!r}.")
        if output_event_time and output_event_time not in output_type.names:
            raise ConfigurationError(
                f"eventTimeColumnName {output_event_time!r} is no column of the output: {list(output_type.names)!r}."
            )
        return Processor(processor, output_type, mode, output_event_time or None, in_pandas)

    @property
    def name(self) -> str:
        """Name of the operator."""
        return type(self.processor).__name__


def checked_processor(processor: Any) -> StatefulProcessor:
    """Check that an object is a processor, and return it.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(processor, StatefulProcessor):
        raise ConfigurationError(f"transform_with_state() takes an instance of StatefulProcessor, not {processor!r}.")
    return processor


def operator_of(processor: Processor, given: ProcessorInput, element_type: TypeInformation) -> OperatorSpec:
    """Return the operator that runs a processor.

    Raises:
        ConfigurationError: It needs event time, and its input has none.
    """
    if processor.time_mode == "eventtime" and given.event_time is None:
        raise ConfigurationError(
            "timeMode 'EventTime' needs withWatermark() before groupBy(), as in Spark, or eventTimeColumnName of the "
            "processor before."
        )
    if processor.output_event_time is not None and given.event_time is None:
        raise ConfigurationError("eventTimeColumnName needs withWatermark() before groupBy(), as in Spark.")
    form: RowForm = SparkRows(given.row_type, given.state_type)
    if processor.in_pandas:
        form = PandasFrames(given.row_type, given.state_type, processor.output_type)
    is_late = None
    if given.event_time is not None and processor.time_mode == "eventtime":
        is_late = given.row_type.names.index(given.event_time)
    assert isinstance(element_type, RowTypeInformation)
    key_at = tuple(element_type.names.index(name) for name in given.keys)
    key_types = tuple(element_type.types[at] for at in key_at)
    function = ProcessorFunction(
        processor.processor,
        processor.time_mode,
        form,
        tuple(given.row_type.names),
        key_types,
        key_at=key_at if all(exact_class(one) in _PLAIN_KEYS for one in key_types) else None,
        event_time=None if is_late is None else event_time_at(is_late),
        has_initial_state=given.state_type is not None,
    )
    return OperatorSpec(function, "groups", True, element_type, processor.output_type)


def input_watermarks(processor: Processor, given: ProcessorInput) -> WatermarkStrategy | None:
    """Return the watermark strategy of a processor's input; None if it needs none, or its input has one."""
    is_needed = processor.time_mode == "eventtime" or processor.output_event_time is not None
    if given.event_time is None or given.is_timed or not is_needed:
        return None
    of_row = event_time_at(given.row_type.names.index(given.event_time))

    def of_element(element: Any, timestamp: int) -> int:
        row = element if given.state_type is None else element[0]
        found = None if row is None else of_row(row)
        return timestamp if found is None else found

    # Flink's watermark is a millisecond more than the delay behind. Spark's is the delay behind, and rows at or
    # before it are late.
    return WatermarkStrategy(given.delay - 1).with_timestamp_assigner(of_element)


def output_timestamps(processor: Processor) -> WatermarkStrategy | None:
    """Return the timestamps of a processor's output that names its event time; watermarks are those of its input."""
    column = processor.output_event_time
    if column is None:
        return None
    return WatermarkStrategy.no_watermarks().with_timestamp_assigner(
        OutputTime(column, processor.output_type.names.index(column))
    )


def event_time_at(position: int) -> Callable[[Any], int | None]:
    """Return the function from a row to its event time, in milliseconds rounded down; None for null."""

    def of_row(row: Any) -> int | None:
        instant = row[position]
        if instant is None:
            return None
        return (instant - (_EPOCH if instant.tzinfo is not None else _NAIVE_EPOCH)) // _MILLISECOND  # type: ignore[no-any-return]

    return of_row


class _Declarations:
    """Stands in for a runtime context, and records the descriptors."""

    def __init__(self) -> None:
        self.found: dict[str, StateDescriptor[Any]] = {}

    def get_state(self, descriptor: StateDescriptor[Any]) -> None:
        self.found[descriptor.name] = descriptor

    get_list_state = get_state
    get_map_state = get_state


def declared_states(processor: Any, time_mode: TimeMode) -> dict[str, StateDescriptor[Any]]:
    """Return the descriptors of the states that a copy of a processor requests in `init`, by name, without a job.

    Raises:
        ConfigurationError: It is no processor, or its `init` fails.
    """
    recorder = _Declarations()
    handle = StatefulProcessorHandle(cast("Any", recorder), time_mode)
    try:
        copy.copy(checked_processor(processor)).init(handle)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"init() of {type(processor).__name__} failed: {error!r:.300}") from error
    return recorder.found


@dataclass(frozen=True)
class Grouping:
    """A frame and its grouping.

    Attributes:
        frame: The frame; grouping expressions that are no columns of it come behind its columns.
        input: The columns that a processor receives.
    """

    frame: DataFrame
    input: ProcessorInput


def grouping_of(grouped: Any) -> Grouping:
    """Return the frame and the keys of `df.groupBy(...)`.

    Raises:
        ConfigurationError: It is something else, or groups by nothing.
    """
    if not isinstance(grouped, GroupedData):
        raise ConfigurationError(f"transform_with_state() takes df.groupBy(...), not a {type(grouped).__name__}.")
    frame: DataFrame = grouped._df
    row_type = element_type_of(frame)
    keys = grouped.agg(F.lit(1).alias("_one")).columns[:-1]
    if not keys:
        raise ConfigurationError("transform_with_state() needs groupBy() with at least one column.")
    expressions: Any = grouped._jgd.groupingExprs()
    names = {name.lower(): name for name in row_type.names}
    for at, key in enumerate(keys):
        if not _is_column(expressions.apply(at)):
            # Rows keep what they have under this name, and some names are none of a column.
            keys[at] = f"_key{at}" if key.lower() in names or {".", "`"} & set(key) else key
            frame = _with_key(frame, keys[at], key, expressions.apply(at))
        elif key not in row_type.names:
            keys[at] = names[key.lower()]
    return Grouping(frame, ProcessorInput(row_type, tuple(keys), *_event_time(frame)))


def with_initial_state(rows: Grouping, states: Grouping) -> tuple[Grouping, DataFrame]:
    """Give rows and rows of initial state one form: both, one of them null, and the columns of the key.

    Raises:
        ConfigurationError: They are grouped by another number of columns, or the state is a stream.
    """
    if len(rows.input.keys) != len(states.input.keys):
        raise ConfigurationError(
            f"initialState is grouped by {list(states.input.keys)!r}, the frame by {list(rows.input.keys)!r}."
        )
    if states.frame.isStreaming:
        raise ConfigurationError("initialState is a static frame, not a stream, as in Spark.")
    row, state = (F.struct(*one.input.row_type.names) for one in (rows, states))
    row_type, state_type = (one.frame.select(*one.input.row_type.names).schema for one in (rows, states))
    names = [f"_key{at}" for at in range(len(rows.input.keys))]
    row_keys, state_keys = (
        [F.col(key).alias(name) for key, name in zip(one.input.keys, names, strict=True)] for one in (rows, states)
    )
    pairs = rows.frame.select(row.alias("_row"), F.lit(None).cast(state_type).alias("_state"), *row_keys)
    given = ProcessorInput(
        rows.input.row_type, tuple(names), rows.input.event_time, rows.input.delay, states.input.row_type
    )
    started = states.frame.select(F.lit(None).cast(row_type).alias("_row"), state.alias("_state"), *state_keys)
    return Grouping(pairs, given), started


def _with_key(frame: DataFrame, name: str, shown: str, expression: Any) -> DataFrame:
    try:
        return frame.withColumn(name, F.expr(_unaliased(expression)))
    except AnalysisException as error:  # a function of Python, for instance, is none of SQL
        raise ConfigurationError(
            f"transform_with_state() cannot take {shown!r} from groupBy(): make a column of it with withColumn(), and "
            "group by that."
        ) from error


def _is_column(expression: Any) -> bool:
    kind = str(expression.getClass().getSimpleName())
    return kind == "AttributeReference" or (kind == "UnresolvedAttribute" and int(expression.nameParts().size()) == 1)


def _unaliased(expression: Any) -> str:
    is_alias = expression.getClass().getSimpleName() == "Alias"
    return str((expression.child() if is_alias else expression).sql())


def _event_time(frame: DataFrame) -> tuple[str | None, int]:
    for field in frame.schema:
        if _DELAY in (field.metadata or {}):
            return field.name, int(field.metadata[_DELAY])
    return None, 0
