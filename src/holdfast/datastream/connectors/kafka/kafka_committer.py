"""Committers of `KafkaSink`: publish staged epochs in transactions that also record the epoch, or without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from holdfast.datastream.connectors.kafka.client import (
    AUTHORIZATION_CODES,
    KafkaConnection,
    error_text,
    translate_errors,
)
from holdfast.datastream.connectors.kafka.markers import MarkerLog, MarkerPartition, Shard, marker_key, marker_value
from holdfast.datastream.connectors.kafka.records import (
    PRODUCER_COMPRESSION,
    KafkaRecord,
    RecordLimits,
    read_staged_records,
)
from holdfast.datastream.sinks.staged_files import foreign_committables_error, name_of, not_recorded, verified_paths
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.job_directory import FileName

logger = get_logger(__name__)


_DEFAULTS: Final = {
    # Keys go where the Java client puts them, so that topics of several writers stay partitioned.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    # A request would wait for the acknowledgement of the one before.
    "socket.nagle.disable": True,
}
_TOPIC_ADVICE: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise its max.message.bytes",
    KafkaError.INVALID_RECORD: "remove 'compact' from its cleanup.policy",
    KafkaError.INVALID_TIMESTAMP: "raise its message.timestamp.after.max.ms, or message.timestamp.before.max.ms",
    KafkaError._UNKNOWN_PARTITION: "give it more partitions",
}
"""Change of a topic that rejects a record, by error code."""

_PURGED_CODES: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Error codes of records whose transaction failed because of another record."""

TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
TRANSACTION_TIMEOUT_MS: Final = 300_000
_MAX_TOPICS: Final = 1000
"""The largest number of topics to describe, because a description has some kilobytes."""
_NO_LIMIT: Final = 2**63 - 1
_UNKNOWN_TOPIC_CODES: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
_TRANSACTIONAL_FIELDS: Final = {
    "file": str, "guarantee": str, "incarnation": str, "uid": str, "shard": int, "shards": int,
    "transactional_id": str,
}  # fmt: skip
_PLAIN_FIELDS: Final = {"file": str, "guarantee": str}


class RecordRejectedError(StorageError):
    """A topic rejects a staged record.

    Attributes:
        topic: The topic.
        is_too_large: Whether a batch exceeds the topic's size limit.
    """

    def __init__(self, topic: str, error: KafkaError) -> None:
        self.topic = topic
        self.is_too_large = error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        super().__init__(
            f"the Kafka topic {topic!r} rejects a staged record: {error_text(error)}. The record is not lost, and the "
            f"commit is retried: {_TOPIC_ADVICE[error.code()]}, at least until the record is published"
        )


