"""Committers of `KafkaSink`: publish staged epochs in transactions that also record the epoch, or without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from holdfast.datastream.connectors.kafka.client import NOT_ALLOWED, KafkaConnection, reason_of, translated_errors
from holdfast.datastream.connectors.kafka.markers import MarkerLog, MarkerPartition, Shard, marker_key, marker_value
from holdfast.datastream.connectors.kafka.records import AS_IT_COMES, KafkaRecord, RecordLimits, staged_records
from holdfast.datastream.sinks.committed_names import name_of, not_recorded
from holdfast.datastream.sinks.staged_files import foreign_committables_error, verified_paths
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.job_directory import FileName

logger = get_logger(__name__)

# A producer writes the rows and the marker of an epoch of one shard in one transaction; it is for one thread. After any
# error the outcome is unknown: the transaction may be committed, aborted or open. So the producer is closed, and the
# next one of the same transactional id ends the open transaction before it begins.

_DEFAULTS: Final = {
    # Keys go where the Java client puts them, so that topics of several writers stay partitioned.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
}
_ADVICE: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise its max.message.bytes",
    KafkaError.INVALID_RECORD: "take 'compact' from its cleanup.policy",
    KafkaError.INVALID_TIMESTAMP: "raise its message.timestamp.after.max.ms, or message.timestamp.before.max.ms",
    KafkaError._UNKNOWN_PARTITION: "give it more partitions",
}
"""What to change at a topic that rejects a record, by error code."""

_PURGED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""The errors of records whose transaction another record has ended."""

TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
TRANSACTION_TIMEOUT_MS: Final = 300_000
_MOST: Final = 1000
"""Topics that are asked about: their answers are some kilobytes each."""
_ANY: Final = 2**63 - 1
_UNKNOWN: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
_EXACT: Final = {
    "file": str, "guarantee": str, "incarnation": str, "uid": str, "shard": int, "shards": int,
    "transactional_id": str,
}  # fmt: skip
_PLAIN: Final = {"file": str, "guarantee": str}


class RefusedByTopicError(StorageError):
    """A topic does not take what is staged for it.

    Attributes:
        topic: The topic.
        is_too_large: Whether it is for the size of a batch.
    """

    def __init__(self, topic: str, error: KafkaError) -> None:
        self.topic = topic
        self.is_too_large = error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        super().__init__(
            f"the Kafka topic {topic!r} does not take a record that is staged for it: {reason_of(error)}. It is not "
            f"lost, and is tried again: {_ADVICE[error.code()]}, if only for as long as that takes"
        )


