"""Streams: what a program chains operations on. Nothing runs before `execute`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast, overload

from holdfast.datastream.sinks.epoch import ForEachEpochSink, PrintSink
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
    FrameTransformNode,
    KeyedNode,
    NarrowNode,
    Node,
    PassNode,
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
from holdfast.types.typeinfo import Types

if TYPE_CHECKING:
    from holdfast.datastream.environment.settings import ExecutionConfig
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


# What streams and the ends of streams have in common, as PyFlink says it: they stand for one step of the program.


class Placed:
    """What is said of the place of one step; the stream, or the sink, stays as it is."""

    def set_uid_hash(self, uid_hash: str) -> NoReturn:
        """Refused: state is found by uid, never by a hash of it."""
        raise ConfigurationError(
            f"set_uid_hash({uid_hash!r}): a checkpoint of Flink cannot be restored here, and in Holdfast's own a step "
            "is known by its uid: call uid()."
        )

    def disable_chaining(self) -> Self:
        """Accepted: what shares a task shares it without queues, so nothing is gained by parting it."""
        return self

    def start_new_chain(self) -> Self:
        """Accepted: what shares a task shares it without queues, so nothing is gained by parting it."""
        return self

    def slot_sharing_group(self, slot_sharing_group: Any) -> Self:
        """Accepted: there are no slots; resources are those of Spark's executors."""
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Accepted: elements cross an exchange when the epoch's stage has ended, and no buffer waits for a timeout."""
        return self


class Named:
    """What streams and sinks have in common: they stand for one step of the program."""

    _node: Node

    def name(self, name: str) -> Self:
        """Names the step for logs and messages."""
        self._node.name = name
        return self

    def set_description(self, description: str) -> Self:
        """Names the step for logs and messages, as `name` does."""
        return self.name(description)

    def get_name(self) -> str:
        """The step's name."""
        return self._node.name

    def uid(self, uid: str) -> Self:
        """Identifies the step in checkpoints. State is found again under this uid, wherever the step then stands.

        Raises:
            ConfigurationError: It is empty.
        """
        if not uid:
            raise ConfigurationError("a uid must not be empty: it names the operator in checkpoints.")
        self._node.uid = uid
        return self


def checked_parallelism(value: int, what: str) -> int:
    """A number of subtasks.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARALLELISM:
        raise ConfigurationError(f"{what} must be a whole number from 1 to {MAX_PARALLELISM}, not {value!r}.")
    return value


# The way of a stream to the next operator, as PyFlink says it.
#
# Operators without keys run inside the tasks of their input, which Spark balances; keyed operators get their elements
# by key. So there is no channel between two operators whose partitioning or buffers could be chosen, unless a program
# makes one: with `partition_custom`, or `broadcast`.


class Distributed(Placed):
    """What is said of the way of a stream to the next operator."""

    _environment: StreamExecutionEnvironment

    @abstractmethod
    def get_type(self) -> TypeInformation:
        """Return the type of the elements."""

    @abstractmethod
    def map(self, func: Any, output_type: Any = None) -> DataStream:
        """Replace each element."""

    def shuffle(self) -> Self:
        """Accepted: the next operator runs in the tasks of this one, or gets its elements by key."""
        return self

    def rebalance(self) -> Self:
        """Accepted: Spark balances the partitions of an input, and `transform` has its `repartition()`."""
        return self

    def rescale(self) -> Self:
        """Accepted: the next operator runs in the tasks of this one, or gets its elements by key."""
        return self

    def forward(self) -> Self:
        """Accepted: the next operator runs in the tasks of this one anyway, unless it is keyed."""
        return self

    def cache(self) -> Self:
        """Accepted: a stream that several steps read is made once an epoch."""
        return self

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeySelectorLike
    ) -> DataStream:
        """Sends each element to the subtask that `partitioner(key, number of subtasks)` names.

        The steps after it, up to the next `key_by`, run there. There are as many subtasks as `set_parallelism` of the
        returned stream says.

        Raises:
            ConfigurationError: The stream is keyed, or one of the two cannot be called so.
        """
        return self._environment._other_kinds.partitioned(cast("DataStream", self), partitioner, key_selector)

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
        """Gives every element to every subtask: of the operator that it is connected with, or of the steps after it.

        Args:
            broadcast_state_descriptor: The map state that the operator that it is then connected with keeps of these
                elements. Without it the stream goes on, with as many copies as its `set_parallelism` says.
            *other_broadcast_state_descriptors: Further ones.

        Raises:
            ConfigurationError: One is no `MapStateDescriptor`, a name comes twice, or the stream is keyed.
        """
        kinds = self._environment._other_kinds
        if broadcast_state_descriptor is None and not other_broadcast_state_descriptors:
            return kinds.to_all(cast("DataStream", self))
        given = (broadcast_state_descriptor, *other_broadcast_state_descriptors)
        return kinds.broadcast(cast("DataStream", self), given)  # type: ignore[arg-type]  # which are looked at there

    def add_sink(self, sink_func: Any) -> NoReturn:
        """Refused: a `SinkFunction` is a class of Java."""
        raise ConfigurationError(
            f"add_sink({sink_func!r:.80}) takes a SinkFunction, a class of Java: sink_to() takes a Sink "
            "(ParquetFileSink, FileSink, KafkaSink, DeltaSink, IcebergSink, DatabaseSink, or one of your own)."
        )

    def project(self, *field_indexes: int) -> DataStream:
        """Keeps some parts of tuples, or columns of rows, in the order in which they are named.

        Raises:
            ConfigurationError: The elements have no declared parts, or not these.
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
        return self.map(_Parts(field_indexes), kept)