class RecordProducer:
    """Sends records, and waits until the cluster has acknowledged them.

    Args:
        connection: The connection to the cluster.
        settings: The settings of the producer.

    Raises:
        ConfigurationError: A property is unknown.
    """

    def __init__(self, connection: KafkaConnection, settings: dict[str, Any] | None = None) -> None:
        self._connection = connection
        defaults = {key: value for key, value in _DEFAULTS.items() if key not in connection.properties}
        own = {"delivery.report.only.error": True, "on_delivery": self._on_delivery}
        self._producer: Producer = connection.create_producer({**defaults, **(settings or {}), **own})
        self._topics: set[str] = set()
        self._failure: Exception | None = None

    def send(self, records: Iterable[KafkaRecord]) -> None:
        """Pass records to the client. Blocks while its queue is full.

        Raises:
            StorageError: The cluster rejects a record.
            KafkaException: The client failed, or the cluster does not answer.
            ConfigurationError: The job may not write to the topic.
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
                    self._producer.poll(0)  # an earlier failure may be the reason
                    raise self._failure or self._delivery_error(error.args[0], topic) from error

    def flush(self) -> None:
        """Wait until the cluster has acknowledged all records. Blocks.

        Raises:
            StorageError: The cluster rejects a record.
            KafkaException: The client failed, or the cluster does not answer.
            ConfigurationError: The job may not write to a topic.
        """
        self._wait(0)

    @property
    def keeps_all(self) -> bool:
        """Whether no record was rejected or has timed out; those that are not acknowledged are sent on."""
        return self._failure is None

    def close(self) -> None:
        """Discard unsent records."""
        with suppress(KafkaException, RuntimeError):
            self._producer.purge()
            self._producer.poll(0)

    def _wait(self, limit: int) -> None:
        """Wait until at most `limit` records are unacknowledged; raise if there is no progress."""
        last_progress, before = time.monotonic(), len(self._producer)
        while True:
            left = self._producer.flush(0.1) if limit == 0 else (self._producer.poll(0.05), len(self._producer))[1]
            if self._failure is not None:
                raise self._failure
            if left <= limit:
                return
            if left < before:
                last_progress, before = time.monotonic(), left
            elif self._connection.has_timed_out(last_progress):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} records are not acknowledged"))

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._failure is None and error.code() not in _PURGED_CODES:
            self._failure = self._delivery_error(error, message.topic())

    def _delivery_error(self, error: KafkaError, topic: str) -> Exception:
        """Return the exception for a record that was not accepted."""
        if error.code() in AUTHORIZATION_CODES:
            return ConfigurationError(
                f"The job may not write to the topic {topic!r} of the Kafka cluster at {self._connection.servers!r}: "
                f"{error_text(error)}. Grant it the operation WRITE on the topic, and start the job again. The staged "
                "records are in the checkpoint, and are published then."
            )
        return RecordRejectedError(topic, error) if error.code() in _TOPIC_ADVICE else KafkaException(error)


class ShardProducer(RecordProducer):
    """A transactional producer of one shard. Not thread-safe.

    A transaction has the records and the marker of an epoch. Creating a producer fences all others of the same id, and
    aborts their open transaction. After any error the outcome of a transaction is unknown, so close the producer. Its
    successor finds the outcome in the markers.

    Raises:
        StorageError: The cluster does not answer.
    """

    def __init__(self, connection: KafkaConnection, transactional_id: str) -> None:
        self.transactional_id: Final = transactional_id
        settings: dict[str, Any] = {"transactional.id": transactional_id}
        if TRANSACTION_TIMEOUT not in connection.properties:
            settings[TRANSACTION_TIMEOUT] = TRANSACTION_TIMEOUT_MS
        super().__init__(connection, settings)
        with translate_errors(f"initializing the producer {transactional_id!r}", connection):
            self._call(self._producer.init_transactions)

    def send(self, records: Iterable[KafkaRecord]) -> None:
        with self._failed_transaction():
            super().send(records)

    def send_epoch(
        self, records: Iterable[KafkaRecord], shard: Shard, epoch: int, names: Sequence[str], place: MarkerPartition
    ) -> None:
        """Begin a transaction, and pass the records of an epoch and its marker to the client. Blocks.

        Raises:
            StorageError: The cluster does not answer, or rejects a record.
            ConfigurationError: The job may not write to the topic.
        """
        with translate_errors(f"sending epoch {epoch} of shard {shard[2]}", self._connection):
            self._producer.begin_transaction()
            self.send(records)
            marker = marker_value(epoch, self.transactional_id, names)
            with self._failed_transaction():
                self._producer.produce(place.topic, marker, marker_key(shard), place.partition)

    def commit(self) -> None:
        """Commit the transaction. Blocks.

        Raises:
            StorageError: The outcome is unknown.
            ConfigurationError: The job may not write to a topic.
        """
        with translate_errors(f"committing a transaction into {sorted(self._topics)}", self._connection):
            self.flush()
            self._call(self._producer.commit_transaction)

    @contextmanager
    def _failed_transaction(self) -> Iterator[None]:
        """Raise the reason of a failed transaction, in which no record can be sent any more."""
        try:
            yield
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                # The client may report the rejected record later than the transaction fails.
                self.flush()
                self._producer.commit_transaction(self._connection.request_timeout)
            raise

    def _call(self, operation: Callable[[float], None]) -> None:
        try:
            operation(self._connection.request_timeout)
        except KafkaException:
            self._producer.poll(0)  # reports a failed authentication to the connection
            raise


def fetch_limits(connection: KafkaConnection, topic: str | None) -> dict[str, RecordLimits]:
    """Return the known limits of topics. Blocks.

    With a topic selector these are all visible topics. Limits of missing topics, and of those that the job may not
    describe, are unknown; if such a topic rejects a record, the commit fails and is retried.

    Args:
        connection: The connection to the cluster.
        topic: The topic of all records; None with a topic selector.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: The job may not write to the topic.
    """
    admin = connection.create_admin()
    with translate_errors("describing the topics of Kafka", connection):
        partitions = _visible_topics(admin, connection) if topic is None else _writable_topic(admin, connection, topic)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in partitions]
        requests = admin.describe_configs(resources, request_timeout=connection.request_timeout) if resources else {}
        limits = {}
        for resource, request in requests.items():
            try:
                settings = {name: entry.value for name, entry in connection.wait_for(admin, request).items()}
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN_TOPIC_CODES:
                    raise
                logger.info("the limits of the topic %r are unknown: %s", resource.name, error.args[0].str())
            else:
                limits[resource.name] = _limits(settings, partitions[resource.name])
        return limits


def _limits(settings: dict[str, Any], partitions: int) -> RecordLimits:
    checks_timestamps = settings.get("message.timestamp.type") != "LogAppendTime"
    compression = str(settings.get("compression.type") or PRODUCER_COMPRESSION)
    # Brokers map level 9 of lz4 to its fastest one, and use -1 of gzip for the default; zstd has levels below 0.
    configured = settings.get(f"compression.{compression}.level") if compression != "lz4" else None
    level = int(configured) if configured and (compression, configured) != ("gzip", "-1") else None
    ahead, behind = (int(settings.get(f"message.timestamp.{side}.max.ms", _NO_LIMIT)) for side in ("after", "before"))
    return RecordLimits(
        int(settings["max.message.bytes"]),
        partitions,
        needs_key="compact" in str(settings["cleanup.policy"]).split(","),
        ahead=ahead if checks_timestamps and ahead < _NO_LIMIT else None,
        behind=behind if checks_timestamps and behind < _NO_LIMIT else None,
        compression=compression,
        level=level,
    )


def _visible_topics(admin: AdminClient, connection: KafkaConnection) -> dict[str, int]:
    """Return the numbers of partitions of all visible topics, except Kafka's own."""
    found = connection.fetch_metadata(admin).topics
    names = [name for name in found if not name.startswith("__")]
    if len(names) > _MAX_TOPICS:
        logger.warning(
            "the sink has a topic selector, and the cluster has %d topics: their limits are not read, because there "
            "are more than %d. A record that its topic rejects blocks the commit",
            len(names), _MAX_TOPICS,
        )  # fmt: skip
        return {}
    return {name: len(found[name].partitions) for name in names}