class RecordProducer:
    """Sends records and waits until the cluster has them.

    Args:
        connection: Connection to the cluster.
        settings: Settings of the producer.

    Raises:
        ConfigurationError: A property is unknown.
    """

    def __init__(self, connection: KafkaConnection, settings: dict[str, Any] | None = None) -> None:
        self._connection = connection
        defaults = {key: value for key, value in _DEFAULTS.items() if key not in connection.properties}
        own = {"delivery.report.only.error": True, "on_delivery": self._failed}
        self._producer: Producer = connection.producer({**defaults, **(settings or {}), **own})
        self._topics: set[str] = set()
        self._failure: Exception | None = None

    def send(self, records: Iterable[KafkaRecord]) -> None:
        """Hands records to the client; blocks while its queue is full.

        Raises:
            StorageError: The client has failed, or the cluster takes nothing.
        """
        produce = self._producer.produce
        for topic, key, value, headers, partition, timestamp in records:
            self._topics.add(topic)
            while True:
                try:
                    produce(topic, value, key, partition, timestamp=max(0, timestamp), headers=list(headers) or None)
                    break
                except BufferError:
                    self._wait(len(self._producer) - 1)
                except KafkaException as error:
                    self._producer.poll(0)  # what has failed before may be the reason
                    raise self._failure or self._error_of(error.args[0], topic) from error

    def flush(self) -> None:
        """Blocks until the cluster has all records.

        Raises:
            StorageError: It refuses one, or takes nothing.
        """
        self._wait(0)

    def close(self) -> None:
        """Throws away what was not sent."""
        with suppress(KafkaException, RuntimeError):
            self._producer.purge()
            self._producer.poll(0)

    def _wait(self, most: int) -> None:
        """Waits until at most so many records are on their way; gives up when nothing moves."""
        moved, before = time.monotonic(), len(self._producer)
        while True:
            left = self._producer.flush(0.1) if most == 0 else (self._producer.poll(0.05), len(self._producer))[1]
            if self._failure is not None:
                raise self._failure
            if left <= most:
                return
            if left < before:
                moved, before = time.monotonic(), left
            elif self._connection.is_lost(moved):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} records wait to be sent"))

    def _failed(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._failure is None and error.code() not in _PURGED:
            self._failure = self._error_of(error, message.topic())

    def _error_of(self, error: KafkaError, topic: str) -> Exception:
        """What is raised where a record was not taken."""
        if error.code() in NOT_ALLOWED:
            return ConfigurationError(
                f"The Kafka cluster at {self._connection.servers!r} does not let the job write to the topic {topic!r}: "
                f"{reason_of(error)}. Grant it. What is staged for the topic is in the checkpoint, and is published "
                "when the job runs again."
            )
        return RefusedByTopicError(topic, error) if error.code() in _ADVICE else KafkaException(error)


class ShardProducer(RecordProducer):
    """A producer whose records come in transactions.

    Making one shuts out any other of this id, and ends what it left open. Blocks.

    Raises:
        StorageError: The cluster does not answer.
    """

    def __init__(self, connection: KafkaConnection, transactional_id: str) -> None:
        self.transactional_id: Final = transactional_id
        settings: dict[str, Any] = {"transactional.id": transactional_id}
        if TRANSACTION_TIMEOUT not in connection.properties:
            settings[TRANSACTION_TIMEOUT] = TRANSACTION_TIMEOUT_MS
        super().__init__(connection, settings)
        with translated_errors(f"beginning as the producer {transactional_id!r}", connection):
            self._await(self._producer.init_transactions)

    def send(self, records: Iterable[KafkaRecord]) -> None:
        try:
            super().send(records)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                # The transaction is at its end, and says why to whoever commits it.
                self._producer.commit_transaction(self._connection.patience)
            raise

    def send_epoch(
        self, records: Iterable[KafkaRecord], shard: Shard, epoch: int, names: Sequence[str], place: MarkerPartition
    ) -> None:
        """Opens a transaction with the records of an epoch and its marker, and hands them to the client.

        Raises:
            StorageError: The client has failed, or the cluster takes nothing.
        """
        with translated_errors(f"sending epoch {epoch} of shard {shard[2]}", self._connection):
            self._producer.begin_transaction()
            self.send(records)
            self._producer.produce(
                place.topic, marker_value(epoch, self.transactional_id, names), marker_key(shard), place.partition
            )

    def commit(self) -> None:
        """Commits the transaction. Blocks.

        Raises:
            StorageError: It may be committed or not.
        """
        with translated_errors(f"committing a transaction into {sorted(self._topics)}", self._connection):
            self.flush()
            self._await(self._producer.commit_transaction)

    def _await(self, ask: Callable[[float], None]) -> None:
        try:
            ask(self._connection.patience)
        except KafkaException:
            self._producer.poll(0)  # which tells the connection why, if a broker does not know who asks
            raise


# What topics refuse of single records, as the cluster says when an attempt begins; and whether they may be written.
#
# Where topics are chosen element by element, it is asked about all that the job may see. What cannot be learned,
# because a topic is not there yet or the job may not ask, is found out when the records are published: then the commit
# waits, and says so.


def limits_of(connection: KafkaConnection, topic: str | None) -> dict[str, RecordLimits]:
    """What topics refuse, as far as the cluster says so. Blocks.

    Args:
        connection: Connection to the cluster.
        topic: The one that all records go to; None if they are chosen.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: The topic may not be written.
    """
    admin = connection.admin()
    with translated_errors("asking Kafka about topics", connection):
        partitions = _visible(admin, connection) if topic is None else _writable(admin, connection, topic)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in partitions]
        asked = admin.describe_configs(resources, request_timeout=connection.patience) if resources else {}
        limits = {}
        for resource, answer in asked.items():
            try:
                said = {name: entry.value for name, entry in connection.answer(admin, answer).items()}
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN:
                    raise
                logger.info("what %r refuses is not known: %s", resource.name, error.args[0].str())
            else:
                limits[resource.name] = _limits(said, partitions[resource.name])
        return limits


def _limits(said: dict[str, Any], partitions: int) -> RecordLimits:
    is_timed = said.get("message.timestamp.type") != "LogAppendTime"
    compression = str(said.get("compression.type") or AS_IT_COMES)
    # What brokers call level 9 of lz4 is its fastest one, and -1 of gzip the usual one; zstd has levels below 0.
    asked = said.get(f"compression.{compression}.level") if compression != "lz4" else None
    level = int(asked) if asked and (compression, asked) != ("gzip", "-1") else None
    ahead, behind = (int(said.get(f"message.timestamp.{side}.max.ms", _ANY)) for side in ("after", "before"))
    return RecordLimits(
        int(said["max.message.bytes"]),
        partitions,
        needs_key="compact" in str(said["cleanup.policy"]).split(","),
        ahead=ahead if is_timed and ahead < _ANY else None,
        behind=behind if is_timed and behind < _ANY else None,
        compression=compression,
        level=level,
    )


