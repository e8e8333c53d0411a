"""Counts the words of a Kafka topic into another one, exactly once; run it again and it goes on where it stopped.

python examples/kafka_counts.py BROKER:9092 TOPIC_OF_WORDS TOPIC_OF_COUNTS CHECKPOINTS
"""

import sys

from holdfast.common import WatermarkStrategy
from holdfast.common.serialization import SimpleStringSchema
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row, ctx):
        count = self.count.value() + 1
        self.count.update(count)
        yield row.word, count


broker, words, counts, checkpoints = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": checkpoints, "execution.trigger": "available-now"}
)
source = (
    KafkaSource.builder()
    .set_bootstrap_servers(broker)
    .set_topics(words)
    .set_value_only_deserializer(SimpleStringSchema())
    .set_max_rows_per_epoch(100)
    .build()
)
record = (
    KafkaRecordSerializationSchema.builder()
    .set_topic(counts)
    .set_key_serialization_schema(lambda row: row.word)
    .set_value_serialization_schema(lambda row: str(row.n))
    .build()
)
sink = KafkaSink.builder().set_bootstrap_servers(broker).set_record_serializer(record).build()

stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
rows = stream.map(lambda word: (word,), output_type="word string").uid("rows")
rows.key_by("word").process(Count(), output_type="word string, n bigint").uid("count").sink_to(sink).uid("counts")
env.execute("kafka counts")
