"""Counts Avro records of a Kafka topic into another one, with schemas of a registry; what is no such record is kept.

python examples/registry_counts.py BROKER:9092 http://REGISTRY:8081 SALES COUNTS REFUSED CHECKPOINTS
"""

import sys

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag, StreamExecutionEnvironment
from holdfast.datastream.connectors.kafka import (
    DEAD_LETTER,
    ConfluentDeserialization,
    ConfluentSerialization,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.datastream.state import ValueStateDescriptor

COUNT = """{"type": "record", "name": "Count", "fields": [
    {"name": "item", "type": "string"}, {"name": "sold", "type": "long"}]}"""


class Sold(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sold = runtime_context.get_state(ValueStateDescriptor("sold", "bigint", 0))

    def process_element(self, row, ctx):
        sold = self.sold.value() + row.n
        self.sold.update(sold)
        yield row.item, sold


broker, registry, sales, counts, refused, checkpoints = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": checkpoints, "execution.trigger": "available-now"}
)


def reader():
    return AvroDeserializer(SchemaRegistryClient({"url": registry}))


def writer():
    client = SchemaRegistryClient({"url": registry})
    return AvroSerializer(client, COUNT, lambda row, context: row.as_dict())


unreadable = OutputTag("unreadable", DEAD_LETTER)
source = (
    KafkaSource.builder()
    .set_bootstrap_servers(broker)
    .set_topics(sales)
    .set_value_only_deserializer(ConfluentDeserialization(reader, "item string, n bigint", sales))
    .set_dead_letter_output(unreadable)
    .build()
)
record = (
    KafkaRecordSerializationSchema.builder()
    .set_topic(counts)
    .set_key_serialization_schema(lambda row: row.item)
    .set_value_serialization_schema(ConfluentSerialization(writer, counts))
    .build()
)
letter = (
    KafkaRecordSerializationSchema.builder()
    .set_topic(refused)
    .set_value_serialization_schema(lambda letter: letter.reason)
    .build()
)


def sink(of):
    return KafkaSink.builder().set_bootstrap_servers(broker).set_record_serializer(of).build()


stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "sales").uid("sales")
stream.get_side_output(unreadable).sink_to(sink(letter)).uid("unreadable")
sold = stream.key_by("item").process(Sold(), output_type="item string, sold bigint").uid("sold")
tag = OutputTag("refused")
out = sold.sink_to(sink(record)).uid("counts").set_dead_letter_output(tag)
out.get_side_output(tag).sink_to(sink(letter)).uid("refused")
env.execute("registry counts")
