"""Markers: records in a compacted topic that say which epochs of a `KafkaSink` are committed.

A transaction of a shard has the rows of an epoch and one marker. Compaction keeps the newest marker of each key::

    key    ["<incarnation>", "<uid of the sink>", <shard>]
    value  {"epoch": 7, "transactional_id": "...", "files": ["<name>"]}

Older releases wrote no names of files; their epochs count as complete.

All markers of a sink are in one partition. It is chosen when the job starts for the first time, and stays the same even
if the topic gets more partitions.
"""

from __future__ import annotations

import json
import reprlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from holdfast.datastream.connectors.kafka.client import KafkaConnection, translate_errors
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger

logger = get_logger(__name__)

DEFAULT_NAME: Final = "holdfast-commits"
PARTITIONS: Final = 16
_REPLICAS: Final = 3
_MIN_REPLICAS: Final = 2
_PAUSE: Final = 0.1

Shard = tuple[str, str, int]
"""Incarnation, uid of the sink, subtask."""
_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True)
class MarkerPartition:
    """The partition with the markers of a sink. It is in checkpoints, and in each committable.

    Attributes:
        cluster: The id of the cluster.
        topic: The name of the topic.
        topic_id: The id of the topic, which a new topic of the same name would not have.
        partition: The partition.
    """

    cluster: str
    topic: str
    topic_id: str
    partition: int

    @classmethod
    def from_json(cls, value: Any) -> MarkerPartition:
        """Return the marker partition from a checkpoint.

        Raises:
            ConfigurationError: The value is not a marker partition.
        """
        kinds = {"cluster": str, "topic": str, "topic_id": str, "partition": int}
        if type(value) is not dict or {name: type(found) for name, found in value.items()} != kinds:
            raise ConfigurationError(
                f"The checkpoint has no valid marker partition of a KafkaSink, but {reprlib.repr(value)}. Start from "
                "another checkpoint (-s PATH)."
            )
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return the value that `from_json` takes."""
        return asdict(self)


def marker_key(shard: Shard) -> bytes:
    """Return the key of a shard's marker."""
    return json.dumps(list(shard)).encode()


def marker_value(epoch: int, transactional_id: str, names: Sequence[str] | None = None) -> bytes:
    """Return the marker of an epoch, with the names of the committables of its shard."""
    files = {} if names is None else {"files": list(names)}
    return json.dumps({"epoch": epoch, "transactional_id": transactional_id, **files}).encode()


def parse_marker(key: bytes | None, value: bytes | None) -> tuple[Shard, int, str, list[str] | None] | None:
    """Return shard, epoch, transactional id and names of a marker; None if the record is not a marker."""
    try:
        incarnation, uid, number = json.loads(key or b"")
        marker = json.loads(value or b"")
        epoch, transactional_id, files = marker["epoch"], marker["transactional_id"], marker.get("files")
        names = None if files is None else list(map(str, files))
    except PARSE_ERRORS:
        return None
    kinds = [type(part) for part in (incarnation, uid, number, epoch, transactional_id)]
    return ((incarnation, uid, number), epoch, transactional_id, names) if kinds == [str, str, int, int, str] else None


def find_or_create(connection: KafkaConnection, name: str, owner: str) -> MarkerPartition:
    """Return the marker partition of a new sink; create the topic if it is missing. Blocks.

    Args:
        connection: The connection to the cluster.
        name: The name of the topic.
        owner: Selects the partition, by its hash.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: The settings of the topic allow markers to be lost.
    """
    admin = connection.create_admin()
    with translate_errors(f"describing the marker topic {name!r}", connection):
        found = _describe(admin, connection, name)
        if found is None:
            _create_topic(admin, connection, name)
            found = _describe_with_retry(admin, connection, name)
            if found is None:
                reason = f"{name!r} was created, but does not exist"
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, reason))
        _check_durable(admin, connection, name, found)
        cluster = _cluster_id(admin, connection)
    partition = zlib.crc32(owner.encode()) % len(found.partitions)
    return MarkerPartition(cluster, name, str(found.topic_id), partition)


def check_marker_topic(connection: KafkaConnection, kept: MarkerPartition) -> None:
    """Check that the marker topic is the checkpoint's, and that its settings keep markers forever. Blocks.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: The topic is missing or another one, or its settings allow markers to be lost.
    """
    admin = connection.create_admin()
    found = describe_same_topic(admin, connection, kept)
    with translate_errors(f"describing the marker topic {kept.topic!r}", connection):
        _check_durable(admin, connection, kept.topic, found)


