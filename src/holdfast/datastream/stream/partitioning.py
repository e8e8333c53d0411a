"""Streams whose elements the program places itself: in a subtask that it chooses, or in all of them."""

from __future__ import annotations

from typing import Any

from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.operation import bound_function
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import KeySelector, Partitioner
from holdfast.runtime.graph.chosen_subtask import ChosenSubtask
from holdfast.runtime.graph.stream_graph import PassNode


def partitioned(stream: DataStream, partitioner: Any, key_selector: Any) -> DataStream:
    """Send each element to the subtask that a partitioner chooses for its key.

    Raises:
        ConfigurationError: The stream is keyed, or one of the two cannot be called so.
    """
    _refuse_keyed(stream, "partition_custom()")
    chooses = ChosenSubtask(
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


def _passed_on(stream: DataStream, name: str, chooses: ChosenSubtask | None) -> DataStream:
    node = PassNode(inputs=(stream._node,), name=name, element_type=stream.get_type(), chooses=chooses)
    return DataStream(stream._environment, node)


def _refuse_keyed(stream: DataStream, what: str) -> None:
    if isinstance(stream, KeyedStream):
        raise ConfigurationError(
            f"{what} of a keyed stream: its elements go where their keys are, and that cannot be overridden; call it "
            "before key_by()."
        )
