"""A broker for a module of tests, and what its readers see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.testing import KafkaServer
from holdfast.testing.server.kafka import kafka_jars

PATIENCE = 60


def require_jars() -> None:
    """Skips by name where there is no broker to start, but not in CI."""
    if kafka_jars() is None:
        message = "there are no jars of a Kafka broker: run scripts/jars.py kafka, which needs a network"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def running_broker() -> Iterator[KafkaServer]:
    """A broker that serves."""
    require_jars()
    with KafkaServer() as server:
        AdminClient({"bootstrap.servers": server.bootstrap_servers}).list_topics(timeout=PATIENCE)
        yield server


def make_topic(servers: str, name: str, partitions: int = 2, copies: int = 1, **settings: str) -> None:
    config = {key.replace("_", "."): value for key, value in settings.items()}
    topic = NewTopic(name, partitions, copies, config=config)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([topic])[name].result(PATIENCE)


def produce(servers: str, topic: str, *values: Any, partition: int = 0, **settings: Any) -> None:
    """Writes values into a partition."""
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition, **settings)
    assert producer.flush(PATIENCE) == 0


def messages(servers: str, topic: str, isolation: str = "read_committed") -> list[object]:
    """What a reader of a topic sees now, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
        seen: list[object] = []
        ended: set[int] = set()
        while len(ended) < len(found):
            message = consumer.poll(PATIENCE)
            assert message is not None, f"{topic!r} is not read to its end: {ended} of {set(found)}"
            if message.error() is None:
                seen.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        return seen
    finally:
        consumer.close()