def _writable_topic(admin: AdminClient, connection: KafkaConnection, topic: str) -> dict[str, int]:
    """Return the number of partitions of one topic; empty if it does not exist."""
    requests = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=connection.request_timeout
    )
    try:
        found = connection.wait_for(admin, requests[topic])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return {}
        raise
    if found.authorized_operations and AclOperation.WRITE not in found.authorized_operations:
        raise ConfigurationError(
            f"The job may not write to the topic {topic!r} of the Kafka cluster at {connection.servers!r}. Grant it "
            "the operation WRITE on the topic, and start the job again. Staged records are in the checkpoint, and are "
            "published then."
        )
    return {topic: len(found.partitions)}


class _PlainCommitter(Committer):
    """Publishes without transactions: at least once, or without a guarantee.

    Args:
        connection: The connection to the cluster.
        context: The context of the committer.
    """

    def __init__(self, connection: KafkaConnection, context: CommitterInitContext) -> None:
        self._connection = connection
        self._context = context
        self._producer: RecordProducer | None = None

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            check_committable(request.committable, _PLAIN_FIELDS)
            try:
                with translate_errors(f"sending epoch {request.epoch} of subtask {request.subtask}", self._connection):
                    if self._producer is None:
                        self._producer = RecordProducer(self._connection)
                    self._producer.send(read_staged_records(*verified_paths(self._context, [request])))
                    self._producer.flush()
            except StorageError as error:
                self.close()
                before, self._connection = self._connection, _with_smaller_batches(error, self._connection)
                if request.committable["guarantee"] == "none" and self._connection is before:
                    request.signal_failed_with_known_reason(error)
                else:
                    request.retry_later(error)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


