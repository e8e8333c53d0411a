"""Ranges of offsets on a real broker, planned and read without Spark."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast.datastream.connectors.kafka import topic_ranges
from holdfast.datastream.connectors.kafka.topic_ranges import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
    TopicRanges,
    TopicSelection,
    next_offsets,
)
from holdfast.datastream.connectors.kafka.topic_splits import TopicSplits
from holdfast.errors import ConfigurationError, InputGoneError
from holdfast.runtime.function.source import EpochGate
from holdfast.testing import KafkaServer
from tests.stories.kafka import PATIENCE, make_topic, messages, produce, require_jars, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def ranges(broker: KafkaServer, selection: TopicSelection, patience: int = 20000, **settings: Any) -> TopicRanges:
    properties = {"bootstrap.servers": broker.bootstrap_servers, "request.timeout.ms": patience}
    return TopicRanges(properties, selection, KafkaOffsetsInitializer.earliest(), discovery_seconds=0, **settings)


def read(planner: TopicRanges, start: Any, end: Any) -> list[bytes]:
    task = pickle.loads(pickle.dumps(planner))
    batches = [batch for planned in planner.plan(start, end) for batch in task.read(planned)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_an_epoch_that_is_read_again_has_the_same_rows_and_is_as_long_as_it_may_be(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "again", partitions=1)
    produce(broker.bootstrap_servers, "again", "a", "b", "c")
    planner = ranges(broker, TopicSelection(topics=("again",)), max_rows_per_epoch=2)
    start = planner.initial()
    end = planner.latest(start, True)
    assert read(planner, start, end) == [b"a", b"b"]
    produce(broker.bootstrap_servers, "again", "d")
    assert read(ranges(broker, TopicSelection(topics=("again",))), start, end) == [b"a", b"b"]
    planner = ranges(broker, TopicSelection(pattern="agai."))
    planner.freeze()
    produce(broker.bootstrap_servers, "again", "e")
    assert read(planner, end, planner.latest(end, False)) == [b"c", b"d"]
    last = planner.latest(end, False)
    assert planner.latest(last, False) == last and planner.plan(last, last) == []


def test_who_reads_to_the_end_of_a_topic_waits_for_no_record_that_has_still_to_come(
    broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is behind a record, or behind the mark of a transaction, which no reader gets to see."""
    monkeypatch.setattr(topic_ranges, "_POLL_SECONDS", 120.0)
    for name, transactional in (("plain-end", {}), ("marked-end", {"transactional.id": "marked"})):
        make_topic(broker.bootstrap_servers, name, partitions=1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **transactional})
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        for value in ("a", "b", "c"):
            producer.produce(name, value)
        producer.commit_transaction() if transactional else producer.flush()
        planner = ranges(broker, TopicSelection(topics=(name,)))
        start = planner.initial()
        found: list[bytes] = []
        while (end := planner.latest(start, False)) == start:  # a commit is answered before its mark is there
            time.sleep(0.1)
        reader = threading.Thread(target=lambda: found.extend(read(planner, start, end)), daemon=True)  # noqa: B023
        reader.start()
        reader.join(60)
        assert found == [b"a", b"b", b"c"]


@pytest.mark.parametrize("kind", ["latest", "time", "offset", "group"])
def test_a_source_ends_where_it_was_to_end_whenever_it_is_started_again(broker: KafkaServer, kind: str) -> None:
    """Where that is was found when it began: later there are more records, and the group is further."""
    name, servers = f"until-{kind}", broker.bootstrap_servers
    make_topic(servers, name)
    for value, at in (("a", 1000), ("b", 2000), ("c", 3000)):
        produce(servers, name, value, timestamp=at)
    commit_of_group(broker, TopicPartition(name, 0, 2))
    reset = KafkaOffsetResetStrategy.LATEST
    stop, expected = {
        "latest": (KafkaOffsetsInitializer.latest(), [b"a", b"b", b"c"]),
        "time": (KafkaOffsetsInitializer.timestamp(2500), [b"a", b"b"]),
        "offset": (KafkaOffsetsInitializer.offsets({KafkaTopicPartition(name, 0): 4}, reset), [b"a", b"b", b"c", b"d"]),
        "group": (KafkaOffsetsInitializer.committed_offsets(reset), [b"a", b"b"]),
    }[kind]

    def planner() -> TopicRanges:
        return ranges(broker, TopicSelection(topics=(name,)), stop=stop, group="bounds", max_rows_per_epoch=1)

    def rest(start: Any) -> list[bytes]:
        found, reader = [], planner()
        while (end := reader.latest(start, True)) != start:
            found += read(reader, start, end)
            start = end
        assert next_offsets(reader.reported() or {}) == next_offsets(start), "no record waits"
        return found

    fixed = planner()
    if kind != "offset":
        fixed.fix()
        assert read(fixed, *fixed.bounds()) == expected
    start = planner().initial()
    first = planner().latest(start, True)
    produce(servers, name, "d", "e", timestamp=4000)
    produce(servers, name, "of another partition", partition=1, timestamp=4000)
    commit_of_group(broker, TopicPartition(name, 0, 5))
    assert read(planner(), start, first) + rest(first) == expected
    if kind == "offset":
        stop = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(name, 0): 5}, reset)
        assert read(planner(), start, first) + rest(first) == [*expected, b"e"], "what the program says now counts"