def _visible(admin: AdminClient, connection: KafkaConnection) -> dict[str, int]:
    """Partitions of all topics but Kafka's own."""
    found = connection.metadata(admin).topics
    names = [name for name in found if not name.startswith("__")]
    if len(names) > _MOST:
        logger.warning(
            "records are published to topics that are chosen one by one, and there are %d, of which at most %d are "
            "asked what they refuse: a record that its topic refuses holds up the commit",
            len(names), _MOST,
        )  # fmt: skip
        return {}
    return {name: len(found[name].partitions) for name in names}


def _writable(admin: AdminClient, connection: KafkaConnection, topic: str) -> dict[str, int]:
    """Partitions of one topic; nothing if it is not there."""
    asked = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=connection.patience
    )
    try:
        found = connection.answer(admin, asked[topic])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return {}
        raise
    if found.authorized_operations and AclOperation.WRITE not in found.authorized_operations:
        raise ConfigurationError(
            f"The Kafka cluster at {connection.servers!r} does not let the job write to the topic {topic!r}: grant it "
            "the operation WRITE on it. What is staged is in the checkpoint, and is published when the job runs again."
        )
    return {topic: len(found.partitions)}


class PlainCommitter(Committer):
    """Publishes without transactions: at least once, or as often as it happens to come.

    Args:
        connection: Connection to the cluster.
        context: Context of the committer.
    """

    def __init__(self, connection: KafkaConnection, context: CommitterInitContext) -> None:
        self._connection = connection
        self._context = context
        self._producer: RecordProducer | None = None

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            require_form(request.committable, _PLAIN)
            try:
                with translated_errors(f"sending epoch {request.epoch} of subtask {request.subtask}", self._connection):
                    if self._producer is None:
                        self._producer = RecordProducer(self._connection)
                    self._producer.send(staged_records(*verified_paths(self._context, [request])))
                    self._producer.flush()
            except StorageError as error:
                self.close()
                before, self._connection = self._connection, _heeding(error, self._connection)
                if request.committable["guarantee"] == "none" and self._connection is before:
                    request.signal_failed_with_known_reason(error)
                else:
                    request.retry_later(error)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


