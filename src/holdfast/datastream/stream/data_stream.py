"""Streams: a program chains operations on them, and nothing runs before `execute`.

In the examples `env` is a `StreamExecutionEnvironment`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, overload

from holdfast.datastream.no_effect import accept_without_effect
from holdfast.datastream.sinks.driver_sinks import ForEachEpochSink, PrintSink
from holdfast.datastream.sinks.for_each_sink import ForEachSink
from holdfast.datastream.stream.operation import check_timestamp_column, key_spec, operator_spec
from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import MAX_PARALLELISM
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function.sink import Sink, dead_letter_type, is_pickled
from holdfast.runtime.function.user_function import (
    CoGroupFunction,
    FilterLike,
    FlatMapLike,
    JoinFunction,
    KeySelectorLike,
    MapLike,
    OutputTag,
    Partitioner,
    ProcessLike,
)
from holdfast.runtime.graph.stream_graph import (
    ForwardNode,
    FrameTransformNode,
    KeyedNode,
    Node,
    NonKeyedNode,
    Shape,
    SideOutputNode,
    SinkNode,
    TimestampNode,
    UnionNode,
)
from holdfast.runtime.window.window_assigner import WindowAssigner
from holdfast.state.descriptor import MapStateDescriptor
from holdfast.types.arrow import element_ddl
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.composite import RowTypeInformation, StructTypeInformation, TupleTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

if TYPE_CHECKING:
    from holdfast.datastream.environment.execution_config import ExecutionConfig
    from holdfast.datastream.environment.stream_execution_environment import (
        CollectedElements,
        StreamExecutionEnvironment,
    )
    from holdfast.datastream.stream.connected import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
        WindowJoin,
    )
    from holdfast.datastream.stream.keyed_stream import KeyedStream
    from holdfast.datastream.stream.windowed import AllWindowedStream


logger = get_logger(__name__)


class StreamStep:
    """One step of a program: its name, and its uid in checkpoints."""

    _node: Node

    if TYPE_CHECKING:  # made by `accept_without_effect`
        disable_chaining: Callable[[], Self]
        start_new_chain: Callable[[], Self]
        slot_sharing_group: Callable[[Any], Self]
        set_buffer_timeout: Callable[[int], Self]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._node.name!r}: {self._node.element_type.ddl}>"

    def name(self, name: str) -> Self:
        """Set the name of the step in logs and metrics."""
        self._node.name = name
        return self

    def set_description(self, description: str) -> Self:
        """Set the name of the step, as `name` does."""
        return self.name(description)

    def get_name(self) -> str:
        """Return the name of the step."""
        return self._node.name

    def uid(self, uid: str) -> Self:
        """Set the uid, by which a restart finds the state of the step, wherever the step then stands in the program.

            >>> rows = env.from_collection([("oslo", 3)], "city string, n bigint")
            >>> sums = rows.key_by("city").sum("n").name("sums by city").uid("sums")
            >>> sums.get_name()
            'sums by city'

        Raises:
            ConfigurationError: The uid is empty.
        """
        if not uid:
            raise ConfigurationError("A uid must not be empty: it names the operator in checkpoints.")
        self._node.uid = uid
        return self

    def set_uid_hash(self, uid_hash: str) -> NoReturn:
        """Raise an error: state is found by uid, not by a hash.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"set_uid_hash({uid_hash!r}): a checkpoint of Flink cannot be restored here, and in Holdfast's own a step "
            "is known by its uid: call uid()."
        )


