"""Streams that are split into windows, keyed and not, waiting for what is to be computed over each window."""

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
    """What windows of keyed streams and of others have in common."""

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
        """The environment that the stream belongs to."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """Type of the elements."""
        return self._stream.get_type()

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Sets when windows are evaluated, instead of the assigner's default.

        Raises:
            ConfigurationError: It is no trigger, or one that does not go with windows that merge.
        """
        if not isinstance(trigger, Trigger):
            raise ConfigurationError(f"trigger() takes an instance of Trigger, not {trigger!r}.")
        if isinstance(self._assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise ConfigurationError(
                f"The windows of {self._assigner!r} merge, and {type(trigger).__name__} does not go with that: its "
                "can_merge() is false. Take another trigger, or write on_merge() and let can_merge() return True."
            )
        self._trigger = trigger
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> Self:
        """Sets what takes elements out of a window before or after it is evaluated; all elements are kept then.

        Raises:
            ConfigurationError: It is no evictor.
        """
        if not isinstance(evictor, Evictor):
            raise ConfigurationError(f"evictor() takes an instance of Evictor, not {evictor!r}.")
        self._evictor = evictor
        return self

    def allowed_lateness(self, time_ms: Any) -> Self:
        """Sets for how long after its end a window of event time still takes elements; 0 unless set.

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
        """Sends elements that come too late to a side output of the stream that is returned next.

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
        return self._combined(descriptor, window_function, "reduce", output_type)

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
        return self._combined(descriptor, window_function, "aggregate", output_type)

    def _combined(
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

    def _all_elements(self, window_function: Any, method: Method, output_type: Any) -> DataStream:
        self._check_window_function(window_function, method, method, plain=True)
        evaluation = WindowEvaluation(window_function, method, with_key=self._KEYED)
        return self._operator(self._list_of_elements(), evaluation, method, output_type)

    def _by_columns(self, aggregates: Mapping[str, Any]) -> DataStream:
        refused = (
            (self._trigger is not None, "the default trigger"),
            (self._evictor is not None, "windows without an evictor"),
            (self._lateness > 0, "windows without allowed lateness, whose late elements each fire again"),
        )
        for is_so, what in refused:
            if is_so:
                raise ConfigurationError(f"aggregate_batches() is for {what}: use aggregate(), which goes by element.")
        for one in aggregates.values():
            _refuse_operator_state(one)
        key = self._key if self._KEYED else None
        operator = create_pane_operator(self._assigner, aggregates, self.get_input_type(), key, self._late_data_tag)
        return self._node_of(OperatorSpec(operator, "panes", True, self.get_input_type(), operator.output_type))

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
        return self._node_of(
            OperatorSpec(operator, "window", True, self.get_input_type(), declared_type(output_type, where))
        )

    def _node_of(self, spec: OperatorSpec) -> DataStream:
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
    """The elements of each key, in windows."""

    _KEYED = True

    def __init__(self, keyed_stream: KeyedStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(keyed_stream, keyed_stream._key, window_assigner)

    def reduce(
        self,
        reduce_function: ReduceLike,
        window_function: WindowFunction[Any, Any, Any, Any] | ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Combines the elements of a window into one as they come, and emits it when the window is evaluated.

        Args:
            reduce_function: A `ReduceFunction`, or a function of two elements.
            window_function: Gets the one element, and emits what it likes instead.
            output_type: Of what the window function emits; without one it is that of the elements.
        """
        return self._reduce(reduce_function, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: WindowFunction[Any, Any, Any, Any] | ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream:
        """Collects the elements of a window in an accumulator as they come, and emits its result.

        Args:
            aggregate_function: The function.
            window_function: Gets the one result, and emits what it likes instead.
            accumulator_type: Of the accumulator; without it accumulators are pickled. A list stands for a row.
            output_type: Of what is emitted; without it results are pickled.
        """
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type)

    def aggregate_batches(self, **aggregates: BatchAggregateFunction) -> DataStream:
        """Aggregates by columns, many times faster than by element, where the aggregate is known.

        Args:
            **aggregates: By the names of their columns, such as ``n=CountAggregate(), most=MaxAggregate("price")``.

        Returns:
            The columns of the key, `window_start` and `window_end` in milliseconds, and the aggregates.

        Raises:
            ConfigurationError: An aggregate does not fit the columns; or the windows are not tumbling or sliding ones
                of time, or sessions of event time with one gap, with the default trigger, without evictor and allowed
                lateness.
        """
        return self._by_columns(aggregates)

    def apply(
        self,
        window_function: WindowFunction[Any, Any, Any, Any] | Callable[[Any, Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Keeps the elements of a window, and gives all of them to a function `(key, window, elements)`."""
        return self._all_elements(window_function, "apply", output_type)

    def process(
        self,
        process_window_function: ProcessWindowFunction[Any, Any, Any, Any] | Callable[[Any, Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Keeps the elements of a window, and gives all of them to a function `(key, context, elements)`."""
        return self._all_elements(process_window_function, "process", output_type)


class AllWindowedStream(_Windowed):
    """All elements of a stream, in windows; one subtask has them all."""

    _KEYED = False

    def __init__(self, data_stream: DataStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(data_stream, KeySpec(selector=_same_key, key_type=Types.BYTE()), window_assigner)

    def reduce(
        self,
        reduce_function: ReduceLike,
        window_function: AllWindowFunction[Any, Any, Any] | ProcessAllWindowFunction[Any, Any, Any] | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Combines the elements of a window into one as they come; see `WindowedStream.reduce`."""
        return self._reduce(reduce_function, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: AllWindowFunction[Any, Any, Any] | ProcessAllWindowFunction[Any, Any, Any] | None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream:
        """Collects the elements of a window in an accumulator as they come; see `WindowedStream.aggregate`."""
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type)

    def aggregate_batches(self, **aggregates: BatchAggregateFunction) -> DataStream:
        """Aggregates by columns, many times faster than by element, where the aggregate is known.

        Args:
            **aggregates: By the names of their columns, such as ``n=CountAggregate(), most=MaxAggregate("price")``.

        Returns:
            `window_start` and `window_end` in milliseconds, and the aggregates.

        Raises:
            ConfigurationError: An aggregate does not fit the columns; or the windows are not tumbling or sliding ones
                of time, or sessions of event time with one gap, with the default trigger, without evictor and allowed
                lateness.
        """
        return self._by_columns(aggregates)

    def apply(
        self, window_function: AllWindowFunction[Any, Any, Any] | Callable[[Any, Any], Any], output_type: Any = None
    ) -> DataStream:
        """Keeps the elements of a window, and gives all of them to a function `(window, elements)`."""
        return self._all_elements(window_function, "apply", output_type)

    def process(
        self,
        process_window_function: ProcessAllWindowFunction[Any, Any, Any] | Callable[[Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Keeps the elements of a window, and gives all of them to a function `(context, elements)`."""
        return self._all_elements(process_window_function, "process", output_type)


def _same_key(element: Any) -> int:
    return 0


def _refuse_operator_state(function: Any) -> None:
    if isinstance(function, CheckpointedFunction | CheckpointListener):
        raise ConfigurationError(
            f"{type(function).__name__} is a function of windows, which has keyed state only: use window_state() and "
            "global_state() of its context, or the state of its runtime context, instead of CheckpointedFunction and "
            "CheckpointListener."
        )
