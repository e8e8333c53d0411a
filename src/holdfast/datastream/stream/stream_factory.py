"""Streams made of a stream: an environment has one factory, so no stream module imports one that is made of it."""

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
from holdfast.kernel.watermark import ColumnTimestampAssigner, WatermarkStrategy
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
    ForwardNode,
    KeySpec,
    NonKeyedNode,
    OperatorSpec,
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


def partitioned(stream: DataStream, partitioner: Any, key_selector: Any) -> DataStream:
    _refuse_keyed(stream, "partition_custom()")
    chooses = SubtaskSelector(
        bound_function("partition_custom", partitioner, Partitioner, "partition", 2),
        bound_function("partition_custom", key_selector, KeySelector, "get_key", 1),
    )
    return _passed_on(stream, "partition_custom", chooses)


def to_all(stream: DataStream) -> DataStream:
    _refuse_keyed(stream, "broadcast()")
    return _passed_on(stream, "broadcast", None)


def _passed_on(stream: DataStream, name: str, chooses: SubtaskSelector | None) -> DataStream:
    node = ForwardNode(inputs=(stream._node,), name=name, element_type=stream.get_type(), partitioner=chooses)
    return DataStream(stream._environment, node)


def _refuse_keyed(stream: DataStream, what: str) -> None:
    if isinstance(stream, KeyedStream):
        raise ConfigurationError(
            f"{what} of a keyed stream: its elements go where their keys are, and that cannot be overridden; call it "
            "before key_by()."
        )


class StreamFactory:
    """Makes the streams that methods of `DataStream` and `KeyedStream` return; these have the docstrings."""

    def keyed(self, stream: DataStream, key: KeySpec) -> KeyedStream:
        return KeyedStream(stream._environment, stream._node, key)

    def broadcast(self, stream: DataStream, descriptors: Sequence[MapStateDescriptor[Any, Any]]) -> BroadcastStream:
        return BroadcastStream(stream, descriptors)

    def partitioned(self, stream: DataStream, partitioner: Any, key_selector: Any) -> DataStream:
        return partitioned(stream, partitioner, key_selector)

    def to_all(self, stream: DataStream) -> DataStream:
        return to_all(stream)

    def interval_join(self, stream: KeyedStream, other: KeyedStream) -> IntervalJoin:
        return IntervalJoin(stream, other)

    def window_join(self, stream: DataStream, other: Any, kind: type[JoinFunction | CoGroupFunction]) -> WindowJoin:
        return WindowJoin(stream, other, kind)

    def connected(self, stream: DataStream, other: Any) -> BroadcastConnectedStream | ConnectedStreams:
        """Connect a stream with another one, broadcast or not.

        Raises:
            ConfigurationError: The other is no stream, or comes from another environment.
        """
        if isinstance(other, BroadcastStream):
            return BroadcastConnectedStream(stream, other)
        if isinstance(other, DataStream):
            return ConnectedStreams(stream, other)
        raise ConfigurationError(f"connect() takes a stream, or what broadcast(descriptor) returns, not {other!r}.")

    def windowed(self, stream: KeyedStream, assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        return WindowedStream(stream, assigner)

    def all_windowed(self, stream: DataStream, assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        return AllWindowedStream(stream, assigner)

    def count_windows(self, size: int, slide: int) -> WindowAssigner[Any, Any]:
        """Return windows of so many elements; a slide of 0 means tumbling windows."""
        return CountSlidingWindowAssigner(size, slide) if slide else CountTumblingWindowAssigner(size)


class SourceStream(DataStream):
    """The stream that `from_source` returns, however many steps make its elements of the source's rows.

    Its name and uid are those of the input, whose position they identify.
    """

    def __init__(self, rows: DataStream, elements: DataStream, decoded: DataStream | None = None) -> None:
        super().__init__(elements._environment, elements._node)
        assert isinstance(rows._node, SourceNode)
        self._input = rows._node
        self._decoded = decoded

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """Return the stream of what the source emits to a side output, such as records that it cannot read.

        Raises:
            ConfigurationError: The source has none.
        """
        return (
            super().get_side_output(output_tag) if self._decoded is None else self._decoded.get_side_output(output_tag)
        )

    def name(self, name: str) -> Self:
        """Set the name of the input in logs and metrics."""
        self._input.name = name
        return self

    def set_description(self, description: str) -> Self:
        """Set the name of the input, as `name` does."""
        return self.name(description)

    def get_name(self) -> str:
        """Return the name of the input."""
        return self._input.name

    def uid(self, uid: str) -> Self:
        """Set the uid of the input, by which a restart finds its position.

        Raises:
            ConfigurationError: The uid is empty.
        """
        DataStream(self._environment, self._input).uid(uid)
        return self


def read_by(splits: SplitInput, rows: DataStream, element_type: TypeInformation) -> DataStream:
    """Return the elements of an input whose rows are splits of files, which tasks read."""
    spec = OperatorSpec(splits, "splits", False, rows.get_type(), element_type)
    node = NonKeyedNode(inputs=(rows._node,), name="read", element_type=element_type, operator=spec)
    return DataStream(rows._environment, node)


def _say_what_is_made(rows: DataStream, elements: DataStream) -> None:
    """Describe the elements that a step makes of rows; the description of the rows has only their origin."""
    node = rows._node
    assert isinstance(node, SourceNode)
    node.elements = f"{'records' if node.splits is None else node.splits.form()} of {elements.get_type().ddl}"


def aligned_source(
    source: Source, strategy: WatermarkStrategy, *, is_real_time: bool = False
) -> tuple[Source, AlignedSource | None]:
    """Return the source with a gate, and the alignment, if its strategy has one; otherwise the source alone.

    Args:
        source: The source.
        strategy: How its elements get timestamps and watermarks.
        is_real_time: Whether the program configures a real-time job, which needs no gate.

    Raises:
        ConfigurationError: The source cannot wait, or it is no strategy.
    """
    if not isinstance(strategy, WatermarkStrategy):
        raise ConfigurationError(
            "from_source() takes a WatermarkStrategy, for instance WatermarkStrategy.no_watermarks(), not "
            f"{strategy!r}."
        )
    if strategy.alignment is None:
        return source, None
    gate = EpochGate()
    try:
        return source.with_gate(gate), AlignedSource(strategy.alignment, gate)
    except ConfigurationError:
        if not is_real_time:
            raise
        return source, AlignedSource(strategy.alignment, None)


def elements_of(
    source: Source,
    rows: DataStream,
    strategy: WatermarkStrategy,
    type_info: Any,
    read: DataStream | None = None,
    aligned: AlignedSource | None = None,
) -> SourceStream:
    """Return the stream of a source's elements, made of its rows.

    Args:
        source: The source.
        rows: The rows of its frame.
        strategy: How its elements get timestamps and watermarks.
        type_info: Type of the elements if the program declared one; None for that of the source.
        read: What a step has read of the rows, if they are splits.
        aligned: How the source waits, as `aligned_source` returns it.

    Raises:
        ConfigurationError: The declared type is another one than that of the source.
    """
    elements = rows if read is None else read
    column = source.timestamp_column()
    if column is not None:
        stamping = WatermarkStrategy.no_watermarks().with_timestamp_assigner(ColumnTimestampAssigner(column))
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
