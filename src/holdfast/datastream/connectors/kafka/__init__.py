"""Kafka in and out, without a jar; needs the extra `kafka`. The names are PyFlink's."""

from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka.kafka_sink import KafkaSink, KafkaSinkBuilder
from holdfast.datastream.connectors.kafka.kafka_source import DEAD_LETTER, KafkaSource, KafkaSourceBuilder
from holdfast.datastream.connectors.kafka.offsets_initializer import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
)
from holdfast.datastream.connectors.kafka.record_serialization import (
    ConfluentSerialization,
    KafkaRecordSerializationSchema,
    KafkaRecordSerializationSchemaBuilder,
)

__all__ = [
    "DEAD_LETTER",
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
