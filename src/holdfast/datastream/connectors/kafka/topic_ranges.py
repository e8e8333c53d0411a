"""`TopicRanges`: plans which offsets of topics an epoch reads, so that a repeated epoch has the same rows.

An offset of the stream, as in Spark's log and in checkpoints::

    {"words": {"id": "2SwH...", "next": {"0": 17, "1": 4}}}

The id is that of the topic: a topic that was deleted and created again has another id, and its offsets mean other
records. A source with stopping offsets also has `"stop": {"0": 20, "1": 4}`, so that it stops there whenever it is
started again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, OffsetSpec

from holdfast.datastream.connectors.kafka.client import KafkaConnection, translate_errors
from holdfast.errors import ConfigurationError, InputGoneError, StorageError
from holdfast.runtime.function.source import EpochGate

NO_GROUP: Final = "committed_offsets() needs set_group_id(), which names the group with the committed offsets."
PartitionKey = tuple[str, int]
"""Topic and partition."""
_PAUSE: Final = 0.1
_PROPAGATION_SECONDS: Final = 5.0
"""Seconds within which all brokers should know a new topic."""
_TRANSIENT_CODES: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,  # "No leaders found": a partition that was just created
)
COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp bigint, "
    "headers array<struct<name: string, value: binary>>"
)
_BATCH_ROWS: Final = 4096
_POLL_SECONDS: Final = 0.5
_OLD: Final = 0.9
"""Part of the discovery interval after which a list is too old: a real-time job may ask a moment early."""
_END_CACHE_SECONDS: Final = 0.1
"""Seconds for which the ends of partitions are cached. An idle query polls far more often."""
Offset = dict[str, Any]
Range = tuple[str, int, int, int]
"""Topic, partition, first offset, offset after the last."""


@dataclass(frozen=True)
class KafkaTopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int


class KafkaOffsetResetStrategy(Enum):
    """The starting offset of a partition for which no offset is specified or committed."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class OffsetKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    COMMITTED = "committed"
    GIVEN = "given"


@dataclass(frozen=True)
class KafkaOffsetsInitializer:
    """The starting or stopping offset of each partition; create it with a static method.

    Attributes:
        kind: How offsets are found.
        timestamp_ms: Milliseconds since 1970.
        given: Offsets by topic and partition.
        reset: The strategy for partitions without an offset.

    Example:
        >>> from holdfast.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaTopicPartition
        >>> KafkaOffsetsInitializer.offsets({KafkaTopicPartition("words", 0): 17}).given
        (('words', 0, 17),)
    """

    kind: OffsetKind
    timestamp_ms: int = 0
    given: tuple[tuple[str, int, int], ...] = ()
    reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """Use the first available record."""
        return KafkaOffsetsInitializer(OffsetKind.EARLIEST)

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """Use the end of the partition when the job starts for the first time."""
        return KafkaOffsetsInitializer(OffsetKind.LATEST)

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """Use the first record at or after a time in milliseconds since 1970; the end if there is none."""
        if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
            raise ConfigurationError(f"timestamp() takes milliseconds since 1970, not {timestamp!r}.")
        return KafkaOffsetsInitializer(OffsetKind.TIMESTAMP, timestamp_ms=timestamp)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """Use the committed offsets of the source's group, for instance those of another program."""
        return KafkaOffsetsInitializer(OffsetKind.COMMITTED, reset=_strategy(offset_reset_strategy))

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """Use these offsets."""
        given = []
        for partition, offset in offsets.items():
            if not isinstance(partition, KafkaTopicPartition) or not isinstance(offset, int) or offset < 0:
                raise ConfigurationError(
                    f"offsets() takes offsets from 0 by KafkaTopicPartition, not {partition!r}: {offset!r}."
                )
            given.append((partition.topic, partition.partition, offset))
        return KafkaOffsetsInitializer(
            OffsetKind.GIVEN, given=tuple(sorted(given)), reset=_strategy(offset_reset_strategy)
        )


