"""The end of a stream: a sink, and what becomes of elements that it cannot write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from holdfast.datastream.stream.step.named import Named, Placed, checked_parallelism
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import dead_letter_type
from holdfast.runtime.function.user_function import OutputTag
from holdfast.runtime.graph.stream_graph import Node, SideOutputNode, SinkNode
from holdfast.types.conversion.arrow import element_ddl
from holdfast.types.information.type_information import Types

if TYPE_CHECKING:
    from holdfast.datastream.stream.data_stream import DataStream


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
