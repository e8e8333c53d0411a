"""`KafkaSink`: rows in Kafka topics, exactly once, without a jar.

Tasks make the records and stage them in the job's directory. When the checkpoint that names them is complete, the
driver publishes each shard of the epoch in one transaction, which also writes the number of the epoch into a compacted
topic: so whether an epoch is there is asked of Kafka itself, also long after. Readers in `read_committed` see each row
once. The shards of an epoch appear one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import records
from holdfast.datastream.connectors.kafka.client import BOOTSTRAP, KafkaConnection
from holdfast.datastream.connectors.kafka.kafka_committer import (
    PlainCommitter,
    RecordProducer,
    TransactionalCommitter,
    limits_of,
)
from holdfast.datastream.connectors.kafka.markers import DEFAULT_NAME, MarkerPartition, find_or_make, require_kept
from holdfast.datastream.connectors.kafka.records import (
    LARGEST,
    KafkaRecordSerializationSchema,
    RecordLimits,
    RecordStaging,
    compressor_of,
)
from holdfast.datastream.sinks.staged_files import sweep_staged_files
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.storage.job_directory import FileName

logger = get_logger(__name__)

_LARGEST: Final = "message.max.bytes"
_LIMITS: Final = "limits"
_PREFIX: Final = "holdfast"


class KafkaSink(Sink):
    """Writes a stream into Kafka; `KafkaSink.builder()` begins one.

    Exactly once, each shard of an epoch is one transaction of the producer `<prefix>-<job id>-<uid>-<shard>`. Readers
    that are not in `read_committed` also see what was aborted. At least once, a commit that is repeated after a failure
    sends again. With no guarantee, what the cluster does not take within `request.timeout.ms` is logged and dropped.
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
        self._place: MarkerPartition | None = None
        self._limits: dict[str, RecordLimits] = {}

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        """A builder of a sink."""
        return KafkaSinkBuilder()

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Asks what topics refuse, and finds the topic of commits, or makes it; it must be that of the checkpoint."""
        connection = KafkaConnection(self._properties)
        try:
            self._limits = limits_of(connection, self._schema.topic)
        except StorageError as error:
            if self._guarantee is not DeliveryGuarantee.NONE:
                raise
            logger.warning("what Kafka refuses is not known: %s", error)
        limits = {_LIMITS: records.to_json(self._limits)}
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return limits
        kept = _place_in(kept)
        known = MarkerPartition.from_json(kept) if kept else None
        if known is not None and known.topic == self._marker_topic:
            require_kept(connection, known)
            self._place = known
        else:
            self._place = find_or_make(connection, self._marker_topic, f"{context.job_id} {context.uid}")
        return {**self._place.to_json(), **limits}

    def create_writer(self, context: WriterInitContext) -> RecordStaging:
        """Makes records and stages them in the job's directory."""
        committable: dict[str, Any] = {"guarantee": self._guarantee.value}
        if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            committable |= {
                "incarnation": context.incarnation,
                "uid": context.uid,
                "shard": context.subtask,
                "shards": context.parallelism,
                "transactional_id": f"{self._id_base(context.job_id, context.uid)}{context.subtask}",
                "target": _place_in(context.target),
            }
        return RecordStaging(
            self._schema,
            context,
            committable,
            int(self._properties.get(_LARGEST, LARGEST)),
            records.from_json((context.target or {}).get(_LIMITS, ())),
            compressor_of(self._properties),
        )

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Publishes what is staged."""
        connection = KafkaConnection(self._properties)
        if self._schema.topic in self._limits:
            connection = connection.limited_to(self._limits[self._schema.topic].batch)
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return _OfAnotherGuarantee(connection, context)
        return TransactionalCommitter(connection, context, self._place, self._id_base(context.job_id, context.uid))

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files that no checkpoint names any more."""
        return sweep_staged_files(context, is_dead)

    def _id_base(self, job_id: str, uid: str) -> str:
        return f"{self._prefix}-{job_id}-{uid}-"

    def __repr__(self) -> str:
        return f"KafkaSink({self._properties.get(BOOTSTRAP)!r}, {self._guarantee.name})"


def _place_in(target: Any) -> Any:
    """What a target says of the topic of commits."""
    return {name: said for name, said in target.items() if name != _LIMITS} if isinstance(target, dict) else target


class _OfAnotherGuarantee(PlainCommitter):
    """Publishes plainly, and in transactions what was staged while the sink was exactly once."""

    def __init__(self, connection: KafkaConnection, context: CommitterInitContext) -> None:
        super().__init__(connection, context)
        self._exact = TransactionalCommitter(connection, context, None, "\0")

    def commit(self, requests: Any) -> None:
        self._exact.commit(requests)

    def close(self) -> None:
        super().close()
        self._exact.close()


class KafkaSinkBuilder:
    """Builds a `KafkaSink`; the names are PyFlink's.

    A value that cannot be is refused with a `ConfigurationError` where it is given.
    """

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._schema: KafkaRecordSerializationSchema | None = None
        self._guarantee = DeliveryGuarantee.EXACTLY_ONCE
        self._prefix = _PREFIX
        self._marker_topic = DEFAULT_NAME

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder:
        """Where clients begin: `host:port`, several with commas."""
        return self.set_property(BOOTSTRAP, bootstrap_servers)

    def set_property(self, key: str, value: Any) -> KafkaSinkBuilder:
        """A property of the producer, by its name in librdkafka."""
        if not isinstance(key, str):
            raise ConfigurationError(f"set_property() takes the name of a property, not {key!r}.")
        self._properties[key] = value
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> KafkaSinkBuilder:
        """What becomes of an element."""
        if not isinstance(record_serializer, KafkaRecordSerializationSchema):
            raise ConfigurationError(
                f"set_record_serializer() takes a KafkaRecordSerializationSchema, not {record_serializer!r}."
            )
        self._schema = record_serializer
        return self

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder:
        """What is promised of each row. EXACTLY_ONCE without a call; PyFlink's is NONE."""
        if not isinstance(delivery_guarantee, DeliveryGuarantee):
            raise ConfigurationError(f"set_delivery_guarantee() takes a DeliveryGuarantee, not {delivery_guarantee!r}.")
        self._guarantee = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder:
        """The beginning of transactional ids, for the access rules of a cluster; `holdfast` without a call."""
        if not isinstance(transactional_id_prefix, str) or not transactional_id_prefix:
            raise ConfigurationError(f"set_transactional_id_prefix() takes text, not {transactional_id_prefix!r}.")
        self._prefix = transactional_id_prefix
        return self

    def set_marker_topic(self, name: str) -> KafkaSinkBuilder:
        """The compacted topic that says which epochs are committed; it is made if it is missing."""
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"set_marker_topic() takes the name of a topic, not {name!r}.")
        self._marker_topic = name
        return self

    def build(self) -> KafkaSink:
        """The sink.

        Raises:
            ConfigurationError: Servers or the serializer are missing, or a property is unknown.
        """
        if self._schema is None:
            raise ConfigurationError("A KafkaSink needs set_record_serializer().")
        connection = KafkaConnection(self._properties)
        RecordProducer(connection).close()  # looks at the properties; nothing is sent
        return KafkaSink(dict(self._properties), self._schema, self._guarantee, self._prefix, self._marker_topic)
