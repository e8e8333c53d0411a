"""`KafkaSink` on three brokers, of which one dies at a time; what its topic of commits must be there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from holdfast.datastream.connectors.kafka.client import KafkaConnection
from holdfast.datastream.connectors.kafka.markers import find_or_create
from holdfast.errors import ConfigurationError
from holdfast.testing import KafkaCluster
from tests.services.kafka.test_kafka_sink import sink, stage
from tests.stories.kafka import PATIENCE, make_topic, messages, require_jars

pytestmark = [pytest.mark.services, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    require_jars()
    with KafkaCluster() as serving:
        yield serving


def wait_for_copies(servers: str) -> None:
    """Waits until a broker that has come back has all again."""
    admin, deadline = AdminClient({"bootstrap.servers": servers}), time.monotonic() + PATIENCE
    while True:
        topics = admin.list_topics(timeout=PATIENCE).topics.values()
        if all(len(part.isrs) == len(part.replicas) for found in topics for part in found.partitions.values()):
            return
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_epochs_are_there_once_whichever_broker_is_away(cluster: KafkaCluster, tmp_path: Path) -> None:
    servers = cluster.bootstrap_servers
    make_topic(servers, "words", copies=3, min_insync_replicas="2")
    job = stage(sink(servers, "words", request_timeout_ms=10000), tmp_path)
    committing = job.committing()
    expected, entries = [], []
    for epoch, victim in enumerate(cluster.servers, start=1):
        rows = [[word, epoch] for word in ("kelp", "rock")]
        for shard, row in enumerate(rows):
            entries += job.write(epoch, [tuple(row)], shard)
        victim.kill()
        committing.commit(epoch, {"out": entries[-2:]})
        victim.start()
        wait_for_copies(servers)
        expected += rows
    committing.close()
    job.commit(entries[-2:], is_recovered=True)
    seen: list[Any] = [json.loads(message.value()) for message in messages(servers, "words")]  # type: ignore[attr-defined]
    assert sorted(seen) == sorted(expected)


def test_a_marker_is_on_two_brokers_before_it_counts(cluster: KafkaCluster) -> None:
    servers = cluster.bootstrap_servers
    connection = KafkaConnection({"bootstrap.servers": servers})
    made = find_or_create(connection, "made", "somebody")
    admin = AdminClient({"bootstrap.servers": servers})
    resource = ConfigResource(ResourceType.TOPIC, made.topic)
    said = {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(PATIENCE).items()}
    assert (said["min.insync.replicas"], said["cleanup.policy"]) == ("2", "compact")
    assert said["unclean.leader.election.enable"] == "false"
    partitions = admin.list_topics(made.topic, timeout=PATIENCE).topics[made.topic].partitions
    assert {len(partition.replicas) for partition in partitions.values()} == {3}
    make_topic(servers, "careless", copies=3, cleanup_policy="compact", min_insync_replicas="1")
    with pytest.raises(ConfigurationError, match=r"its min\.insync\.replicas is below 2"):
        find_or_create(connection, "careless", "somebody")
