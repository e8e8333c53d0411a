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
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, OffsetSpec

from holdfast.datastream.connectors.kafka.client import KafkaConnection, translated_errors
from holdfast.errors import ConfigurationError, StorageError
from holdfast.runtime.function.source import EpochGate

NO_GROUP: Final = "committed_offsets() needs set_group_id(): it is the group that has committed them."
Place = tuple[str, int]
"""Topic and partition."""
_PAUSE: Final = 0.1
_PROPAGATION_SECONDS: Final = 5.0
"""Seconds within which all brokers should know a new topic."""
_PASSING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp bigint, "
    "headers array<struct<name: string, value: binary>>"
)
_ROWS: Final = 4096
_POLL: Final = 0.5
_END_CACHE_SECONDS: Final = 0.1
"""Seconds for which the ends of partitions are remembered: Spark asks far more often when nothing is new."""
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
        is_committed: Whether the end of a partition is that of its committed records.
    """

    def __init__(self, connection: KafkaConnection, *, is_committed: bool) -> None:
        self._connection = connection
        self._isolation = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        self._admin: AdminClient = connection.admin()

    def matching(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches."""
        with translated_errors("listing the topics of Kafka", self._connection):
            found = self._connection.metadata(self._admin).topics
        return sorted(name for name in found if re.fullmatch(pattern, name))

    def described(self, topics: Iterable[str], known: Collection[str] = ()) -> dict[str, tuple[str, list[int]]]:
        """Id and partitions of each topic; those that are not there are left out.

        A broker that has just begun, or has not heard of a new topic, is asked again: for as long as a request may take
        where a topic is known to have been there, and else for some seconds, because its name may be mistyped.
        """
        names = sorted(set(topics))
        result = self._described(names)
        began = time.monotonic()
        while missing := [name for name in names if name not in result]:
            patience = self._connection.patience if not set(known).isdisjoint(missing) else _PROPAGATION_SECONDS
            if time.monotonic() - began > min(patience, self._connection.patience):
                break
            time.sleep(_PAUSE)
            result |= self._described(missing)
        return result

    def _described(self, names: list[str]) -> dict[str, tuple[str, list[int]]]:
        if not names:
            return {}
        result = {}
        with translated_errors("asking Kafka about topics", self._connection):
            answers = self._admin.describe_topics(TopicCollection(names), request_timeout=self._connection.patience)
            for name in names:
                try:
                    said = self._connection.answer(self._admin, answers[name])
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                else:
                    result[name] = str(said.topic_id), sorted(partition.id for partition in said.partitions)
        return result

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The end of each partition."""
        return self._metadata(dict.fromkeys(places, OffsetSpec.latest()))

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset of the first record that there is, in each partition."""
        return self._metadata(dict.fromkeys(places, OffsetSpec.earliest()))

    def resolved(self, wanted: KafkaOffsetsInitializer, places: Iterable[Place], group: str | None) -> dict[Place, int]:
        """Where reading begins or ends in each partition.

        Raises:
            ConfigurationError: Nothing says where.
        """
        listed = sorted(places)
        if wanted.kind is OffsetKind.EARLIEST:
            return self.beginnings(listed)
        if wanted.kind is OffsetKind.LATEST:
            return self.ends(listed)
        if wanted.kind is OffsetKind.TIMESTAMP:
            found = self._metadata(dict.fromkeys(listed, OffsetSpec.for_timestamp(wanted.timestamp_ms)))
            absent = [place for place in listed if found[place] < 0]
            return {**found, **self.ends(absent)}
        known = {(topic, n): offset for topic, n, offset in wanted.given}
        if wanted.kind is OffsetKind.COMMITTED:
            known = self._committed(listed, group)
        return {**self._reset(wanted.reset, [p for p in listed if p not in known], group), **{
            place: known[place] for place in listed if place in known
        }}  # fmt: skip

    def _reset(self, strategy: KafkaOffsetResetStrategy, absent: list[Place], group: str | None) -> dict[Place, int]:
        if not absent:
            return {}
        if strategy is KafkaOffsetResetStrategy.NONE:
            raise ConfigurationError(
                f"Nothing says where reading begins in {absent[0][0]!r}, partition {absent[0][1]}: the group {group!r} "
                "has committed no offset there, or none was given. Name a KafkaOffsetResetStrategy."
            )
        return self.beginnings(absent) if strategy is KafkaOffsetResetStrategy.EARLIEST else self.ends(absent)

    def _committed(self, places: list[Place], group: str | None) -> dict[Place, int]:
        if not group:
            raise ConfigurationError(NO_GROUP)
        partitions = [Partition(topic, number) for topic, number in places]
        with translated_errors(f"asking Kafka for the offsets of the group {group!r}", self._connection):
            request = ConsumerGroupTopicPartitions(group, partitions)
            patience = self._connection.patience
            answer = self._admin.list_consumer_group_offsets([request], request_timeout=patience)[group]
            found = self._connection.answer(self._admin, answer).topic_partitions
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def _metadata(self, wanted: Mapping[Place, Any]) -> dict[Place, int]:
        if not wanted:
            return {}
        patience = self._connection.patience
        deadline = time.monotonic() + patience
        while True:
            request = {Partition(topic, number): spec for (topic, number), spec in wanted.items()}
            try:
                with translated_errors("asking Kafka where partitions begin and end", self._connection):
                    answers = self._admin.list_offsets(
                        request, isolation_level=self._isolation, request_timeout=patience
                    )
                    found = {p: self._connection.answer(self._admin, answer).offset for p, answer in answers.items()}
                return {(p.topic, p.partition): int(offset) for p, offset in found.items()}
            except StorageError as error:
                cause = error.__cause__
                is_passing = isinstance(cause, KafkaException) and cause.args[0].code() in _PASSING
                if not is_passing or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)


