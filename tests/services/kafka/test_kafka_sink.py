"""`KafkaSink` on a real broker: what its contract does not tell of any sink."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from holdfast.common import WatermarkStrategy
from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from holdfast.datastream.connectors.kafka.client import KafkaConnection
from holdfast.datastream.connectors.kafka.kafka_committer import ShardProducer
from holdfast.datastream.connectors.kafka.markers import find_or_create, marker_key, marker_value
from holdfast.errors import ConfigurationError, FencedError, HoldfastError, JobExecutionError, StorageError
from holdfast.kernel import fault
from holdfast.runtime.function.sink import CommitterInitContext
from holdfast.testing import EpochProgram, KafkaServer
from holdfast.testing.sink_contract import JOB, SinkStage
from tests.stories.kafka import PATIENCE, make_topic, messages, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

INCARNATION = "1" * 32
numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


@pytest.fixture
def topic(broker: KafkaServer) -> str:
    name = f"out-{next(numbers)}"
    make_topic(broker.bootstrap_servers, name)
    return name


def word(row: Any) -> str:
    return str(row[0])


def both(row: Any) -> str:
    return json.dumps([row[0], row[1]])


def sink(servers: str, topic: str, guarantee: Any = None, **properties: Any) -> KafkaSink:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
    schema.set_key_serialization_schema(word).set_value_serialization_schema(both)
    builder = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(schema.build())
    builder.set_marker_topic(f"commits-{topic}").set_property("request.timeout.ms", 5000)
    if guarantee is not None:
        builder.set_delivery_guarantee(guarantee)
    for key, value in properties.items():
        builder.set_property(key.replace("_", "."), value)
    return builder.build()


def stage(made: KafkaSink, place: Path, incarnation: str = INCARNATION) -> SinkStage:
    found = SinkStage(made, place, incarnation=incarnation)
    found.prepare()
    return found


def values(broker: KafkaServer, topic: str, isolation: str = "read_committed") -> list[Any]:
    return sorted(json.loads(message.value()) for message in messages(broker.bootstrap_servers, topic, isolation))


def test_records_have_key_headers_partition_and_time(broker: KafkaServer, topic: str, tmp_path: Path) -> None:
    schema = (
        KafkaRecordSerializationSchema.builder()
        .set_topic_selector(lambda row: topic)
        .set_key_serialization_schema(lambda row: row[0])
        .set_value_serialization_schema(lambda row: None if row[1] < 0 else str(row[1]))
        .set_header_provider(lambda row: {"from": b"test", "nothing": None})
        .set_partitioner(lambda row: row[1] % 2)
        .build()
    )
    builder = KafkaSink.builder().set_bootstrap_servers(broker.bootstrap_servers).set_record_serializer(schema)
    program = EpochProgram()
    rows = program.source("in", "word string, n bigint")
    timed = rows.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 1000 + row[1])
    )
    timed.uid("timed").sink_to(builder.build()).uid("out")
    program.run(tmp_path, [{"in": [("kelp", 4), ("rock", 7)]}, {"in": [("kelp", -2)]}], source_tasks=1)
    seen = {(m.key(), m.value(), m.partition(), m.timestamp()[1]) for m in messages(broker.bootstrap_servers, topic)}
    assert seen == {(b"kelp", b"4", 0, 1004), (b"rock", b"7", 1, 1007), (b"kelp", None, 0, 998)}
    assert messages(broker.bootstrap_servers, topic)[0].headers() == [("from", b"test"), ("nothing", None)]


def test_what_makes_no_record_and_what_is_too_long_goes_aside_or_stops_the_job_with_the_same_words(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
    schema.set_key_serialization_schema(word).set_value_serialization_schema(long_if_negative)
    builder = KafkaSink.builder().set_bootstrap_servers(broker.bootstrap_servers).set_record_serializer(schema.build())
    refused: list[Any] = []
    tag = OutputTag("refused")
    program = EpochProgram()
    out = program.source("in", "word string, n bigint").sink_to(builder.build()).uid("out").set_dead_letter_output(tag)
    out.get_side_output(tag).for_each_epoch(lambda rows, epoch: refused.extend(rows.to_pylist())).uid("refused")
    program.run(tmp_path / "a", [{"in": [("kelp", 1), ("rock", None)]}, {"in": [("sand", -1), ("kelp", 2)]}])
    assert sorted(m.value() for m in messages(broker.bootstrap_servers, topic)) == [b"1", b"2"]
    made, long = sorted(refused, key=lambda letter: letter["epoch"])
    assert (made["row"], made["sink"], made["epoch"]) == ({"word": "rock", "n": None}, "out", 1)
    assert made["reason"].startswith("it cannot be converted to a record: TypeError: ")
    assert (long["row"]["word"], long["epoch"]) == ("sand", 2)
    assert "but Kafka accepts at most 1000000" in long["reason"]

    for row, words in (("rock", None), "'<' not supported"), (("sand", -1), "but Kafka accepts at most 1000000"):
        strict = EpochProgram()
        strict.source("in", "word string, n bigint").sink_to(builder.build()).uid("out")
        with pytest.raises(JobExecutionError, match=words):
            strict.run(tmp_path / words[:3], [{"in": [row]}])


def long_if_negative(row: Any) -> str:
    return "x" * 1_000_001 if row.n < 0 else str(row.n)


def test_keys_go_where_the_java_client_puts_them(broker: KafkaServer, tmp_path: Path) -> None:
    make_topic(broker.bootstrap_servers, "java-keys", partitions=8)
    job = stage(sink(broker.bootstrap_servers, "java-keys"), tmp_path)
    job.commit(job.write(1, [("kelp", 1), ("rock", 2), ("sand", 3)]))
    seen = {m.key().decode(): m.partition() for m in messages(broker.bootstrap_servers, "java-keys")}
    assert seen == {key: _murmur2(key.encode()) % 8 for key in ("kelp", "rock", "sand")}


def _murmur2(data: bytes) -> int:
    """Of the Java client, with its sign cut off."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if len(data) != whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_a_transaction_left_open_by_a_process_that_died_hides_no_marker(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    """Shard 0 has died in a transaction with its marker in it, so that what shard 1 has committed is not readable."""
    job = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    committables = job.write(1, [("kelp", 1)], 0) + job.write(1, [("rock", 1)], 1)
    connection = KafkaConnection({"bootstrap.servers": broker.bootstrap_servers})
    place = find_or_create(connection, f"commits-{topic}", f"{JOB} out")
    dead = ShardProducer(connection, f"holdfast-{JOB}-out-0")
    dead.send_epoch(iter([]), (INCARNATION, "out", 0), 1, [], place)
    dead.flush()
    job.commit(committables[1:])
    assert values(broker, topic) == [["rock", 1]]
    new = job.committing()
    assert new.prepare({"out": job.target}, 1) == {"out": job.target}, "it knows of epoch 1, and of no later one"
    new.close()
    job.commit(committables, is_recovered=True)
    assert values(broker, topic) == [["kelp", 1], ["rock", 1]]


def test_a_transaction_of_somebody_else_holds_up_a_commit_and_nothing_is_concluded(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    job = stage(sink(broker.bootstrap_servers, topic, request_timeout_ms=1500), tmp_path)
    committables = job.write(1, [("kelp", 1)])
    job.commit(committables)
    connection = KafkaConnection({"bootstrap.servers": broker.bootstrap_servers})
    place = find_or_create(connection, f"commits-{topic}", f"{JOB} out")
    other = ShardProducer(connection, "somebody else")
    other.send_epoch(iter([]), ("2" * 32, "theirs", 0), 1, [], place)
    other.flush()
    new = stage(sink(broker.bootstrap_servers, topic, request_timeout_ms=1500), tmp_path).committing(retries=1)
    with pytest.raises(StorageError, match="a transaction is open there"):
        new.commit(1, {"out": committables}, is_recovered=True)
    other.commit()
    new.commit(1, {"out": committables}, is_recovered=True)
    assert values(broker, topic) == [["kelp", 1]]


def test_an_epoch_that_is_there_is_refused_when_it_is_committed_for_the_first_time(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    job = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    job.commit(job.write(5, [("kelp", 5)]))
    copy = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    with pytest.raises(ConfigurationError, match="two copies of one job directory"):
        copy.commit(copy.write(4, [("lost", 4)]))
    with pytest.raises(HoldfastError, match="was restored from a copy"):
        copy.committing().prepare({"out": copy.target}, 4)
    assert values(broker, topic) == [["kelp", 5]]


def test_a_deposed_leader_begins_no_producer(broker: KafkaServer, topic: str, tmp_path: Path) -> None:
    """It would shut out the one of the true leader."""

    def deposed() -> None:
        raise FencedError("another process leads")

    job = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    late = job.committing()
    late._sinks["out"]._context = CommitterInitContext(JOB, "out", str(tmp_path), {}, (INCARNATION,), deposed)
    with pytest.raises(FencedError):
        late.commit(1, {"out": job.write(1, [("kelp", 1)])}, is_recovered=True)
    assert values(broker, topic, "read_uncommitted") == []


def test_two_committers_that_shut_each_other_out_show_each_row_once(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    one, two = (stage(sink(broker.bootstrap_servers, topic), tmp_path) for _ in range(2))
    first, second = one.committing(), two.committing()
    for epoch in range(1, 6):
        committables = one.write(epoch, [("kelp", epoch)], 0) + one.write(epoch, [("rock", epoch)], 1)
        for committing in (first, second, first):
            committing.commit(epoch, {"out": committables}, is_recovered=True)
    assert values(broker, topic) == sorted([w, n] for w in ("kelp", "rock") for n in range(1, 6))
    first.close()
    second.close()


def test_a_broker_that_is_killed_between_the_epochs_holds_up_a_job_that_loses_nothing(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    job = stage(sink(broker.bootstrap_servers, topic, request_timeout_ms=30000), tmp_path)
    committing = job.committing()
    for epoch in (1, 2, 3):
        committables = job.write(epoch, [("kelp", epoch)], 0) + job.write(epoch, [("rock", epoch)], 1)
        committing.commit(epoch, {"out": committables})
        if epoch == 1:
            broker.restart()
    committing.close()
    assert values(broker, topic) == sorted([w, n] for w in ("kelp", "rock") for n in (1, 2, 3))


def test_a_topic_of_commits_that_may_forget_is_refused(broker: KafkaServer, topic: str, tmp_path: Path) -> None:
    name = f"commits-{topic}"
    make_topic(broker.bootstrap_servers, name, cleanup_policy="delete")
    with pytest.raises(ConfigurationError, match=r"its cleanup.policy is 'delete', and must be 'compact' alone"):
        stage(sink(broker.bootstrap_servers, topic), tmp_path)
    _configure(broker, name, {"cleanup.policy": "compact", "unclean.leader.election.enable": "true"})
    with pytest.raises(ConfigurationError, match=r"unclean\.leader\.election\.enable is true"):
        stage(sink(broker.bootstrap_servers, topic), tmp_path)
    _configure(broker, name, {"unclean.leader.election.enable": "false"})
    job = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    _configure(broker, name, {"cleanup.policy": "delete"})
    with pytest.raises(ConfigurationError, match=r"its cleanup.policy is 'delete'"):
        job.committing().prepare({"out": job.target}, None)


def _configure(broker: KafkaServer, topic: str, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE)


def test_another_topic_of_commits_than_the_checkpoint_knows_is_refused(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    job = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    committables = job.write(1, [("kelp", 1)])
    job.commit(committables)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([f"commits-{topic}"])[f"commits-{topic}"].result(PATIENCE)
    impatient = sink(broker.bootstrap_servers, topic, request_timeout_ms=1000)
    new = SinkStage(impatient, tmp_path, incarnation=INCARNATION)
    with pytest.raises(ConfigurationError, match="has no topic of this name"):
        new.committing().prepare({"out": job.target}, None)
    stage(impatient, tmp_path)
    with pytest.raises(ConfigurationError, match="has another topic of this name"):
        new.commit(committables, is_recovered=True)
    assert values(broker, topic) == [["kelp", 1]]


def test_what_was_staged_for_other_topics_goes_there(broker: KafkaServer, topic: str, tmp_path: Path) -> None:
    """The program was changed since: rows and epochs go into others now."""
    make_topic(broker.bootstrap_servers, f"{topic}-after")

    def run(name: str, epochs: int) -> None:
        program = EpochProgram()
        program.source("in", "word string, n bigint").sink_to(sink(broker.bootstrap_servers, name)).uid("out")
        program.run(tmp_path, [{"in": [("kelp", n)]} for n in range(1, epochs + 1)])

    fault.install("before:sink.commit:2=raise")
    try:
        with pytest.raises(HoldfastError):
            run(topic, 2)
    finally:
        fault.clear()
    for epochs in (3, 4):
        run(f"{topic}-after", epochs)
    assert values(broker, topic) == [["kelp", 1], ["kelp", 2]]
    assert values(broker, f"{topic}-after") == [["kelp", 3], ["kelp", 4]]


def test_what_is_no_committable_or_target_of_a_sink_is_refused(broker: KafkaServer, topic: str, tmp_path: Path) -> None:
    job = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    entry = job.write(1, [("kelp", 1)])[0]
    for change in ({"file": "../x"}, {"file": 5}, {"shard": "0"}, {"target": None}, {"target": {"topic": "x"}}):
        wrong = {**entry, "value": {**entry["value"], **change}}
        with pytest.raises(ConfigurationError, match=r"no KafkaSink can have written|has no valid marker partition"):
            job.commit([wrong], is_recovered=True)
    with pytest.raises(ConfigurationError, match="has no valid marker partition"):
        job.committing().prepare({"out": {"topic": 5}}, None)
    assert values(broker, topic, "read_uncommitted") == []


def test_records_of_others_in_the_topic_of_commits_are_ignored(
    broker: KafkaServer, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    key = marker_key((INCARNATION, "out", 0))
    for value in (None, b"", b"[]", b'{"epoch": "9", "transactional_id": ""}', b"\xff"):
        producer.produce(job.target["topic"], value, key, job.target["partition"])
    producer.produce(job.target["topic"], marker_value(9, "x"), b'["%s"]' % (b"[" * 5000), job.target["partition"])
    assert producer.flush(PATIENCE) == 0
    with caplog.at_level(logging.WARNING):
        job.commit(job.write(1, [("kelp", 1)]))
    assert values(broker, topic) == [["kelp", 1]]
    assert "is not a marker" in caplog.text


def test_a_row_that_kafka_does_not_take_fails_in_its_task(broker: KafkaServer, topic: str, tmp_path: Path) -> None:
    program = EpochProgram()
    program.source("in", "word string, n bigint").sink_to(sink(broker.bootstrap_servers, topic)).uid("out")
    with pytest.raises(JobExecutionError, match=r"has 1000... bytes, but Kafka accepts at most 1000000"):
        program.run(tmp_path, [{"in": [("kelp", 1)]}, {"in": [("k" * 500_000, 1)]}])
    assert values(broker, topic) == [["kelp", 1]]


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.NONE])
def test_without_transactions_a_repeated_commit_sends_again(
    broker: KafkaServer, topic: str, tmp_path: Path, guarantee: DeliveryGuarantee
) -> None:
    job = stage(sink(broker.bootstrap_servers, topic, guarantee), tmp_path)
    committables = job.write(1, [("kelp", 1)])
    job.commit(committables)
    job.commit(committables, is_recovered=True)
    assert values(broker, topic) == [["kelp", 1], ["kelp", 1]]
    exact = stage(sink(broker.bootstrap_servers, topic), tmp_path)
    kept = exact.write(2, [("rock", 2)])
    job.commit(kept, is_recovered=True)
    job.commit(kept, is_recovered=True)
    assert values(broker, topic) == [["kelp", 1], ["kelp", 1], ["rock", 2]], "what was staged exactly once stays so"


def test_what_is_not_taken_waits_at_least_once_and_is_dropped_without_a_guarantee(
    broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    for guarantee, dropped in ((DeliveryGuarantee.AT_LEAST_ONCE, 0), (DeliveryGuarantee.NONE, 1)):
        made = sink(broker.proxy.address, topic, guarantee, request_timeout_ms=500)
        job = SinkStage(made, tmp_path, incarnation=INCARNATION)
        committables = job.write(1, [("kelp", 1)])
        committing = job.committing(retries=1)
        broker.proxy.cut()
        try:
            if dropped:
                assert committing.commit(1, {"out": committables}).dropped == 1
            else:
                with pytest.raises(StorageError, match=r"Sending epoch 1 of subtask 0 failed"):
                    committing.commit(1, {"out": committables})
        finally:
            broker.proxy.mend()
        if not dropped:
            committing.commit(1, {"out": committables}, is_recovered=True)
        committing.close()
    assert values(broker, topic) == [["kelp", 1]]
