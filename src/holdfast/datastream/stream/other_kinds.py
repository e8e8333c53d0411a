"""Streams of other kinds; an environment hands them to its streams, so that none imports one that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.datastream.stream.broadcast import BroadcastConnectedStream, BroadcastStream
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.errors import ConfigurationError
from holdfast.runtime.graph.stream_graph import KeySpec
from holdfast.state.declaration.descriptor import MapStateDescriptor


class OtherKinds:
    """Makes streams of other kinds out of a stream; `DataStream` says what each of them is."""

    def keyed(self, stream: DataStream, key: KeySpec) -> KeyedStream:
        """Partition a stream."""
        return KeyedStream(stream._environment, stream._node, key)

    def broadcast(self, stream: DataStream, descriptors: Sequence[MapStateDescriptor[Any, Any]]) -> BroadcastStream:
        """Give a stream to every subtask."""
        return BroadcastStream(stream, descriptors)

    def connected(self, stream: DataStream, other: Any) -> BroadcastConnectedStream:
        """Connect a stream with a broadcast one.

        Raises:
            ConfigurationError: The other is none, or comes from another environment.
        """
        if not isinstance(other, BroadcastStream):
            raise ConfigurationError(f"connect() takes what broadcast(descriptor) returns, not {other!r}.")
        return BroadcastConnectedStream(stream, other)
