"""What a topic refuses of single records, so that a task can tell before it stages one.

The driver asks the cluster when an attempt begins (`topic_limits`), and the answer goes to the tasks as JSON. One
record that its topic refuses would hold up the transaction that it is in, for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.connectors.kafka.record.record_serialization import KafkaRecord

_BATCH: Final = 61
"""Bytes that a batch has before its records."""

_BLOCKS: Final = {"lz4": 1 << 16}
_BLOCKS_OF_BROKERS: Final = {**_BLOCKS, "snappy": 1 << 15}
"""What is compressed at once, knowing nothing of what came before."""

_ZSTD_LEVEL: Final = 3

AS_IT_COMES: Final = "producer"
"""The `compression.type` of a topic that keeps batches as producers have compressed them."""

_UNCOMPRESSED: Final = ("none", "inherit", "uncompressed")

_UNCERTAIN: Final = 0.03, 64
"""By which part, and by how many bytes, what it makes may be more than what pyarrow makes of the same."""


@dataclass(frozen=True)
class RecordLimits:
    """What a topic takes.

    Attributes:
        largest: Bytes of a batch, as it is sent: `max.message.bytes`.
        partitions: How many partitions there are.
        needs_key: Whether it is compacted.
        ahead: Milliseconds by which a record may be ahead of the broker's clock, None if any.
        behind: Milliseconds by which it may be behind.
        compression: Its `compression.type`: how brokers compress what they keep, whoever sent it.
        level: Of that, None for the usual one.
    """

    largest: int
    partitions: int
    needs_key: bool = False
    ahead: int | None = None
    behind: int | None = None
    compression: str = AS_IT_COMES
    level: int | None = None

    @property
    def batch(self) -> int:
        """Bytes that a batch of several records may have before anybody compresses it."""
        part, more = (0.0, 0) if self.compression == AS_IT_COMES else _UNCERTAIN
        return max(1, int((self.largest - more) / (1 + part)))

    def why_refused(self, record: KafkaRecord, most: int, now: int, compressor: Compressor | None) -> str | None:
        """Why the topic would refuse a record; None if it takes it.

        Args:
            record: The record.
            most: Bytes that a batch has at most that has it alone.
            now: The time, in milliseconds.
            compressor: Of the producer, None if it sends records as they are.
        """
        topic = record.topic
        if self.needs_key and record.key is None:
            return f"its record has no key, which the topic {topic!r} needs, because it is compacted"
        if record.partition >= self.partitions:
            return f"its record is for partition {record.partition}, and the topic {topic!r} has {self.partitions}"
        if record.timestamp > 0:
            if self.ahead is not None and record.timestamp > now + self.ahead:
                return _untimely(record, "after", self.ahead)
            if self.behind is not None and record.timestamp < now - self.behind:
                return _untimely(record, "before", self.behind)
        if most <= self.batch:
            return None
        size, how = sent_size(record, compressor, self.largest), "sent"
        if size <= self.largest and not self._stays(record, compressor):
            size, how = kept_size(record, self.compression, self.level), f"kept ({self.compression})"
        if size > self.largest:
            return (
                f"its record has {size} bytes as it is {how}, and the topic {topic!r} takes {self.largest}: make it "
                "smaller, or raise max.message.bytes of the topic"
            )
        return None

    def _stays(self, record: KafkaRecord, compressor: Compressor | None) -> bool:
        """Whether brokers keep a batch as it was sent: then its codec is theirs, at whatever level."""
        if self.compression == AS_IT_COMES:
            return True
        if compressor is None or compressor.name != self.compression:
            return False
        return _packed_size(record, compressor) < _plain_size(record)  # a producer sends the smaller one


def to_json(limits: Mapping[str, RecordLimits]) -> list[dict[str, Any]]:
    """As tasks get the limits of topics: those that have the same are named together."""
    groups: dict[RecordLimits, list[str]] = {}
    for topic, limit in sorted(limits.items()):
        groups.setdefault(limit, []).append(topic)
    return [{"topics": topics, **asdict(limit)} for limit, topics in groups.items()]


def from_json(groups: Iterable[Mapping[str, Any]]) -> dict[str, RecordLimits]:
    """The limits of topics, by their names."""
    return {
        topic: RecordLimits(**{name: value for name, value in group.items() if name != "topics"})
        for group in groups
        for topic in group["topics"]
    }


@dataclass(frozen=True)
class Compressor:
    """Tells how many bytes become of some.

    Attributes:
        name: Of the codec.
        level: None for the usual one.
        block: How many bytes are compressed at once, 0 for all.
    """

    name: str
    level: int | None
    block: int

    def __call__(self, data: bytes) -> int:
        # Made anew: that of gzip is of one thread alone.
        compress = pa.Codec(self.name, self._known_level()).compress
        step = self.block or max(1, len(data))
        return sum(len(compress(data[at : at + step], asbytes=True)) for at in range(0, len(data), step))

    def _known_level(self) -> int | None:
        if not self.level or not pa.Codec.supports_compression_level(self.name):
            return _ZSTD_LEVEL if self.name == "zstd" else None
        least, most = pa.Codec.minimum_compression_level(self.name), pa.Codec.maximum_compression_level(self.name)
        return int(min(max(self.level, least), most))


def compressor_of(properties: Mapping[str, Any]) -> Compressor | None:
    """What a producer with these properties does to a batch; None if it sends it as it is."""
    name = str(properties.get("compression.type", properties.get("compression.codec", "none"))).lower()
    level = int(properties.get("compression.level", -1))
    return None if name in _UNCOMPRESSED else Compressor(name, level if level > 0 else None, _BLOCKS.get(name, 0))


def sent_size(record: KafkaRecord, compressor: Compressor | None, enough: int) -> int:
    """Bytes of a batch that has this record alone.

    Args:
        record: The record.
        compressor: Of the producer.
        enough: Where no less is asked for; then it is not compressed.
    """
    size = _plain_size(record)
    return size if size <= enough or compressor is None else min(size, _packed_size(record, compressor))


def kept_size(record: KafkaRecord, compression: str, level: int | None = None) -> int:
    """Bytes of a batch that has this record alone, as a broker compresses it, also where that makes it larger.

    Args:
        record: The record.
        compression: The `compression.type` of the topic.
        level: Of that, None for the usual one.
    """
    if compression in _UNCOMPRESSED:
        return _plain_size(record)
    return _packed_size(record, Compressor(compression, level, _BLOCKS_OF_BROKERS.get(compression, 0)))


def _plain_size(record: KafkaRecord) -> int:
    size = 3 + _length(record.key) + _length(record.value) + _digits(len(record.headers))
    size += sum(_length(name.encode()) + _length(value) for name, value in record.headers)
    return size + _BATCH + _digits(size)


def _packed_size(record: KafkaRecord, compressor: Compressor) -> int:
    parts = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
    part, more = _UNCERTAIN
    return _BATCH + more + int(compressor(b"".join(filter(None, parts))) * (1 + part))


def _length(part: bytes | None) -> int:
    return 1 if part is None else _digits(len(part)) + len(part)


def _digits(number: int) -> int:
    """Bytes of a number as Kafka writes it: seven bits of it and its sign in each."""
    return max(1, -(-(2 * number).bit_length() // 7))


def _untimely(record: KafkaRecord, side: str, most: int) -> str:
    at = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        f"its record is of {at}, and the topic {record.topic!r} takes none that is {timedelta(milliseconds=most)} or "
        f"more {'ahead' if side == 'after' else 'behind'}: give it another timestamp, or raise "
        f"message.timestamp.{side}.max.ms of the topic"
    )
