"""Broadcast streams, and what comes of connecting a stream with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.operation import declared_type
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.broadcast import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from holdfast.runtime.graph.stream_graph import BroadcastNode, KeyedNode, NarrowNode, Node, OperatorSpec
from holdfast.state.declaration.descriptor import MapStateDescriptor


class BroadcastStream:
    """A stream of which every subtask of an operator gets all elements, before those of the other stream.

    Args:
        stream: The stream.
        descriptors: The broadcast states that are kept of it.

    Raises:
        ConfigurationError: There is no descriptor, one is of another kind of state, or a name comes twice.
    """

    def __init__(self, stream: DataStream, descriptors: Sequence[MapStateDescriptor[Any, Any]]) -> None:
        if not descriptors or not all(isinstance(descriptor, MapStateDescriptor) for descriptor in descriptors):
            raise ConfigurationError(
                f"broadcast() takes at least one MapStateDescriptor, for the state that keeps the elements, not "
                f"{list(descriptors)!r}."
            )
        names = [descriptor.name for descriptor in descriptors]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"broadcast() takes states of different names, not {names!r}.")
        self.stream = stream
        self.descriptors = tuple(descriptors)


class BroadcastConnectedStream:
    """A stream, keyed or not, and a broadcast one, waiting for a function of both."""

    def __init__(self, stream: DataStream, broadcast: BroadcastStream) -> None:
        if stream._environment is not broadcast.stream._environment:
            raise ConfigurationError("connect() takes streams of one environment.")
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self, func: BroadcastProcessFunction | KeyedBroadcastProcessFunction, output_type: Any = None
    ) -> DataStream:
        """Passes the elements of both streams to a function; `output_type` as in `DataStream.map`.

        Raises:
            ConfigurationError: The function is of the other kind: a keyed stream takes a
                `KeyedBroadcastProcessFunction`, another one a `BroadcastProcessFunction`.
        """
        main = self._stream
        is_keyed = isinstance(main, KeyedStream)
        wanted = KeyedBroadcastProcessFunction if is_keyed else BroadcastProcessFunction
        if not isinstance(func, wanted):
            raise ConfigurationError(
                f"process() of a {'keyed ' if is_keyed else ''}stream connected with a broadcast one takes an instance "
                f"of {wanted.__name__}, not {func!r}."
            )
        element_type = declared_type(output_type, "process")
        spec = OperatorSpec(
            func, "process", is_keyed, main.get_type(), element_type, broadcast=self._broadcast.descriptors
        )
        rules = self._broadcast.stream
        second = BroadcastNode(inputs=(rules._node,), name="broadcast", element_type=rules.get_type())
        inputs: tuple[Node, ...] = (main._node, second)
        node: Node
        if isinstance(main, KeyedStream):
            node = KeyedNode(
                inputs=inputs, name="keyed_broadcast", element_type=element_type, operator=spec, key=main._key
            )
        else:
            node = NarrowNode(inputs=inputs, name="broadcast_process", element_type=element_type, operator=spec)
        return DataStream(main._environment, node)
