"""`KafkaSource` on real Spark and a real broker."""

from __future__ import annotations

import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable

from holdfast.common import Duration, WatermarkStrategy
from holdfast.common.serialization import SimpleStringSchema
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaTopicPartition,
)
from holdfast.datastream.formats.debezium import DebeziumJsonDeserializationSchema
from holdfast.datastream.formats.json import JsonRowDeserializationSchema
from holdfast.errors import JobExecutionError, RestoreError
from holdfast.testing import KafkaServer
from holdfast.types.type_parser import to_type
from tests.golden.debezium_log import END, records
from tests.spark.test_changes import Same
from tests.stories import ledger
from tests.stories.kafka import PATIENCE, make_topic, running_broker

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(300)]

ONCE = {"restart-strategy.type": "none"}
NONE = WatermarkStrategy.no_watermarks()
numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


@pytest.fixture
def topic(broker: KafkaServer) -> str:
    name = f"in-{next(numbers)}"
    make_topic(broker.bootstrap_servers, name)
    return name


def produce(broker: KafkaServer, topic: str, values: Any, partition: int = 0, **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition, **settings)
    assert producer.flush(PATIENCE) == 0


def source(broker: KafkaServer, *topics: str) -> Any:
    builder = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers)
    builder.set_property("request.timeout.ms", 10000).set_property("partition.discovery.interval.ms", 1)
    builder.set_value_only_deserializer(SimpleStringSchema())
    return builder.set_topics(*topics) if topics else builder


def run(spark: Any, place: Path, built: KafkaSource, restart: str = "none", **options: Any) -> list[str]:
    """Reads what is there and ends; what the output has then."""
    configuration = {
        "execution.trigger": "available-now",
        "execution.checkpointing.dir": str(place / "job"),
        "restart-strategy.type": restart,
        **options,
    }
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    words = env.from_source(built, NONE, "words").uid("words")
    words.map(lambda word: (word,), "word string").uid("rows").sink_to(ParquetFileSink(place / "out")).uid("out")
    env.execute("words")
    return sorted(row[0] for row in ledger.read(place / "out"))


def test_a_restarted_job_resumes_at_its_offsets_and_finds_new_partitions(
    spark: Any, broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, ["a", "b", None])
    produce(broker, topic, ["c"], 1)
    limited = source(broker, topic).set_max_rows_per_epoch(2)
    assert run(spark, tmp_path, limited.build()) == ["a", "b", "c"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE)
    produce(broker, topic, ["d"])
    produce(broker, topic, ["e"], 2)
    assert run(spark, tmp_path, source(broker, topic).build()) == ["a", "b", "c", "d", "e"]
    assert run(spark, tmp_path, source(broker, topic).build()) == ["a", "b", "c", "d", "e"]


def test_a_changed_type_of_records_is_rejected_with_both_descriptions(
    spark: Any, broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, ["a"])
    run(spark, tmp_path, source(broker, topic).build())
    rows = source(broker, topic).set_value_only_deserializer(
        JsonRowDeserializationSchema.builder().type_info(to_type("x bigint")).build()
    )
    with pytest.raises(RestoreError, match=r"read as records of string, now .*read as records of struct<x: bigint>"):
        run(spark, tmp_path, rows.build())


