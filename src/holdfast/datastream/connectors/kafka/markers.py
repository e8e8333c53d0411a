"""Markers: records in a compacted topic that say which epochs of a `KafkaSink` are committed.

A transaction of a shard has the rows of an epoch and one marker, of which compaction keeps the newest of each key::

    key    ["<incarnation>", "<uid of the sink>", <shard>]
    value  {"epoch": 7, "transactional_id": "...", "files": ["<name>"]}

Older releases wrote no names of files: their epochs count as complete.

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

from holdfast.datastream.connectors.kafka.client import KafkaConnection, translated_errors
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger

logger = get_logger(__name__)

DEFAULT_NAME: Final = "holdfast-commits"
PARTITIONS: Final = 16
_COPIES: Final = 3
_SAFE_COPIES: Final = 2
_PAUSE: Final = 0.1

Shard = tuple[str, str, int]
"""Incarnation, uid of the sink, number."""
_POLL: Final = 1.0
_READ_PAUSE: Final = 0.05


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
        """What a checkpoint says.

        Raises:
            ConfigurationError: It says something else.
        """
        kinds = {"cluster": str, "topic": str, "topic_id": str, "partition": int}
        if type(value) is not dict or {name: type(found) for name, found in value.items()} != kinds:
            raise ConfigurationError(
                f"The checkpoint does not say where the markers of a KafkaSink are, but {reprlib.repr(value)}. Start "
                "from another one (-s PATH)."
            )
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """The value that `from_json` takes."""
        return asdict(self)


def marker_key(shard: Shard) -> bytes:
    """The key of a shard's marker."""
    return json.dumps(list(shard)).encode()


def marker_value(epoch: int, transactional_id: str, names: Sequence[str] | None = None) -> bytes:
    """Return the marker of an epoch, with the names of the committables of its shard."""
    files = {} if names is None else {"files": list(names)}
    return json.dumps({"epoch": epoch, "transactional_id": transactional_id, **files}).encode()


def parsed_marker(key: bytes | None, value: bytes | None) -> tuple[Shard, int, str, list[str] | None] | None:
    """Return shard, epoch, transactional id and names of a marker; None if it is none, written by somebody else."""
    try:
        incarnation, uid, number = json.loads(key or b"")
        said = json.loads(value or b"")
        epoch, transactional_id, files = said["epoch"], said["transactional_id"], said.get("files")
        names = None if files is None else list(map(str, files))
    except PARSE_ERRORS:
        return None
    kinds = [type(part) for part in (incarnation, uid, number, epoch, transactional_id)]
    return ((incarnation, uid, number), epoch, transactional_id, names) if kinds == [str, str, int, int, str] else None


def find_or_make(connection: KafkaConnection, name: str, owner: str) -> MarkerPartition:
    """The partition of a sink that begins; the topic is made if it is missing. Blocks.

    Args:
        connection: Connection to the cluster.
        name: Name of the topic.
        owner: Decides the partition.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: The topic may lose markers.
    """
    admin = connection.admin()
    with translated_errors(f"asking Kafka about its topic of commits, {name!r},", connection):
        found = _described(admin, connection, name)
        if found is None:
            _make(admin, connection, name)
            found = _described_by_all(admin, connection, name)
            if found is None:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"{name!r} was made, and is gone"))
        _require_safe(admin, connection, name, found)
        cluster = _cluster_of(admin, connection)
    partition = zlib.crc32(owner.encode()) % len(found.partitions)
    return MarkerPartition(cluster, name, str(found.topic_id), partition)


def require_kept(connection: KafkaConnection, kept: MarkerPartition) -> None:
    """Makes sure that the topic is the one that a checkpoint knows, and still may not forget. Blocks.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: It is another one, or not there, or may lose markers.
    """
    admin = connection.admin()
    found = require_same(admin, connection, kept)
    with translated_errors(f"asking Kafka about its topic of commits, {kept.topic!r},", connection):
        _require_safe(admin, connection, kept.topic, found)


