"""Sinks and sources in a cluster that does not let everybody do everything: what is missing is told by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from holdfast.datastream.connectors.kafka.topic_ranges import KafkaOffsetsInitializer, TopicRanges, TopicSelection
from holdfast.errors import ConfigurationError
from holdfast.testing.sink_contract import JOB, SinkStage
from tests.services.kafka.test_kafka_sink import INCARNATION, sink
from tests.stories.kafka import make_topic, messages, produce
from tests.stories.kafka_rights import ADA, Cluster, guarded_cluster

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    yield from guarded_cluster()


def test_what_the_cluster_does_not_allow_stops_the_job_by_name_and_loses_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    make_topic(cluster.servers, "words")
    job = SinkStage(sink(cluster.adas, "words", **ADA), tmp_path, incarnation=INCARNATION)
    with pytest.raises(ConfigurationError, match=r"Describing the topics of Kafka failed.*Topic authorization failed"):
        job.prepare()
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.DESCRIBE)
    with pytest.raises(ConfigurationError, match=r"may not write to the topic 'words' .* Grant it the operation"):
        job.prepare()
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.WRITE)
    with pytest.raises(ConfigurationError, match=r"Describing the marker topic 'commits-words' failed.*authorization"):
        job.prepare()
    rights = (AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
    cluster.grant(ResourceType.TOPIC, "commits-words", *rights)
    job.prepare()
    assert job.target["limits"] == [], "who may not ask knows nothing, and that is all"
    staged = job.write(1, [("kelp", 1)])
    with pytest.raises(ConfigurationError, match=rf"'holdfast-{JOB}-out-0' failed.*Id authorization failed"):
        job.commit(staged)
    cluster.grant(ResourceType.TRANSACTIONAL_ID, "holdfast-", AclOperation.WRITE, AclOperation.DESCRIBE)
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.DESCRIBE_CONFIGS)
    job.commit(staged, is_recovered=True)
    job.prepare()
    assert job.target["limits"][0]["topics"] == ["words"]

    committing = job.committing()
    committing.commit(2, {"out": job.write(2, [("kelp", 2)])})
    cluster.deny(ResourceType.TOPIC, "words", AclOperation.WRITE)
    taken = job.write(3, [("kelp", 3)])
    with pytest.raises(ConfigurationError, match=r"(?s)words.*authorization failed"):
        committing.commit(3, {"out": taken})
    committing.close()
    cluster.take_back_denials()
    for _ in range(2):
        job.commit(taken, is_recovered=True)
    assert len(messages(cluster.servers, "words")) == 3


def test_what_a_source_may_not_do_is_told_by_name_and_it_needs_no_right_on_a_group_that_it_is_not_in(
    cluster: Cluster,
) -> None:
    make_topic(cluster.servers, "lines", partitions=1)
    produce(cluster.servers, "lines", "a", "b")
    with pytest.raises(ConfigurationError, match=r"Describing the topics of Kafka failed.*Topic authorization failed"):
        lines(cluster).initial()
    cluster.grant(ResourceType.TOPIC, "lines", AclOperation.DESCRIBE)
    planner = lines(cluster)
    start = planner.initial()
    [planned] = planner.plan(start, planner.latest(start, False))
    with pytest.raises(ConfigurationError, match=r"Reading 'lines', partition 0, from 0 to 2 failed.*grant it"):
        read(planner, planned)
    cluster.grant(ResourceType.TOPIC, "lines", AclOperation.READ)
    assert read(planner, planned) == [b"a", b"b"]

    by_group = lines(cluster, KafkaOffsetsInitializer.committed_offsets(), group="readers")
    with pytest.raises(ConfigurationError, match=r"offsets of the group 'readers' failed.*Group authorization"):
        by_group.initial()
    cluster.grant(ResourceType.GROUP, "readers", AclOperation.DESCRIBE)
    with pytest.raises(ConfigurationError, match="the group 'readers' has committed no offset there"):
        by_group.initial()

    by_pattern = lines(cluster, selection=TopicSelection(pattern="lin.*"))
    assert by_pattern.initial() == start
    cluster.deny(ResourceType.TOPIC, "lines", AclOperation.DESCRIBE)
    with pytest.raises(ConfigurationError, match=r"Describing the topics of Kafka failed.*Topic authorization"):
        by_pattern.latest(start, False)
    cluster.take_back_denials()
    assert by_pattern.latest(start, False) == planner.latest(start, False)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sasl_password": "s3crets"}, "Authentication failed: Invalid username or password"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "Unsupported SASL mechanism"),
    ],
    ids=["password", "mechanism"],
)
def test_who_says_wrongly_who_he_is_is_told_so_within_seconds_whatever_he_asks(
    cluster: Cluster, tmp_path: Path, wrong: dict[str, str], words: str
) -> None:
    topic = f"of-{len(words)}"
    make_topic(cluster.servers, topic, partitions=1)
    produce(cluster.servers, topic, "a")
    cluster.grant(ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    cluster.grant(ResourceType.TOPIC, f"commits-{topic}", AclOperation.ALL)
    cluster.grant(ResourceType.TRANSACTIONAL_ID, "holdfast-", AclOperation.ALL)
    by_name = TopicSelection(topics=(topic,))
    planner = lines(cluster, selection=by_name)
    start = planner.initial()
    [planned] = planner.plan(start, planner.latest(start, False))
    job = SinkStage(sink(cluster.adas, topic, **ADA), tmp_path, incarnation=INCARNATION)
    job.prepare()
    staged = job.write(1, [("kelp", 1)])

    mistaken = {**ADA, **wrong, "request_timeout_ms": "20000"}
    job.sink = sink(cluster.adas, topic, **mistaken)
    asked: list[Callable[[], Any]] = [
        job.prepare,
        lines(cluster, selection=by_name, who=mistaken).initial,
        lines(cluster, selection=TopicSelection(pattern="of-.*"), who=mistaken).initial,
        lambda: read(lines(cluster, selection=by_name, who=mistaken), planned),
    ]
    told = rf"failed: .*SASL .*{words}.*They reject the credentials: correct sasl\.username and sasl\.password"
    for ask in asked:
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match=told):
            ask()
        assert time.monotonic() - began < 10, "a request may take 20 s"
    job.sink = sink(cluster.adas, topic, **{**mistaken, "request_timeout_ms": "3000"})
    with pytest.raises(ConfigurationError, match=told):
        job.commit(staged)
    job.sink = sink(cluster.adas, topic, **ADA)
    job.commit(staged, is_recovered=True)
    assert len(messages(cluster.servers, topic)) == 2


COLLECTED = """
import gc, sys, time
from confluent_kafka import TopicCollection
from holdfast.datastream.connectors.kafka.client import KafkaConnection, translate_errors
from holdfast.errors import ConfigurationError

