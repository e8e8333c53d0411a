"""Streams of other kinds; an environment hands them to its streams, so that none imports one that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from holdfast.datastream.connectors.base import Source
from holdfast.datastream.stream.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams, WindowJoin
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.interval_join import IntervalJoin
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.operation import bound_function, declared_type
from holdfast.datastream.stream.windowed import AllWindowedStream, WindowedStream
from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function.source import AlignedSource, EpochGate, SplitInput
from holdfast.runtime.function.user_function import (
    CoGroupFunction,
    JoinFunction,
    KeySelector,
    OutputTag,
    Partitioner,
    ProcessFunction,
)
from holdfast.runtime.graph.stream_graph import (
    KeySpec,
    NarrowNode,
    OperatorSpec,
    PassNode,
    SourceNode,
    SubtaskSelector,
    TimestampNode,
)
from holdfast.runtime.window.window_assigner import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    WindowAssigner,
)
from holdfast.state.descriptor import MapStateDescriptor
from holdfast.types.type_information import TypeInformation

# Streams whose elements the program places itself: in a subtask that it chooses, or in all of them.


def partitioned(stream: DataStream, partitioner: Any, key_selector: Any) -> DataStream:
    """Send each element to the subtask that a partitioner chooses for its key.

    Raises:
        ConfigurationError: The stream is keyed, or one of the two cannot be called so.
    """
    _refuse_keyed(stream, "partition_custom()")
    chooses = SubtaskSelector(
        bound_function("partition_custom", partitioner, Partitioner, "partition", 2),
        bound_function("partition_custom", key_selector, KeySelector, "get_key", 1),
    )
    return _passed_on(stream, "partition_custom", chooses)


def to_all(stream: DataStream) -> DataStream:
    """Send each element to every subtask.

    Raises:
        ConfigurationError: The stream is keyed.
    """
    _refuse_keyed(stream, "broadcast()")
    return _passed_on(stream, "broadcast", None)


def _passed_on(stream: DataStream, name: str, chooses: SubtaskSelector | None) -> DataStream:
    node = PassNode(inputs=(stream._node,), name=name, element_type=stream.get_type(), chooses=chooses)
    return DataStream(stream._environment, node)


def _refuse_keyed(stream: DataStream, what: str) -> None:
    if isinstance(stream, KeyedStream):
        raise ConfigurationError(
            f"{what} of a keyed stream: its elements go where their keys are, and that cannot be overridden; call it "
            "before key_by()."
        )


class StreamFactory:
    """Makes streams of other kinds out of a stream; `DataStream` says what each of them is."""

    def keyed(self, stream: DataStream, key: KeySpec) -> KeyedStream:
        """Partition a stream."""
        return KeyedStream(stream._environment, stream._node, key)

    def broadcast(self, stream: DataStream, descriptors: Sequence[MapStateDescriptor[Any, Any]]) -> BroadcastStream:
        """Give a stream to every subtask."""
        return BroadcastStream(stream, descriptors)

    def partitioned(self, stream: DataStream, partitioner: Any, key_selector: Any) -> DataStream:
        """Send each element to a subtask that the program chooses.

        Raises:
            ConfigurationError: The stream is keyed, or one of the two cannot be called so.
        """
        return partitioned(stream, partitioner, key_selector)

    def to_all(self, stream: DataStream) -> DataStream:
        """Send each element to every subtask.

        Raises:
            ConfigurationError: The stream is keyed.
        """
        return to_all(stream)

    def interval_join(self, stream: KeyedStream, other: KeyedStream) -> IntervalJoin:
        """Join two keyed streams by time.

        Raises:
            ConfigurationError: They come from different environments, or have keys of different types.
        """
        return IntervalJoin(stream, other)

    def window_join(self, stream: DataStream, other: Any, kind: type[JoinFunction | CoGroupFunction]) -> WindowJoin:
        """Join two streams in windows.

        Raises:
            ConfigurationError: The other is no stream, or comes from another environment.
        """
        return WindowJoin(stream, other, kind)

    def connected(self, stream: DataStream, other: Any) -> BroadcastConnectedStream | ConnectedStreams:
        """Connect a stream with another one, broadcast or not.

        Raises:
            ConfigurationError: The other is none, or comes from another environment.
        """
        if isinstance(other, BroadcastStream):
            return BroadcastConnectedStream(stream, other)
        if isinstance(other, DataStream):
            return ConnectedStreams(stream, other)
        raise ConfigurationError(f"connect() takes a stream, or what broadcast(descriptor) returns, not {other!r}.")

    def windowed(self, stream: KeyedStream, assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Split a keyed stream into windows."""
        return WindowedStream(stream, assigner)

    def all_windowed(self, stream: DataStream, assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        """Split a stream into windows."""
        return AllWindowedStream(stream, assigner)

    def count_windows(self, size: int, slide: int) -> WindowAssigner[Any, Any]:
        """Windows of so many elements; a slide of 0 is none."""
        return CountSlidingWindowAssigner(size, slide) if slide else CountTumblingWindowAssigner(size)


# The stream that `from_source` returns: the elements of a source, however many steps make them of its rows.


class SourceStream(DataStream):
    """A stream of the elements of a source. Its name and uid are those of the input, whose position they identify."""

    def __init__(self, rows: DataStream, elements: DataStream, decoded: DataStream | None = None) -> None:
        super().__init__(elements._environment, elements._node)
        assert isinstance(rows._node, SourceNode)
        self._input = rows._node
        self._decoded = decoded

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """What the source sends to a side output, such as records that it cannot read.

        Raises:
            ConfigurationError: The source has none.
        """
        return (
            super().get_side_output(output_tag) if self._decoded is None else self._decoded.get_side_output(output_tag)
        )

    def name(self, name: str) -> Self:
        """Names the input for logs and messages."""
        self._input.name = name
        return self

    def set_description(self, description: str) -> Self:
        """Names the input for logs and messages, as `name` does."""
        return self.name(description)

    def get_name(self) -> str:
        """The input's name."""
        return self._input.name

    def uid(self, uid: str) -> Self:
        """Identifies the input in checkpoints: its position is found again under this uid.

        Raises:
            ConfigurationError: It is empty.
        """
        DataStream(self._environment, self._input).uid(uid)
        return self


def read_by(splits: SplitInput, rows: DataStream, element_type: TypeInformation) -> DataStream:
    """The elements of an input whose rows are splits of files, which tasks read."""
    spec = OperatorSpec(splits, "splits", False, rows.get_type(), element_type)
    node = NarrowNode(inputs=(rows._node,), name="read", element_type=element_type, operator=spec)
    return DataStream(rows._environment, node)


def _say_what_is_made(rows: DataStream, elements: DataStream) -> None:
    """Describes elements that a step makes of rows, whose description has only where they are from."""
    node = rows._node
    assert isinstance(node, SourceNode)
    node.elements = f"{'records' if node.splits is None else node.splits.form()} of {elements.get_type().ddl}"


def aligned_source(source: Source, strategy: WatermarkStrategy) -> tuple[Source, AlignedSource | None]:
    """The source as it can wait, if its strategy says that it is to wait for others; else as it is.

    Raises:
        ConfigurationError: It cannot wait, or the strategy is none.
    """
    if not isinstance(strategy, WatermarkStrategy):
        raise ConfigurationError(
            "from_source() takes a WatermarkStrategy, for instance WatermarkStrategy.no_watermarks(), not "
            f"{strategy!r}."
        )
    if strategy.alignment is None:
        return source, None
    gate = EpochGate()
    return source.with_gate(gate), AlignedSource(strategy.alignment, gate)


def elements_of(
    source: Source,
    rows: DataStream,
    strategy: WatermarkStrategy,
    type_info: Any,
    read: DataStream | None = None,
    aligned: AlignedSource | None = None,
) -> SourceStream:
    """The stream of a source, of that of its rows.

    Args:
        source: The source.
        rows: The rows of its frame.
        strategy: How its elements get timestamps, and its watermark follows from them.
        type_info: Type of the elements if the program declared one; None for what the source says.
        read: What a step has read of the rows, if they are splits.
        aligned: How the source waits, as `aligned_source` says.

    Raises:
        ConfigurationError: The declared type is another one than that of the source.
    """
    elements = rows if read is None else read
    column = source.timestamp_column()
    if column is not None:
        stamping = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda row, _: row[column])
        elements = elements.assign_timestamps_and_watermarks(stamping)
    decoder = source.decoder()
    if decoder is not None:
        decode, output_type = decoder
        produced = output_type if type_info is None else type_info
        if isinstance(decode, ProcessFunction):
            elements = elements.process(decode, produced)
        else:
            elements = elements.flat_map(decode, produced)
    decoded = elements
    if decoder is not None or read is not None:
        _say_what_is_made(rows, decoded)
    if decoder is None and type_info is not None and declared_type(type_info, "from_source") != elements.get_type():
        raise ConfigurationError(
            f"from_source(): type_info is {declared_type(type_info, 'from_source').ddl!r}, but the elements of "
            f"{type(source).__name__} are {elements.get_type().ddl!r}: leave type_info out, the source knows its type."
        )
    if strategy != WatermarkStrategy.no_watermarks():
        timed = strategy.per_partition() if source.is_partitioned() else strategy
        elements = elements.assign_timestamps_and_watermarks(replace(timed, alignment=None))
        assert isinstance(elements._node, TimestampNode)
        elements._node.aligned = aligned
    return SourceStream(rows, elements, decoded if decoder is not None else read)