def require_same(admin: AdminClient, connection: KafkaConnection, kept: MarkerPartition) -> Any:
    """Makes sure that the topic is the one that a checkpoint knows, and describes it. Blocks.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: It is another one, or not there.
    """
    with translated_errors(f"asking Kafka about its topic of commits, {kept.topic!r},", connection):
        found = _described_by_all(admin, connection, kept.topic)
        if found is not None and str(found.topic_id) == kept.topic_id and kept.partition < len(found.partitions):
            return found
        cluster = _cluster_of(admin, connection)
    what = "has no topic of this name" if found is None else f"has another one of this name, with id {found.topic_id}"
    raise ConfigurationError(
        f"The Kafka topic {kept.topic!r} says which epochs of the job have been committed, and the checkpoint knows it "
        f"by the id {kept.topic_id} in the cluster {kept.cluster!r}. The cluster at {connection.servers!r} is "
        f"{cluster!r}, and {what}: what was committed is unknown, and nothing was committed now. If the cluster is "
        "another one by mistake, name the right one. If the topic was deleted, start anew (--fresh, or -s with a "
        "checkpoint whose epochs are all committed) with another set_marker_topic()."
    )


def _described(admin: AdminClient, connection: KafkaConnection, name: str) -> Any:
    future = admin.describe_topics(TopicCollection([name]), request_timeout=connection.patience)[name]
    try:
        return connection.answer(admin, future)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


def _described_by_all(admin: AdminClient, connection: KafkaConnection, name: str) -> Any:
    """As `_described`, but a broker that has just begun, or has not heard of a new topic, is asked again."""
    deadline = time.monotonic() + connection.patience
    while (found := _described(admin, connection, name)) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return found


def _cluster_of(admin: AdminClient, connection: KafkaConnection) -> str:
    return str(connection.answer(admin, admin.describe_cluster(request_timeout=connection.patience)).cluster_id)


def _make(admin: AdminClient, connection: KafkaConnection, name: str) -> None:
    copies = min(_COPIES, len(admin.list_topics(timeout=connection.patience).brokers))
    settings = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
    if copies >= _SAFE_COPIES:
        settings["min.insync.replicas"] = str(_SAFE_COPIES)
    topic = NewTopic(name, PARTITIONS, copies, config=settings)
    try:
        made = admin.create_topics([topic], operation_timeout=connection.patience, request_timeout=connection.patience)
        connection.answer(admin, made[name])
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _require_safe(admin: AdminClient, connection: KafkaConnection, name: str, found: Any) -> None:
    said = _settings(admin, connection, name)
    copies = min(len(partition.replicas) for partition in found.partitions)
    wrong = _wrong(said, copies)
    if wrong:
        raise ConfigurationError(
            f"The Kafka topic {name!r} is to say for ever which epochs were committed, but {wrong}. Nothing was "
            "written. Change it with Kafka's own tools, or name another topic by set_marker_topic(): one that is not "
            "there is made as it must be."
        )


def _settings(admin: AdminClient, connection: KafkaConnection, name: str) -> dict[str, str | None]:
    """The settings of a topic; a broker that has not heard of a new one is asked again."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    deadline = time.monotonic() + connection.patience
    while True:
        answer = admin.describe_configs([resource], request_timeout=connection.patience)[resource]
        try:
            return {key: entry.value for key, entry in connection.answer(admin, answer).items()}
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


def _wrong(settings: Mapping[str, str | None], copies: int) -> str | None:
    if settings.get("cleanup.policy") != "compact":
        return f"its cleanup.policy is {settings.get('cleanup.policy')!r}, and must be 'compact' alone"
    if settings.get("unclean.leader.election.enable") != "false":
        return "unclean.leader.election.enable is on, so a copy that lacks markers may become the leader"
    if copies >= _SAFE_COPIES and int(settings.get("min.insync.replicas") or 1) < _SAFE_COPIES:
        return f"its min.insync.replicas is below {_SAFE_COPIES}, so a marker may be on one broker only"
    return None


# What the markers of a sink say, read up to their end, also past transactions that nobody has ended.
#
# A reader of committed records stops where the oldest open transaction of any producer begins: what was committed
# behind it is hidden. So "there is no marker" is said only when the reader has come to the end that the partition had
# for readers of everything. What is open and of this sink is ended: by the producer of the same transactional id, whose
# start aborts it.


_PASSING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""What a partition answers that is new, or has just got another leader."""


