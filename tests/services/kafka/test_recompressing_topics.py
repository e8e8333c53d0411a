"""Topics whose brokers compress what they keep in their own way, and give records the time at which they came."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from holdfast.datastream.connectors.kafka import KafkaOffsetsInitializer
from holdfast.datastream.connectors.kafka.topic_ranges import TopicRanges, TopicSelection
from holdfast.runtime.function.sink import RefusedElementError
from holdfast.testing import KafkaServer
from holdfast.testing.sink_contract import SinkStage
from tests.services.kafka import test_kafka_sink
from tests.services.kafka.test_topic_limits import digits, same, seen, sink, stage, topic
from tests.stories.kafka import make_topic, messages, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

CODECS = ("gzip", "snappy", "lz4", "zstd", "uncompressed")
APPENDED = "LogAppendTime"


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def over_and_over(row: Any) -> bytes:
    """20,000 digits again and again: some codecs see that they come again, and some do not look as far back."""
    return (random.Random(1).randbytes(20_000) * (row[1] // 20_000 + 1))[: row[1]]


def longest(job: SinkStage, most: int) -> int:
    """The longest value of so many bytes that a task lets pass."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        try:
            job.write(1, [("kelp", middle)])
        except RefusedElementError:
            high = middle - 1
        else:
            low = middle
    return low


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("none", "gzip"),
        ("none", "snappy"),
        ("zstd", "lz4"),
        ("lz4", "zstd"),
        ("zstd", "uncompressed"),
        ("zstd", "zstd"),
    ],
)
def test_a_topic_takes_what_a_task_lets_pass_also_where_its_brokers_make_it_larger(
    broker: KafkaServer, tmp_path: Path, sent: str, kept: str
) -> None:
    for value, limit, least in ((digits, 2000, 1780), (same, 2000, 1900), (over_and_over, 45_000, 44_000)):
        name = topic(broker, 1, max_message_bytes=str(limit), compression_type=kept)
        job = stage(sink(broker, name, value, compression_type=sent), tmp_path)
        fits = longest(job, 60_000)
        assert fits >= least
        job.commit(job.write(2, [("kelp", fits)]))
        assert [len(value) for value in seen(broker, name)] == [fits]
        if (kept, sent, value) == ("uncompressed", "zstd", same):
            with pytest.raises(RefusedElementError, match=r"stored \(uncompressed\), but the topic .* accepts"):
                job.write(3, [("kelp", fits + 1)])


def test_many_rows_that_their_brokers_make_larger_come_in_batches_that_the_topic_takes(
    broker: KafkaServer, tmp_path: Path
) -> None:
    for kept in CODECS:
        name = topic(broker, 1, max_message_bytes="2000", compression_type=kept)
        job = stage(sink(broker, name, digits, compression_type="lz4"), tmp_path)
        job.commit(job.write(1, [("kelp", n) for n in range(100, 200)]))
        assert [len(value) for value in seen(broker, name)] == list(range(100, 200))


def test_each_row_is_there_once_and_is_read_once_with_the_time_at_which_it_came(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """Also the epochs of the sink are told by such a topic; of two processes each commits everything."""
    began = int(time.time() * 1000)
    name = topic(broker, 1, compression_type="uncompressed", message_timestamp_type=APPENDED)
    make_topic(
        broker.bootstrap_servers, f"commits-{name}", 3, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01",
        unclean_leader_election_enable="false", compression_type="gzip", message_timestamp_type=APPENDED,
    )  # fmt: skip
    new: Callable[[], SinkStage] = partial(new_stage, broker, name, tmp_path)
    first = new()
    staged = {epoch: first.write(epoch, [("kelp", epoch), ("rock", epoch)]) for epoch in (1, 2, 3)}
    for epoch, committables in staged.items():
        first.commit(committables)
        for earlier in range(1, epoch + 1):
            new().commit(staged[earlier], is_recovered=True)
    expected = [[word, epoch] for epoch in (1, 2, 3) for word in ("kelp", "rock")]
    assert test_kafka_sink.values(broker, name) == sorted(expected)

    begin = KafkaOffsetsInitializer.timestamp(began)
    planner = TopicRanges(
        {"bootstrap.servers": broker.bootstrap_servers},
        TopicSelection(topics=(name,)),
        begin,
        max_rows_per_epoch=4,
        discovery_seconds=0,
    )
    start, rows = planner.initial(), []
    while (end := planner.latest(start, True)) != start:
        for planned in planner.plan(start, end):
            rows += [row for batch in planner.read(planned) for row in batch.to_pylist()]
        start = end
    assert [(row["offset"], row["value"], (TIMESTAMP_LOG_APPEND_TIME, row["timestamp"])) for row in rows] == [
        (m.offset(), m.value(), m.timestamp()) for m in messages(broker.bootstrap_servers, name)
    ]
    assert len(rows) == len(expected) and all(began <= row["timestamp"] for row in rows)
    assert first.target["limits"][0]["ahead"] is None, "no row is ahead of a time that it gets when it comes"
    after = TopicRanges(
        planner.properties, planner.selection, KafkaOffsetsInitializer.timestamp(2**41), discovery_seconds=0
    )
    assert after.initial() == start


def new_stage(broker: KafkaServer, name: str, place: Path) -> SinkStage:
    return test_kafka_sink.stage(test_kafka_sink.sink(broker.bootstrap_servers, name, compression_type="zstd"), place)
