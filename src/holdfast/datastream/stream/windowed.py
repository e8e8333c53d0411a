"""Windowed streams: streams split into windows, keyed and not; their methods set what is computed over each window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.operation import check_function, declared_type
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import CheckpointedFunction, CheckpointListener, OutputTag, ReduceLike
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, OperatorSpec
from holdfast.runtime.window.evictor import Evictor
from holdfast.runtime.window.trigger import Trigger
from holdfast.runtime.window.window import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
    milliseconds,
)
from holdfast.runtime.window.window_assigner import MergingWindowAssigner, WindowAssigner
from holdfast.runtime.window_operator.batch_aggregate import BatchAggregateFunction
from holdfast.runtime.window_operator.pane_operator import create_pane_operator
from holdfast.runtime.window_operator.window_operator import (
    WINDOW_CONTENTS,
    WindowCombination,
    WindowEvaluation,
    WindowOperator,
)
from holdfast.state.descriptor import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
)
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

Method = Literal["apply", "process"]


class _Windowed:
    """Windows of keyed and non-keyed streams."""

    _KEYED: bool

    def __init__(self, stream: DataStream, key: KeySpec, window_assigner: WindowAssigner[Any, Any]) -> None:
        if not isinstance(window_assigner, WindowAssigner):
            raise ConfigurationError(
                "windows are made by an instance of WindowAssigner, for instance "
                f"TumblingEventTimeWindows.of(Time.minutes(1)), not by {window_assigner!r}."
            )
        self._stream = stream
        self._key = key
        self._assigner = window_assigner
        self._trigger: Trigger[Any, Any] | None = None
        self._evictor: Evictor[Any, Any] | None = None
        self._lateness = 0
        self._late_data_tag: OutputTag | None = None

    def get_execution_environment(self) -> Any:
        """Return the environment of the stream."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """Return the type of the elements."""
        return self._stream.get_type()

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Set when windows are evaluated, instead of the assigner's default.

            >>> numbers = env.from_collection([1, 2, 3, 4, 5], "bigint")
            >>> windows = numbers.window_all(GlobalWindows.create()).trigger(CountTrigger.of(2))
            >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
            [3, 10]

        Raises:
            ConfigurationError: It is no trigger, or one that cannot merge where windows merge.
        """
        if not isinstance(trigger, Trigger):
            raise ConfigurationError(f"trigger() takes an instance of Trigger, not {trigger!r}.")
        if isinstance(self._assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise ConfigurationError(
                f"The windows of {self._assigner!r} merge, but {type(trigger).__name__} cannot merge windows: its "
                "can_merge() is false. Set another trigger, or write on_merge() and let can_merge() return True."
            )
        self._trigger = trigger
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> Self:
        """Set which elements are dropped before or after a window is evaluated; all elements are kept then.

            >>> windows = env.from_collection([1, 2, 3, 4], "bigint").count_window_all(4).evictor(CountEvictor.of(2))
            >>> list(windows.apply(lambda window, elements: [list(elements)]).execute_and_collect())
            [[3, 4]]

        Raises:
            ConfigurationError: It is no evictor.
        """
        if not isinstance(evictor, Evictor):
            raise ConfigurationError(f"evictor() takes an instance of Evictor, not {evictor!r}.")
        self._evictor = evictor
        return self

    def allowed_lateness(self, time_ms: Any) -> Self:
        """Set for how long after its end an event-time window still takes elements; 0 unless set.

            >>> words = env.from_collection(["a"], "string").key_by(lambda word: word)
            >>> windows = words.window(TumblingEventTimeWindows.of(Time.minutes(1))).allowed_lateness(Time.seconds(10))

        Args:
            time_ms: Milliseconds, or a length of time.

        Raises:
            ConfigurationError: It is negative, or the windows are not of event time.
        """
        lateness = milliseconds(time_ms, "the allowed lateness", least=0)
        if lateness and not self._assigner.is_event_time():
            raise ConfigurationError(
                f"allowed_lateness() is for windows of event time, and those of {self._assigner!r} are not: nothing is "
                "late for them."
            )
        self._lateness = lateness
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Send elements that come too late to a side output of the stream that is returned next.

            >>> late = OutputTag("late", Types.STRING())
            >>> words = env.from_collection(["a"], "string").key_by(lambda word: word)
            >>> windows = words.window(TumblingEventTimeWindows.of(Time.minutes(1))).side_output_late_data(late)
            >>> dropped = windows.reduce(lambda one, other: one + other).get_side_output(late)

        Raises:
            ConfigurationError: It is no `OutputTag`.
        """
        if not isinstance(output_tag, OutputTag):
            raise ConfigurationError(f"side_output_late_data() takes an OutputTag, not {output_tag!r}.")
        self._late_data_tag = output_tag
        return self

    def _reduce(self, function: ReduceLike, window_function: Any, output_type: Any) -> DataStream:
        check_function("reduce", function, keyed=True)
        _refuse_operator_state(function)
        descriptor: ReducingStateDescriptor[Any] = ReducingStateDescriptor(
            WINDOW_CONTENTS, function, self.get_input_type()
        )
        if window_function is None and output_type is None:
            output_type = self.get_input_type()
        return self._add_incremental(descriptor, window_function, "reduce", output_type)

    def _aggregate(
        self, function: AggregateFunction, window_function: Any, accumulator_type: Any, output_type: Any
    ) -> DataStream:
        _refuse_operator_state(function)
        if isinstance(accumulator_type, list):
            accumulator_type = Types.ROW(accumulator_type)
        elif accumulator_type is not None:
            accumulator_type = declared_type(accumulator_type, "aggregate")
        descriptor: AggregatingStateDescriptor[Any, Any, Any] = AggregatingStateDescriptor(
            WINDOW_CONTENTS, function, accumulator_type
        )
        return self._add_incremental(descriptor, window_function, "aggregate", output_type)

    def _add_incremental(
        self,
        descriptor: ReducingStateDescriptor[Any] | AggregatingStateDescriptor[Any, Any, Any],
        window_function: Any,
        where: str,
        output_type: Any,
    ) -> DataStream:
        method: Method = "apply"
        if window_function is not None:
            method = "process" if callable(getattr(window_function, "process", None)) else "apply"
            self._check_window_function(window_function, method, where, plain=False)
        if self._evictor is None:
            evaluation = WindowEvaluation(window_function, method, with_key=self._KEYED)
            return self._operator(descriptor, evaluation, where, output_type)
        combine = WindowCombination(descriptor)
        evaluation = WindowEvaluation(window_function, method, with_key=self._KEYED, combine=combine)
        return self._operator(self._list_of_elements(), evaluation, where, output_type)

    def _add_window_function(self, window_function: Any, method: Method, output_type: Any) -> DataStream:
        self._check_window_function(window_function, method, method, plain=True)
        evaluation = WindowEvaluation(window_function, method, with_key=self._KEYED)
        return self._operator(self._list_of_elements(), evaluation, method, output_type)

    def _add_pane_operator(self, aggregates: Mapping[str, Any]) -> DataStream:
        refused = (
            (self._trigger is not None, "the default trigger"),
            (self._evictor is not None, "windows without an evictor"),
            (self._lateness > 0, "windows without allowed lateness, whose late elements each fire again"),
        )
        for is_so, what in refused:
            if is_so:
                raise ConfigurationError(
                    f"aggregate_batches() is for {what}: use aggregate(), which processes element by element."
                )
        for one in aggregates.values():
            _refuse_operator_state(one)
        key = self._key if self._KEYED else None
        operator = create_pane_operator(self._assigner, aggregates, self.get_input_type(), key, self._late_data_tag)
        return self._create_node(OperatorSpec(operator, "panes", True, self.get_input_type(), operator.output_type))

    def _list_of_elements(self) -> ListStateDescriptor[Any]:
        element_type = self.get_input_type()
        if self._evictor is not None:
            element_type = Types.TUPLE([element_type, Types.LONG()])
        return ListStateDescriptor(WINDOW_CONTENTS, element_type)

    def _check_window_function(self, function: Any, method: Method, where: str, *, plain: bool) -> None:
        takes: dict[tuple[bool, str], type[Any]] = {
            (True, "apply"): WindowFunction,
            (True, "process"): ProcessWindowFunction,
            (False, "apply"): AllWindowFunction,
            (False, "process"): ProcessAllWindowFunction,
        }
        wanted, others = takes[self._KEYED, method], tuple(takes.values())
        is_plain = plain and callable(function) and not isinstance(function, (type, *others))
        if isinstance(function, type) or not (isinstance(function, wanted) or is_plain):
            raise ConfigurationError(
                f"{where}() of windows of a {'keyed stream' if self._KEYED else 'stream without keys'} takes an "
                f"instance of {wanted.__name__}, not {function!r}."
            )
        _refuse_operator_state(function)

    def _operator(self, descriptor: Any, evaluation: WindowEvaluation, where: str, output_type: Any) -> DataStream:
        trigger = self._trigger or self._assigner.get_default_trigger(self.get_execution_environment())
        operator = WindowOperator(
            self._assigner,
            trigger,
            descriptor,
            evaluation,
            allowed_lateness=self._lateness,
            late_data_tag=self._late_data_tag,
            evictor=self._evictor,
        )
        return self._create_node(
            OperatorSpec(operator, "window", True, self.get_input_type(), declared_type(output_type, where))
        )

    def _create_node(self, spec: OperatorSpec) -> DataStream:
        node = KeyedNode(
            inputs=(self._stream._node,),
            name=type(self._assigner).__name__,
            element_type=spec.output_type,
            operator=spec,
            key=self._key,
            parallelism=None if self._KEYED else 1,
            max_parallelism=None if self._KEYED else 1,
        )
        return DataStream(self._stream._environment, node)


class WindowedStream(_Windowed):
    """The elements of each key, in windows; `KeyedStream.window` makes it.

    >>> rows = [("oslo", 3, 1_000), ("oslo", 4, 2_000), ("oslo", 5, 61_000)]
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    >>> stream = env.from_collection(rows, "city string, n bigint, at bigint")
    >>> keyed = stream.assign_timestamps_and_watermarks(clock).key_by("city")
    >>> windowed = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> sums = windowed.process(lambda city, context, rows: [(city, sum(row.n for row in rows))])
    >>> list(sums.execute_and_collect())
    [('oslo', 7), ('oslo', 5)]
    """

    _KEYED = True

    def __init__(self, keyed_stream: KeyedStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(keyed_stream, keyed_stream._key, window_assigner)

    def reduce(
        self,
        reduce_function: ReduceLike,
        window_function: WindowFunction[Any, Any, Any, Any] | ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Combine the elements of a window into one as they arrive, and emit it when the window is evaluated.

            >>> words = env.from_collection(["a", "b", "c", "d"], "string")
            >>> windows = words.key_by(lambda word: 0).count_window(2)
            >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
            ['ab', 'cd']

        Args:
            reduce_function: A `ReduceFunction`, or a function of two elements.
            window_function: Receives the one element, and emits any number of others instead.
            output_type: Type of what the window function emits; without one, that of the elements.

        Raises:
            ConfigurationError: A function does not fit, or has operator state.
        """
        return self._reduce(reduce_function, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: WindowFunction[Any, Any, Any, Any] | ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream:
        """Collect the elements of a window in an accumulator as they arrive, and emit its result.

            >>> class Mean(AggregateFunction):
            ...     def create_accumulator(self):
            ...         return 0, 0
            ...     def add(self, value, accumulator):
            ...         return accumulator[0] + value, accumulator[1] + 1
            ...     def get_result(self, accumulator):
            ...         return accumulator[0] / accumulator[1]
            ...     def merge(self, a, b):
            ...         return a[0] + b[0], a[1] + b[1]
            >>> windows = env.from_collection([1, 2, 5, 7], "bigint").key_by(lambda n: 0).count_window(2)
            >>> list(windows.aggregate(Mean(), output_type="double").execute_and_collect())
            [1.5, 6.0]

        Args:
            aggregate_function: The function.
            window_function: Receives the one result, and emits any number of others instead.
            accumulator_type: Type of the accumulator; without it accumulators are pickled. A list stands for a row.
            output_type: Type of what is emitted; without it results are pickled.

        Raises:
            ConfigurationError: A function does not fit, or has operator state.
        """
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type)

    def aggregate_batches(self, **aggregates: BatchAggregateFunction) -> DataStream:
        """Aggregate by columns, many times faster than by element, where the aggregate is known.

            >>> from holdfast.datastream.window import CountAggregate, MaxAggregate
            >>> rows = [("oslo", 3, 1_000), ("oslo", 4, 2_000), ("oslo", 5, 61_000)]
            >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
            >>> stream = env.from_collection(rows, "city string, n bigint, at bigint")
            >>> timed = stream.assign_timestamps_and_watermarks(clock).key_by("city")
            >>> windows = timed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
            >>> counts = windows.aggregate_batches(rows=CountAggregate(), most=MaxAggregate("n"))
            >>> [(row.window_start, row.rows, row.most) for row in counts.execute_and_collect()]
            [(0, 2, 4), (60000, 1, 5)]

        Args:
            **aggregates: By the names of their columns.

        Returns:
            A stream of rows: the columns of the key, `window_start` and `window_end` in milliseconds, and the
            aggregates.

        Raises:
            ConfigurationError: An aggregate does not fit the columns; or the windows are not tumbling or sliding
                windows of time, or event-time sessions with one gap, with the default trigger, without evictor and
                allowed lateness.
        """
        return self._add_pane_operator(aggregates)

    def apply(
        self,
        window_function: WindowFunction[Any, Any, Any, Any] | Callable[[Any, Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Keep the elements of a window, and pass all of them to a function.

            >>> words = env.from_collection(["a", "b", "c", "d"], "string")
            >>> windows = words.key_by(lambda word: 0).count_window(2)
            >>> list(windows.apply(lambda key, window, words: [(key, list(words))]).execute_and_collect())
            [(0, ['a', 'b']), (0, ['c', 'd'])]

        Args:
            window_function: A `WindowFunction`, or a function `(key, window, elements)`.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: The function is of another kind, or has operator state.
        """
        return self._add_window_function(window_function, "apply", output_type)

    def process(
        self,
        process_window_function: ProcessWindowFunction[Any, Any, Any, Any] | Callable[[Any, Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Keep the elements of a window, and pass all of them to a function.

            >>> words = env.from_collection(["a", "b", "c", "d"], "string")
            >>> windows = words.key_by(lambda word: 0).count_window(2)
            >>> list(windows.process(lambda key, context, words: [(key, list(words))]).execute_and_collect())
            [(0, ['a', 'b']), (0, ['c', 'd'])]

        Args:
            process_window_function: A `ProcessWindowFunction`, or a function `(key, context, elements)`.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: The function is of another kind, or has operator state.
        """
        return self._add_window_function(process_window_function, "process", output_type)


class AllWindowedStream(_Windowed):
    """All elements of a stream, in windows, in one subtask; `DataStream.window_all` makes it and has an example."""

    _KEYED = False

    def __init__(self, data_stream: DataStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(data_stream, KeySpec(selector=_same_key, key_type=Types.BYTE()), window_assigner)

    def reduce(
        self,
        reduce_function: ReduceLike,
        window_function: AllWindowFunction[Any, Any, Any] | ProcessAllWindowFunction[Any, Any, Any] | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Combine the elements of a window into one as they arrive, and emit it when the window is evaluated.

            >>> words = env.from_collection(["a", "b", "c", "d"], "string")
            >>> windows = words.count_window_all(2)
            >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
            ['ab', 'cd']

        Args:
            reduce_function: A `ReduceFunction`, or a function of two elements.
            window_function: Receives the one element, and emits any number of others instead.
            output_type: Type of what the window function emits; without one, that of the elements.

        Raises:
            ConfigurationError: A function does not fit, or has operator state.
        """
        return self._reduce(reduce_function, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: AllWindowFunction[Any, Any, Any] | ProcessAllWindowFunction[Any, Any, Any] | None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream:
        """Collect the elements of a window in an accumulator as they arrive, and emit its result.

            >>> class Mean(AggregateFunction):
            ...     def create_accumulator(self):
            ...         return 0, 0
            ...     def add(self, value, accumulator):
            ...         return accumulator[0] + value, accumulator[1] + 1
            ...     def get_result(self, accumulator):
            ...         return accumulator[0] / accumulator[1]
            ...     def merge(self, a, b):
            ...         return a[0] + b[0], a[1] + b[1]
            >>> windows = env.from_collection([1, 2, 5, 7], "bigint").count_window_all(2)
            >>> list(windows.aggregate(Mean(), output_type="double").execute_and_collect())
            [1.5, 6.0]

        Args:
            aggregate_function: The function.
            window_function: Receives the one result, and emits any number of others instead.
            accumulator_type: Type of the accumulator; without it accumulators are pickled. A list stands for a row.
            output_type: Type of what is emitted; without it results are pickled.

        Raises:
            ConfigurationError: A function does not fit, or has operator state.
        """
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type)

    def aggregate_batches(self, **aggregates: BatchAggregateFunction) -> DataStream:
        """Aggregate by columns, many times faster than by element, where the aggregate is known.

            >>> from holdfast.datastream.window import CountAggregate, MaxAggregate
            >>> rows = [("oslo", 3, 1_000), ("oslo", 4, 2_000), ("oslo", 5, 61_000)]
            >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
            >>> stream = env.from_collection(rows, "city string, n bigint, at bigint")
            >>> timed = stream.assign_timestamps_and_watermarks(clock)
            >>> windows = timed.window_all(TumblingEventTimeWindows.of(Time.minutes(1)))
            >>> counts = windows.aggregate_batches(rows=CountAggregate(), most=MaxAggregate("n"))
            >>> [(row.window_start, row.rows, row.most) for row in counts.execute_and_collect()]
            [(0, 2, 4), (60000, 1, 5)]

        Args:
            **aggregates: By the names of their columns.

        Returns:
            A stream of rows: `window_start` and `window_end` in milliseconds, and the aggregates.

        Raises:
            ConfigurationError: An aggregate does not fit the columns; or the windows are not tumbling or sliding
                windows of time, or event-time sessions with one gap, with the default trigger, without evictor and
                allowed lateness.
        """
        return self._add_pane_operator(aggregates)

    def apply(
        self, window_function: AllWindowFunction[Any, Any, Any] | Callable[[Any, Any], Any], output_type: Any = None
    ) -> DataStream:
        """Keep the elements of a window, and pass all of them to a function.

            >>> words = env.from_collection(["a", "b", "c", "d"], "string")
            >>> windows = words.count_window_all(2)
            >>> list(windows.apply(lambda window, words: [list(words)]).execute_and_collect())
            [['a', 'b'], ['c', 'd']]

        Args:
            window_function: An `AllWindowFunction`, or a function `(window, elements)`.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: The function is of another kind, or has operator state.
        """
        return self._add_window_function(window_function, "apply", output_type)

    def process(
        self,
        process_window_function: ProcessAllWindowFunction[Any, Any, Any] | Callable[[Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Keep the elements of a window, and pass all of them to a function.

            >>> words = env.from_collection(["a", "b", "c", "d"], "string")
            >>> windows = words.count_window_all(2)
            >>> list(windows.process(lambda context, words: [list(words)]).execute_and_collect())
            [['a', 'b'], ['c', 'd']]

        Args:
            process_window_function: A `ProcessAllWindowFunction`, or a function `(context, elements)`.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: The function is of another kind, or has operator state.
        """
        return self._add_window_function(process_window_function, "process", output_type)


def _same_key(element: Any) -> int:
    return 0


def _refuse_operator_state(function: Any) -> None:
    if isinstance(function, CheckpointedFunction | CheckpointListener):
        raise ConfigurationError(
            f"{type(function).__name__} is a function of windows, which has keyed state only: use window_state() and "
            "global_state() of its context, or the state of its runtime context, instead of CheckpointedFunction and "
            "CheckpointListener."
        )
