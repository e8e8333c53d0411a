"""Module paths of `pyflink.datastream` whose classes are elsewhere here, and names that are rejected.

`holdfast.common.flink_paths` makes modules of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final


def _from(module: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


_STREAM: Final = "holdfast.datastream.stream"
_USER: Final = "holdfast.runtime.function.user_function"

DATASTREAM: Final[Mapping[str, Mapping[str, str]]] = {
    "checkpoint_storage": _from(
        "holdfast.checkpoint.storage",
        ("CheckpointStorage", "FileSystemCheckpointStorage", "JobManagerCheckpointStorage"),
    ),
    "checkpointing_mode": _from("holdfast.datastream.checkpoint_config", ("CheckpointingMode",)),
    "data_stream": {
        **_from(f"{_STREAM}.data_stream", ("DataStream", "DataStreamSink")),
        **_from(f"{_STREAM}.keyed_stream", ("KeyedStream",)),
        **_from(f"{_STREAM}.connected", ("ConnectedStreams",)),
        **_from(f"{_STREAM}.windowed", ("WindowedStream", "AllWindowedStream")),
        **_from(f"{_STREAM}.connected", ("BroadcastStream", "BroadcastConnectedStream")),
        "CachedDataStream": f"{_STREAM}.data_stream:DataStream",
        "CloseableIterator": "holdfast.datastream.environment.stream_execution_environment:CollectedElements",
    },
    "execution_mode": _from("holdfast.runtime.job.options", ("RuntimeExecutionMode",)),
    "externalized_checkpoint_retention": {
        "ExternalizedCheckpointRetention": "holdfast.datastream.checkpoint_config:ExternalizedCheckpointCleanup"
    },
    "output_tag": _from(_USER, ("OutputTag",)),
    "stream_execution_environment": _from(
        "holdfast.datastream.environment.stream_execution_environment", ("StreamExecutionEnvironment",)
    ),
    "time_domain": _from(_USER, ("TimeDomain",)),
    "timerservice": _from(_USER, ("TimerService",)),
}
"""Modules of `holdfast.datastream`, and the places of their names."""

_SOURCE: Final = "it is a class of Java; env.from_source() takes a Source, env.from_dataframe() what Spark reads"
_SINK: Final = "it is a class of Java; sink_to() takes a Sink"
_SPARK: Final = "env.from_dataframe() takes what Spark's connector reads, for_each_epoch() writes with it"

REFUSED: Final[Mapping[str, str]] = {
    "SourceFunction": _SOURCE,
    "SinkFunction": _SINK,
    "CustomStateBackend": "the option state.backend.type takes the class path of a StateBackendFactory",
    "CustomCheckpointStorage": (
        "the option execution.checkpointing.storage takes the class path of a CheckpointStorageFactory"
    ),
}
"""Names of `pyflink.datastream` that do not exist here, with the reason or the replacement."""

_BULK: Final = (
    "FileSink.for_bulk_format() takes BulkWriterFactory.parquet(), .arrow() or .csv() of connectors.file_system"
)
_AVRO: Final = "GenericRecordAvroTypeInfo(schema) is the type of dicts, and files are Parquet, Arrow, CSV or JSON lines"
REFUSED_FORMATS: Final[Mapping[str, str]] = {
    "AvroBulkWriters": _BULK,
    "AvroInputFormat": _AVRO,
    "AvroParquetReaders": "ParquetColumnarRowInputFormat reads the same files as rows",
    "AvroParquetWriters": _BULK,
    "CsvBulkWriters": _BULK,
    "CsvSchema": "CsvReaderFormat.for_schema() takes DDL or Types.ROW_NAMED(), with header= and delimiter=",
    "CsvSchemaBuilder": "CsvReaderFormat.for_schema() takes DDL or Types.ROW_NAMED(), with header= and delimiter=",
    "ParquetBulkWriters": _BULK,
}
"""The same of `formats`."""

REFUSED_OF_KAFKA: Final[Mapping[str, str]] = {
    "FlinkKafkaConsumer": "KafkaSource takes its place, with env.from_source()",
    "FlinkKafkaProducer": "KafkaSink takes its place, with stream.sink_to()",
    "KafkaTopicSelector": "set_topic_selector() of the serialization schema takes a function of the element",
    "Semantic": "set_delivery_guarantee() takes a DeliveryGuarantee",
}
"""The same of `connectors.kafka`."""

_NO_SPLITS: Final = "files are cut into ranges where a task can begin, and shared out evenly by their bytes"
_NO_COMPACTION: Final = "a file is as large as the rolling policy of FileSink.with_rolling_policy() lets it become"
REFUSED_OF_FILES: Final[Mapping[str, str]] = {
    "FileCompactStrategy": _NO_COMPACTION,
    "FileCompactor": _NO_COMPACTION,
    "FileEnumeratorProvider": _NO_SPLITS,
    "FileSplitAssignerProvider": _NO_SPLITS,
    "RowDataBulkWriterFactory": "BulkWriterFactory writes rows of every kind, with parquet(), arrow() and csv()",
    "StreamingFileSink": "FileSink takes its place, with stream.sink_to()",
}
"""The same of `connectors.file_system`."""

_OF_JAVA: Final = "it is a helper of PyFlink's own, for classes of Java"
REFUSED_MODULES: Final[Mapping[str, Mapping[str, str]]] = {
    "checkpoint_storage": {"CustomCheckpointStorage": REFUSED["CustomCheckpointStorage"]},
    "connectors.cassandra": dict.fromkeys(("CassandraSink", "ClusterBuilder", "MapperOptions"), _SPARK),
    "connectors.dynamic_kafka": dict.fromkeys(("DynamicKafkaSource",), "KafkaSource reads one cluster"),
    "connectors.elasticsearch": dict.fromkeys(
        ("ElasticsearchEmitter", "Elasticsearch6SinkBuilder", "Elasticsearch7SinkBuilder", "ElasticsearchSink"), _SPARK
    ),
    "connectors.hybrid_source": dict.fromkeys(
        ("HybridSource", "HybridSourceBuilder"), "make an input of each and union() them; both are read from the start"
    ),
    "connectors.jdbc": dict.fromkeys(
        ("JdbcSink", "JdbcConnectionOptions", "JdbcExecutionOptions"),
        "DatabaseSink of holdfast.datastream.connectors.database writes to PostgreSQL and SQLite exactly once",
    ),
    "connectors.kinesis": dict.fromkeys(
        ("FlinkKinesisConsumer", "KinesisStreamsSink", "KinesisFirehoseSink", "PartitionKeyGenerator"), _SPARK
    ),
    "connectors.pulsar": dict.fromkeys(("PulsarSource", "PulsarSink", "StartCursor", "StopCursor"), _SPARK),
    "connectors.rabbitmq": dict.fromkeys(("RMQConnectionConfig", "RMQSource", "RMQSink"), _SPARK),
    "formats.orc": dict.fromkeys(
        ("OrcBulkWriters",), "FileSink writes Parquet and Arrow (holdfast.datastream.formats), for_each_epoch() ORC"
    ),
    "utils": {
        **dict.fromkeys(("convert_to_python_obj", "create_java_properties", "pickled_bytes_to_python_obj"), _OF_JAVA),
        "ResultTypeQueryable": "output_type of an operation says what it emits",
        "create_hadoop_configuration": "Spark has the configuration of Hadoop: set spark.hadoop.*",
    },
}
"""Modules of `pyflink.datastream` that are not here, or not whole, by the names that programs import from them."""