class MarkerLog:
    """The markers in one partition, as far as they have been read; `read_to_end` reads on. For one thread.

    Args:
        connection: Connection to the cluster.
        place: The partition.
    """

    def __init__(self, connection: KafkaConnection, place: MarkerPartition) -> None:
        self._connection = connection
        self._place = place
        self._admin: AdminClient = connection.admin()
        self._committed: dict[Shard, tuple[int, list[str] | None]] = {}
        self._position = 0

    def last(self, shard: Shard) -> int | None:
        """The last epoch of a shard that is committed, None if there is none, as of the last `read_to_end`."""
        return self._committed[shard][0] if shard in self._committed else None

    def names(self, shard: Shard) -> list[str] | None:
        """Return the names of the committables of the last epoch of a shard; None if an older release wrote it."""
        return self._committed[shard][1]

    def last_of(self, incarnation: str, uid: str) -> int | None:
        """The last epoch of any shard of a sink."""
        epochs = [epoch for shard, (epoch, _) in self._committed.items() if shard[:2] == (incarnation, uid)]
        return max(epochs, default=None)

    def note(self, shard: Shard, epoch: int, names: list[str] | None) -> None:
        """Record a committed transaction."""
        last = self.last(shard)
        if last is None or epoch >= last:
            self._committed[shard] = epoch, names

    def read_to_end(self, end_transaction: Callable[[str], bool]) -> None:
        """Reads all markers that are committed now. Blocks.

        Args:
            end_transaction: Told the transactional id of a marker that is neither committed nor aborted; ends its
                transaction and returns True if it is one of this sink.

        Raises:
            StorageError: Kafka does not answer, or a transaction of somebody else stays open for too long.
            ConfigurationError: The topic is not the one that it was.
        """
        require_same(self._admin, self._connection, self._place)
        with translated_errors("reading which epochs are committed", self._connection):
            end = self._end()
            if self._position < end:
                self._read(end, end_transaction)

    def _end(self) -> int:
        partition = TopicPartition(self._place.topic, self._place.partition)
        patience = self._connection.patience
        deadline = time.monotonic() + patience
        while True:
            answer = self._admin.list_offsets(
                {partition: OffsetSpec.latest()},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=patience,
            )
            try:
                return int(self._connection.answer(self._admin, answer[partition]).offset)
            except KafkaException as error:
                if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                    raise
            time.sleep(_READ_PAUSE)

    def _read(self, end: int, end_transaction: Callable[[str], bool]) -> None:
        # A consumer that stays would ask for more all the time, and with this patience of the broker very often.
        consumer = self._new_consumer("read_committed", self._position or OFFSET_BEGINNING)
        try:
            self._read_on(consumer, end, end_transaction)
        finally:
            consumer.close()

    def _read_on(self, consumer: Consumer, end: int, end_transaction: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + self._connection.patience
        while self._position < end:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"The markers of the sink in {self._place.topic!r}, partition {self._place.partition}, can be read "
                    f"up to {self._position} of {end}: a transaction is open there, or the partition does not answer. "
                    "Nothing is committed before it has ended; Kafka ends it after its transaction.timeout.ms."
                )
            message = consumer.poll(_POLL)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._position = max(self._position, message.offset())
                if self._position < end and self._end_open(end, end_transaction):
                    deadline = time.monotonic() + self._connection.patience
            elif error.code() not in (*_PASSING, KafkaError.GROUP_AUTHORIZATION_FAILED):  # it is in no group
                raise KafkaException(error)

    def _take(self, message: Any) -> None:
        self._position = message.offset() + 1
        marker = parsed_marker(message.key(), message.value())
        if marker is None:
            logger.warning(
                "%r, partition %d, has a record at offset %d that is no marker: it is ignored",
                self._place.topic, self._place.partition, message.offset(),
            )  # fmt: skip
            return
        shard, epoch, _, names = marker
        self.note(shard, epoch, names)

    def _end_open(self, end: int, end_transaction: Callable[[str], bool]) -> bool:
        """Ends the open transactions of this sink that hide markers; whether there were some."""
        consumer = self._new_consumer("read_uncommitted", self._position)
        has_ended = False
        try:
            seen: set[str] = set()
            position = self._position
            deadline = time.monotonic() + self._connection.patience
            while position < end and time.monotonic() < deadline:
                message = consumer.poll(_POLL)
                if message is None:
                    continue
                if message.error() is not None:
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        break
                    raise KafkaException(message.error())
                position = message.offset() + 1
                marker = parsed_marker(message.key(), message.value())
                if marker is not None and marker[2] not in seen:
                    seen.add(marker[2])
                    has_ended |= end_transaction(marker[2])
        finally:
            consumer.close()
        return has_ended

    def _new_consumer(self, isolation: str, offset: int) -> Consumer:
        consumer = self._connection.consumer(
            {
                "group.id": "holdfast-commits",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                # The end is told by an answer without records, which the broker would hold back for so long.
                "fetch.wait.max.ms": 10,
            }
        )
        consumer.assign([TopicPartition(self._place.topic, self._place.partition, offset)])
        return consumer