_SCHEMA: Final = pa.schema(
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
    """Which partitions a source reads; one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[Place, ...] = ()


@dataclass
class TopicRanges:
    """The topics of one source; see `holdfast.spark.input.source.RangeReader`.

    Attributes:
        properties: Properties of the clients.
        selection: What is read.
        start: Where partitions begin.
        stop: Where they end; None if they go on.
        group: For committed offsets.
        most_rows: Offsets that an epoch may cover; 0 for no limit.
        is_committed: Whether only committed records are read.
        discovery: Seconds between looks at topics and partitions.
        finds_new: Whether those that were not there at the first look are read.
        fixed: Beginning and end of a source that is read once.
        gate: Says whether the source waits; None if it never does.
    """

    properties: Mapping[str, Any]
    selection: TopicSelection
    start: KafkaOffsetsInitializer
    stop: KafkaOffsetsInitializer | None = None
    group: str | None = None
    most_rows: int = 0
    is_committed: bool = True
    discovery: float = 10.0
    finds_new: bool = True
    fixed: tuple[Offset, Offset] | None = None
    gate: EpochGate | None = None
    _state: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None}

    def initial(self) -> Offset:
        """Where the stream begins."""
        metadata = self._metadata()
        begun = metadata.offsets.resolved(self.start, metadata.places, self.group)
        return _offset(metadata.ids, begun, metadata.stops(self))

    def latest(self, start: Offset, is_limited: bool) -> Offset:
        """Where the next epoch ends.

        Raises:
            ConfigurationError: A topic is gone, or is another one.
        """
        metadata = self._metadata(start)
        metadata.require_same(start, self.selection.pattern)
        begun = places_of(start)
        stops = metadata.stops(self, _places_of(start, "stop"))
        ends = _within(metadata.ends(), stops)
        new = [place for place in metadata.places if place not in begun]
        if new:
            begun = {**begun, **metadata.offsets.beginnings(new)}
        until = {place: max(begun[place], ends.get(place, begun[place])) for place in begun}
        reached = _limited(begun, until, self.most_rows) if is_limited and self.most_rows else until
        if self.gate is not None:
            waits = self.gate.is_closed
            self.gate.set_has_more(until != (begun if waits else reached))
            if waits:
                return start
        ids = {**{topic: said["id"] for topic, said in start.items()}, **metadata.ids}
        return _offset(ids, reached, stops)

    def freeze(self) -> None:
        """Nothing that comes later is seen."""
        metadata = self._metadata()
        metadata.forget()
        metadata.ends()
        metadata.is_frozen = True

    def reported(self) -> Offset | None:
        """The ends that were last seen."""
        return None if self._state is None else self._state.reported()

    def fix(self) -> None:
        """Decides what is read by a source that is read once. Blocks."""
        metadata = self._metadata()
        begun = metadata.offsets.resolved(self.start, metadata.places, self.group)
        ends = _within(metadata.ends(), metadata.stops(self))
        until = {place: max(begun[place], ends[place]) for place in begun}
        self.fixed = _offset(metadata.ids, begun), _offset(metadata.ids, until)

    def bounds(self) -> tuple[Offset, Offset]:
        """What `fix` has decided."""
        assert self.fixed is not None
        return self.fixed

    def plan(self, start: Offset, end: Offset) -> Sequence[Range]:
        """A range for each partition that has something new.

        Raises:
            ConfigurationError: Records are gone that were not read.
        """
        begun, until = places_of(start), places_of(end)
        new = [place for place in until if place not in begun]
        offsets = self._metadata(end).offsets
        first = offsets.beginnings([place for place in until if until[place] > begun.get(place, 0)])
        begun |= {place: first.get(place, until[place]) for place in new}
        for place, offset in first.items():
            if begun[place] < offset:
                raise ConfigurationError(
                    f"The records of {place[0]!r}, partition {place[1]}, from offset {begun[place]} to {offset} were "
                    "not read, and Kafka has them no more: the topic keeps less than the job needs (retention). Start "
                    "from where there are records, with -s and this input anew, or --fresh."
                )
        return [(*place, begun[place], until[place]) for place in sorted(until) if until[place] > begun[place]]

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        """The records of a range, in a task.

        Raises:
            StorageError: Kafka does not answer, or has the records no more.
        """
        connection = KafkaConnection(self.properties)
        topic, number, begun, end = planned
        consumer = connection.consumer(
            {
                "group.id": self.group or "holdfast",
                "isolation.level": "read_committed" if self.is_committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            },
            with_all=True,
        )
        try:
            with translated_errors(f"reading {topic!r}, partition {number}, from {begun} to {end}", connection):
                consumer.assign([Partition(topic, number, begun)])
                yield from _batches(consumer, planned, connection)
        finally:
            consumer.close()

    def _metadata(self, known: Collection[str] = ()) -> _TopicMetadata:
        """Return the metadata of the topics, refreshed if it is old; `known` are topics that existed before."""
        if self._state is None:
            self._state = _TopicMetadata(self)
        state: _TopicMetadata = self._state
        state.look(self, known)
        return state


class _TopicMetadata:
    """Cached metadata of the topics, in the process that plans."""

    def __init__(self, ranges: TopicRanges) -> None:
        self.offsets = TopicOffsets(KafkaConnection(ranges.properties), is_committed=ranges.is_committed)
        self.ids: dict[str, str] = {}
        self.places: list[Place] = []
        self.known: dict[Place, int] = {}
        self.is_frozen = False
        self._stops: dict[Place, int] = {}
        self._refreshed_at = self._ends_read_at = float("-inf")

    def look(self, ranges: TopicRanges, known: Collection[str]) -> None:
        """Looks for topics and partitions, if it is time to; `known` are topics that have been there.

        Raises:
            ConfigurationError: A topic that was named is not there.
        """
        if self.is_frozen or time.monotonic() - self._refreshed_at < ranges.discovery:
            return
        chosen = ranges.selection
        names = self.offsets.matching(chosen.pattern) if chosen.pattern else list(chosen.topics)
        names = names or sorted({topic for topic, _ in chosen.partitions})
        found = self.offsets.described(names, {*known, *self.ids})
        missing = [name for name in names if name not in found]
        if missing:
            raise _missing(missing[0])
        self.ids = {name: said[0] for name, said in found.items()}
        places = [(name, number) for name, said in found.items() for number in said[1]]
        absent = [place for place in chosen.partitions if place not in places]
        if absent:
            raise ConfigurationError(f"Kafka has no partition {absent[0][1]} of the topic {absent[0][0]!r}.")
        before = self.places
        self.places = before if before and not ranges.finds_new else list(chosen.partitions) or places
        self._refreshed_at = time.monotonic()
        if before != self.places:
            self.forget()

    def ends(self) -> dict[Place, int]:
        """The ends of all partitions, as of a moment ago."""
        if not self.is_frozen and time.monotonic() - self._ends_read_at >= _END_CACHE_SECONDS:
            self.known = self.offsets.ends(self.places)
            self._ends_read_at = time.monotonic()
        return self.known

    def stops(self, ranges: TopicRanges, kept: Mapping[Place, int] | None = None) -> dict[Place, int]:
        """Where reading ends, by what a position says or as it was found first; nothing if it goes on."""
        if ranges.stop is not None:
            given = {(topic, number) for topic, number, _ in ranges.stop.given}  # what a program says now counts
            self._stops |= {place: stop for place, stop in (kept or {}).items() if place not in given}
            new = [place for place in self.places if place not in self._stops]
            if new:
                self._stops |= self.offsets.resolved(ranges.stop, new, ranges.group)
        return self._stops

    def reported(self) -> Offset | None:
        """The ends that were last seen, without asking for others."""
        known = {place: end for place, end in self.known.items() if place[0] in self.ids}
        return _offset(self.ids, _within(known, self._stops)) if known else None

    def forget(self) -> None:
        """The next answer is a new one."""
        self._ends_read_at = float("-inf")

    def require_same(self, start: Offset, pattern: str) -> None:
        """Makes sure that the topics of an offset are those that there are.

        Raises:
            ConfigurationError: One is gone, or is another one now.
            StorageError: One is there, and was not when the topics were listed.
        """
        for topic, said in start.items():
            if topic not in self.ids and pattern and re.fullmatch(pattern, topic):
                if self.offsets.described([topic], start):
                    raise StorageError(f"Not all of Kafka's brokers have heard of the topic {topic!r} yet.")
                raise _missing(topic)
            if topic in self.ids and self.ids[topic] != said["id"]:
                raise ConfigurationError(
                    f"The Kafka topic {topic!r} is another one than the job has read: it was deleted and made again "
                    f"(its id was {said['id']}, and is {self.ids[topic]}), so offsets of it mean other records. Start "
                    "with this input anew, or name the topic that the checkpoint knows."
                )


def _missing(topic: str) -> ConfigurationError:
    return ConfigurationError(
        f"Kafka has no topic {topic!r}: it was deleted, or its name is another one. What the job has read of it stays; "
        "make the topic, or start without it in the source."
    )


def _offset(ids: Mapping[str, str], following: Mapping[Place, int], stops: Mapping[Place, int] | None = None) -> Offset:
    """The canonical form: Spark takes two offsets for the same if their texts are."""
    result: Offset = {}
    for topic, number in sorted(following):
        said = result.setdefault(topic, {"id": ids[topic], "next": {}})
        said["next"][str(number)] = following[topic, number]
        if stops and (topic, number) in stops:
            said.setdefault("stop", {})[str(number)] = stops[topic, number]
    return result


def places_of(offset: Offset) -> dict[Place, int]:
    """What is read next of each partition, by an offset of the stream."""
    return _places_of(offset, "next")


def _places_of(offset: Offset, name: str) -> dict[Place, int]:
    return {(topic, int(n)): number for topic, said in offset.items() for n, number in said.get(name, {}).items()}


def _within(ends: Mapping[Place, int], stops: Mapping[Place, int]) -> dict[Place, int]:
    return {place: min(end, stops.get(place, end)) for place, end in ends.items()}


def _limited(begun: Mapping[Place, int], until: Mapping[Place, int], most: int) -> dict[Place, int]:
    """Ends that cover so many offsets, shared out by what each partition has; none is left out for ever."""
    total = sum(until[place] - begun[place] for place in until)
    if total <= most:
        return dict(until)
    return {
        place: min(until[place], begun[place] + -(-(until[place] - begun[place]) * most // total)) for place in until
    }


def _batches(consumer: Any, planned: Range, connection: KafkaConnection) -> Iterator[pa.RecordBatch]:
    _, _, position, end = planned
    moved = time.monotonic()
    rows: list[tuple[Any, ...]] = []
    while position < end:
        # Asked for many, the client waits until it has as many, also where a topic has no more: so for one, and for
        # those that have come with it.
        for message in consumer.consume(1, _POLL) + consumer.consume(_ROWS, 0):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, message.offset())
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # it is in no group
                    raise KafkaException(error)
                continue
            moved = time.monotonic()
            # Offsets have gaps: where transactions end, and where the topic was compacted.
            position = message.offset() + 1
            if message.offset() < end:
                rows.append(_row(message))
        if rows and (len(rows) >= _ROWS or position >= end):
            columns = zip(*rows, strict=True)
            rows = []
            arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
            moved = time.monotonic()  # whoever works with them may take long
        elif position < end and connection.is_lost(moved):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"nothing came after offset {position}"))


def _row(message: Any) -> tuple[Any, ...]:
    headers = [{"name": name, "value": value} for name, value in message.headers() or ()]
    at = message.timestamp()[1]
    return message.key(), message.value(), message.topic(), message.partition(), message.offset(), at, headers
