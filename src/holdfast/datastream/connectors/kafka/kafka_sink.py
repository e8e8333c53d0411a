"""`KafkaSink`: writes rows into Kafka topics, exactly once, without a jar.

Tasks create the records and stage them in the job's directory. When the checkpoint that names them is complete, the
driver publishes each shard of the epoch in one transaction, which also writes the epoch's number into a compacted
topic. So Kafka itself knows, for ever, which epochs are committed. Readers in `read_committed` see each row once; the
shards of an epoch appear one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import records
from holdfast.datastream.connectors.kafka.client import (
    BOOTSTRAP_SERVERS,
    CLIENT_ERRORS,
    KafkaConnection,
    translate_errors,
    translated_error,
)
from holdfast.datastream.connectors.kafka.kafka_committer import (
    KafkaCommitter,
    RecordProducer,
    fetch_limits,
)
from holdfast.datastream.connectors.kafka.markers import (
    DEFAULT_NAME,
    MarkerPartition,
    check_marker_topic,
    find_or_create,
)
from holdfast.datastream.connectors.kafka.records import (
    DEFAULT_MAX_MESSAGE_BYTES,
    KafkaRecord,
    KafkaRecordSerializationSchema,
    RecordLimits,
    RecordStaging,
    producer_compressor,
    serialize_record,
)
from holdfast.datastream.sinks.staged_files import sweep_staged_files
from holdfast.errors import CheckpointDeclinedError, ConfigurationError, StorageError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import (
    ColumnSinkWriter,
    Committer,
    CommitterInitContext,
    Sink,
    WriterContext,
    WriterInitContext,
)
from holdfast.storage.job_directory import FileName
from holdfast.types.arrow import Timestamps

logger = get_logger(__name__)

_MAX_MESSAGE_BYTES: Final = "message.max.bytes"
_LIMITS: Final = "limits"
_PREFIX: Final = "holdfast"
_LINGER_MS: Final = 1
"""Milliseconds for which a record waits for others, in a real-time job."""


class KafkaSink(Sink):
    """Writes a stream into Kafka; create it with `KafkaSink.builder()`. Needs `pip install 'holdfast[kafka]'`.

    With `EXACTLY_ONCE`, each shard of an epoch is one transaction of the producer `<prefix>-<job id>-<uid>-<shard>`.
    Readers that are not in `read_committed` also see aborted records. With `AT_LEAST_ONCE`, a commit that is repeated
    after a failure sends records again. With `NONE`, records that the cluster does not accept within
    `request.timeout.ms` are logged and dropped.

    In a real-time job, tasks send the records of these two as elements arrive, and wait at each barrier until the
    cluster has acknowledged them.

    Example:
        >>> from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
        >>> KafkaSink.builder().set_bootstrap_servers("broker:9092").set_record_serializer(
        ...     KafkaRecordSerializationSchema.builder()
        ...     .set_topic("counts")
        ...     .set_key_serialization_schema(lambda row: row.word)
        ...     .set_value_serialization_schema(lambda row: str(row.n))
        ...     .build()
        ... ).build()
        KafkaSink('broker:9092', EXACTLY_ONCE)
    """

    def __init__(
        self,
        properties: dict[str, Any],
        schema: KafkaRecordSerializationSchema,
        guarantee: DeliveryGuarantee,
        prefix: str,
        marker_topic: str,
    ) -> None:
        self._properties = properties
        self._schema = schema
        self._guarantee = guarantee
        self._prefix = prefix
        self._marker_topic = marker_topic
        self._marker_partition: MarkerPartition | None = None
        self._limits: dict[str, RecordLimits] = {}

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        """Return a builder."""
        return KafkaSinkBuilder()

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Read the topics' limits, and find or create the marker topic, which must be the checkpoint's. Blocks.

        Raises:
            StorageError: The brokers do not answer.
            ConfigurationError: The marker topic is not the one of the checkpoint, or cannot be used.
        """
        connection = KafkaConnection(self._properties)
        try:
            self._limits = fetch_limits(connection, self._schema.topic)
        except StorageError as error:
            if self._guarantee is not DeliveryGuarantee.NONE:
                raise
            logger.warning("the limits of Kafka's topics are unknown: %s", error)
        limits = {_LIMITS: records.to_json(self._limits)}
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return limits
        kept = _marker_part(kept)
        known = MarkerPartition.from_json(kept) if kept else None
        if known is not None and known.topic == self._marker_topic:
            check_marker_topic(connection, known)
            self._marker_partition = known
        else:
            self._marker_partition = find_or_create(connection, self._marker_topic, f"{context.job_id} {context.uid}")
        return {**self._marker_partition.to_json(), **limits}

    def create_writer(self, context: WriterInitContext) -> RecordStaging | RecordSender:
        if context.is_real_time and self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return RecordSender(self._schema, context, KafkaConnection(self._properties), self._guarantee)
        committable: dict[str, Any] = {"guarantee": self._guarantee.value}
        if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            committable |= {
                "incarnation": context.incarnation,
                "uid": context.uid,
                "shard": context.subtask,
                "shards": context.parallelism,
                "transactional_id": f"{self._id_base(context.job_id, context.uid)}{context.subtask}",
                "target": _marker_part(context.target),
            }
        return RecordStaging(
            self._schema,
            context,
            committable,
            int(self._properties.get(_MAX_MESSAGE_BYTES, DEFAULT_MAX_MESSAGE_BYTES)),
            records.from_json((context.target or {}).get(_LIMITS, ())),
            producer_compressor(self._properties),
        )

    def create_committer(self, context: CommitterInitContext) -> Committer:
        connection = KafkaConnection(self._properties)
        if self._schema.topic in self._limits:
            connection = connection.with_batch_size(self._limits[self._schema.topic].batch)
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            # It has no transactions of its own. Some may be left from when the sink was exactly once.
            return KafkaCommitter(connection, context, None, None)
        return KafkaCommitter(connection, context, self._marker_partition, self._id_base(context.job_id, context.uid))

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        return sweep_staged_files(context, is_dead)

    def _id_base(self, job_id: str, uid: str) -> str:
        return f"{self._prefix}-{job_id}-{uid}-"

    def __repr__(self) -> str:
        return f"KafkaSink({self._properties.get(BOOTSTRAP_SERVERS)!r}, {self._guarantee.name})"