class _Parts:
    """Takes parts of an element."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self._places = places

    def __call__(self, value: Any) -> tuple[Any, ...]:
        return tuple(value[place] for place in self._places)


# The end of a stream: a sink, and what becomes of elements that it cannot write.


class DataStreamSink(Named, Placed):
    """The end of a stream.

    Args:
        node: The step.
        make: Makes a stream of a step that reads this one.
    """

    _node: SinkNode

    def __init__(self, node: SinkNode, make: Callable[[Node], DataStream]) -> None:
        self._node = node
        self._make = make

    def set_parallelism(self, parallelism: int) -> Self:
        """Accepted: a sink runs in the tasks of its input, which decide how many files or writers there are."""
        self._node.parallelism = checked_parallelism(parallelism, "parallelism")
        return self

    def set_dead_letter_output(self, tag: OutputTag) -> Self:
        """Elements that the sink cannot write go to this side output, and do not fail the job.

        These are what a task can tell before it stages them: a serializer that raises, a null or a value that the table
        does not take. What a target refuses later, at the commit, still stops the job.

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
        """The elements that the sink cannot write, as `set_dead_letter_output` says.

        Raises:
            ConfigurationError: The sink has no such side output.
        """
        if self._node.dead_letters != output_tag.tag_id:
            raise ConfigurationError(
                f"the sink {self._node.name!r} has no side output {output_tag.tag_id!r}: call set_dead_letter_output() "
                "with this tag first."
            )
        name, letter = f"{self._node.name}: {output_tag.tag_id}", dead_letter_type(self._node.element_type)
        return self._make(SideOutputNode(inputs=(self._node,), name=name, element_type=letter, tag=output_tag.tag_id))


logger = get_logger(__name__)


