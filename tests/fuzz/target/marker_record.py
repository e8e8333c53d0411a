"""A record in the topic that says which epochs are in Kafka: who may write there may write anything.

The first line is the key, the rest is the value.
"""

from typing import Any

from holdfast.datastream.connectors.kafka.markers import (
    MarkerLog,
    MarkerPartition,
    marker_key,
    marker_value,
    parse_marker,
)
from holdfast.errors import HoldfastError

SHARD = ("line", "out", 0)
PLACE = MarkerPartition("c", "holdfast-commits", "id", 3)


class Nobody:
    """A connection that is not asked for anything."""

    def create_admin(self) -> None: ...


NOBODY: Any = Nobody()


class Message:
    """As a consumer of Kafka hands it out."""

    def __init__(self, data: bytes) -> None:
        self._key, _, self._value = data.partition(b"\n")

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self._key or None

    def value(self) -> bytes | None:
        return self._value or None


def parse(data: bytes) -> None:
    message: Any = Message(data)
    log = MarkerLog(NOBODY, PLACE)
    log.record(SHARD, 7, None)
    log._on_message(message)
    last = log.last_epoch(SHARD)
    assert last is not None and last >= 7 and log.last_epoch_of_sink("line", "out") == max(last, *_others(log))
    found = parse_marker(message.key(), message.value())
    if found is None:
        raise HoldfastError("it is no marker, and nobody counts it")
    shard, epoch, transactional_id, names = found
    assert parse_marker(marker_key(shard), marker_value(epoch, transactional_id, names)) == found
    assert log.last_epoch(shard) == (max(epoch, 7) if shard == SHARD else epoch)


def _others(log: MarkerLog) -> list[int]:
    return [epoch for shard, (epoch, _) in log._committed.items() if shard[:2] == SHARD[:2]]
