"""How far a source is behind its place, by what Spark says of its last batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.kernel.malformed import MALFORMED


def records_behind(source: Mapping[str, Any]) -> int | None:
    """Return how many records the place has that no batch has read yet; None if it does not count them.

    Args:
        source: What Spark's progress says of the source: where the batch ended, and where the place ends.
    """
    try:
        end, latest = _counts(source["endOffset"]), _counts(source["latestOffset"])
    except MALFORMED:
        return None
    if not latest or end is None:
        return None
    return sum(max(0, number - end.get(place, 0)) for place, number in latest.items())


def _counts(offset: Any) -> dict[tuple[str, str], int] | None:
    """Numbers by topic and partition: of Spark's own Kafka source, or of Holdfast's."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    if not isinstance(offset, dict):
        return None
    found = {}
    for topic, said in offset.items():
        partitions = said.get("next", said)
        for partition, number in partitions.items():
            found[topic, partition] = int(number)
    return found
