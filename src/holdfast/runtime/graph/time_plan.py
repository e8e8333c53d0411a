"""How event time goes through a graph: which elements have timestamps, and by which clocks each step goes."""

from __future__ import annotations

from holdfast.kernel.secret import get_logger
from holdfast.runtime.graph.stream_graph import (
    BroadcastNode,
    FrameTransformNode,
    KeyedNode,
    NarrowNode,
    Node,
    SourceNode,
    StreamGraph,
    TimestampNode,
)

logger = get_logger(__name__)


class TimePlan:
    """Clocks and timestamps of all steps of a graph.

    A step goes by the clocks of all its inputs, and event time stands still for it if one has none, as in Flink; only a
    broadcast input without a clock is passed over. Timestamps end where Spark, or a function of groups, makes other
    rows.
    """

    def __init__(self, graph: StreamGraph) -> None:
        self._clocks: dict[Node, tuple[str, ...]] = {}
        self._stamped: dict[Node, bool] = {}
        for node in graph.nodes:
            self._clocks[node] = self._clocks_of(node)
            self._stamped[node] = self._is_stamped(node)

    def clocks(self, node: Node) -> tuple[str, ...]:
        """The clocks of a step; none if event time does not advance for it."""
        return self._clocks[node]

    def is_stamped(self, node: Node) -> bool:
        """Whether what a step emits has timestamps."""
        return self._stamped[node]

    def _clocks_of(self, node: Node) -> tuple[str, ...]:
        if isinstance(node, TimestampNode) and not node.keeps_watermarks:
            return (node.identity,)
        if isinstance(node, SourceNode):
            return ()
        inputs = [other for other in node.inputs if self._clocks[other] or not isinstance(other, BroadcastNode)]
        without = [other.name for other in inputs if not self._clocks[other]]
        if without and len(without) < len(inputs):
            logger.warning(
                "event time stands still for %r: its input %r has no watermarks; call "
                "assign_timestamps_and_watermarks() on it, too",
                node.name,
                without[0],
            )
        if without:
            return ()
        return tuple(dict.fromkeys(uid for other in inputs for uid in self._clocks[other]))

    def _is_stamped(self, node: Node) -> bool:
        if isinstance(node, SourceNode | FrameTransformNode | BroadcastNode):
            return False
        if isinstance(node, TimestampNode) and node.strategy.assigner is not None:
            return True
        if isinstance(node, KeyedNode | NarrowNode) and node.operator.shape == "groups":
            return False
        return any(self._stamped[other] for other in node.inputs)