def _marker_part(target: Any) -> Any:
    """Return the fields of a target that identify the marker partition."""
    return {name: value for name, value in target.items() if name != _LIMITS} if isinstance(target, dict) else target


class RecordSender(ColumnSinkWriter):
    """Sends records as elements arrive, in a real-time job.

    Args:
        schema: Converts elements to records.
        context: The context of the writer.
        connection: The connection to the cluster.
        guarantee: At least once, or none.
    """

    writes_directly = True

    def __init__(
        self,
        schema: KafkaRecordSerializationSchema,
        context: WriterInitContext,
        connection: KafkaConnection,
        guarantee: DeliveryGuarantee,
    ) -> None:
        self._schema = schema
        self.takes_columns = schema.takes_columns
        self._uid = context.uid
        self._sending = f"sending the records of {context.uid!r}"
        self._connection = connection
        self._is_needed = guarantee is not DeliveryGuarantee.NONE
        linger = {} if "linger.ms" in connection.properties else {"linger.ms": _LINGER_MS}
        self._producer = RecordProducer(connection, linger)
        schema.open()

    def write(self, element: Any, context: WriterContext) -> None:
        """Pass one record to the client. Blocks while its queue is full.

        Raises:
            RefusedElementError: The element cannot be converted to a record.
            StorageError: The cluster rejected a record.
        """
        self._send(iter((serialize_record(self._schema, element, context.timestamp()),)))

    def write_columns(self, batch: pa.RecordBatch, timestamps: Timestamps | None) -> bool:
        """Pass many records to the client; return False if `write` has to be called with each element.

        Raises:
            StorageError: The cluster rejected a record.
        """
        records = self._schema.serialize_batch(batch, timestamps)
        if records is None:
            return False
        self._send(iter(records))
        return True

    def _send(self, records: Iterator[KafkaRecord]) -> None:
        """Send records; one that is dropped does not keep those behind it from being sent."""
        while True:
            try:
                self._producer.send(records)
                return
            except StorageError as error:
                self._drop_or_raise(error)
            except CLIENT_ERRORS as error:
                failure = translated_error(error, self._sending, self._connection)
                failure.__cause__ = error
                self._drop_or_raise(failure)

    def flush(self, end_of_input: bool) -> None:
        """Wait until the cluster has acknowledged all records. Blocks.

        Raises:
            CheckpointDeclinedError: The cluster does not answer; the client goes on sending the records.
            StorageError: The cluster rejected a record, or did not take it in time.
        """
        try:
            with translate_errors(self._sending, self._connection):
                self._producer.flush()
        except StorageError as error:
            if self._is_needed and self._producer.keeps_all:
                raise CheckpointDeclinedError(f"{error} Its records are sent on.") from error
            self._drop_or_raise(error)

    def close(self) -> None:
        self._producer.close()

    def abort(self) -> None:
        self._producer.close()

    def _drop_or_raise(self, error: Exception) -> None:
        if self._is_needed or not isinstance(error, StorageError):
            raise error
        logger.warning("records of %r were dropped: %s", self._uid, error)


