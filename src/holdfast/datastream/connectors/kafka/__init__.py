"""`KafkaSource` and `KafkaSink`, without a jar, under PyFlink's names. Needs `pip install 'holdfast[kafka]'`."""

from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka.confluent_serialization import (
    ConfluentDeserialization,
    ConfluentSerialization,
)
from holdfast.datastream.connectors.kafka.kafka_sink import KafkaSink, KafkaSinkBuilder
from holdfast.datastream.connectors.kafka.kafka_source import DEAD_LETTER, KafkaSource, KafkaSourceBuilder
from holdfast.datastream.connectors.kafka.records import (
    KafkaRecordSerializationSchema,
    KafkaRecordSerializationSchemaBuilder,
)
from holdfast.datastream.connectors.kafka.topic_ranges import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
)
from holdfast.datastream.flink_paths import REFUSED_OF_KAFKA

__all__ = [
    "DEAD_LETTER",
    "ConfluentDeserialization",
    "ConfluentSerialization",
    "DeliveryGuarantee",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
]

__getattr__ = module_getattr(__name__, REFUSED_OF_KAFKA)