def describe_same_topic(admin: AdminClient, connection: KafkaConnection, kept: MarkerPartition) -> Any:
    """Describe the marker topic, and check that it is the checkpoint's. Blocks.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: The topic is missing or another one.
    """
    with translate_errors(f"describing the marker topic {kept.topic!r}", connection):
        found = _describe_with_retry(admin, connection, kept.topic)
        if found is not None and str(found.topic_id) == kept.topic_id and kept.partition < len(found.partitions):
            return found
        cluster = _cluster_id(admin, connection)
    what = "has no topic of this name" if found is None else f"has another topic of this name, with id {found.topic_id}"
    raise ConfigurationError(
        f"The Kafka topic {kept.topic!r} records the committed epochs of the job. In the checkpoint it has the id "
        f"{kept.topic_id} in the cluster {kept.cluster!r}. The cluster at {connection.servers!r} is {cluster!r}, and "
        f"{what}: the committed epochs are unknown, and nothing was committed now. If this is the wrong cluster, "
        "correct bootstrap.servers. If the topic was deleted, set another set_marker_topic(), and start with --fresh, "
        "or with -s and a checkpoint whose epochs are all committed."
    )


def _describe(admin: AdminClient, connection: KafkaConnection, name: str) -> Any:
    """Return the description of a topic; None if it does not exist."""
    request = admin.describe_topics(TopicCollection([name]), request_timeout=connection.request_timeout)[name]
    try:
        return connection.wait_for(admin, request)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


def _describe_with_retry(admin: AdminClient, connection: KafkaConnection, name: str) -> Any:
    """Describe a topic; retry while brokers do not know it, since they have just started or the topic is new."""
    deadline = time.monotonic() + connection.request_timeout
    while (found := _describe(admin, connection, name)) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return found


def _cluster_id(admin: AdminClient, connection: KafkaConnection) -> str:
    return str(
        connection.wait_for(admin, admin.describe_cluster(request_timeout=connection.request_timeout)).cluster_id
    )


def _create_topic(admin: AdminClient, connection: KafkaConnection, name: str) -> None:
    replicas = min(_REPLICAS, len(admin.list_topics(timeout=connection.request_timeout).brokers))
    settings = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
    if replicas >= _MIN_REPLICAS:
        settings["min.insync.replicas"] = str(_MIN_REPLICAS)
    topic = NewTopic(name, PARTITIONS, replicas, config=settings)
    try:
        made = admin.create_topics(
            [topic], operation_timeout=connection.request_timeout, request_timeout=connection.request_timeout
        )
        connection.wait_for(admin, made[name])
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _check_durable(admin: AdminClient, connection: KafkaConnection, name: str, found: Any) -> None:
    settings = _topic_settings(admin, connection, name)
    replicas = min(len(partition.replicas) for partition in found.partitions)
    reason = _settings_error(settings, replicas)
    if reason:
        raise ConfigurationError(
            f"The Kafka topic {name!r} must keep the committed epochs forever, but {reason}. Nothing was written. "
            "Change the topic with Kafka's tools, or set another one with set_marker_topic(): a missing one is created "
            "with the right settings."
        )


def _topic_settings(admin: AdminClient, connection: KafkaConnection, name: str) -> dict[str, str | None]:
    """Return the settings of a topic; retry while brokers do not know a new topic."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    deadline = time.monotonic() + connection.request_timeout
    while True:
        request = admin.describe_configs([resource], request_timeout=connection.request_timeout)[resource]
        try:
            return {key: entry.value for key, entry in connection.wait_for(admin, request).items()}
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


def _settings_error(settings: Mapping[str, str | None], replicas: int) -> str | None:
    """Return why markers may be lost in a topic with these settings; None if they are safe."""
    if settings.get("cleanup.policy") != "compact":
        return f"its cleanup.policy is {settings.get('cleanup.policy')!r}, and must be 'compact' alone"
    if settings.get("unclean.leader.election.enable") != "false":
        return "unclean.leader.election.enable is true, so a replica without some markers may become the leader"
    if replicas >= _MIN_REPLICAS and int(settings.get("min.insync.replicas") or 1) < _MIN_REPLICAS:
        return f"its min.insync.replicas is below {_MIN_REPLICAS}, so a marker may be on one broker only"
    return None


# A reader of committed records stops at the oldest open transaction of any producer, which hides the records behind it.
# So `MarkerLog` reads up to the end that a reader of uncommitted records sees, before it reports a marker as missing.
# It ends open transactions of its sink with a new producer of the same transactional id, whose start aborts them.


_TRANSIENT_CODES: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""Error codes of a partition that is new, or whose leader changes."""


