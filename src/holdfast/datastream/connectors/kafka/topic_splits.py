"""`TopicSplits`: topics of Kafka for real-time jobs, one split for each partition.

The position is the offset that jobs by epochs have: see `topic_ranges`. The state of a split is the next offset of its
partition, with the id of the topic and the stopping offset, if there is one::

    {"id": "2SwH...", "next": 17, "stop": 20}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Partition

from holdfast.datastream.connectors.kafka.client import KafkaConnection, error_text, translate_errors
from holdfast.datastream.connectors.kafka.topic_ranges import (
    Offset,
    PartitionKey,
    TopicMetadata,
    TopicRanges,
    deleted_records_error,
    next_offsets,
    offsets_by_partition,
    record_batch,
    to_offset,
)
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.source import EpochOffset, SourceReader, SourceSplit, SplitEnumerator, SplitSource

logger = get_logger(__name__)

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 8 << 20
_FIRST_ROWS: Final = 16
_NEVER: Final = 2**63
_CLIENT: Final = {
    # A broker answers as soon as it has a record; without one it answers after this time, and a partition that is
    # assigned meanwhile waits for it.
    "fetch.wait.max.ms": 100,
    # A partition whose records were not taken fast enough is fetched again after this time. The default is a second.
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 100,
    "socket.nagle.disable": True,
    # A source that waits for others is not polled.
    "max.poll.interval.ms": 86_400_000,
}
"""Client settings that the properties of a source override."""


class TopicSplits(SplitSource):
    """The partitions of topics, each read by one task.

    Args:
        ranges: The topics; its limits of epochs do not apply.
    """

    def __init__(self, ranges: TopicRanges) -> None:
        self._ranges = ranges

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return _TopicEnumerator(self._ranges, position)

    def create_reader(self, task: int) -> SourceReader:
        return _TopicReader(self._ranges)

    def to_epoch_offsets(self, position: Any) -> Sequence[EpochOffset] | None:
        return [EpochOffset(position)] if self._ranges.fixed is None else None

    def from_epoch_offsets(self, offsets: Sequence[EpochOffset]) -> Any:
        (own,) = offsets
        return own.offset


def _split_id(place: PartitionKey) -> str:
    return f"{place[0]}-{place[1]}"


def _place_of(split_id: str) -> PartitionKey:
    topic, _, number = split_id.rpartition("-")
    return topic, int(number)


class _TopicEnumerator(SplitEnumerator):
    def __init__(self, ranges: TopicRanges, position: Offset | None) -> None:
        self._ranges = ranges
        self._position = position
        self._ids: dict[str, str] = {}
        self._known: set[PartitionKey] = set()
        self._unread: Offset = {}
        self._is_begun = False

    @property
    def discovery_seconds(self) -> float:
        return self._ranges.discovery_seconds

    def is_exhausted(self) -> bool:
        return self._is_begun and self._ranges.fixed is not None

    def discover(self) -> Sequence[SourceSplit]:
        found = self._discover_more() if self._is_begun else self._begin()
        self._is_begun = True
        return found

    def _begin(self) -> list[SourceSplit]:
        if self._ranges.fixed is not None:
            return self._splits(*(self._ranges.fixed if self._position is None else self._bounds(self._position)))
        if self._position is None:
            return self._splits(self._ranges.initial())
        metadata = self._ranges.topic_metadata(self._position)
        metadata.check_topics(self._position, self._ranges.selection.pattern)
        stops = metadata.stopping_offsets(self._ranges, offsets_by_partition(self._position, "stop"))
        begun = next_offsets(self._position)
        read = {place: offset for place, offset in begun.items() if place in metadata.places}
        for place, first in metadata.offsets.beginning_offsets(read).items():
            if read[place] < first and read[place] < stops.get(place, first):
                raise deleted_records_error(place, read[place], first)
        ids = {topic: entry["id"] for topic, entry in self._position.items()}
        # A partition that is not selected any more keeps its position, and is not read.
        unread = {place: offset for place, offset in begun.items() if place not in read}
        self._unread = to_offset(ids, unread, offsets_by_partition(self._position, "stop"))
        return [*self._splits(to_offset(ids, read, stops)), *self._new_splits(metadata, stops)]

    def _discover_more(self) -> list[SourceSplit]:
        if self._ranges.fixed is not None:
            return []
        known = {topic: {"id": topic_id} for topic, topic_id in self._ids.items()}
        metadata = self._ranges.topic_metadata(known)
        metadata.check_topics(known, self._ranges.selection.pattern)
        return self._new_splits(metadata, metadata.stopping_offsets(self._ranges))

    def _new_splits(self, metadata: TopicMetadata, stops: Mapping[PartitionKey, int]) -> list[SourceSplit]:
        """Return the splits of partitions that have been created: they are read from their beginning."""
        new = [place for place in metadata.places if place not in self._known]
        if not new:
            return []
        return self._splits(to_offset(metadata.ids, metadata.offsets.beginning_offsets(new), stops))

    def _splits(self, offset: Offset, end: Offset | None = None) -> list[SourceSplit]:
        stops = offsets_by_partition(offset, "stop") if end is None else next_offsets(end)
        found = []
        self._ids |= {topic: entry["id"] for topic, entry in offset.items()}
        for place, following in next_offsets(offset).items():
            self._known.add(place)
            state = {"id": self._ids[place[0]], "next": following}
            found.append(SourceSplit(_split_id(place), state | ({"stop": stops[place]} if place in stops else {})))
        return found

    def _bounds(self, position: Offset) -> tuple[Offset, Offset]:
        """Return start and end of a bounded source whose position has both."""
        ids = {topic: entry["id"] for topic, entry in position.items()}
        return position, to_offset(ids, offsets_by_partition(position, "stop"))

    def snapshot(self, splits: Mapping[str, Any]) -> Any:
        places = {_place_of(split_id): state for split_id, state in splits.items()}
        ids = {topic: state["id"] for (topic, _), state in places.items()}
        following = {place: state["next"] for place, state in places.items()}
        stops = {place: state["stop"] for place, state in places.items() if "stop" in state}
        return _merged(to_offset(ids, following, stops), self._unread)


def _merged(offset: Offset, unread: Offset) -> Offset:
    if not unread:
        return offset
    following = {**next_offsets(offset), **next_offsets(unread)}
    stops = {**offsets_by_partition(offset, "stop"), **offsets_by_partition(unread, "stop")}
    return to_offset({topic: entry["id"] for topic, entry in (*unread.items(), *offset.items())}, following, stops)


class _TopicReader(SourceReader):
    """Reads partitions with one consumer."""

    def __init__(self, ranges: TopicRanges) -> None:
        self._connection = connection = KafkaConnection({**_CLIENT, **ranges.properties})
        self._is_bounded = ranges.fixed is not None
        self._has_stops = ranges.stop is not None or self._is_bounded
        self._consumer = connection.create_consumer(
            {
                "group.id": ranges.group or "holdfast",
                "isolation.level": "read_committed" if ranges.reads_committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # A partition may end with records that no reader gets, such as the ends of transactions.
                "enable.partition.eof": self._has_stops,
                "auto.offset.reset": "error",
            },
            with_all=True,
        )
        self._open: dict[PartitionKey, dict[str, Any]] = {}
        self._fetched: dict[PartitionKey, int] = {}
        self._ready: deque[tuple[Mapping[PartitionKey, int], pa.RecordBatch | None]] = deque()
        self._finished: list[str] = []
        self._rows = _FIRST_ROWS
        self._polled: Mapping[PartitionKey, int] = {}

    @property
    def has_splits(self) -> bool:
        return bool(self._open)

    @property
    def ended_splits(self) -> Collection[str]:
        if not self._has_stops:
            return ()
        at_stops = [place for place, state in self._open.items() if state["next"] >= state.get("stop", _NEVER)]
        return [*self._finished, *map(_split_id, at_stops)]

    @property
    def polled_split(self) -> str:
        return _split_id(*self._polled) if len(self._polled) == 1 else ""

    @property
    def has_fetched(self) -> bool:
        return bool(self._ready)

    @property
    def pending_records(self) -> int | None:
        pending = 0
        for place, state in self._open.items():
            # What the last answer of the broker said: no request.
            _, end = self._consumer.get_watermark_offsets(Partition(*place), cached=True)
            if end < 0:
                return None
            pending += max(0, min(end, state.get("stop", end)) - state["next"])
        return pending

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            place = _place_of(split.split_id)
            self._open[place] = dict(split.state)
            self._fetched[place] = split.state["next"]
        self._finish_at_stops()
        self._assign()

    def _assign(self) -> None:
        """Fetch all partitions from where they are read: an assignment replaces the one before."""
        self._ready.clear()
        self._fetched = {place: state["next"] for place, state in self._open.items()}
        unread = [(place, state) for place, state in self._open.items() if state["next"] < state.get("stop", _NEVER)]
        with translate_errors("assigning partitions", self._connection):
            self._consumer.assign([Partition(*place, state["next"]) for place, state in unread])

    def poll(self) -> pa.RecordBatch | None:
        if not self._ready and self._open:
            self._fetch()
        if not self._ready:
            return None
        self._polled, batch = self._ready.popleft()
        for place, following in self._polled.items():
            self._open[place]["next"] = following
        ended = [place for place, offset in self._polled.items() if offset >= self._open[place].get("stop", _NEVER)]
        if ended:
            self._consumer.pause([Partition(*place) for place in ended])
            self._finish_at_stops()
        return batch if batch is not None and batch.num_rows else None

    def _fetch(self) -> None:
        # A request for many records waits until there are as many. So wait for one, and take those that have arrived
        # with it.
        messages = self._consumer.consume(1, self.wait_seconds)
        if not messages:
            return
        messages += self._consumer.consume(min(self._rows, self.at_once), 0)
        records: dict[PartitionKey, list[Message]] = {}
        for message in messages:
            if message.error() is None:
                records.setdefault((message.topic(), message.partition()), []).append(message)
        if records:
            self._add({place: self._wanted(place, own) for place, own in records.items() if place in self._open})
        for message in messages:
            if message.error() is not None:
                self._handle_error(message)

    def _wanted(self, place: PartitionKey, messages: list[Message]) -> list[Message]:
        """Return the records of a partition that are wanted: others may be on their way from an assignment before."""
        begin, stop = self._fetched[place], self._open[place].get("stop", _NEVER)
        self._fetched[place] = max(begin, min(messages[-1].offset() + 1, stop))
        if messages[0].offset() >= begin and messages[-1].offset() < stop:
            return messages
        return [message for message in messages if begin <= message.offset() < stop]

    def _add(self, records: Mapping[PartitionKey, list[Message]]) -> None:
        """Make the records of partitions ready, together if they need not be apart."""
        following = {place: self._fetched[place] for place in records}
        parts = [{place: offset} for place, offset in following.items()] if self.separates_splits else [following]
        batches = [record_batch([message for place in part for message in records[place]]) for part in parts]
        self._ready += zip(parts, batches, strict=True)
        rows, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
        self._rows = max(1, min(_BATCH_ROWS, 2 * self._rows, _BATCH_BYTES * max(rows, 1) // (size or 1)))

    def _handle_error(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            assert topic is not None and partition is not None and offset is not None
            place = topic, partition
            if place in self._open and offset > self._fetched[place]:
                self._fetched[place] = min(offset, self._open[place].get("stop", _NEVER))
                self._ready.append(({place: self._fetched[place]}, None))
        elif code == KafkaError._AUTO_OFFSET_RESET and topic is not None and partition is not None:
            self._raise_out_of_range((topic, partition), error)
        elif code in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._MAX_POLL_EXCEEDED):
            return  # the consumer joins no group
        elif error.retriable() or code in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            logger.info("Kafka's client repeats a request: %s", error_text(error))
        else:
            with translate_errors("reading from Kafka", self._connection):
                raise KafkaException(error)

    def _raise_out_of_range(self, place: PartitionKey, error: KafkaError) -> None:
        with translate_errors(f"reading {place[0]!r}, partition {place[1]}", self._connection):
            first, _ = self._consumer.get_watermark_offsets(Partition(*place), self._connection.request_timeout)
            if first > self._fetched[place]:
                raise deleted_records_error(place, self._fetched[place], first)
            raise KafkaException(error)

    def _finish_at_stops(self) -> None:
        """Finish the partitions of a bounded source that were read up to their ends."""
        for place, state in list(self._open.items()):
            if self._is_bounded and state["next"] >= state["stop"]:
                del self._open[place]
                self._finished.append(_split_id(place))

    def snapshot(self) -> Mapping[str, Any]:
        finished, self._finished = self._finished, []
        return {**dict.fromkeys(finished), **{_split_id(place): dict(state) for place, state in self._open.items()}}

    def close(self) -> None:
        self._consumer.close()