def commit_of_group(broker: KafkaServer, place: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "bounds"})
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def test_a_source_whose_gate_is_closed_stays_where_it_is_and_says_what_it_leaves(broker: KafkaServer) -> None:
    """The gate is asked by a copy, as in the process in which Spark plans."""
    make_topic(broker.bootstrap_servers, "gate", partitions=1)
    produce(broker.bootstrap_servers, "gate", "a", "b", "c")
    gate = EpochGate()
    built = ranges(broker, TopicSelection(topics=("gate",)), max_rows_per_epoch=2, gate=gate)
    planner: TopicRanges = pickle.loads(pickle.dumps(built))
    start = planner.initial()
    gate.close()
    assert json.dumps(planner.latest(start, True)) == json.dumps(start) and gate.has_more
    gate.open()
    end = planner.latest(start, True)
    assert read(planner, start, end) == [b"a", b"b"] and gate.has_more
    last = planner.latest(end, True)
    assert read(planner, end, last) == [b"c"] and not gate.has_more
    gate.close()
    produce(broker.bootstrap_servers, "gate", "d")
    planner = pickle.loads(pickle.dumps(built))
    assert planner.latest(last, True) == last and gate.has_more
    gate.reset()
    planner.freeze()
    produce(broker.bootstrap_servers, "gate", "e")
    assert read(planner, last, planner.latest(last, True)) == [b"d"] and not gate.has_more


def test_who_looks_for_nothing_new_reads_new_partitions_when_it_is_started_again(broker: KafkaServer) -> None:
    name, servers = "grows", broker.bootstrap_servers
    make_topic(servers, name, partitions=1)
    still, curious = (ranges(broker, TopicSelection(topics=(name,)), discovers_new=finds) for finds in (False, True))
    start = still.initial()
    assert curious.initial() == start
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(PATIENCE)
    produce(servers, name, "a", partition=1)
    deadline = time.monotonic() + PATIENCE
    while curious.latest(start, False) == start:
        assert time.monotonic() < deadline
    assert still.latest(start, False) == start
    again = ranges(broker, TopicSelection(topics=(name,)), discovers_new=False)
    assert read(again, start, again.latest(start, False)) == [b"a"]