connection = KafkaConnection({
    "bootstrap.servers": sys.argv[1], "request.timeout.ms": 3000, "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "s3crets",
})
gc.disable()
owner = {"admin": connection.create_admin()}
owner["itself"] = owner
request = owner["admin"].describe_topics(TopicCollection(["words"]), request_timeout=3)["words"]
request.add_done_callback(lambda _: gc.collect())  # in the thread of the client
try:
    with translate_errors("asking", connection):
        connection.wait_for(owner["admin"], request)
except ConfigurationError:
    del owner
    time.sleep(2)
    print("alive")
"""


def test_a_client_that_was_refused_has_ended_before_its_own_thread_can_collect_it(cluster: Cluster) -> None:
    """That aborts a process: the client is garbage in a cycle, and its answer comes when nobody waits for it."""
    command = [sys.executable, "-X", "faulthandler", "-c", COLLECTED, cluster.adas]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


def lines(
    cluster: Cluster, start: Any = None, selection: Any = None, who: dict[str, str] = ADA, **settings: Any
) -> TopicRanges:
    """The ranges of Ada's source, or of somebody who says to be her."""
    properties = {"bootstrap.servers": cluster.adas, "request.timeout.ms": 5000}
    properties |= {key.replace("_", "."): value for key, value in who.items()}
    chosen = selection or TopicSelection(topics=("lines",))
    return TopicRanges(properties, chosen, start or KafkaOffsetsInitializer.earliest(), discovery_seconds=0, **settings)


def read(planner: TopicRanges, planned: Any) -> list[bytes]:
    task = pickle.loads(pickle.dumps(planner))
    return [value for batch in task.read(planned) for value in batch.column("value").to_pylist()]
