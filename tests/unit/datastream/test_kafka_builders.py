"""What the builders of Kafka's source and sink take, and what they refuse by name; without a broker."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Duration, TypeInformation, Types, WatermarkStrategy
from holdfast.common.serialization import DeserializationSchema, SimpleStringSchema
from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.kafka import (
    DEAD_LETTER,
    ConfluentSerialization,
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.datastream.connectors.kafka import records as record_limits
from holdfast.datastream.connectors.kafka.records import KafkaRecord, RecordLimits, RecordStaging
from holdfast.datastream.connectors.kafka.topic_ranges import COLUMNS
from holdfast.datastream.formats.json import JsonRowDeserializationSchema
from holdfast.datastream.stream.stream_factory import elements_of
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import RefusedElementError, WriterContext, WriterInitContext
from holdfast.testing import EpochProgram


def schema(**settings: Any) -> KafkaRecordSerializationSchema:
    builder = KafkaRecordSerializationSchema.builder().set_topic("words")
    builder.set_value_serialization_schema(SimpleStringSchema())
    for name, value in settings.items():
        getattr(builder, name)(value)
    return builder.build()


def test_a_program_of_pyflink_builds_its_sink() -> None:
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers("localhost:1")
        .set_record_serializer(schema())
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("words")
        .set_property("compression.type", "lz4")
        .build()
    )
    assert repr(pickle.loads(pickle.dumps(sink))) == "KafkaSink('localhost:1', EXACTLY_ONCE)"


def test_a_record_is_made_of_an_element() -> None:
    made = schema(
        set_key_serialization_schema=lambda word: word[:1],
        set_header_provider=lambda word: [("length", b"%d" % len(word))],
        set_partitioner=len,
    )
    made.open()
    assert made.serialize("kelp", 5) == ("words", b"k", b"kelp", (("length", b"4"),), 4, 5)
    assert made.serialize("rock", -1).timestamp == -1


def test_what_confluent_kafka_serializes_with_is_made_in_the_task() -> None:
    from confluent_kafka.serialization import IntegerSerializer

    made = schema(set_value_serialization_schema=ConfluentSerialization(IntegerSerializer, "words"))
    made.open()
    assert made.serialize(7, None).value == b"\0\0\0\7"
    with pytest.raises(ConfigurationError, match="takes a function that returns a serializer"):
        ConfluentSerialization(5, "words")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"set_topic_selector": lambda word: "a b"}, ValueError, "'a b' is not a valid name of a Kafka topic"),
        ({"set_topic_selector": lambda word: None}, ValueError, "None is not a valid name"),
        ({"set_partitioner": lambda word: -2}, ValueError, "-2 is not a valid partition"),
        ({"set_partitioner": lambda word: "0"}, ValueError, "'0' is not a valid partition"),
        ({"set_header_provider": lambda word: {"a": "b"}}, TypeError, "a header of a Kafka record must be text"),
        (
            {"set_value_serialization_schema": lambda word: 5},
            TypeError,
            "value of a Kafka record must be bytes or None",
        ),
    ],
)
def test_an_element_that_makes_no_record_is_refused(settings: Any, error: type[Exception], message: str) -> None:
    made = schema(**settings)
    made.open()
    with pytest.raises(error, match=message):
        made.serialize("kelp", None)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KafkaSink.builder().build(), r"needs set_record_serializer\(\)"),
        (lambda: KafkaSink.builder().set_record_serializer(schema()).build(), "bootstrap.servers must name"),
        (lambda: sink_with("transactional.id", "x"), r"call set_transactional_id_prefix\(\)"),
        (lambda: sink_with("key.serializer", "x"), "cannot be set"),
        (lambda: sink_with("sasl.jaas.config", "x"), "librdkafka, such as 'sasl.username'"),
        (lambda: sink_with("linger.ms", "soon"), "rejects the properties"),
        (lambda: sink_with("request.timeout.ms", "soon"), "must be a number of milliseconds"),
        (lambda: sink_with("request.timeout.ms", 0), "above 0"),
        (lambda: KafkaSink.builder().set_delivery_guarantee("exactly-once"), "takes a DeliveryGuarantee"),
        (lambda: KafkaSink.builder().set_record_serializer(str), "takes a KafkaRecordSerializationSchema"),
        (lambda: KafkaSink.builder().set_transactional_id_prefix(""), "takes text"),
        (lambda: KafkaSink.builder().set_marker_topic(None), "takes the name of a topic"),
        (lambda: KafkaRecordSerializationSchema.builder().build(), r"needs set_topic\(\)"),
        (lambda: KafkaRecordSerializationSchema.builder().set_topic("w").build(), "set_value_serialization_schema"),
        (lambda: KafkaRecordSerializationSchema.builder().set_topic("a/b"), "takes the name of a Kafka topic"),
        (lambda: schema(set_partitioner=5), r"set_partitioner\(\) takes a function"),
        (lambda: schema(set_key_serialization_schema=SimpleStringSchema), "takes a SerializationSchema"),
        (lambda: SimpleStringSchema("klingon"), "there is no charset 'klingon'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(build: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


def sink_with(name: str, value: Any) -> KafkaSink:
    builder = KafkaSink.builder().set_bootstrap_servers("localhost:1").set_record_serializer(schema())
    return builder.set_property(name, value).build()


def test_a_source_that_is_read_as_a_whole_has_nothing_to_wait_with() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment("all", Duration.of_seconds(1))
    builder = KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("words")
    with pytest.raises(ConfigurationError, match=r"needs a limit: .* Set the limit with set_max_rows_per_epoch\(\)"):
        EpochProgram().from_source(builder.build(), strategy, "words")
    bounded = builder.set_max_rows_per_epoch(9).set_bounded(KafkaOffsetsInitializer.latest()).build()
    with pytest.raises(ConfigurationError, match=r"KafkaSource cannot wait .* bounded.* set_unbounded\(\)"):
        EpochProgram().from_source(bounded, strategy, "words")


def test_records_that_cannot_be_read_go_to_a_side_output_as_they_are(tmp_path: Path) -> None:
    tag = OutputTag("unreadable", DEAD_LETTER)
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers("localhost:1")
        .set_topics("words")
        .set_value_only_deserializer(JsonRowDeserializationSchema.builder().type_info("n bigint").build())
        .set_dead_letter_output(tag)
        .build()
    )
    program = EpochProgram()
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stream = elements_of(source, program.source("words", COLUMNS), strategy, None)
    seen: list[Any] = []
    letters: list[Any] = []
    stream.for_each_epoch(lambda frame, epoch, incarnation: seen.extend(frame.to_pylist())).uid("out")
    beside = stream.get_side_output(tag)
    beside.for_each_epoch(lambda frame, epoch, incarnation: letters.extend(frame.to_pylist())).uid("beside")
    records = [
        (b"k", b'{"n": 1}', "words", 1, 17, 5, []),
        (b"k", b"garbage", "words", 1, 18, 6, [{"name": "h", "value": b"x"}]),
        (b"k", None, "words", 1, 19, 7, []),
    ]
    program.run(tmp_path, [{"words": records}])
    assert seen == [{"n": 1}]
    [letter] = letters
    assert (letter["key"], letter["value"], letter["topic"], letter["partition"], letter["offset"]) == (
        b"k", b"garbage", "words", 1, 18,
    )  # fmt: skip
    assert letter["headers"] == [{"name": "h", "value": b"x"}] and "Expecting value" in letter["reason"]
    with pytest.raises(ConfigurationError, match="not OutputTag"):
        KafkaSource.builder().set_dead_letter_output(OutputTag("x", "word string"))
    with pytest.raises(ConfigurationError, match="is for records that a deserializer cannot read"):
        KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("a").set_dead_letter_output(tag).build()


def test_records_that_cannot_be_read_are_dropped_where_nobody_reads_the_side_output(tmp_path: Path) -> None:
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers("localhost:1")
        .set_topics("words")
        .set_value_only_deserializer(JsonRowDeserializationSchema.builder().type_info("n bigint").build())
        .set_dead_letter_output(OutputTag("unreadable", DEAD_LETTER))
        .build()
    )
    program = EpochProgram()
    stream = elements_of(source, program.source("words", COLUMNS), WatermarkStrategy.no_watermarks(), None)
    seen: list[Any] = []
    stream.for_each_epoch(lambda frame, epoch, incarnation: seen.extend(frame.to_pylist())).uid("out")
    values = (b"garbage", b'{"n": 1}')
    program.run(tmp_path, [{"words": [(None, value, "words", 0, n, 5, []) for n, value in enumerate(values)]}])
    assert seen == [{"n": 1}]


class Numbers(DeserializationSchema):
    """Several elements of a message, one after the other."""

    def deserialize(self, message: bytes) -> int:
        return int(message)

    def deserialize_all(self, message: bytes) -> Any:
        yield from map(int, message.split(b","))

    def get_produced_type(self) -> TypeInformation:
        return Types.LONG()


def test_a_record_whose_elements_come_one_by_one_goes_aside_as_a_whole(tmp_path: Path) -> None:
    tag = OutputTag("unreadable", DEAD_LETTER)
    made = KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("words")
    source = made.set_value_only_deserializer(Numbers()).set_dead_letter_output(tag).build()
    program = EpochProgram()
    stream = elements_of(source, program.source("words", COLUMNS), WatermarkStrategy.no_watermarks(), None)
    seen: list[Any] = []
    letters: list[Any] = []
    stream.for_each_epoch(lambda frame, epoch, incarnation: seen.extend(frame.to_pylist())).uid("out")
    beside = stream.get_side_output(tag)
    beside.for_each_epoch(lambda frame, epoch, incarnation: letters.extend(frame.to_pylist())).uid("beside")
    values = (b"1,2", b"3,x", b"4")
    program.run(tmp_path, [{"words": [(None, value, "words", 0, n, 5, []) for n, value in enumerate(values)]}])
    assert sorted(row["value"] for row in seen) == [1, 2, 4]
    assert [(letter["offset"], letter["value"]) for letter in letters] == [(1, b"3,x")]
    assert "invalid literal for int()" in letters[0]["reason"]


def test_offsets_are_committed_to_a_group_if_there_is_one_and_nobody_has_said_no() -> None:
    def listener(group: str | None, **properties: str) -> Any:
        builder = KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("words")
        if group is not None:
            builder.set_group_id(group)
        for name, value in properties.items():
            builder.set_property(name.replace("_", "."), value)
        return builder.build().checkpoint_listener()

    assert listener(None) is None
    assert listener("readers") is not None
    assert listener("readers", commit_offsets_on_checkpoint="false") is None
    assert listener(None, group_id="readers") is not None, "PyFlink's programs may name it so"
    assert listener(None, commit_offsets_on_checkpoint="false") is None
    with pytest.raises(ConfigurationError, match="needs set_group_id"):
        listener(None, commit_offsets_on_checkpoint="true")
    with pytest.raises(ConfigurationError, match="must be true or false, not 'perhaps'"):
        listener("readers", commit_offsets_on_checkpoint="perhaps")


def test_tasks_get_what_topics_refuse_and_those_that_refuse_the_same_together() -> None:
    usual, picky = RecordLimits(1_048_588, 2, ahead=3_600_000), RecordLimits(100, 1, needs_key=True, behind=60_000)
    limits = {"a": usual, "b": picky, "c": usual}
    said = json.loads(json.dumps(record_limits.to_json(limits)))
    assert [group["topics"] for group in said] == [["a", "c"], ["b"]]
    assert record_limits.from_json(said) == limits


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"timestamp": -1}, None),
        ({"timestamp": 940_000}, None),
        ({"timestamp": 939_999}, "rejects those more than 0:01:00 behind"),
        ({"timestamp": 1_010_001}, "rejects those more than 0:00:10 ahead"),
        ({"partition": 2}, "is for partition 2"),
        ({"key": None}, "has no key"),
        ({"value": bytes(32)}, "has 101 bytes when it is sent"),
        ({"headers": (("name", b"value"),)}, None),
        ({"headers": (("name", bytes(25)),)}, "has 101 bytes"),
        ({"timestamp": 1_700_000_000_000_000}, "has the timestamp 55840-11-08T22:13:20.000+00:00, but the topic 't'"),
    ],
)
def test_a_topic_refuses(change: dict[str, Any], reason: str | None) -> None:
    limits = RecordLimits(100, 2, needs_key=True, ahead=10_000, behind=60_000)
    record = KafkaRecord("t", b"k", b"v", (), -1, 1_000_000)._replace(**change)
    found = limits.rejection_reason(record, 1000, 1_000_000, None)
    assert found is None if reason is None else reason in str(found)


def test_a_writer_of_a_real_time_job_compares_timestamps_with_the_current_time(tmp_path: Path) -> None:
    """An hour and more after the barrier, a record of that time is not ahead."""
    context = WriterInitContext("1" * 32, "out", 1, 0, 1, 0, 1, Types.STRING(), str(tmp_path), is_real_time=True)
    writer = RecordStaging(schema(), context, {}, limits={"words": RecordLimits(1000, 1, ahead=3_600_000)})
    arrival = Arrival(4_000_000)
    with pytest.raises(RefusedElementError, match="rejects those more than 1:00:00 ahead"):
        writer.write("early", arrival)
    writer.set_processing_time(4_000_000)
    writer.write("in time", arrival)
    writer.abort()


class Arrival(WriterContext):
    def __init__(self, timestamp: int) -> None:
        self.at = timestamp

    def timestamp(self) -> int:
        return self.at

    def current_watermark(self) -> int:
        return 0


def test_what_is_sent_with_the_codec_of_the_topic_is_kept_as_it_is() -> None:
    record = KafkaRecord("t", b"k", random.Random(3).randbytes(3000).hex().encode(), (), -1, -1)
    zstd, gzip = (record_limits.producer_compressor({"compression.type": name}) for name in ("zstd", "gzip"))
    sent = max(record_limits.sent_batch_size(record, compressor, 0) for compressor in (zstd, gzip))
    limits = RecordLimits(sent, 1, compression="zstd", level=-100)
    assert record_limits.stored_batch_size(record, "zstd", -100) > sent, "a level below 0 is a level"
    assert limits.rejection_reason(record, 10_000, 0, zstd) is None
    assert "when it is stored (zstd)" in str(limits.rejection_reason(record, 10_000, 0, gzip))


def test_who_has_not_installed_the_client_is_told_how() -> None:
    program = (
        "import sys; sys.modules['confluent_kafka'] = None; from holdfast.datastream.connectors.kafka import KafkaSink"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
    assert told.splitlines()[-1].endswith("pip install 'holdfast[kafka]'.")


def test_what_cannot_be_a_source_is_refused() -> None:
    builder = KafkaSource.builder
    for make, message in (
        (lambda: builder().build(), r"needs set_topics\(\)"),
        (lambda: builder().set_topics("a").build(), "bootstrap.servers must name"),
        (lambda: builder().set_topics(), "takes names of topics"),
        (lambda: builder().set_topics("a").set_topic_pattern("a"), "Call only one of"),
        (lambda: builder().set_topic_pattern("("), "takes a regular expression"),
        (lambda: builder().set_partitions([("a", 0)]), "takes KafkaTopicPartitions"),
        (lambda: builder().set_group_id(""), "takes text"),
        (lambda: builder().set_property("group.id", 7), r"set_group_id\(\) takes text, not 7"),
        (lambda: builder().set_bounded(5), "takes a KafkaOffsetsInitializer"),
        (lambda: builder().set_max_rows_per_epoch(0), "takes a positive whole number"),
        (lambda: builder().set_value_only_deserializer(bytes.decode), "the type of its results"),
        (lambda: KafkaOffsetsInitializer.timestamp(-1), "takes milliseconds since 1970"),
        (lambda: KafkaOffsetsInitializer.offsets({("a", 0): 5}), "offsets from 0 by KafkaTopicPartition"),
        (lambda: KafkaOffsetsInitializer.committed_offsets("none"), "is a KafkaOffsetResetStrategy"),
        (
            lambda: builder().set_topics("a").set_starting_offsets(KafkaOffsetsInitializer.committed_offsets()).build(),
            r"needs set_group_id\(\)",
        ),
        (lambda: with_property("isolation.level", "serializable"), "read_committed or read_uncommitted"),
        (lambda: with_property("partition.discovery.interval.ms", "often"), "must be a number of milliseconds"),
        (lambda: with_property("enable.auto.commit", "true"), "positions are in checkpoints"),
        (lambda: with_property("sasl.jaas.config", "5"), "rejects the properties"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()
    made = builder().set_bootstrap_servers("localhost:1").set_topics("a")
    decoded = made.set_value_only_deserializer(lambda value: len(value), Types.LONG()).build()
    assert decoded.decoder()[1] == Types.LONG()


def with_property(name: str, value: Any) -> KafkaSource:
    return KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("a").set_property(name, value).build()