def _strategy(given: KafkaOffsetResetStrategy) -> KafkaOffsetResetStrategy:
    if not isinstance(given, KafkaOffsetResetStrategy):
        raise ConfigurationError(f"offset_reset_strategy is a KafkaOffsetResetStrategy, not {given!r}.")
    return given


class TopicOffsets:
    """Reads which topics and partitions exist, and where they begin and end.

    Args:
        connection: The connection to the cluster.
        reads_committed: Whether the end of a partition is that of its committed records.
    """

    def __init__(self, connection: KafkaConnection, *, reads_committed: bool) -> None:
        self._connection = connection
        self._isolation = IsolationLevel.READ_COMMITTED if reads_committed else IsolationLevel.READ_UNCOMMITTED
        self._admin: AdminClient = connection.create_admin()

    def list_topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches."""
        with translate_errors("listing the topics of Kafka", self._connection):
            topics = self._connection.fetch_metadata(self._admin).topics
        return sorted(name for name in topics if re.fullmatch(pattern, name))

    def describe_topics(self, topics: Iterable[str], known: Collection[str] = ()) -> dict[str, tuple[str, list[int]]]:
        """Return id and partitions of each topic, without missing topics. Blocks.

        Brokers that have just started, or do not know a new topic yet, report it as missing. So this retries: up to the
        request timeout if a missing topic is in `known`, the topics that existed before, and otherwise for some
        seconds, because the name may be mistyped.
        """
        names = sorted(set(topics))
        result = self._describe_once(names)
        began = time.monotonic()
        while missing := [name for name in names if name not in result]:
            timeout = self._connection.request_timeout if not set(known).isdisjoint(missing) else _PROPAGATION_SECONDS
            if time.monotonic() - began > min(timeout, self._connection.request_timeout):
                break
            time.sleep(_PAUSE)
            result |= self._describe_once(missing)
        return result

    def _describe_once(self, names: list[str]) -> dict[str, tuple[str, list[int]]]:
        if not names:
            return {}
        result = {}
        with translate_errors("describing the topics of Kafka", self._connection):
            timeout = self._connection.request_timeout
            requests = self._admin.describe_topics(TopicCollection(names), request_timeout=timeout)
            for name in names:
                try:
                    topic = self._connection.wait_for(self._admin, requests[name])
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                else:
                    result[name] = str(topic.topic_id), sorted(partition.id for partition in topic.partitions)
        return result

    def end_offsets(self, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the end of each partition. Blocks."""
        return self._list_offsets(dict.fromkeys(places, OffsetSpec.latest()))

    def beginning_offsets(self, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the offset of the first available record in each partition. Blocks."""
        return self._list_offsets(dict.fromkeys(places, OffsetSpec.earliest()))

    def resolve(
        self, wanted: KafkaOffsetsInitializer, places: Iterable[PartitionKey], group: str | None
    ) -> dict[PartitionKey, int]:
        """Resolve an initializer to the offset of each partition. Blocks.

        Raises:
            ConfigurationError: A partition has no offset, and no reset strategy is set.
        """
        listed = sorted(places)
        if wanted.kind is OffsetKind.EARLIEST:
            return self.beginning_offsets(listed)
        if wanted.kind is OffsetKind.LATEST:
            return self.end_offsets(listed)
        if wanted.kind is OffsetKind.TIMESTAMP:
            found = self._list_offsets(dict.fromkeys(listed, OffsetSpec.for_timestamp(wanted.timestamp_ms)))
            absent = [place for place in listed if found[place] < 0]
            return {**found, **self.end_offsets(absent)}
        known = {(topic, n): offset for topic, n, offset in wanted.given}
        if wanted.kind is OffsetKind.COMMITTED:
            known = self._committed_offsets(listed, group)
        absent = [place for place in listed if place not in known]
        return self._resolve_missing(wanted.reset, absent, group) | {p: known[p] for p in listed if p in known}

    def _resolve_missing(
        self, strategy: KafkaOffsetResetStrategy, absent: list[PartitionKey], group: str | None
    ) -> dict[PartitionKey, int]:
        if not absent:
            return {}
        if strategy is KafkaOffsetResetStrategy.NONE:
            raise ConfigurationError(
                f"The topic {absent[0][0]!r}, partition {absent[0][1]}, has no starting offset: the group {group!r} "
                "has committed no offset there, or offsets() has none. Set a KafkaOffsetResetStrategy."
            )
        return (
            self.beginning_offsets(absent)
            if strategy is KafkaOffsetResetStrategy.EARLIEST
            else self.end_offsets(absent)
        )

    def _committed_offsets(self, places: list[PartitionKey], group: str | None) -> dict[PartitionKey, int]:
        if not group:
            raise ConfigurationError(NO_GROUP)
        partitions = [Partition(topic, number) for topic, number in places]
        with translate_errors(f"reading the committed offsets of the group {group!r}", self._connection):
            group_partitions = ConsumerGroupTopicPartitions(group, partitions)
            timeout = self._connection.request_timeout
            request = self._admin.list_consumer_group_offsets([group_partitions], request_timeout=timeout)[group]
            committed = self._connection.wait_for(self._admin, request).topic_partitions
            for partition in committed:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        return {(p.topic, p.partition): p.offset for p in committed if p.offset >= 0}

    def _list_offsets(self, wanted: Mapping[PartitionKey, Any]) -> dict[PartitionKey, int]:
        if not wanted:
            return {}
        timeout = self._connection.request_timeout
        deadline = time.monotonic() + timeout
        while True:
            specs = {Partition(topic, number): spec for (topic, number), spec in wanted.items()}
            try:
                with translate_errors("reading the beginnings and ends of Kafka partitions", self._connection):
                    requests = self._admin.list_offsets(specs, isolation_level=self._isolation, request_timeout=timeout)
                    offsets = {p: self._connection.wait_for(self._admin, r).offset for p, r in requests.items()}
                return {(p.topic, p.partition): int(offset) for p, offset in offsets.items()}
            except StorageError as error:
                cause = error.__cause__
                is_transient = isinstance(cause, KafkaException) and cause.args[0].code() in _TRANSIENT_CODES
                if not is_transient or time.monotonic() > deadline:
                    raise
                # The client keeps an old leader epoch of a partition until it reads the metadata again.
                with suppress(KafkaException):
                    self._connection.fetch_metadata(self._admin)
            time.sleep(_PAUSE)


_ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True)
class TopicSelection:
    """The topics or partitions that a source reads. Exactly one attribute is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[PartitionKey, ...] = ()


@dataclass
class TopicRanges:
    """The topics of one source: a `RangeReader` of `holdfast.spark.input.source`.

    Attributes:
        properties: The properties of the clients.
        selection: The topics or partitions to read.
        start: The starting offsets.
        stop: The stopping offsets; None for an endless stream.
        group: The consumer group of committed offsets.
        max_rows_per_epoch: The largest number of offsets in an epoch; 0 for no limit.
        reads_committed: Whether only committed records are read.
        discovery_seconds: The interval at which topics and partitions are listed, in seconds.
        discovers_new: Whether topics and partitions created later are read.
        fixed: Start and end of a bounded source.
        gate: Pauses the source while it is closed; None if it never pauses.
    """

    properties: Mapping[str, Any]
    selection: TopicSelection
    start: KafkaOffsetsInitializer
    stop: KafkaOffsetsInitializer | None = None
    group: str | None = None
    max_rows_per_epoch: int = 0
    reads_committed: bool = True
    discovery_seconds: float = 10.0
    discovers_new: bool = True
    fixed: tuple[Offset, Offset] | None = None
    gate: EpochGate | None = None
    _state: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None}

    def initial(self) -> Offset:
        metadata = self.topic_metadata()
        begun = metadata.offsets.resolve(self.start, metadata.places, self.group)
        return to_offset(metadata.ids, begun, metadata.stopping_offsets(self))

    def latest(self, start: Offset, is_limited: bool) -> Offset:
        """Return the end of the next epoch; `start` if nothing is new. Blocks.

        Raises:
            ConfigurationError: A topic does not exist.
            InputGoneError: A topic was deleted and created again.
        """
        metadata = self.topic_metadata(start)
        metadata.check_topics(start, self.selection.pattern)
        begun = next_offsets(start)
        stops = metadata.stopping_offsets(self, offsets_by_partition(start, "stop"))
        ends = _cap_at_stops(metadata.end_offsets(), stops)
        new = [place for place in metadata.places if place not in begun]
        if new:
            begun = {**begun, **metadata.offsets.beginning_offsets(new)}
        until = {place: max(begun[place], ends.get(place, begun[place])) for place in begun}
        reached = (
            _limit_rows(begun, until, self.max_rows_per_epoch) if is_limited and self.max_rows_per_epoch else until
        )
        if self.gate is not None:
            waits = self.gate.is_closed
            self.gate.set_has_more(until != (begun if waits else reached))
            if waits:
                return start
        ids = {**{topic: entry["id"] for topic, entry in start.items()}, **metadata.ids}
        return to_offset(ids, reached, stops)

    def freeze(self) -> None:
        metadata = self.topic_metadata()
        metadata.expire_ends()
        metadata.end_offsets()
        metadata.is_frozen = True

    def reported(self) -> Offset | None:
        return None if self._state is None else self._state.reported()

    def fix(self) -> None:
        """Determine start and end of a bounded source. Blocks."""
        metadata = self.topic_metadata()
        begun = metadata.offsets.resolve(self.start, metadata.places, self.group)
        ends = _cap_at_stops(metadata.end_offsets(), metadata.stopping_offsets(self))
        until = {place: max(begun[place], ends[place]) for place in begun}
        self.fixed = to_offset(metadata.ids, begun), to_offset(metadata.ids, until)

    def bounds(self) -> tuple[Offset, Offset]:
        assert self.fixed is not None
        return self.fixed

    def plan(self, start: Offset, end: Offset) -> Sequence[Range]:
        """Return a range for each partition with new records. Blocks.

        Raises:
            InputGoneError: Records were deleted before they were read.
        """
        begun, until = next_offsets(start), next_offsets(end)
        new = [place for place in until if place not in begun]
        offsets = self.topic_metadata(end).offsets
        first = offsets.beginning_offsets([place for place in until if until[place] > begun.get(place, 0)])
        begun |= {place: first.get(place, until[place]) for place in new}
        for place, offset in first.items():
            if begun[place] < offset:
                raise deleted_records_error(place, begun[place], offset)
        return [(*place, begun[place], until[place]) for place in sorted(until) if until[place] > begun[place]]

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, in a task. Blocks.

        Raises:
            StorageError: Kafka does not answer, or has deleted the records.
        """
        connection = KafkaConnection(self.properties)
        topic, number, begun, end = planned
        consumer = connection.create_consumer(
            {
                "group.id": self.group or "holdfast",
                "isolation.level": "read_committed" if self.reads_committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            },
            with_all=True,
        )
        try:
            with translate_errors(f"reading {topic!r}, partition {number}, from {begun} to {end}", connection):
                consumer.assign([Partition(topic, number, begun)])
                yield from _batches(consumer, planned, connection)
        finally:
            consumer.close()

    def topic_metadata(self, known: Collection[str] = ()) -> TopicMetadata:
        """Return the metadata of the topics, refreshed if it is old; `known` are topics that existed before."""
        if self._state is None:
            self._state = TopicMetadata(self)
        state: TopicMetadata = self._state
        state.refresh(self, known)
        return state


class TopicMetadata:
    """Cached metadata of the topics, in the process that plans."""

    def __init__(self, ranges: TopicRanges) -> None:
        self.offsets = TopicOffsets(KafkaConnection(ranges.properties), reads_committed=ranges.reads_committed)
        self.ids: dict[str, str] = {}
        self.places: list[PartitionKey] = []
        self.is_frozen = False
        self._ends: dict[PartitionKey, int] = {}
        self._stops: dict[PartitionKey, int] = {}
        self._refreshed_at = self._ends_read_at = float("-inf")

    def refresh(self, ranges: TopicRanges, known: Collection[str]) -> None:
        """List topics and partitions again if the last list is too old; `known` are topics that existed before.

        Raises:
            ConfigurationError: A selected topic or partition does not exist.
        """
        began = time.monotonic()
        if self.is_frozen or began - self._refreshed_at < _OLD * ranges.discovery_seconds:
            return
        chosen = ranges.selection
        names = self.offsets.list_topics(chosen.pattern) if chosen.pattern else list(chosen.topics)
        names = names or sorted({topic for topic, _ in chosen.partitions})
        found = self.offsets.describe_topics(names, {*known, *self.ids})
        missing = [name for name in names if name not in found]
        if missing:
            raise _missing_topic_error(missing[0])
        self.ids = {name: topic_id for name, (topic_id, _) in found.items()}
        places = [(name, number) for name, (_, numbers) in found.items() for number in numbers]
        absent = [place for place in chosen.partitions if place not in places]
        if absent:
            raise ConfigurationError(
                f"The Kafka topic {absent[0][0]!r} has no partition {absent[0][1]}: correct set_partitions()."
            )
        before = self.places
        self.places = before if before and not ranges.discovers_new else list(chosen.partitions) or places
        self._refreshed_at = began
        if before != self.places:
            self.expire_ends()

    def end_offsets(self) -> dict[PartitionKey, int]:
        """Return the ends of all partitions, cached for a moment."""
        if not self.is_frozen and time.monotonic() - self._ends_read_at >= _END_CACHE_SECONDS:
            self._ends = self.offsets.end_offsets(self.places)
            self._ends_read_at = time.monotonic()
        return self._ends

    def stopping_offsets(
        self, ranges: TopicRanges, kept: Mapping[PartitionKey, int] | None = None
    ) -> dict[PartitionKey, int]:
        """Return the stopping offsets: those of a position, otherwise those first resolved; empty without any."""
        if ranges.stop is not None:
            # The program's explicit offsets override those of the position.
            given = {(topic, number) for topic, number, _ in ranges.stop.given}
            self._stops |= {place: stop for place, stop in (kept or {}).items() if place not in given}
            new = [place for place in self.places if place not in self._stops]
            if new:
                self._stops |= self.offsets.resolve(ranges.stop, new, ranges.group)
        return self._stops

    def reported(self) -> Offset | None:
        """Return the cached ends, without a request."""
        ends = {place: end for place, end in self._ends.items() if place[0] in self.ids}
        return to_offset(self.ids, _cap_at_stops(ends, self._stops)) if ends else None

    def expire_ends(self) -> None:
        """Invalidate the cached ends."""
        self._ends_read_at = float("-inf")

    def check_topics(self, start: Offset, pattern: str) -> None:
        """Check that the topics of an offset still exist, with the same ids.

        Raises:
            ConfigurationError: A topic does not exist.
            InputGoneError: A topic was deleted and created again.
            StorageError: A topic exists, but was missing when topics were listed.
        """
        for topic, entry in start.items():
            if topic not in self.ids and pattern and re.fullmatch(pattern, topic):
                if self.offsets.describe_topics([topic], start):
                    raise StorageError(f"Not all Kafka brokers know the topic {topic!r} yet.")
                raise _missing_topic_error(topic)
            if topic in self.ids and self.ids[topic] != entry["id"]:
                raise InputGoneError(
                    f"The Kafka topic {topic!r} is not the one that the job has read: it was deleted and created again "
                    f"(its id was {entry['id']}, and is now {self.ids[topic]}), so its offsets refer to other records. "
                    "To read the new topic, give the source another uid and start with -n."
                )


def deleted_records_error(place: PartitionKey, begun: int, first: int) -> InputGoneError:
    """Return the error for records that were deleted before they were read.

    A new attempt meets it again, so the job fails. Flink skips such records unless `auto.offset.reset` is `none`.
    """
    return InputGoneError(
        f"Kafka deleted the records of {place[0]!r}, partition {place[1]}, from offset {begun} to {first} before they "
        "were read: the retention of the topic is too short for the job. Raise it. To continue without these records, "
        "give the source another uid and start with -n; it then reads from its starting offsets. Or start with --fresh."
    )


def _missing_topic_error(topic: str) -> ConfigurationError:
    return ConfigurationError(
        f"The Kafka topic {topic!r} does not exist: it was deleted, or its name is misspelled. Records that the job "
        "has read from it are not lost. Create the topic, or remove it from the source."
    )


def to_offset(
    ids: Mapping[str, str], following: Mapping[PartitionKey, int], stops: Mapping[PartitionKey, int] | None = None
) -> Offset:
    """Return an offset of the stream in canonical form, because Spark compares offsets as text."""
    result: Offset = {}
    for topic, number in sorted(following):
        entry = result.setdefault(topic, {"id": ids[topic], "next": {}})
        entry["next"][str(number)] = following[topic, number]
        if stops and (topic, number) in stops:
            entry.setdefault("stop", {})[str(number)] = stops[topic, number]
    return result


def next_offsets(offset: Offset) -> dict[PartitionKey, int]:
    """Return the next offset of each partition, from an offset of the stream."""
    return offsets_by_partition(offset, "next")


def offsets_by_partition(offset: Offset, name: str) -> dict[PartitionKey, int]:
    return {(topic, int(n)): number for topic, entry in offset.items() for n, number in entry.get(name, {}).items()}


def _cap_at_stops(ends: Mapping[PartitionKey, int], stops: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
    return {place: min(end, stops.get(place, end)) for place, end in ends.items()}


def _limit_rows(
    begun: Mapping[PartitionKey, int], until: Mapping[PartitionKey, int], most: int
) -> dict[PartitionKey, int]:
    """Limit the offsets of an epoch, in proportion to the backlog of each partition, at least one each."""
    total = sum(until[place] - begun[place] for place in until)
    if total <= most:
        return dict(until)
    return {
        place: min(until[place], begun[place] + -(-(until[place] - begun[place]) * most // total)) for place in until
    }


def _batches(consumer: Any, planned: Range, connection: KafkaConnection) -> Iterator[pa.RecordBatch]:
    _, _, position, end = planned
    last_progress = time.monotonic()
    rows: list[Message] = []
    while position < end:
        # A request for many records waits until there are as many, even at the end of a topic. So wait for one, and
        # then take those that have arrived with it.
        for message in consumer.consume(1, _POLL_SECONDS) + consumer.consume(_BATCH_ROWS, 0):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, message.offset())
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # the consumer joins no group
                    raise KafkaException(error)
                continue
            last_progress = time.monotonic()
            # Offsets have gaps: at ends of transactions, and after compaction.
            position = message.offset() + 1
            if message.offset() < end:
                rows.append(message)
        if rows and (len(rows) >= _BATCH_ROWS or position >= end):
            batch, rows = record_batch(rows), []
            yield batch
            last_progress = time.monotonic()  # processing the batch may take long
        elif position < end and connection.has_timed_out(last_progress):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no record arrived from offset {position} on"))


def record_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return messages without errors in the columns of the source."""
    times = [time for _, time in map(Message.timestamp, messages)]
    columns: list[pa.Array] = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.array(list(map(Message.topic, messages)), pa.string()),
        pa.array(list(map(Message.partition, messages)), pa.int32()),
        pa.array(list(map(Message.offset, messages)), pa.int64()),
        pa.array(times, pa.int64()),
        _header_column(list(map(Message.headers, messages))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _header_column(headers: Sequence[Any]) -> pa.Array:
    kind = _ARROW_SCHEMA.field("headers").type
    if not any(headers):
        return pa.ListArray.from_arrays(pa.array([0] * (len(headers) + 1), pa.int32()), pa.array([], kind.value_type))
    named = [[{"name": name, "value": value} for name, value in own or ()] for own in headers]
    return pa.array(named, kind)
