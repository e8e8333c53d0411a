"""Keyed streams: partitioned by a key, so that the operators on them have state and timers for each key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

from holdfast.datastream.connectors.change_functions import ChangesOfKey
from holdfast.datastream.stream.accumulation import FinalReduce
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.operation import check_function, operator_spec, order_columns
from holdfast.datastream.stream.queryable_state import (
    KeepForQueries,
    NoOutput,
    QueryableStateStream,
    queryable_descriptor,
)
from holdfast.datastream.stream.step.stream_end import DataStreamSink
from holdfast.datastream.stream.vectorised import BatchOperations
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import Sink
from holdfast.runtime.function.user_function import ProcessLike, ReduceLike
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, Node, OperatorSpec, PassNode, Shape
from holdfast.runtime.operator.vectorised.batch_function import has_timers
from holdfast.runtime.window.window_assigner import WindowAssigner
from holdfast.state.declaration.descriptor import StateDescriptor
from holdfast.types.information.type_information import RowTypeInformation

if TYPE_CHECKING:
    from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
    from holdfast.datastream.stream.interval_join import IntervalJoin
    from holdfast.datastream.stream.windowed import WindowedStream


class KeyedStream(DataStream, BatchOperations):
    """A stream partitioned by a key. `map`, `flat_map`, `filter`, `process` and `reduce` on it have keyed state.

    A sink that changes rows by a key gets them by that of the stream. Everything else (`union`, other sinks, `key_by`
    again) treats it as the stream that it was made from.
    """

    def __init__(self, environment: StreamExecutionEnvironment, node: Node, key: KeySpec) -> None:
        super().__init__(environment, node)
        self._key = key

    def order_by(self, *columns: str) -> KeyedStream:
        """Orders the rows of one key within an epoch by these columns, instead of those given to `key_by`.

        Raises:
            ConfigurationError: A column does not exist.
        """
        order = order_columns(columns, self.get_type())
        return KeyedStream(self._environment, self._node, replace(self._key, order_by=order))

    def process(self, func: ProcessLike, output_type: Any = None) -> DataStream:
        """Passes each element to a function with state and timers for its key; `output_type` as in `map`."""
        return self._apply("process", func, output_type)

    def reduce(self, func: ReduceLike) -> DataStream:
        """Combines the elements of each key into one, and emits the combination after each element.

        In batch mode (`set_runtime_mode`) it emits one for each key, at the end of the input.
        """
        return self._apply("reduce", func, None)

    def normalize_changes(self) -> DataStream:
        """Makes a clean stream of changes of one whose rows may come more than once, keyed as its table is.

        It keeps the row of each key, and emits what really changes: `+I`, or `-U` and `+U`, or `-D`, each with the
        whole row, though only the key of a deleted row may have come. What is there already, or gone already, is left
        out; an update that comes again together with the row before it is one of the row that is there.

        Raises:
            ConfigurationError: The elements are no rows.
        """
        function = ChangesOfKey.of("normalize_changes()", self.get_type())
        return self.process(function, function.output_type).name("normalize_changes")

    def last_value(self, by: str) -> DataStream:
        """Emits what changes in the last row of each key, which is the one with the greatest value of a column.

        Rows that are older than what is there are left out, in whatever order and however often they come; of equal
        ones the later counts. Of a deleted key its version is kept, so that nothing older brings it back.

        Args:
            by: A column whose values grow with each change of a key, such as a version or a position in a log. Null is
                an error.

        Raises:
            ConfigurationError: The elements are no rows, or have no such column, or it has no order.
        """
        function = ChangesOfKey.of("last_value()", self.get_type(), by)
        return self.process(function, function.output_type).name("last_value")

    def interval_join(self, other_stream: KeyedStream) -> IntervalJoin:
        """Pairs elements of this and another keyed stream whose event times lie close: `.between(lower, upper)`.

        Raises:
            ConfigurationError: The other stream is not keyed, or by keys of another type.
        """
        if not isinstance(other_stream, KeyedStream):
            raise ConfigurationError(
                f"interval_join() takes a keyed stream, not {other_stream!r}: call key_by() on it."
            )
        return self._environment._other_kinds.interval_join(self, other_stream)

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Splits the elements of each key into windows, such as `TumblingEventTimeWindows.of(Time.minutes(1))`."""
        return self._environment._other_kinds.windowed(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Splits the elements of each key into windows of `size` of them; with a slide one begins every `slide`."""
        return self.window(self._environment._other_kinds.count_windows(size, slide))

    def as_queryable_state(
        self, queryable_state_name: str, state_descriptor: StateDescriptor[Any] | None = None
    ) -> QueryableStateStream:
        """Ends the stream in state that can be queried: the last element of each key.

        Args:
            queryable_state_name: The name under which it is queried.
            state_descriptor: Of value state for the last element, the default, or of reducing state for all of them.
        """
        descriptor = queryable_descriptor(queryable_state_name, state_descriptor, self.get_type())
        kept = self.process(KeepForQueries(descriptor), self.get_type())
        kept.uid(f"queryable-{queryable_state_name}").sink_to(NoOutput()).uid(f"queryable-{queryable_state_name}-end")
        return QueryableStateStream(queryable_state_name, descriptor)

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Ends the stream in a sink, as `DataStream.sink_to` does.

        One that changes rows by a key gets all rows of a key of the stream in one subtask, and there in the order of
        `order_by`, if there is one. Others run where the rows are made.
        """
        if not isinstance(sink, Sink) or not sink.key_columns():
            return super().sink_to(sink)
        node = PassNode(inputs=(self._node,), name="key_by", element_type=self.get_type(), key=self._key)
        return DataStream(self._environment, node).sink_to(sink)

    def name(self, name: str) -> NoReturn:
        """Refused: a partitioning is no step of its own."""
        self._refuse("name()")

    def uid(self, uid: str) -> NoReturn:
        """Refused: a partitioning is no step of its own."""
        self._refuse("uid()")

    def set_parallelism(self, parallelism: int) -> Self:
        """Refused: a partitioning is no step of its own."""
        self._refuse("set_parallelism()")

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Refused: a partitioning is no step of its own."""
        self._refuse("set_max_parallelism()")

    def shuffle(self) -> NoReturn:
        """Refused: the elements of a keyed stream go where their keys belong."""
        self._refuse_partitioning("shuffle()")

    def rebalance(self) -> NoReturn:
        """Refused: the elements of a keyed stream go where their keys belong."""
        self._refuse_partitioning("rebalance()")

    def rescale(self) -> NoReturn:
        """Refused: the elements of a keyed stream go where their keys belong."""
        self._refuse_partitioning("rescale()")

    def forward(self) -> NoReturn:
        """Refused: the elements of a keyed stream go where their keys belong."""
        self._refuse_partitioning("forward()")

    def _refuse_partitioning(self, what: str) -> NoReturn:
        raise ConfigurationError(f"{what} after key_by(): the elements of a keyed stream go where their keys belong.")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"{what} directly after key_by(): call it on the operator that follows, for instance after process()."
        )

    def _key_columns(self) -> RowTypeInformation | None:
        """Names and types of the columns of the key; None if its type is not known."""
        if not self._key.columns:
            return None if self._key.key_type is None else RowTypeInformation(["key"], [self._key.key_type])
        element_type = self.get_type()
        assert isinstance(element_type, RowTypeInformation)
        types = dict(zip(element_type.names, element_type.types, strict=True))
        return RowTypeInformation(list(self._key.columns), [types[name] for name in self._key.columns])

    @property
    def _is_final(self) -> bool:
        return self._environment._emits_final_values(self._node)

    def _apply(self, shape: Shape, function: Any, output_type: Any) -> DataStream:
        if shape == "reduce" and self._is_final:
            check_function(shape, function, keyed=True)
            return self.process(FinalReduce(function, self.get_type()), self.get_type()).name("reduce")
        spec = operator_spec(shape, function, self.get_type(), output_type, keyed=True)
        return self._operator(spec, f"keyed_{shape}" if shape != "reduce" else shape)

    def _operator(self, spec: OperatorSpec, name: str) -> DataStream:
        if spec.shape == "batches":
            spec = replace(spec, key_columns=self._key_columns())
            if spec.key_columns is None and has_timers(spec.function):
                raise ConfigurationError(
                    f"{type(spec.function).__name__}.on_timers() gets keys as columns, and their type is not known: "
                    "key by columns, or give key_type to key_by()."
                )
        node = KeyedNode(
            inputs=(self._node,),
            name=name,
            element_type=spec.output_type,
            operator=spec,
            key=self._key,
        )
        return DataStream(self._environment, node)
