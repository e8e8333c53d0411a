"""Offsets that are committed to a group after a checkpoint, on a real broker, without Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.datastream.connectors.kafka.kafka_source import GroupOffsets
from holdfast.datastream.connectors.kafka.topic_ranges import KafkaOffsetsInitializer, TopicRanges, TopicSelection
from holdfast.testing import KafkaServer
from tests.stories.kafka import PATIENCE, make_topic, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def group_of(servers: str, topic: str, group: str) -> GroupOffsets:
    properties = {"bootstrap.servers": servers, "request.timeout.ms": 5000}
    start = KafkaOffsetsInitializer.earliest()
    return GroupOffsets(TopicRanges(properties, TopicSelection(topics=(topic,)), start, group=group))


def committed(broker: KafkaServer, topic: str, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in (0, 1)]
        return [place.offset for place in consumer.committed(places, timeout=PATIENCE)]
    finally:
        consumer.close()


def standing(topic: str, *following: int) -> dict[str, object]:
    return {topic: {"id": "x", "next": {str(number): offset for number, offset in enumerate(following)}}}


def test_the_newest_offsets_are_committed_whoever_waits_for_an_answer(broker: KafkaServer) -> None:
    make_topic(broker.bootstrap_servers, "watched")
    group = group_of(broker.bootstrap_servers, "watched", "watchers")
    for offset in range(1, 200):
        group.checkpoint_completed(standing("watched", offset, 2 * offset))
    group.close()
    assert committed(broker, "watched", "watchers") == [199, 398]
    group.checkpoint_completed(standing("watched", 150, 400))
    group.close()
    assert committed(broker, "watched", "watchers") == [150, 400], "a job that went back says so"
    counted = group.numbers()
    assert counted.commits and 2 <= counted.commits <= 200 and counted.failed_commits == 0


def test_a_group_that_refuses_or_a_broker_that_is_away_holds_nothing_up_and_is_told_once(
    broker: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(broker.bootstrap_servers, "taken")
    member = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "members"})
    member.subscribe(["taken"])
    deadline = time.monotonic() + PATIENCE
    while not member.assignment() and time.monotonic() < deadline:
        member.poll(0.1)
    group = group_of(broker.bootstrap_servers, "taken", "members")
    with caplog.at_level(logging.WARNING):
        for offset in (1, 2, 3):
            group.checkpoint_completed(standing("taken", offset, offset))
            group.close()
    assert [record.message for record in caplog.records if "group 'members'" in record.message] == [
        record.message for record in caplog.records if "the job itself does not need them" in record.message
    ][:1]
    assert (group.numbers().commits, group.numbers().failed_commits) == (0, 3)
    member.close()
    group.checkpoint_completed(standing("taken", 4, 4))
    group.close()
    assert committed(broker, "taken", "members") == [4, 4]
    assert (group.numbers().commits, group.numbers().failed_commits) == (1, 3)

    nobody = group_of("127.0.0.1:1", "taken", "members")
    began = time.monotonic()
    for offset in range(20):
        nobody.checkpoint_completed(standing("taken", offset, offset))
    assert time.monotonic() - began < 2, "a checkpoint waits for nobody"
