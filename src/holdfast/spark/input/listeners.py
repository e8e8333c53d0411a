"""Sources that wish to know of completed checkpoints, and what they are told: where they stand in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.source_numbers import SourceNumbers
from holdfast.runtime.graph.plan import SourcePlan
from holdfast.runtime.graph.stream_graph import SourceNode, input_of
from holdfast.spark.input.offset_log import require_plain

logger = get_logger(__name__)

_NONE: Final = "-"
"""What Spark writes for a source that has no offset yet."""


class SourceListeners:
    """Those of a job. What they do never fails it.

    Args:
        sources: The inputs of the job.
    """

    def __init__(self, sources: Iterable[SourcePlan] = ()) -> None:
        inputs = [input_of(source.node) for source in sources if source.node is not None]
        self._listeners = {
            node.identity: node.listener
            for node in inputs
            if isinstance(node, SourceNode) and node.listener is not None
        }

    def tell(self, positions: Mapping[str, Any]) -> None:
        """Tells them of a checkpoint with these positions."""
        if not self._listeners:
            return
        try:
            for uid, offset in _offsets_of(positions):
                if uid in self._listeners:
                    self._listeners[uid].checkpoint_completed(offset)
        except Exception:
            logger.warning("a source could not be told of a checkpoint, which is complete all the same", exc_info=True)

    def numbers(self) -> dict[str, SourceNumbers]:
        """What they count, by uid of their input."""
        return {uid: listener.numbers() for uid, listener in self._listeners.items()}

    def close(self) -> None:
        """Lets them end what they have begun."""
        try:
            for listener in self._listeners.values():
                listener.close()
        except Exception:
            logger.warning("a source could not end what it does after checkpoints", exc_info=True)


def _offsets_of(positions: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Where each input stands; None for one that was read as a whole."""
    streaming = positions.get("streaming")
    found: list[tuple[str, Any]] = [(leaf["uid"], None) for leaf in positions.get("static") or ()]
    if streaming and "inputs" in streaming:
        offsets = require_plain(streaming["offsets"][str(streaming["batch_id"])])
        lines = zip(streaming["inputs"], offsets, strict=True)
        found += [(line["uid"], json.loads(text)) for line, text in lines if text != _NONE]
    return found