def test_a_job_waits_for_unavailable_brokers_despite_equal_failures(
    spark: Any, broker: KafkaServer, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are away when it starts, and again when it reads on."""
    patient = {"restart-strategy.identical-unknown-failures": "2", "restart-strategy.fixed-delay.delay": "50 ms"}
    patient["restart-strategy.fixed-delay.attempts"] = "1000000"
    built = source(broker, topic).set_bootstrap_servers(broker.proxy.address).set_property("request.timeout.ms", 1000)
    expected: list[str] = []
    for word in ("kelp", "rock"):
        produce(broker, topic, [word])
        caplog.clear()
        broker.proxy.cut()
        keeper = threading.Thread(target=mend_after, args=(broker, caplog, 4))
        keeper.start()
        expected.append(word)
        assert run(spark, tmp_path, built.build(), "fixed-delay", **patient) == expected
        keeper.join()
        assert "Describing the topics of Kafka failed" in caplog.text


def mend_after(broker: KafkaServer, log: pytest.LogCaptureFixture, restarts: int) -> None:
    """Lets clients through again when a job has said so often that it restarts."""
    deadline = time.monotonic() + 2 * PATIENCE
    while log.text.count("restarts in") < restarts and time.monotonic() < deadline:
        time.sleep(0.05)
    broker.proxy.mend()


def test_aborted_records_are_not_read_and_open_transactions_do_not_block(
    spark: Any, broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE)
    for value, ends in (("a", "commit"), ("b", "abort"), ("c", "commit"), ("d", "abort"), ("e", "")):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(PATIENCE)
        if ends:
            getattr(producer, f"{ends}_transaction")(PATIENCE)
    assert run(spark, tmp_path, source(broker, topic).build()) == ["a", "c"]
    producer.commit_transaction(PATIENCE)
    assert run(spark, tmp_path, source(broker, topic).build()) == ["a", "c", "e"]
    dirty = source(broker, topic).set_property("isolation.level", "read_uncommitted").build()
    assert run(spark, tmp_path / "dirty", dirty) == ["a", "b", "c", "d", "e"]


def test_a_bounded_source_emits_all_rows_and_ends(spark: Any, broker: KafkaServer, topic: str) -> None:
    produce(broker, topic, ["a"], key="k", headers=[("h", b"1"), ("n", None)], timestamp=1000)
    produce(broker, topic, ["b"], 1, timestamp=2000)
    built = (
        KafkaSource.builder()
        .set_bootstrap_servers(broker.bootstrap_servers)
        .set_topic_pattern(f"{topic}|nothing.*")
        .set_bounded(KafkaOffsetsInitializer.latest())
        .build()
    )
    env = StreamExecutionEnvironment.get_execution_environment(ONCE, spark=spark)
    with env.from_source(built, NONE, "rows").execute_and_collect() as elements:  # type: ignore[union-attr]
        rows = sorted((tuple(row) for row in elements), key=lambda row: row[3])
    assert [row[:6] for row in rows] == [(b"k", b"a", topic, 0, 0, 1000), (None, b"b", topic, 1, 0, 2000)]
    assert [tuple(header) for header in rows[0][6]] == [("h", b"1"), ("n", None)]


def test_unread_records_are_counted_while_the_job_runs(
    spark: Any, broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, [str(n) for n in range(5)])
    built = source(broker, topic).set_max_rows_per_epoch(2).build()
    # no epoch begins while one is written, so nothing is taken from what waits
    options = {"execution.checkpointing.dir": str(tmp_path), "sink.committer.max-pending-checkpoints": 0, **ONCE}
    env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    waited: list[Any] = []

    def write(frame: Any, epoch: int) -> None:
        waited.append(client._master.job.engine.source_metrics().get("words"))

    env.from_source(built, NONE, "words").uid("words").for_each_epoch(write).uid("out")
    client = env.execute_async(f"counted {topic}")
    try:
        client.process_all_available()
        assert [numbers.records for numbers in waited[1:]] == [3, 1]
        assert client.last_progress["sources"] == [{"id": "words", "behind": 0}]
    finally:
        client.cancel()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (KafkaOffsetsInitializer.earliest(), ["a", "b", "c", "d"]),
        (KafkaOffsetsInitializer.latest(), []),
        (KafkaOffsetsInitializer.timestamp(2000), ["b", "d"]),
        (KafkaOffsetsInitializer.timestamp(5000), []),
        ("one", ["b", "c", "d"]),
        ("one, latest", ["b"]),
        (KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST), ["b", "c", "d"]),
    ],
)
def test_reading_begins_at_the_starting_offsets(
    spark: Any, broker: KafkaServer, topic: str, start: Any, expected: list[str]
) -> None:
    for value, at, partition in (("a", 1000, 0), ("b", 2000, 0), ("c", 1000, 1), ("d", 3000, 1)):
        produce(broker, topic, [value], partition, timestamp=at)
    if isinstance(start, str):
        reset = KafkaOffsetResetStrategy.LATEST if "latest" in start else KafkaOffsetResetStrategy.EARLIEST
        start = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(topic, 0): 1}, reset)
    commit(broker, topic)
    built = source(broker, topic).set_group_id("readers").set_starting_offsets(start)
    env = StreamExecutionEnvironment.get_execution_environment(ONCE, spark=spark)
    bounded = built.set_bounded(KafkaOffsetsInitializer.latest()).build()
    with env.from_source(bounded, NONE, "rows").execute_and_collect() as elements:  # type: ignore[union-attr]
        assert sorted(elements) == expected


def test_a_completed_checkpoint_commits_its_offsets_to_the_group(
    spark: Any, broker: KafkaServer, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, ["a", "b"])
    produce(broker, topic, ["c"], 1)
    assert run(spark, tmp_path, source(broker, topic).set_group_id(f"of-{topic}").build()) == ["a", "b", "c"]
    assert committed(broker, topic) == [2, 1]
    quiet = source(broker, topic).set_group_id(f"of-{topic}").set_property("commit.offsets.on.checkpoint", "false")
    produce(broker, topic, ["d"])
    assert run(spark, tmp_path, quiet.build()) == ["a", "b", "c", "d"]
    assert committed(broker, topic) == [2, 1]
    whole = source(broker, topic).set_group_id(f"of-{topic}").set_bounded(KafkaOffsetsInitializer.latest())
    assert run(spark, tmp_path / "whole", whole.build()) == ["a", "b", "c", "d"]
    assert committed(broker, topic) == [3, 1]


def committed(broker: KafkaServer, topic: str) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"of-{topic}"})
    places = consumer.committed([TopicPartition(topic, number) for number in (0, 1)], timeout=PATIENCE)
    consumer.close()
    return [place.offset for place in places]


def commit(broker: KafkaServer, topic: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


def test_two_sources_are_read_by_one_job(spark: Any, broker: KafkaServer, topic: str) -> None:
    make_topic(broker.bootstrap_servers, f"{topic}-too")
    produce(broker, topic, ["a"])
    produce(broker, f"{topic}-too", ["b"])
    produce(broker, f"{topic}-too", ["not this"], 1)
    options = {**ONCE, "execution.trigger": "available-now"}
    env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    one = env.from_source(source(broker, topic).build(), NONE, "one").uid("one")
    part = source(broker).set_partitions({KafkaTopicPartition(f"{topic}-too", 0)}).build()
    two = env.from_source(part, NONE, "two").uid("two")
    with one.union(two).execute_and_collect() as elements:  # type: ignore[union-attr]
        assert sorted(elements) == ["a", "b"]


def test_a_source_ahead_of_its_group_waits_and_alignment_can_be_added_and_removed(
    spark: Any, broker: KafkaServer, tmp_path: Path
) -> None:
    """An hour lies between the two. What each epoch has of them is what a sink sees."""
    topics = {uid: f"{uid}-{next(numbers)}" for uid in ("old", "new")}
    for name in topics.values():
        make_topic(broker.bootstrap_servers, name)

    def write(records: range) -> None:
        for n in records:
            produce(broker, topics["old"], [f"old {n}"], timestamp=1_000 + n)
            produce(broker, topics["new"], [f"new {n}"], timestamp=3_600_000 + n)

    def epochs(strategy: WatermarkStrategy) -> list[str]:
        options = {**ONCE, "execution.trigger": "available-now", "execution.checkpointing.dir": str(tmp_path)}
        env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
        builders = {uid: source(broker, name).set_max_rows_per_epoch(2) for uid, name in topics.items()}
        old, new = (env.from_source(made.build(), strategy, uid).uid(uid) for uid, made in builders.items())
        seen: list[list[str]] = []
        old.union(new).for_each_epoch(lambda frame, *_: seen.append([row[0] for row in frame.collect()])).uid("out")
        env.execute("aligned")
        return [", ".join(sorted(words)) for words in seen if words]

    alone = WatermarkStrategy.for_monotonous_timestamps()
    together = alone.with_watermark_alignment("all", Duration.of_minutes(1))
    write(range(6))
    assert epochs(together) == [
        "new 0, new 1, old 0, old 1", "old 2, old 3", "old 4, old 5", "new 2, new 3", "new 4, new 5",
    ]  # fmt: skip
    write(range(6, 10))
    assert epochs(alone) == ["new 6, new 7, old 6, old 7", "new 8, new 9, old 8, old 9"]
    write(range(10, 14))
    assert epochs(together) == ["new 10, new 11, old 10, old 11", "old 12, old 13", "new 12, new 13"]


class Seen(KeyedProcessFunction):
    def process_element(self, value: str, ctx: Any) -> Iterator[Any]:
        yield f"{value} at {max(-1, ctx.timer_service().current_watermark())}"


def test_event_time_follows_the_slowest_partition(spark: Any, broker: KafkaServer, tmp_path: Path) -> None:
    """Though another task has read its partition far ahead; an epoch has a record of each."""
    topic = f"in-{next(numbers)}"
    make_topic(broker.bootstrap_servers, topic)
    for partition, stamps in enumerate(((9_000_000, 9_500_000, 9_600_000), (1_000_000, 1_000_500, 9_400_000))):
        for number, stamp in enumerate(stamps):
            produce(broker, topic, [f"{partition}-{number}"], partition, timestamp=stamp)
    options = {"execution.trigger": "available-now", "execution.checkpointing.dir": str(tmp_path / "job"), **ONCE}
    env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    built = source(broker, topic).set_max_rows_per_epoch(2).build()
    words = env.from_source(built, WatermarkStrategy.for_monotonous_timestamps(), "words").uid("words")
    found: list[str] = []
    told = words.key_by(lambda word: word, key_type="string").process(Seen(), "string").uid("seen")
    told.for_each_epoch(lambda frame, *_: found.extend(row[0] for row in frame.collect())).uid("out")
    env.execute("words")
    seen = ["0-0 at -1", "1-0 at -1", "0-1 at 999999", "1-1 at 999999", "0-2 at 1000499", "1-2 at 1000499"]
    assert sorted(found) == sorted(seen)


@pytest.mark.parametrize("table", ["plain.public.things", "wrapped.public.people"])
def test_changes_from_debezium_cross_exchanges_and_reproduce_the_database_table(
    spark: Any, broker: KafkaServer, topic: str, tmp_path: Path, table: str
) -> None:
    people = DebeziumJsonDeserializationSchema("id bigint, name string, steps int")
    told = records(table)
    for begin, end in ((0, 11), (7, len(told))):  # the second time it begins earlier, as after a crash of Debezium
        for key, value in told[begin:end]:
            produce(broker, topic, [value], zlib.crc32(key.encode()) % 2, key=key)
        options = {"execution.trigger": "available-now", "execution.checkpointing.dir": str(tmp_path / "job"), **ONCE}
        env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
        built = source(broker, topic).set_value_only_deserializer(people).set_max_rows_per_epoch(8).build()
        changes = env.from_source(built, NONE, "changes").uid("changes")
        clean = changes.key_by("id").normalize_changes().uid("clean")
        spread = clean.key_by(lambda row: row.id % 3, key_type="bigint").process(Same(), clean.get_type()).uid("spread")
        database = DatabaseSink(f"sqlite:///{tmp_path}/t.db", "t", key="id", create_table=True)
        spread.key_by("id").sink_to(database).uid("table")
        clean.sink_to(DeltaSink(tmp_path / "delta", key="id", create_table=True)).uid("delta")
        env.execute("changes")
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        rows = database.execute("select id, name, steps from t").fetchall()
    assert {key: tuple(rest) for key, *rest in rows} == END
    delta = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["name"], row["steps"]) for row in delta} == END


def test_an_unreadable_record_is_named(spark: Any, broker: KafkaServer, topic: str, tmp_path: Path) -> None:
    produce(broker, topic, ["a", b"\xff"])
    with pytest.raises(JobExecutionError) as caught:
        run(spark, tmp_path, source(broker, topic).build())
    assert f"the record at offset 1 of '{topic}', partition 0, cannot be read" in _texts(caught.value)


def _texts(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return "\n".join(texts)