class KafkaSinkBuilder:
    """Builds a `KafkaSink`, under PyFlink's names. Setters raise `ConfigurationError` for an invalid value."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._schema: KafkaRecordSerializationSchema | None = None
        self._guarantee = DeliveryGuarantee.EXACTLY_ONCE
        self._prefix = _PREFIX
        self._marker_topic = DEFAULT_NAME

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder:
        """Set the brokers: `host:port`, several separated by commas."""
        return self.set_property(BOOTSTRAP_SERVERS, bootstrap_servers)

    def set_property(self, key: str, value: Any) -> KafkaSinkBuilder:
        """Set a property of the producer, by its name in librdkafka."""
        if not isinstance(key, str):
            raise ConfigurationError(f"set_property() takes the name of a property, not {key!r}.")
        self._properties[key] = value
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> KafkaSinkBuilder:
        """Set the schema that converts an element to a record."""
        if not isinstance(record_serializer, KafkaRecordSerializationSchema):
            raise ConfigurationError(
                f"set_record_serializer() takes a KafkaRecordSerializationSchema, not {record_serializer!r}."
            )
        self._schema = record_serializer
        return self

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder:
        """Set the delivery guarantee. The default is EXACTLY_ONCE; PyFlink's is NONE."""
        if not isinstance(delivery_guarantee, DeliveryGuarantee):
            raise ConfigurationError(f"set_delivery_guarantee() takes a DeliveryGuarantee, not {delivery_guarantee!r}.")
        self._guarantee = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder:
        """Set the prefix of transactional ids, for the ACLs of a cluster; `holdfast` by default."""
        if not isinstance(transactional_id_prefix, str) or not transactional_id_prefix:
            raise ConfigurationError(f"set_transactional_id_prefix() takes text, not {transactional_id_prefix!r}.")
        self._prefix = transactional_id_prefix
        return self

    def set_marker_topic(self, name: str) -> KafkaSinkBuilder:
        """Set the compacted topic for committed epochs, `holdfast-commits` by default; a missing one is created."""
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"set_marker_topic() takes the name of a topic, not {name!r}.")
        self._marker_topic = name
        return self

    def build(self) -> KafkaSink:
        """Create the sink.

        Raises:
            ConfigurationError: Servers or the serializer are missing, or a property is unknown.
        """
        if self._schema is None:
            raise ConfigurationError("A KafkaSink needs set_record_serializer().")
        connection = KafkaConnection(self._properties)
        RecordProducer(connection).close()  # validates the properties; nothing is sent
        return KafkaSink(dict(self._properties), self._schema, self._guarantee, self._prefix, self._marker_topic)