def test_a_real_time_job_that_asks_a_moment_early_finds_new_partitions(
    broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks in the interval from start to start, which a thread does not keep to the millisecond."""
    name, servers, ahead = "early", broker.bootstrap_servers, [0.0]
    make_topic(servers, name, partitions=1)
    monkeypatch.setattr(
        topic_ranges, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0], sleep=time.sleep)
    )
    properties = {"bootstrap.servers": servers, "request.timeout.ms": 20000}
    first = KafkaOffsetsInitializer.earliest()
    topic = TopicRanges(properties, TopicSelection(topics=(name,)), first, discovery_seconds=10_000)
    enumerator = TopicSplits(topic).create_enumerator(None, 1)
    assert [split.split_id for split in enumerator.discover()] == ["early-0"]
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(PATIENCE)
    until_known = time.monotonic() + PATIENCE
    while len(admin.list_topics(name, PATIENCE).topics[name].partitions) < 2:
        assert time.monotonic() < until_known
    ahead[0] = 5000.0
    assert enumerator.discover() == [], "nobody lists topics more often than it was asked for"
    ahead[0] = 9990.0
    assert [split.split_id for split in enumerator.discover()] == ["early-1"]
    enumerator.close()


def test_a_topic_that_is_made_a_moment_later_is_waited_for(broker: KafkaServer) -> None:
    """And so is a broker that has not heard of it yet: a topic that is not there ends the job."""
    late = threading.Timer(1.0, make_topic, (broker.bootstrap_servers, "late"))
    late.start()
    start = ranges(broker, TopicSelection(topics=("late",))).initial()
    late.join()
    assert start["late"]["next"] == {"0": 0, "1": 0}


def test_a_topic_whose_name_is_mistyped_is_told_long_before_one_that_a_job_has_read(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "spelt")
    start = ranges(broker, TopicSelection(topics=("spelt",))).initial()
    mistyped = TopicSelection(topics=("spelt", "splet"))
    for offset, least, most in (({}, 0, 12), (start, 0, 12), ({"splet": start["spelt"]}, 13, 60)):
        planner, began = ranges(broker, mistyped, patience=13_000), time.monotonic()
        with pytest.raises(ConfigurationError, match="The Kafka topic 'splet' does not exist"):
            planner.latest(offset, False) if offset else planner.initial()
        assert least < time.monotonic() - began < most


def test_topics_that_are_gone_or_another_one_are_refused(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "gone", partitions=1)
    produce(broker.bootstrap_servers, "gone", "a")
    by_name, by_pattern = TopicSelection(topics=("gone",)), TopicSelection(pattern="gon.")
    start = ranges(broker, by_name).initial()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics(["gone"])["gone"].result(PATIENCE)
    for selection in (by_name, by_pattern):
        with pytest.raises(ConfigurationError, match="The Kafka topic 'gone' does not exist"):
            ranges(broker, selection, patience=1000).latest(start, False)
    make_topic(broker.bootstrap_servers, "gone", partitions=1)
    produce(broker.bootstrap_servers, "gone", "x", "y")
    for selection in (by_name, by_pattern):
        with pytest.raises(InputGoneError, match="is not the one that the job has read"):
            ranges(broker, selection).latest(start, False)


def test_records_that_kafka_has_no_more_are_missed(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "short", partitions=1)
    produce(broker.bootstrap_servers, "short", "a", "b", "c")
    planner = ranges(broker, TopicSelection(topics=("short",)))
    start = planner.initial()
    place = TopicPartition("short", 0, 2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_records([place])[place].result(PATIENCE)
    with pytest.raises(InputGoneError, match="from offset 0 to 2 before they were read"):
        planner.plan(start, planner.latest(start, False))
    assert read(planner, planner.initial(), planner.latest(planner.initial(), False)) == [b"c"]


def test_a_compacted_topic_is_read_over_the_gaps_in_its_offsets() -> None:
    """Also where an epoch ends in a gap, or has nothing but one."""
    require_jars()
    name = "compacted"
    with KafkaServer(settings={"log.cleaner.backoff.ms": "200"}) as own:
        make_topic(
            own.bootstrap_servers, name, partitions=1, cleanup_policy="compact", segment_ms="200",
            min_cleanable_dirty_ratio="0.01", delete_retention_ms="0",
        )  # fmt: skip
        producer = Producer({"bootstrap.servers": own.bootstrap_servers})
        for number in range(40):
            producer.produce(name, str(number), key=f"key {number % 3}")
        producer.produce(name, None, key="key 0")
        assert producer.flush(PATIENCE) == 0
        deadline, kept = time.monotonic() + PATIENCE, 41
        while kept > 4:  # the last segment is never compacted, so there is one more now and then
            assert time.monotonic() < deadline, kept
            time.sleep(0.5)
            producer.produce(name, "last", key="last")
            assert producer.flush(PATIENCE) == 0
            seen = [message.value() for message in messages(own.bootstrap_servers, name)]  # type: ignore[attr-defined]
            kept = sum(value != b"last" for value in seen)
        for most in (0, 2, 7):
            planner = ranges(own, TopicSelection(topics=(name,)), max_rows_per_epoch=most)
            planner.freeze()
            start, found = planner.initial(), []
            while (end := planner.latest(start, True)) != start:
                found += read(planner, start, end)
                start = end
            assert [value for value in found if value != b"last"] == [b"37", b"38"]
