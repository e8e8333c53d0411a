"""Partitions as splits on a real broker, read by tasks of a real-time job; without Spark."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast.cli.output import FAILED, exit_code_of
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaTopicPartition,
)
from holdfast.datastream.connectors.kafka.topic_ranges import TopicRanges, TopicSelection
from holdfast.datastream.connectors.kafka.topic_splits import TopicSplits
from holdfast.errors import ConfigurationError, InputGoneError, StorageError
from holdfast.runtime.function.source import EpochOffset, SourceReader, SourceSplit, SplitEnumerator
from holdfast.testing import KafkaServer
from tests.stories.kafka import PATIENCE, make_topic, produce, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=[True, False], ids=["apart", "together"])
def are_apart(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether each poll returns the records of one partition."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceReader, "separates_splits", request.param)
        yield request.param


@pytest.fixture(scope="module")
def broker(are_apart: bool) -> Iterator[KafkaServer]:
    yield from running_broker()


def ranges(broker: KafkaServer, *topics: str, patience: int = 20000, **settings: Any) -> TopicRanges:
    properties = {"bootstrap.servers": broker.bootstrap_servers, "request.timeout.ms": patience}
    chosen = settings.pop("selection", TopicSelection(topics=topics))
    start = settings.pop("start", KafkaOffsetsInitializer.earliest())
    return TopicRanges(properties, chosen, start, discovery_seconds=0, **settings)


class Task:
    """A source with one enumerator and one reader, which read until nothing comes."""

    def __init__(self, source: TopicRanges, position: Any = None) -> None:
        self.source = TopicSplits(source)
        self.enumerator: SplitEnumerator = self.source.create_enumerator(position, 1)
        self.reader: Any = pickle.loads(pickle.dumps(self.source)).create_reader(0)
        self.states: dict[str, Any] = {}
        self.discover()

    def discover(self) -> Sequence[SourceSplit]:
        found = self.enumerator.discover()
        self.states.update((split.split_id, split.state) for split in found)
        self.reader.add_splits(found)
        return found

    def read(self, count: int, patience: float = PATIENCE) -> list[bytes]:
        """Return the next values, which are so many; an error if more come at once."""
        found: list[bytes] = []
        end = time.monotonic() + patience
        while len(found) < count and time.monotonic() < end:
            batch = self.reader.poll()
            if batch is not None:
                splits = {f"{row['topic']}-{row['partition']}" for row in batch.to_pylist()}
                assert len(splits) == 1 or not SourceReader.separates_splits
                assert self.reader.polled_split == ("" if len(splits) > 1 else splits.pop())
                found += batch.column("value").to_pylist()
        assert len(found) == count, found
        return found

    def is_silent(self, seconds: float = 0.5) -> bool:
        end = time.monotonic() + seconds
        return all(self.reader.poll() is None for _ in iter(lambda: time.monotonic() < end, False))

    def position(self) -> Any:
        for split_id, state in self.reader.snapshot().items():
            if state is None:
                del self.states[split_id]
                self.enumerator.split_finished(split_id)
            else:
                self.states[split_id] = state
        return json.loads(json.dumps(self.enumerator.snapshot(self.states)))


def test_a_job_goes_on_behind_the_last_polled_record(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "further", partitions=2)
    produce(broker.bootstrap_servers, "further", "a", "b")
    produce(broker.bootstrap_servers, "further", "c", partition=1)
    task = Task(ranges(broker, "further"))
    assert sorted(task.read(3)) == [b"a", b"b", b"c"]
    position = task.position()
    assert position["further"]["next"] == {"0": 2, "1": 1}
    task.reader.close()
    produce(broker.bootstrap_servers, "further", "d")
    assert Task(ranges(broker, "further"), position).read(1) == [b"d"]


def test_records_of_other_partitions_come_at_once(broker: KafkaServer, are_apart: bool) -> None:
    make_topic(broker.bootstrap_servers, "beside", partitions=2)
    task = Task(ranges(broker, "beside"))
    end, found = time.monotonic() + PATIENCE, False
    while not found and time.monotonic() < end:
        for partition in (0, 1):
            produce(broker.bootstrap_servers, "beside", "a", "b", partition=partition)
        time.sleep(0.5)  # both partitions have been fetched
        while (batch := task.reader.poll()) is not None:
            partitions = set(batch.column("partition").to_pylist())
            assert len(partitions) == 1 or not are_apart
            found = found or (task.reader.has_fetched if are_apart else len(partitions) == 2)
    assert found
    assert not task.reader.has_fetched


def test_positions_are_those_of_epoch_jobs_in_both_directions(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "both", partitions=2)
    produce(broker.bootstrap_servers, "both", "a", "b")
    epochs = ranges(broker, "both", max_rows_per_epoch=1)
    reached = epochs.latest(epochs.initial(), True)
    task = Task(ranges(broker, "both"), TopicSplits(epochs).from_epoch_offsets([EpochOffset(reached)]))
    assert task.read(1) == [b"b"]
    produce(broker.bootstrap_servers, "both", "c", partition=1)
    assert task.read(1) == [b"c"]
    offsets = task.source.to_epoch_offsets(task.position())
    assert offsets is not None
    offset = offsets[0].offset
    produce(broker.bootstrap_servers, "both", "d")
    planner = ranges(broker, "both")
    end = planner.latest(offset, False)
    rows = [value for one in planner.plan(offset, end) for batch in planner.read(one) for value in batch.column(1)]
    assert [value.as_py() for value in rows] == [b"d"]


def test_a_record_that_was_polled_but_is_still_queued_is_not_in_the_position(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "queued", partitions=2)
    produce(broker.bootstrap_servers, "queued", "a")
    produce(broker.bootstrap_servers, "queued", "b", partition=1)
    task = Task(ranges(broker, "queued"))
    task.reader.separates_splits = True
    time.sleep(2)  # both partitions are fetched when the reader takes the first batch
    first = task.read(1)
    position = task.position()
    assert sum(position["queued"]["next"].values()) == 1
    rest = Task(ranges(broker, "queued"), position).read(1)
    assert sorted(first + rest) == [b"a", b"b"]


def test_new_partitions_are_read_beside_the_others(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "grows", partitions=1)
    produce(broker.bootstrap_servers, "grows", "a")
    task = Task(ranges(broker, "grows", start=KafkaOffsetsInitializer.latest()))
    assert task.is_silent()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions("grows", 2)])["grows"].result(PATIENCE)
    end = time.monotonic() + PATIENCE
    while not task.discover():
        assert time.monotonic() < end
        time.sleep(0.1)
    produce(broker.bootstrap_servers, "grows", "b", partition=1)
    produce(broker.bootstrap_servers, "grows", "c")
    assert sorted(task.read(2)) == [b"b", b"c"]
    assert not task.enumerator.is_exhausted()
    fixed = Task(ranges(broker, "grows", selection=TopicSelection(partitions=(("grows", 0),))), task.position())
    assert fixed.is_silent()
    assert fixed.position() == task.position(), "a partition that is not selected keeps its position"


def test_topics_of_a_pattern_are_found_later(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "pattern-1", partitions=1)
    task = Task(ranges(broker, selection=TopicSelection(pattern=r"pattern-\d")))
    make_topic(broker.bootstrap_servers, "pattern-2", partitions=1)
    produce(broker.bootstrap_servers, "pattern-2", "a")
    end = time.monotonic() + PATIENCE
    while not task.discover():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert task.read(1) == [b"a"]
    assert sorted(task.position()) == ["pattern-1", "pattern-2"]


def test_a_deleted_and_created_topic_is_refused(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "reborn", partitions=1)
    produce(broker.bootstrap_servers, "reborn", "a")
    task = Task(ranges(broker, "reborn"))
    task.read(1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics(["reborn"])["reborn"].result(PATIENCE)
    with pytest.raises(ConfigurationError, match="'reborn' does not exist"):
        Task(ranges(broker, "reborn", patience=2000), task.position())
    with pytest.raises(ConfigurationError, match="'reborn' does not exist"):
        TopicSplits(ranges(broker, "reborn", patience=2000)).create_enumerator(None, 1).discover()
    make_topic(broker.bootstrap_servers, "reborn", partitions=1)
    with pytest.raises(InputGoneError, match="was deleted and created again"):
        task.discover()
    with pytest.raises(InputGoneError, match="was deleted and created again"):
        Task(ranges(broker, "reborn"), task.position())


def test_records_that_were_deleted_before_they_were_read_are_an_error(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "short", partitions=1)
    produce(broker.bootstrap_servers, "short", *"abcd")
    task = Task(ranges(broker, "short"))
    position = task.position()
    task.reader.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    limit = TopicPartition("short", 0, 2)
    next(iter(admin.delete_records([limit]).values())).result(PATIENCE)
    deleted = r"deleted the records of 'short', partition 0, from offset 0 to 2"
    with pytest.raises(InputGoneError, match=deleted) as caught:
        Task(ranges(broker, "short"), position)
    assert exit_code_of(caught.value) == FAILED
    reader = TopicSplits(ranges(broker, "short")).create_reader(0)
    reader.add_splits([SourceSplit("short-0", position_state(position))])
    with pytest.raises(InputGoneError, match=deleted):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            reader.poll()


def position_state(position: Any) -> Any:
    return {"id": position["short"]["id"], "next": position["short"]["next"]["0"]}


def test_a_bounded_source_ends_at_its_stopping_offsets(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "bounded", partitions=3)
    produce(broker.bootstrap_servers, "bounded", "a", "b")
    produce(broker.bootstrap_servers, "bounded", "c", partition=1)
    source = ranges(broker, "bounded", stop=KafkaOffsetsInitializer.latest())
    source.fix()
    produce(broker.bootstrap_servers, "bounded", "later")
    task = Task(source)
    assert task.enumerator.is_exhausted()
    assert sorted(task.read(3)) == [b"a", b"b", b"c"]
    assert not task.reader.has_splits
    assert set(task.reader.snapshot().values()) == {None}
    assert task.source.to_epoch_offsets({}) is None, "epochs read it as a whole"


def test_a_bounded_source_goes_on_to_the_end_that_it_had_first(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "ends", partitions=1)
    produce(broker.bootstrap_servers, "ends", *"abc")
    source = ranges(broker, "ends", stop=KafkaOffsetsInitializer.latest())
    source.fix()
    position = Task(source).position()
    assert position["ends"] == {"id": position["ends"]["id"], "next": {"0": 0}, "stop": {"0": 3}}
    produce(broker.bootstrap_servers, "ends", "later")
    again = ranges(broker, "ends", stop=KafkaOffsetsInitializer.latest())
    again.fix()
    task = Task(again, position)
    assert task.read(3) == [b"a", b"b", b"c"]
    assert task.is_silent() and not task.reader.has_splits


def test_a_stream_with_stopping_offsets_stops_and_does_not_end(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "stops", partitions=2)
    produce(broker.bootstrap_servers, "stops", *"abcd")
    stop = KafkaOffsetsInitializer.offsets({KafkaTopicPartition("stops", 0): 2, KafkaTopicPartition("stops", 1): 5})
    task = Task(ranges(broker, "stops", stop=stop))
    assert task.read(2) == [b"a", b"b"]
    produce(broker.bootstrap_servers, "stops", "other", partition=1)
    assert task.read(1) == [b"other"]
    assert task.is_silent() and task.reader.has_splits and not task.enumerator.is_exhausted()
    position = task.position()
    assert position["stops"]["next"] == {"0": 2, "1": 1} and position["stops"]["stop"] == {"0": 2, "1": 5}
    again = Task(ranges(broker, "stops", stop=KafkaOffsetsInitializer.latest()), position)
    assert again.is_silent(), "it stops where it was to stop first"


def test_only_committed_records_come_and_their_end_is_reached(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "committed", partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "splits"})
    producer.init_transactions(PATIENCE)
    for value, commits in (("kept", True), ("aborted", False), ("last", True)):
        producer.begin_transaction()
        producer.produce("committed", value, partition=0)
        producer.flush(PATIENCE)
        producer.commit_transaction(PATIENCE) if commits else producer.abort_transaction(PATIENCE)
    source = ranges(broker, "committed", stop=KafkaOffsetsInitializer.latest())
    source.fix()
    task = Task(source)
    assert task.read(2) == [b"kept", b"last"]
    end = time.monotonic() + PATIENCE
    while task.reader.has_splits:  # the end is behind the marker of the last transaction, which is no record
        assert time.monotonic() < end
        assert task.reader.poll() is None
    assert task.position() == {}
    uncommitted = Task(ranges(broker, "committed", reads_committed=False))
    assert uncommitted.read(3) == [b"kept", b"aborted", b"last"]


def test_an_added_partition_loses_and_repeats_nothing_of_the_others(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "many", partitions=4)
    for partition in range(4):
        values = [f"{partition}-{n}" for n in range(3000)]
        produce(broker.bootstrap_servers, "many", *values, partition=partition)
    task = Task(ranges(broker, "many", selection=TopicSelection(partitions=(("many", 0),))))
    found: list[bytes] = []
    for partition in range(1, 4):
        while not (batch := task.reader.poll()):
            pass
        found += batch.column("value").to_pylist()
        task.reader.add_splits([SourceSplit(f"many-{partition}", {"id": "x", "next": 0})])
    found += task.read(12_000 - len(found))
    assert sorted(found) == sorted(f"{partition}-{n}".encode() for partition in range(4) for n in range(3000))
    assert task.is_silent()


def test_large_records_come_in_small_batches(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "large", partitions=1)
    produce(broker.bootstrap_servers, "large", *[bytes(500_000)] * 120)
    task = Task(ranges(broker, "large"))
    time.sleep(2)
    sizes: list[int] = []
    while sum(sizes) < 120:
        batch = task.reader.poll()
        if batch is not None:
            sizes.append(batch.num_rows)
    assert max(sizes) <= 34, sizes


def test_a_broker_that_is_gone_is_reported_by_the_enumerator(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "cut", partitions=1)
    properties = {"bootstrap.servers": broker.proxy.address, "request.timeout.ms": 2000}
    source = TopicRanges(properties, TopicSelection(topics=("cut",)), KafkaOffsetsInitializer.earliest())
    source.discovery_seconds = 0
    task = Task(source)
    broker.proxy.cut()
    try:
        assert task.is_silent(), "the client of a reader tries again by itself"
        with pytest.raises(StorageError, match="Kafka"):
            task.discover()
    finally:
        broker.proxy.mend()
    produce(broker.bootstrap_servers, "cut", "a")
    assert task.read(1) == [b"a"]


def test_a_record_is_polled_within_milliseconds(broker: KafkaServer) -> None:
    """Measured in `benchmarks`; here only that no time-out of the client is in the way."""
    make_topic(broker.bootstrap_servers, "fast", partitions=2)
    builder = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics("fast")
    source = builder.build().split_source()
    reader = source.create_reader(0)
    reader.add_splits(source.create_enumerator(None, 1).discover())
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    taken: list[float] = []
    for n in range(40):
        began = time.monotonic()
        producer.produce("fast", b"x", partition=n % 2)
        producer.flush(PATIENCE)
        while reader.poll() is None:
            pass
        taken.append(time.monotonic() - began)
    assert sorted(taken)[20] < 0.1, taken
