"""By which columns the rows of a stream are divided among subtasks, as far as a program says it.

A sink that changes rows by a key counts on all rows of a key coming from one subtask: of several, nobody knows which
was the last. Rows that are divided by other columns than some of the key may come from several.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.runtime.graph.stream_graph import (
    KeyedNode,
    NarrowNode,
    Node,
    PassNode,
    SideOutputNode,
    TimestampNode,
    UnionNode,
)
from holdfast.types.information.type_information import RowTypeInformation

_HANDED_ON = (NarrowNode, TimestampNode, SideOutputNode, UnionNode)


def divided_otherwise(node: Node, key: Sequence[str]) -> tuple[Node, tuple[str, ...]] | None:
    """A step that divides the rows of a stream by columns that are not all among a key.

    A column counts as the one that rows were divided by if all steps from there on have one of that name. What a
    selector, a source or a frame divides is not known.

    Args:
        node: The step that makes the rows.
        key: Columns of them.

    Returns:
        The step and its columns; None if there is none, or nobody can tell.
    """
    reached = set()
    waiting: list[tuple[Node, frozenset[str]]] = [(node, _names(node))]
    while waiting:
        step, named = found = waiting.pop()
        if found in reached:
            continue
        reached.add(found)
        columns = _columns(step)
        if columns and named.issuperset(columns) and not set(columns) <= set(key):
            return step, columns
        if isinstance(step, _HANDED_ON):
            waiting += [(other, named & _names(other)) for other in step.inputs]
    return None


def _columns(node: Node) -> tuple[str, ...]:
    """The columns by which a step gets its rows; none if it has one subtask for good."""
    if 1 in (node.parallelism, node.max_parallelism):
        return ()
    key = node.key if isinstance(node, KeyedNode | PassNode) else None
    return () if key is None else key.columns


def _names(node: Node) -> frozenset[str]:
    return frozenset(node.element_type.names if isinstance(node.element_type, RowTypeInformation) else ())