@accept_without_effect
class DataStream(StreamStep):
    """A stream of elements of one type.

    A stream whose type is a row has named columns and elements of type `Row`. Elements without a declared type are
    pickled wherever they cross from one task to another, which costs several microseconds an element.

        >>> rows = env.from_collection([("oslo", 3), ("rome", 5)], "city string, n bigint")
        >>> list(rows.map(lambda row: row.n * 2, "bigint").execute_and_collect())
        [6, 10]
    """

    if TYPE_CHECKING:  # made by `accept_without_effect`
        shuffle: Callable[[], Self]
        rebalance: Callable[[], Self]
        rescale: Callable[[], Self]
        forward: Callable[[], Self]
        cache: Callable[[], Self]

    def __init__(self, environment: StreamExecutionEnvironment, node: Node) -> None:
        self._environment = environment
        self._node = node

    def get_type(self) -> TypeInformation:
        """Return the type of the elements."""
        return self._node.element_type

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """Return the environment of the stream."""
        return self._environment

    def get_execution_config(self) -> ExecutionConfig:
        """Return the settings of the environment."""
        return self._environment.get_config()

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of an operator with state.

        It is at most the max parallelism, and may be another one at each start. Other steps run in the tasks of their
        input: there it has no effect, and a warning says so.

        Raises:
            ConfigurationError: The number is not a whole number in the range of parallelisms.
        """
        self._node.parallelism = checked_parallelism(parallelism, "parallelism")
        self._warn_if_chained("parallelism")
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups of a keyed operator, which is fixed for the life of its state.

        Raises:
            ConfigurationError: The number is not a whole number in the range of parallelisms.
        """
        self._node.max_parallelism = checked_parallelism(max_parallelism, "max parallelism")
        self._warn_if_chained("max parallelism")
        return self

    def force_non_parallel(self) -> Self:
        """Run an operator with state in one subtask."""
        return self.set_parallelism(1)

    def map(self, func: MapLike, output_type: Any = None) -> DataStream:
        """Replace each element by one other.

            >>> list(env.from_collection([1, 2, 3], "bigint").map(lambda n: n * n, "bigint").execute_and_collect())
            [1, 4, 9]

        Args:
            func: A `MapFunction`, or a function of one argument.
            output_type: Type of the results: type information, DDL such as `'key string, n bigint'`, an Arrow or Spark
                type. Without it they are pickled.

        Raises:
            ConfigurationError: The function does not fit, or the type is unknown.
        """
        return self._apply("map", func, output_type)

    def flat_map(self, func: FlatMapLike, output_type: Any = None) -> DataStream:
        """Replace each element by any number of others.

            >>> lines = env.from_collection(["to be", "or not"], "string")
            >>> list(lines.flat_map(str.split, "string").execute_and_collect())
            ['to', 'be', 'or', 'not']

        Args:
            func: A `FlatMapFunction`, or a function of one argument that returns an iterable.
            output_type: Type of the results, as in `map`.

        Raises:
            ConfigurationError: The function does not fit, or the type is unknown.
        """
        return self._apply("flat_map", func, output_type)

    def filter(self, func: FilterLike) -> DataStream:
        """Keep the elements for which a function returns true.

            >>> list(env.from_collection([1, 2, 3], "bigint").filter(lambda n: n != 2).execute_and_collect())
            [1, 3]

        Args:
            func: A `FilterFunction`, or a function of one argument.

        Raises:
            ConfigurationError: The function does not fit.
        """
        return self._apply("filter", func, None)

    def process(self, func: ProcessLike, output_type: Any = None) -> DataStream:
        """Pass each element with its context to a function that emits any number of others, also to side outputs.

            >>> late = OutputTag("late", Types.STRING())
            >>> def route(value, ctx):
            ...     if value.startswith("late"):
            ...         ctx.output(late, value)
            ...     else:
            ...         yield value
            >>> routed = env.from_collection(["a", "late b"], "string").process(route, "string")
            >>> list(routed.get_side_output(late).execute_and_collect())
            ['late b']

        Args:
            func: A `ProcessFunction`, or a generator function `(value, ctx)`.
            output_type: Type of the results, as in `map`.

        Raises:
            ConfigurationError: The function does not fit, or the type is unknown.
        """
        return self._apply("process", func, output_type)

    def project(self, *field_indexes: int) -> DataStream:
        """Keep some fields of tuples, or columns of rows, in the given order.

            >>> rows = env.from_collection([("oslo", 3, True)], "city string, n bigint, ok boolean")
            >>> list(rows.project(2, 0).execute_and_collect())
            [Row(ok=True, city='oslo')]

        Args:
            *field_indexes: Positions, from 0.

        Raises:
            ConfigurationError: The elements have no declared fields, or not these; or they are changes, whose kinds
                would be lost.
        """
        element_type = self.get_type()
        if not isinstance(element_type, TupleTypeInformation | RowTypeInformation):
            raise ConfigurationError(
                f"project() keeps parts of tuples or rows, and the elements of this stream are {element_type.ddl!r}: "
                "declare output_type at the operator before it."
            )
        if isinstance(element_type, ChangelogTypeInformation):
            raise ConfigurationError(
                f"project() would lose the kinds of {element_type.ddl!r}: use map(), and return rows of the same kind."
            )
        places = range(len(element_type.types))
        if not field_indexes or any(type(index) is not int or index not in places for index in field_indexes):
            raise ConfigurationError(
                f"project() takes positions from 0 to {len(places) - 1}, not {list(field_indexes)!r}."
            )
        kept: StructTypeInformation
        if isinstance(element_type, RowTypeInformation):
            names = [element_type.names[index] for index in field_indexes]
            if len(set(names)) < len(names):
                raise ConfigurationError(f"project() names a column twice: {names!r}.")
            kept = RowTypeInformation(names, [element_type.types[index] for index in field_indexes])
        else:
            kept = TupleTypeInformation([element_type.types[index] for index in field_indexes])
        return self.map(_SelectFields(field_indexes), kept)

    def join(self, other_stream: DataStream) -> WindowJoin:
        """Pair the elements of two streams that have one key and are in one window.

            >>> class Describe(JoinFunction):
            ...     def join(self, left, right):
            ...         return f"{left.city}: {left.n} and {right.n}"
            >>> def timed(rows):
            ...     clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
            ...     stream = env.from_collection(rows, "city string, n bigint, at bigint")
            ...     return stream.assign_timestamps_and_watermarks(clock)
            >>> joined = timed([("oslo", 3, 1_000)]).join(timed([("oslo", 4, 2_000), ("oslo", 5, 60_000)]))
            >>> keyed = joined.where("city").equal_to("city")
            >>> windowed = keyed.window(TumblingEventTimeWindows.of(Time.seconds(10)))
            >>> list(windowed.apply(Describe(), "string").execute_and_collect())
            ['oslo: 3 and 4']

        Args:
            other_stream: A stream of the same environment.

        Returns:
            A `WindowJoin`; its `apply` takes a `JoinFunction`.

        Raises:
            ConfigurationError: The other is no stream, or comes from another environment.
        """
        return self._environment._stream_factory.window_join(self, other_stream, JoinFunction)

    def co_group(self, other_stream: DataStream) -> WindowJoin:
        """Group the elements of two streams that have one key and are in one window.

            >>> class Describe(CoGroupFunction):
            ...     def co_group(self, left, right):
            ...         yield [row.n for row in left], [row.n for row in right]
            >>> def timed(rows):
            ...     clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
            ...     stream = env.from_collection(rows, "city string, n bigint, at bigint")
            ...     return stream.assign_timestamps_and_watermarks(clock)
            >>> grouped = timed([("oslo", 3, 1_000)]).co_group(timed([("oslo", 4, 2_000), ("oslo", 5, 60_000)]))
            >>> keyed = grouped.where("city").equal_to("city")
            >>> windowed = keyed.window(TumblingEventTimeWindows.of(Time.seconds(10)))
            >>> list(windowed.apply(Describe()).execute_and_collect())
            [([3], [4]), ([], [5])]

        Args:
            other_stream: A stream of the same environment.

        Returns:
            A `WindowJoin`; its `apply` takes a `CoGroupFunction`, which gets all elements of a key and a window at
            once, also where one side has none.

        Raises:
            ConfigurationError: The other is no stream, or comes from another environment.
        """
        return self._environment._stream_factory.window_join(self, other_stream, CoGroupFunction)

    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams: ...

    def connect(self, ds: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Connect this stream with another one, for a function of both.

            >>> class Both(CoMapFunction):
            ...     def map1(self, value):
            ...         return f"number {value}"
            ...     def map2(self, value):
            ...         return f"word {value}"
            >>> numbers, words = env.from_collection([1], "bigint"), env.from_collection(["a"], "string")
            >>> sorted(numbers.connect(words).map(Both(), "string").execute_and_collect())
            ['number 1', 'word a']

        Args:
            ds: A stream, keyed if this one is; or what `broadcast(descriptor)` returns.

        Raises:
            ConfigurationError: The other is no stream, comes from another environment, or has keys of another type.
        """
        return self._environment._stream_factory.connected(self, ds)

    def transform(self, function: Callable[[Any], Any]) -> DataStream:
        """Apply a function `DataFrame -> DataFrame` in Spark, without Python in the tasks.

            >>> rows = env.from_collection([("oslo", 3), ("rome", 5)], "city string, n bigint")
            >>> large = rows.transform(lambda df: df.where("n > 4"))  # doctest: +SKIP
            >>> list(large.execute_and_collect())  # doctest: +SKIP
            [Row(city='rome', n=5)]

        The function is called now, for the columns, and again when the job is planned. Directly after an input it is
        part of the input's query, and must not keep state in Spark (no aggregation, no `dropDuplicates`). After a
        Python operator or a union it is called in each epoch with a static frame of the rows of that epoch, and may do
        with them what Spark can; the elements before it need a declared type.

        Args:
            function: The function.

        Raises:
            ConfigurationError: The function does not return a frame, or the elements are pickled.
        """
        if is_pickled(self.get_type()):
            raise ConfigurationError(
                f"transform() follows {self._node.name!r}, whose elements are pickled because their type was not "
                "declared: pass output_type to it, for instance output_type='key string, n bigint'."
            )
        element_type = self._environment._transformed_type(self._node, function)
        node = FrameTransformNode(inputs=(self._node,), name="transform", element_type=element_type, function=function)
        return DataStream(self._environment, node)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Give each element its event time, by which the timers and windows after it fire.

            >>> rows = env.from_collection([("a", 1_000), ("b", 61_000)], "name string, at bigint")
            >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
            >>> timed = rows.assign_timestamps_and_watermarks(clock)
            >>> windows = timed.window_all(TumblingEventTimeWindows.of(Time.minutes(1)))
            >>> list(windows.apply(lambda window, rows: [[row.name for row in rows]]).execute_and_collect())
            [['a'], ['b']]

        The watermark follows from the greatest timestamp of all subtasks, and advances at the end of each epoch.

        Args:
            watermark_strategy: How elements get timestamps (in milliseconds), and how far the watermark is behind them.

        Raises:
            ConfigurationError: It is no strategy, or one with alignment, which is for `from_source`.
        """
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise ConfigurationError(
                "assign_timestamps_and_watermarks() takes a WatermarkStrategy, for instance "
                "WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)), not "
                f"{watermark_strategy!r}."
            )
        if watermark_strategy.alignment is not None:
            raise ConfigurationError(
                "with_watermark_alignment() pauses a source while it is read: pass the strategy to "
                f"from_source(), not to assign_timestamps_and_watermarks() of {self.get_name()!r}. An input of "
                "from_dataframe() cannot wait, because Spark decides what an epoch reads of it."
            )
        needs_times = watermark_strategy.out_of_orderness is not None and watermark_strategy.supplier is None
        if needs_times and watermark_strategy.assigner is None and not _has_timestamps(self._node):
            logger.warning(
                "the elements of %r have no timestamps, and the watermark strategy has no assigner: event time stands "
                "still until the stream ends; call with_timestamp_assigner() on the strategy",
                self.get_name(),
            )
        check_timestamp_column(watermark_strategy, self.get_type())
        node = TimestampNode(
            inputs=(self._node,), name="timestamps", element_type=self.get_type(), strategy=watermark_strategy
        )
        return DataStream(self._environment, node)

    def union(self, *streams: DataStream) -> DataStream:
        """Merge this and other streams of the same type, in no particular order.

            >>> first, second = env.from_collection([1], "bigint"), env.from_collection([2], "bigint")
            >>> sorted(first.union(second).execute_and_collect())
            [1, 2]

        Args:
            *streams: Streams of the same environment. One that is united with itself comes twice.

        Raises:
            ConfigurationError: A stream has another type, or comes from another environment.
        """
        nodes = [self._node]
        for stream in streams:
            if stream._environment is not self._environment:
                raise ConfigurationError("union() takes streams of one environment.")
            if stream.get_type() != self.get_type():
                raise ConfigurationError(
                    f"union() takes streams of one type: {self.get_name()!r} has {self.get_type().ddl!r}, "
                    f"{stream.get_name()!r} has {stream.get_type().ddl!r}."
                )
            nodes.append(stream._node)
        if not streams:
            return self
        node = UnionNode(inputs=tuple(nodes), name="union", element_type=self.get_type())
        return DataStream(self._environment, node)

    def key_by(
        self,
        key_selector: str | Iterable[str] | KeySelectorLike,
        key_type: Any = None,
        *,
        order_by: str | Iterable[str] = (),
    ) -> KeyedStream:
        """Partition the stream by a key, so that the operators after it have state for each key.

            >>> rows = env.from_collection([("oslo", 3), ("rome", 5), ("oslo", 4)], "city string, n bigint")
            >>> sorted(rows.key_by("city").sum("n").execute_and_collect())
            [Row(city='oslo', n=3), Row(city='oslo', n=7), Row(city='rome', n=5)]

        Args:
            key_selector: A column, a list of columns, or a function (a `KeySelector`) that computes the key in Python.
            key_type: Type of what the function returns. Without it keys are plain Python values: bool, int, float, str,
                bytes, dates and times, Decimal, UUID, and tuples, lists, sets and dicts of these and of None.
            order_by: Columns by which Spark orders the rows of one key within an epoch. Without it they come in order
                of arrival.

        Raises:
            ConfigurationError: A column does not exist.
        """
        key = key_spec(key_selector, key_type, order_by, self.get_type())
        return self._environment._stream_factory.keyed(self, key)

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeySelectorLike
    ) -> DataStream:
        """Send each element to the subtask that a partitioner chooses for its key.

        The steps after it, up to the next `key_by`, run there. `set_parallelism` of the returned stream sets the number
        of subtasks.

            >>> numbers = env.from_collection([1, 2, 3], "bigint")
            >>> placed = numbers.partition_custom(lambda key, subtasks: key % subtasks, lambda value: value)
            >>> sorted(placed.set_parallelism(2).map(lambda n: -n, "bigint").execute_and_collect())
            [-3, -2, -1]

        Args:
            partitioner: A `Partitioner`, or a function `(key, number of subtasks)` that returns a subtask.
            key_selector: A `KeySelector`, or a function of an element.

        Raises:
            ConfigurationError: The stream is keyed, or one of the two functions does not fit.
        """
        return self._environment._stream_factory.partitioned(self, partitioner, key_selector)

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor[Any, Any],
        *other_broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> BroadcastStream: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor[Any, Any] | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> DataStream | BroadcastStream:
        """Send every element to every subtask: of the operator that it is connected with, or of the steps after it.

            >>> thresholds = MapStateDescriptor("thresholds", Types.STRING(), Types.LONG())
            >>> class Above(BroadcastProcessFunction):
            ...     def process_element(self, value, ctx):
            ...         if value > ctx.get_broadcast_state(thresholds).get("least"):
            ...             yield value
            ...     def process_broadcast_element(self, value, ctx):
            ...         ctx.get_broadcast_state(thresholds).put("least", value)
            >>> rules = env.from_collection([4], "bigint").broadcast(thresholds)
            >>> numbers = env.from_collection([3, 5], "bigint")
            >>> list(numbers.connect(rules).process(Above(), "bigint").execute_and_collect())
            [5]

        Args:
            broadcast_state_descriptor: Map state in which the connected operator keeps these elements. Without it the
                stream goes on, with as many copies of each element as its `set_parallelism` says.
            *other_broadcast_state_descriptors: Further map states.

        Raises:
            ConfigurationError: One is no `MapStateDescriptor`, a name comes twice, or the stream is keyed.
        """
        kinds = self._environment._stream_factory
        if broadcast_state_descriptor is None and not other_broadcast_state_descriptors:
            return kinds.to_all(self)
        given = (broadcast_state_descriptor, *other_broadcast_state_descriptors)
        return kinds.broadcast(self, given)  # type: ignore[arg-type]  # which are looked at there

    def add_sink(self, sink_func: Any) -> NoReturn:
        """Raise an error: a `SinkFunction` is a class of Java.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"add_sink({sink_func!r:.80}) takes a SinkFunction, a class of Java: sink_to() takes a Sink "
            "(ParquetFileSink, FileSink, KafkaSink, DeltaSink, IcebergSink, DatabaseSink, or one of your own)."
        )

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        """Split the stream, all keys together, into windows, which one subtask evaluates.

            >>> windows = env.from_collection([1, 2, 3, 4], "bigint").window_all(CountTumblingWindowAssigner.of(2))
            >>> list(windows.reduce(lambda a, b: a + b).execute_and_collect())
            [3, 7]

        Args:
            window_assigner: Which windows an element belongs to.

        Raises:
            ConfigurationError: It is no window assigner.
        """
        return self._environment._stream_factory.all_windowed(self, window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream:
        """Split the stream into windows of `size` elements; with `slide`, a window begins every `slide` elements.

        >>> windows = env.from_collection([1, 2, 3, 4], "bigint").count_window_all(2)
        >>> list(windows.apply(lambda window, elements: [list(elements)]).execute_and_collect())
        [[1, 2], [3, 4]]
        """
        return self.window_all(self._environment._stream_factory.count_windows(size, slide))

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """Return the stream of the elements that the operator of this stream emits to a side output; see `process`.

        Raises:
            ConfigurationError: The stream does not come from `process`, from windows, or from a source with this
                output.
        """
        node = self._node
        shapes = ("process", "window", "panes", "splits")
        if not isinstance(node, KeyedNode | NonKeyedNode) or node.operator.shape not in shapes:
            raise ConfigurationError(
                f"get_side_output() of {self._node.name!r}: only the streams that process() and windows return have "
                "side outputs; call it on such a one."
            )
        if node.operator.shape == "splits" and node.operator.function.dead_letters() != output_tag.tag_id:
            raise ConfigurationError(
                f"The source of {self._node.name!r} has no side output {output_tag.tag_id!r}: call "
                "set_dead_letter_output() of its builder with this tag."
            )
        node.operator = replace(node.operator, side_outputs=True)
        side = SideOutputNode(
            inputs=(self._node,),
            name=f"{self._node.name}: {output_tag.tag_id}",
            element_type=output_tag.type_info,
            tag=output_tag.tag_id,
        )
        return DataStream(self._environment, side)

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """End the stream in a sink; a stream may have several.

            >>> rows = env.from_collection([("oslo", 3)], "city string, n bigint")
            >>> _ = rows.sink_to(ParquetFileSink("/data/cities")).uid("cities")
            >>> env.execute("cities")  # doctest: +SKIP

        A row that the sink cannot write fails the job, unless `set_dead_letter_output` of the returned object sends it
        to a side output.

        Args:
            sink: The sink.

        Raises:
            ConfigurationError: It is no sink, or cannot write elements of this type.
        """
        if isinstance(sink, type) or not isinstance(sink, Sink):
            raise ConfigurationError(f"sink_to() takes an instance of holdfast.datastream.Sink, not {sink!r}.")
        sink.check_input(self.get_type())
        node = SinkNode(inputs=(self._node,), name=type(sink).__name__, element_type=self.get_type(), sink=sink)
        self._environment._add_sink(node)
        return DataStreamSink(node, partial(DataStream, self._environment))

    def for_each_epoch(
        self, write: Callable[..., Any], last_epoch: Callable[[str], int | None] | None = None
    ) -> DataStreamSink:
        """Call a function in the driver with the rows of each completed epoch, until it returns.

            >>> rows = env.from_collection([("oslo", 3)], "city string, n bigint")
            >>> _ = rows.for_each_epoch(lambda df, epoch, incarnation: df.show()).uid("show")
            >>> env.execute("show")  # doctest: +SKIP

        It runs in a thread of the sink, beside the next epoch; the epoch after that waits for it
        (`sink.committer.max-pending-checkpoints`). Epochs without rows are left out.

        The function gets exactly the rows that the checkpoint names, the same under the same epoch and incarnation
        every time. Let it do nothing if the epoch is at most the last one that it wrote of this incarnation, and its
        effect is exactly once.

        Args:
            write: `write(df, epoch, incarnation)`; one of two parameters is called without the incarnation. `df` is a
                static DataFrame of Spark, in `EpochProgram` a table of pyarrow.
            last_epoch: `last_epoch(incarnation)` returns the last epoch that the target has, or None. With it, a job
                directory that was restored from an older copy is refused; without it, `write` skips such epochs.

        Returns:
            The end of the stream, for its uid.
        """
        return self.sink_to(ForEachEpochSink(write, last_epoch)).name("for_each_epoch")

    def for_each(self, write: Any) -> DataStreamSink:
        """Call a function for each element in the task that has it, at least once.

            >>> rows = env.from_collection([("oslo", 3)], "city string, n bigint")
            >>> _ = rows.for_each(lambda row: send(row.city, row.n)).uid("send")  # doctest: +SKIP

        In a real-time job it is called as the element arrives. In a job by epochs it is called in each attempt at the
        epoch. After a failure, elements since the last checkpoint come again.

        Args:
            write: A function, or an object with `process(element)` and, if it needs them, `open(partition_id,
                epoch_id)`, `flush()` and `close(error)`; see `ForEachSink`.

        Returns:
            The end of the stream, for its uid.
        """
        return self.sink_to(ForEachSink(write)).name("for_each")

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print the elements of each completed epoch on the driver's standard output.

            >>> _ = env.from_collection(["a", "b"], "string").print()
            >>> result = env.execute("printed")
            a
            b

        Args:
            sink_identifier: A prefix of each line.
        """
        return self.sink_to(PrintSink(self.get_type(), sink_identifier)).name("print")

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CollectedElements | list[Any]:
        """Run the job, and return the elements of this stream as its epochs complete.

            >>> with env.from_collection([1, 2, 3], "bigint").execute_and_collect() as numbers:
            ...     print(sum(numbers))
            6

        Args:
            job_execution_name: Name of the job. Without one it is a new job, which resumes nothing.
            limit: The most elements to return, as a list; then the job is cancelled.

        Returns:
            An iterator, to be closed, which cancels the job if it still runs; with a limit, a list. Both block for the
            next element.

        Raises:
            ConfigurationError: The program cannot run, or the limit is no number of at least 0.
            JobExecutionError: The job failed.
        """
        return self._environment._execute_and_collect(self, job_execution_name, limit)

    def _apply(self, shape: Shape, function: Any, output_type: Any) -> DataStream:
        spec = operator_spec(shape, function, self.get_type(), output_type, keyed=False)
        node = NonKeyedNode(inputs=(self._node,), name=shape, element_type=spec.output_type, operator=spec)
        return DataStream(self._environment, node)

    def _warn_if_chained(self, what: str) -> None:
        node = self._node
        if not isinstance(node, KeyedNode | ForwardNode) and not (
            isinstance(node, NonKeyedNode) and node.operator.has_operator_state
        ):
            logger.warning(
                "%s of %r has no effect: it runs inside the tasks of its input; set it on an operator with state",
                what,
                self._node.name,
            )


