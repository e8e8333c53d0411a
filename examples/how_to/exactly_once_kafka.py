"""Count the words of text files into a topic of Kafka, exactly once.

python examples/how_to/exactly_once_kafka.py BROKER:9092 DIRECTORY_OF_TEXT_FILES CHECKPOINTS
"""

import sys

from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink

broker, texts, checkpoints = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": checkpoints, "execution.trigger": "available-now"}
)
lines = env.from_dataframe(env.spark.readStream.text(texts)).uid("lines")
words = lines.flat_map(lambda line: [(word,) for word in line.value.split()], "word string").uid("words")
counts = words.key_by("word").count("n").uid("count")

record = (
    KafkaRecordSerializationSchema.builder()
    .set_topic("counts")
    .set_key_serialization_schema(lambda row: row.word)
    .set_value_serialization_schema(lambda row: str(row.n))
    .build()
)
sink = (
    KafkaSink.builder()
    .set_bootstrap_servers(broker)
    .set_record_serializer(record)
    .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    .build()
)
counts.sink_to(sink).uid("counts")
env.execute("word counts")