class KafkaCommitter(Committer):
    """Publishes each shard of an epoch in one transaction with its marker, and plain committables without.

    Args:
        connection: The connection to the cluster.
        context: The context of the committer.
        place: The marker partition of the job; None if it is unknown. Committables name their own.
        id_base: The prefix of the sink's transactional ids; None for a sink without transactions.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        context: CommitterInitContext,
        place: MarkerPartition | None,
        id_base: str | None,
    ) -> None:
        self._connection = connection
        self._context = context
        self._place = place
        self._id_base = id_base
        self._plain = _PlainCommitter(connection, context)
        self._logs: dict[MarkerPartition, MarkerLog] = {}
        self._producers: dict[str, ShardProducer] = {}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        plain = [request for request in requests if _is_plain(request)]
        if plain:
            self._plain.commit(plain)
        exact = [request for request in requests if not _is_plain(request)]
        groups: dict[MarkerPartition, list[CommitRequest]] = {}
        for request in exact:
            groups.setdefault(_marker_partition_of(request), []).append(request)
        for place, group in groups.items():
            self._commit(place, group)

    def last_epoch(self, incarnation: str) -> int | None:
        """Return the highest epoch of the markers; None without any. Blocks.

        Raises:
            StorageError: Kafka does not answer.
            ConfigurationError: The marker topic is missing or another one.
        """
        if self._place is None or not incarnation:
            return None
        try:
            log = self._read(self._place)
        except StorageError as error:
            # A client waits for the last known controller even if that broker is down, so use a new client.
            logger.info("the marker topic is read again, with a new client: %s", error)
            self.close()
            log = self._read(self._place)
        return log.last_epoch_of_sink(incarnation, self._context.uid)

    def close(self) -> None:
        self._plain.close()
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()
        self._logs.clear()

    def _commit(self, place: MarkerPartition, requests: Sequence[CommitRequest]) -> None:
        done: list[CommitRequest] = []
        try:
            # A new producer fences all others of its id. So from here on only this process writes the markers that are
            # read next.
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
                records = chain.from_iterable(map(read_staged_records, verified_paths(self._context, group)))
                producer = self._producer(group[0].committable["transactional_id"])
                producer.send_epoch(records, shard, group[0].epoch, names[shard], place)
            for shard, group in shards.items():
                self._producer(group[0].committable["transactional_id"]).commit()
                log.record(shard, group[0].epoch, names[shard])
                done += group
        except StorageError as error:
            # The producer was fenced, or the transaction failed, or its outcome is unknown. In each case the next
            # attempt checks the leadership, creates new producers, and reads the outcome from the markers.
            self.close()
            self._connection = _with_smaller_batches(error, self._connection)
            for request in requests:
                if request not in done:
                    request.retry_later(error)

    def _is_committed(self, log: MarkerLog, request: CommitRequest) -> bool:
        last = log.last_epoch(shard_of(request))
        if last is None or last < request.epoch:
            return False
        if last == request.epoch and not_recorded([request], log.file_names(shard_of(request))):
            return False
        if not request.is_recovered and not request.number_of_retries:
            self._context.require_lead()
            raise ConfigurationError(
                f"The sink {request.uid!r} commits epoch {request.epoch} for the first time, but Kafka already has "
                f"epoch {last} of shard {request.committable['shard']} of the same incarnation "
                f"{request.incarnation!r}: two copies of one job directory are running. Nothing was committed. Stop "
                "one of them, or start one with -s, as a new incarnation."
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
        """End an open transaction of an earlier process of this sink; return False if it is another program's."""
        base = self._id_base
        is_ours = base is not None and transactional_id.startswith(base) and transactional_id not in self._producers
        if is_ours:
            logger.info("ending the open transaction of %r", transactional_id)
            self._producer(transactional_id)
        return is_ours

    def _producer(self, transactional_id: str) -> ShardProducer:
        producer = self._producers.get(transactional_id)
        if producer is None:
            self._context.require_lead()
            producer = self._producers[transactional_id] = ShardProducer(self._connection, transactional_id)
        return producer


def _with_smaller_batches(error: StorageError, connection: KafkaConnection) -> KafkaConnection:
    """Return a connection with batches that fit the current limit of a topic that has rejected a larger one."""
    if not isinstance(error, RecordRejectedError) or not error.is_too_large:
        return connection
    known = fetch_limits(connection, error.topic)
    return connection.with_batch_size(known[error.topic].batch if known else 1)


def _names_after(log: MarkerLog, shard: Shard, requests: Sequence[CommitRequest]) -> list[str]:
    """Return the names of all committables of an epoch that a shard has after the commit of these."""
    recorded = log.file_names(shard) if log.last_epoch(shard) == requests[0].epoch else None
    return [*(recorded or ()), *(name_of(request.committable) for request in requests)]


def shard_of(request: CommitRequest) -> Shard:
    """Return the shard of a committable."""
    committable = request.committable
    return committable["incarnation"], committable["uid"], committable["shard"]


def _is_plain(request: CommitRequest) -> bool:
    committable = request.committable
    return isinstance(committable, dict) and "transactional_id" not in committable


def _marker_partition_of(request: CommitRequest) -> MarkerPartition:
    check_committable(request.committable, _TRANSACTIONAL_FIELDS)
    return MarkerPartition.from_json(request.committable.get("target"))


def check_committable(committable: Any, kinds: Mapping[str, type]) -> None:
    """Check that a committable has the form of this sink, and names a file in the job's directory.

    Raises:
        ConfigurationError: The committable has another form, so another program has written it.
    """
    try:
        wrong = [name for name, kind in kinds.items() if type(committable[name]) is not kind]
        if wrong or FileName.parse(committable["file"]) is None or "/" in committable["file"]:
            raise ValueError(f"{wrong or 'file'} is invalid")
    except PARSE_ERRORS as error:
        raise foreign_committables_error("KafkaSink", committable, error) from error