@accept_without_effect
class DataStreamSink(StreamStep):
    """The end of a stream in a sink.

    Args:
        node: The step.
        make: Makes a stream of a step that reads this one.
    """

    _node: SinkNode

    def __init__(self, node: SinkNode, make: Callable[[Node], DataStream]) -> None:
        self._node = node
        self._make = make

    def set_parallelism(self, parallelism: int) -> Self:
        """Accepted without effect: a sink runs in the tasks of its input, whose number is the number of writers.

        Raises:
            ConfigurationError: The number is not a whole number in the range of parallelisms.
        """
        self._node.parallelism = checked_parallelism(parallelism, "parallelism")
        return self

    def set_dead_letter_output(self, tag: OutputTag) -> Self:
        """Send elements that the sink cannot write to a side output, instead of failing the job.

        These are the elements that a task can reject before it stages them: a serializer that raises, a null or a value
        that the table does not take. What a target rejects at the commit still stops the job.

            >>> rows = env.from_collection([("oslo", 3)], "city string, n bigint")
            >>> tag = OutputTag("refused")
            >>> sink = rows.sink_to(ParquetFileSink("/data/cities")).set_dead_letter_output(tag)
            >>> refused = sink.get_side_output(tag)
            >>> refused.get_type().get_field_names()
            ['row', 'sink', 'epoch', 'reason']

        Args:
            tag: `OutputTag("refused")`. `get_side_output(tag)` of this sink has rows of `row, sink, epoch, reason`: the
                element, the uid of the sink, and why. Without that call they are dropped.

        Raises:
            ConfigurationError: It is no tag, or one of another type.
        """
        letter = dead_letter_type(self._node.element_type)
        if not isinstance(tag, OutputTag) or tag.type_info not in (letter, Types.PICKLED_BYTE_ARRAY()):
            raise ConfigurationError(
                f"set_dead_letter_output() takes OutputTag('refused'), whose type is {element_ddl(letter)!r} for this "
                f"stream, not {tag!r}."
            )
        self._node.dead_letters = tag.tag_id
        return self

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """Return the stream of the elements that the sink cannot write; see `set_dead_letter_output`.

        Raises:
            ConfigurationError: The sink has no such side output.
        """
        if self._node.dead_letters != output_tag.tag_id:
            raise ConfigurationError(
                f"The sink {self._node.name!r} has no side output {output_tag.tag_id!r}: call set_dead_letter_output() "
                "with this tag first."
            )
        name, letter = f"{self._node.name}: {output_tag.tag_id}", dead_letter_type(self._node.element_type)
        return self._make(SideOutputNode(inputs=(self._node,), name=name, element_type=letter, tag=output_tag.tag_id))


class _SelectFields:
    NAME_IN_UIDS: ClassVar = "_Parts"  # derived uids must not change

    def __init__(self, places: tuple[int, ...]) -> None:
        self._places = places

    def __call__(self, value: Any) -> tuple[Any, ...]:
        return tuple(value[place] for place in self._places)


def checked_parallelism(value: int, what: str) -> int:
    """Return a number of subtasks.

    Args:
        value: The argument of the program.
        what: Its name, for the error.

    Raises:
        ConfigurationError: It is not a whole number in the range of parallelisms.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARALLELISM:
        raise ConfigurationError(f"{what} must be a whole number from 1 to {MAX_PARALLELISM}, not {value!r}.")
    return value


def _has_timestamps(node: Node) -> bool:
    reached, open_nodes = {node}, [node]
    while open_nodes:
        found = open_nodes.pop()
        if isinstance(found, TimestampNode):
            return True
        open_nodes += set(found.inputs) - reached
        reached.update(found.inputs)
    return False