class DataStream(Named, Distributed):
    """A stream of elements of one type.

    A stream whose type is a row has named columns and elements of type `Row`. Elements of undeclared type are pickled
    wherever they cross from one task to another, which costs several microseconds an element.
    """

    def __init__(self, environment: StreamExecutionEnvironment, node: Node) -> None:
        self._environment = environment
        self._node = node

    def get_type(self) -> TypeInformation:
        """Type of the elements."""
        return self._node.element_type

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment that the stream belongs to."""
        return self._environment

    def get_execution_config(self) -> ExecutionConfig:
        """The settings of the environment that the stream belongs to."""
        return self._environment.get_config()

    def set_parallelism(self, parallelism: int) -> Self:
        """Sets the number of subtasks of an operator with state: at most its max parallelism, and another at any start.

        Other steps run inside the tasks of their input: for them it has no effect, and a warning says so.

        Raises:
            ConfigurationError: It is no whole number in the range of parallelisms.
        """
        self._node.parallelism = checked_parallelism(parallelism, "parallelism")
        self._warn_if_chained("parallelism")
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Sets the number of key groups of a keyed operator; fixed for the life of its state.

        Raises:
            ConfigurationError: It is no whole number in the range of parallelisms.
        """
        self._node.max_parallelism = checked_parallelism(max_parallelism, "max parallelism")
        self._warn_if_chained("max parallelism")
        return self

    def force_non_parallel(self) -> Self:
        """Runs a keyed operator in one subtask."""
        return self.set_parallelism(1)

    def map(self, func: MapLike, output_type: Any = None) -> DataStream:
        """Replaces each element by one other.

        Args:
            func: A `MapFunction` or a function of one argument.
            output_type: Type of the results: type information, DDL such as `'key string, n bigint'`, an Arrow or Spark
                type. Without it they are pickled.
        """
        return self._apply("map", func, output_type)

    def flat_map(self, func: FlatMapLike, output_type: Any = None) -> DataStream:
        """Replaces each element by any number of others; see `map` for the arguments."""
        return self._apply("flat_map", func, output_type)

    def filter(self, func: FilterLike) -> DataStream:
        """Keeps the elements for which the function is true."""
        return self._apply("filter", func, None)

    def process(self, func: ProcessLike, output_type: Any = None) -> DataStream:
        """Passes each element with its context to a function that emits any number of others, also to side outputs."""
        return self._apply("process", func, output_type)

    def join(self, other_stream: DataStream) -> WindowJoin:
        """Pairs elements of two streams in windows: `.where(key1).equal_to(key2).window(assigner).apply(function)`."""
        return self._environment._other_kinds.window_join(self, other_stream, JoinFunction)

    def co_group(self, other_stream: DataStream) -> WindowJoin:
        """The same for a `CoGroupFunction`, which sees all elements of a key and a window at once."""
        return self._environment._other_kinds.window_join(self, other_stream, CoGroupFunction)

    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams: ...

    def connect(self, ds: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Connects this stream, keyed or not, with another one, broadcast or not, for a function of both.

        Raises:
            ConfigurationError: The other is no stream, comes from another environment, or has keys of another type.
        """
        return self._environment._other_kinds.connected(self, ds)

    def transform(self, function: Callable[[Any], Any]) -> DataStream:
        """Applies a function `DataFrame -> DataFrame` in Spark, without Python in the tasks.

        The function is called now, to learn the columns, and again when the job is planned. Directly after an input it
        is part of the input's query, and must not keep state in Spark (no aggregation, no `dropDuplicates`). After a
        Python operator, or a union, it is called in every epoch, with a static frame of the rows of that epoch, and
        may do with them what Spark can; the elements before it need a declared type.

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
        """Gives each element its event time, by which the timers of operators after it fire.

        The watermark follows from the greatest timestamp of all subtasks, and advances at the end of each epoch.

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
                "with_watermark_alignment() lets a source wait, and acts where a source is read: give the strategy to "
                f"from_source(), not to assign_timestamps_and_watermarks() of {self.get_name()!r}. Of what "
                "from_dataframe() reads, Spark says what an epoch has of it, so it cannot wait."
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
        """All elements of this and other streams of the same type, in no particular order.

        A stream that is united with itself comes twice.

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
        """Partitions the stream by a key, so that operators after it have state for each key.

        Args:
            key_selector: A column, a list of columns, or a function (a `KeySelector`) that computes the key in Python.
            key_type: Type of what the function returns. Without it keys are plain Python values: bool, int, float, str,
                bytes, dates and times, Decimal, UUID, and tuples, lists, sets and dicts of these and of None.
            order_by: Columns by which the rows of one key are ordered within an epoch, by Spark. Without it they come
                in order of arrival.

        Raises:
            ConfigurationError: A column does not exist.
        """
        key = key_spec(key_selector, key_type, order_by, self.get_type())
        return self._environment._other_kinds.keyed(self, key)

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        """Splits the stream, all keys together, into windows; one subtask runs them."""
        return self._environment._other_kinds.all_windowed(self, window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream:
        """Splits the stream into windows of `size` elements; with a slide one begins every `slide`."""
        return self.window_all(self._environment._other_kinds.count_windows(size, slide))

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """What the operator of this stream sends to a side output.

        Raises:
            ConfigurationError: The stream does not come from `process`.
        """
        node = self._node
        shapes = ("process", "window", "panes", "splits")
        if not isinstance(node, KeyedNode | NarrowNode) or node.operator.shape not in shapes:
            raise ConfigurationError(
                f"get_side_output() of {self._node.name!r}: only the streams that process() and windows return have "
                "side outputs; call it on such a one."
            )
        if node.operator.shape == "splits" and node.operator.function.dead_letters() != output_tag.tag_id:
            raise ConfigurationError(
                f"the source of {self._node.name!r} has no side output {output_tag.tag_id!r}: call "
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
        """Ends the stream in a sink; a stream may have several.

        A row that the sink cannot write fails the job, unless `set_dead_letter_output` of what this returns puts it
        aside.

        Raises:
            ConfigurationError: It is no sink, or one that cannot write elements of this type.
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
        """Calls `write(df, epoch, incarnation)` in the driver with the rows of each completed epoch, until it returns.

        `df` is a static DataFrame of Spark, in `EpochProgram` a table of pyarrow. The call is made in a thread of the
        sink, beside the next epoch; the one after that waits for it (`sink.committer.max-pending-checkpoints`).

        It sees exactly the rows that the checkpoint names, the same under the same epoch and incarnation every time.
        Let it do nothing if the epoch is at most the last one that it wrote of this incarnation, and its effect is
        exactly once. Epochs without rows are left out. A function of two parameters is called without the incarnation.

        `last_epoch(incarnation)` asks the target for that last epoch, None if it has none. With it, a job directory
        that was put back from an older copy is refused; without it, `write` skips what comes under old numbers then.
        """
        return self.sink_to(ForEachEpochSink(write, last_epoch)).name("for_each_epoch")

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Prints the elements of each completed epoch on the driver's standard output."""
        return self.sink_to(PrintSink(self.get_type(), sink_identifier)).name("print")

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CollectedElements | list[Any]:
        """Runs the job, and returns the elements of this stream as its epochs complete.

        Args:
            job_execution_name: Name of the job. Without one it is a job of its own that resumes nothing.
            limit: With it, at most so many elements are returned, as a list, and the job is cancelled then.

        Returns:
            An iterator, to be closed, which cancels the job if it still runs; or the list.
        """
        return self._environment._execute_and_collect(self, job_execution_name, limit)

    def _apply(self, shape: Shape, function: Any, output_type: Any) -> DataStream:
        spec = operator_spec(shape, function, self.get_type(), output_type, keyed=False)
        node = NarrowNode(inputs=(self._node,), name=shape, element_type=spec.output_type, operator=spec)
        return DataStream(self._environment, node)

    def _warn_if_chained(self, what: str) -> None:
        node = self._node
        if not isinstance(node, KeyedNode | PassNode) and not (
            isinstance(node, NarrowNode) and node.operator.has_operator_state
        ):
            logger.warning(
                "%s of %r has no effect: it runs inside the tasks of its input; set it on an operator with state",
                what,
                self._node.name,
            )


def _has_timestamps(node: Node) -> bool:
    reached, open_nodes = {node}, [node]
    while open_nodes:
        found = open_nodes.pop()
        if isinstance(found, TimestampNode):
            return True
        open_nodes += set(found.inputs) - reached
        reached.update(found.inputs)
    return False
