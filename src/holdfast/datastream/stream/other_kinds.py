"""Streams of other kinds; an environment hands them to its streams, so that none imports one that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.datastream.stream.broadcast import BroadcastConnectedStream, BroadcastStream
from holdfast.datastream.stream.connected import ConnectedStreams, WindowJoin
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.interval_join import IntervalJoin
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.partitioning import partitioned, to_all
from holdfast.datastream.stream.windowed import AllWindowedStream, WindowedStream
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.two_inputs import CoGroupFunction, JoinFunction
from holdfast.runtime.graph.stream_graph import KeySpec
from holdfast.runtime.window.window_assigner import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    WindowAssigner,
)
from holdfast.state.declaration.descriptor import MapStateDescriptor


class OtherKinds:
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