class TransactionalCommitter(Committer):
    """Publishes each shard of an epoch in one transaction with its marker.

    Args:
        connection: Connection to the cluster.
        context: Context of the committer.
        place: Where the markers of the job are, None if it is not known: the committables of a checkpoint say it.
        id_base: The beginning of the transactional ids of the sink.
    """

    def __init__(
        self, connection: KafkaConnection, context: CommitterInitContext, place: MarkerPartition | None, id_base: str
    ) -> None:
        self._connection = connection
        self._context = context
        self._place = place
        self._id_base = id_base
        self._plain = PlainCommitter(connection, context)
        self._logs: dict[MarkerPartition, MarkerLog] = {}
        self._producers: dict[str, ShardProducer] = {}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        plain = [request for request in requests if _is_plain(request)]
        if plain:
            self._plain.commit(plain)
        exact = [request for request in requests if not _is_plain(request)]
        groups: dict[MarkerPartition, list[CommitRequest]] = {}
        for request in exact:
            groups.setdefault(_place_of(request), []).append(request)
        for place, group in groups.items():
            self._commit(place, group)

    def last_epoch(self, incarnation: str) -> int | None:
        """The highest epoch that the markers have. Blocks.

        Raises:
            StorageError: Kafka does not answer.
        """
        if self._place is None or not incarnation:
            return None
        try:
            log = self._read(self._place)
        except StorageError as error:
            # A client waits for the broker that it has last heard of as the controller, also when that one is away.
            logger.info("Kafka's topic of commits is asked again, by a new client: %s", error)
            self.close()
            log = self._read(self._place)
        return log.last_of(incarnation, self._context.uid)

    def close(self) -> None:
        self._plain.close()
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()
        self._logs.clear()

    def _commit(self, place: MarkerPartition, requests: Sequence[CommitRequest]) -> None:
        done: list[CommitRequest] = []
        try:
            # Whoever begins as a producer shuts out all others of its id, so from here on nobody but this process
            # writes the markers that are now read.
            for request in requests:
                self._producer(request.committable["transactional_id"])
            log = self._read(place)
            waiting = [request for request in requests if not self._is_committed(log, request)]
            done = [request for request in requests if request not in waiting]
            shards: dict[Shard, list[CommitRequest]] = {}
            for request in waiting:
                shards.setdefault(shard_of(request), []).append(request)
            names = {shard: _names_after(log, shard, group) for shard, group in shards.items()}
            for shard, group in shards.items():
                records = chain.from_iterable(map(staged_records, verified_paths(self._context, group)))
                producer = self._producer(group[0].committable["transactional_id"])
                producer.send_epoch(records, shard, group[0].epoch, names[shard], place)
            for shard, group in shards.items():
                self._producer(group[0].committable["transactional_id"]).commit()
                log.note(shard, group[0].epoch, names[shard])
                done += group
        except StorageError as error:
            # Shut out, failed, or unknown: it is all the same. The next try asks who leads, begins as new producers,
            # and reads what became of it.
            self.close()
            self._connection = _heeding(error, self._connection)
            for request in requests:
                if request not in done:
                    request.retry_later(error)

    def _is_committed(self, log: MarkerLog, request: CommitRequest) -> bool:
        last = log.last(shard_of(request))
        if last is None or last < request.epoch:
            return False
        if last == request.epoch and not_recorded([request], log.names(shard_of(request))):
            return False
        if not request.is_recovered and not request.number_of_retries:
            self._context.require_lead()
            raise ConfigurationError(
                f"The sink {request.uid!r} is to commit epoch {request.epoch} for the first time, but Kafka has epoch "
                f"{last} of shard {request.committable['shard']} of the same incarnation {request.incarnation!r} "
                "already: two copies of one job directory are running. Nothing was committed. Stop one of them, or "
                "start one with -s, as a new incarnation."
            )
        request.signal_already_committed()
        return True

    def _read(self, place: MarkerPartition) -> MarkerLog:
        log = self._logs.get(place)
        if log is None:
            log = self._logs[place] = MarkerLog(self._connection, place)
        log.read_to_end(self._end_transaction)
        return log

    def _end_transaction(self, transactional_id: str) -> bool:
        """Ends what an earlier process of this sink has left open."""
        is_ours = transactional_id.startswith(self._id_base) and transactional_id not in self._producers
        if is_ours:
            logger.info("a transaction of %r was left open: it is ended", transactional_id)
            self._producer(transactional_id)
        return is_ours

    def _producer(self, transactional_id: str) -> ShardProducer:
        producer = self._producers.get(transactional_id)
        if producer is None:
            self._context.require_lead()
            producer = self._producers[transactional_id] = ShardProducer(self._connection, transactional_id)
        return producer


def _heeding(error: StorageError, connection: KafkaConnection) -> KafkaConnection:
    """The connection whose batches a topic takes that has refused a larger one: what it takes has become less."""
    if not isinstance(error, RefusedByTopicError) or not error.is_too_large:
        return connection
    known = limits_of(connection, error.topic)
    return connection.limited_to(known[error.topic].batch if known else 1)


def _names_after(log: MarkerLog, shard: Shard, requests: Sequence[CommitRequest]) -> list[str]:
    """Return the names of all committables of an epoch that a shard has after the commit of these."""
    recorded = log.names(shard) if log.last(shard) == requests[0].epoch else None
    return [*(recorded or ()), *(name_of(request.committable) for request in requests)]


def shard_of(request: CommitRequest) -> Shard:
    """The shard of a committable, as its marker names it."""
    said = request.committable
    return said["incarnation"], said["uid"], said["shard"]


def _is_plain(request: CommitRequest) -> bool:
    committable = request.committable
    return isinstance(committable, dict) and "transactional_id" not in committable


def _place_of(request: CommitRequest) -> MarkerPartition:
    require_form(request.committable, _EXACT)
    return MarkerPartition.from_json(request.committable.get("target"))


def require_form(committable: Any, kinds: Mapping[str, type]) -> None:
    """Make sure that a committable is one of ours, and names a file in the job's directory.

    Raises:
        ConfigurationError: It is not: somebody else has written it.
    """
    try:
        wrong = [name for name, kind in kinds.items() if type(committable[name]) is not kind]
        if wrong or FileName.parse(committable["file"]) is None or "/" in committable["file"]:
            raise ValueError(f"{wrong or 'file'} is wrong")
    except PARSE_ERRORS as error:
        raise foreign_committables_error("KafkaSink", committable, error) from error