class MarkerLog:
    """The committed markers in one partition. Call `read_to_end` first. Not thread-safe.

    Args:
        connection: The connection to the cluster.
        place: The partition.
    """

    def __init__(self, connection: KafkaConnection, place: MarkerPartition) -> None:
        self._connection = connection
        self._place = place
        self._admin: AdminClient = connection.create_admin()
        self._committed: dict[Shard, tuple[int, list[str] | None]] = {}
        self._position = 0

    def last_epoch(self, shard: Shard) -> int | None:
        """Return the last committed epoch of a shard as of the last `read_to_end`; None without any."""
        return self._committed[shard][0] if shard in self._committed else None

    def file_names(self, shard: Shard) -> list[str] | None:
        """Return the names of the committables of the last epoch of a shard; None if an older release wrote it."""
        return self._committed[shard][1]

    def last_epoch_of_sink(self, incarnation: str, uid: str) -> int | None:
        """Return the last committed epoch of any shard of a sink; None without any."""
        epochs = [epoch for shard, (epoch, _) in self._committed.items() if shard[:2] == (incarnation, uid)]
        return max(epochs, default=None)

    def record(self, shard: Shard, epoch: int, names: list[str] | None) -> None:
        """Record a committed transaction."""
        last = self.last_epoch(shard)
        if last is None or epoch >= last:
            self._committed[shard] = epoch, names

    def read_to_end(self, end_transaction: Callable[[str], bool]) -> None:
        """Read all committed markers. Blocks.

        Args:
            end_transaction: Gets the transactional id of an open transaction. Ends it and returns True if it is one of
                this sink.

        Raises:
            StorageError: Kafka does not answer, or a transaction of another program stays open for too long.
            ConfigurationError: The topic is missing or another one.
        """
        describe_same_topic(self._admin, self._connection, self._place)
        with translate_errors("reading the committed epochs", self._connection):
            end = self._end_offset()
            if self._position < end:
                self._read(end, end_transaction)

    def _end_offset(self) -> int:
        partition = TopicPartition(self._place.topic, self._place.partition)
        timeout = self._connection.request_timeout
        deadline = time.monotonic() + timeout
        while True:
            requests = self._admin.list_offsets(
                {partition: OffsetSpec.latest()},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=timeout,
            )
            try:
                return int(self._connection.wait_for(self._admin, requests[partition]).offset)
            except KafkaException as error:
                if error.args[0].code() not in _TRANSIENT_CODES or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _read(self, end: int, end_transaction: Callable[[str], bool]) -> None:
        # A new consumer each time: an idle one would poll all the time, and very often with this `fetch.wait.max.ms`.
        consumer = self._new_consumer("read_committed", self._position or OFFSET_BEGINNING)
        try:
            self._consume_until(consumer, end, end_transaction)
        finally:
            consumer.close()

    def _consume_until(self, consumer: Consumer, end: int, end_transaction: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + self._connection.request_timeout
        while self._position < end:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"The markers of the sink in {self._place.topic!r}, partition {self._place.partition}, could be "
                    f"read only up to offset {self._position} of {end}: a transaction is open there, or the partition "
                    "does not answer. Kafka ends the transaction after its transaction.timeout.ms; nothing is "
                    "committed before."
                )
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._on_message(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._position = max(self._position, message.offset())
                if self._position < end and self._end_open_transactions(end, end_transaction):
                    deadline = time.monotonic() + self._connection.request_timeout
            elif error.code() not in (*_TRANSIENT_CODES, KafkaError.GROUP_AUTHORIZATION_FAILED):  # it joins no group
                raise KafkaException(error)

    def _on_message(self, message: Any) -> None:
        self._position = message.offset() + 1
        marker = parse_marker(message.key(), message.value())
        if marker is None:
            logger.warning(
                "%r, partition %d: the record at offset %d is not a marker, and is ignored",
                self._place.topic, self._place.partition, message.offset(),
            )  # fmt: skip
            return
        shard, epoch, _, names = marker
        self.record(shard, epoch, names)

    def _end_open_transactions(self, end: int, end_transaction: Callable[[str], bool]) -> bool:
        """End the open transactions of this sink that hide markers; return whether there were any."""
        consumer = self._new_consumer("read_uncommitted", self._position)
        has_ended = False
        try:
            seen: set[str] = set()
            position = self._position
            deadline = time.monotonic() + self._connection.request_timeout
            while position < end and time.monotonic() < deadline:
                message = consumer.poll(_POLL_SECONDS)
                if message is None:
                    continue
                if message.error() is not None:
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        break
                    raise KafkaException(message.error())
                position = message.offset() + 1
                marker = parse_marker(message.key(), message.value())
                if marker is not None and marker[2] not in seen:
                    seen.add(marker[2])
                    has_ended |= end_transaction(marker[2])
        finally:
            consumer.close()
        return has_ended

    def _new_consumer(self, isolation: str, offset: int) -> Consumer:
        consumer = self._connection.create_consumer(
            {
                "group.id": "holdfast-commits",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                # The reader learns of the end by a response without records, which the broker delays for this long.
                "fetch.wait.max.ms": 10,
            }
        )
        consumer.assign([TopicPartition(self._place.topic, self._place.partition, offset)])
        return consumer
