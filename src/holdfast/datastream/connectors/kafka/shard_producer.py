"""The producer of one shard: rows and marker of an epoch in one transaction. For one thread.

Whatever it answers but success leaves open what happened: the transaction may be committed, aborted, or not ended. The
producer is then thrown away, and the next one of the same transactional id ends what was left open before it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from holdfast.datastream.connectors.kafka.client import NOT_ALLOWED, KafkaConnection, reason_of, told
from holdfast.datastream.connectors.kafka.marker_topic import MarkerPartition, Shard, marker_key, marker_value
from holdfast.datastream.connectors.kafka.record.record_serialization import KafkaRecord
from holdfast.errors import ConfigurationError, StorageError

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
"""By what a topic answers that will not take a record, whoever sends it: what makes it take it."""

_PURGED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What becomes of records when another one has ended the transaction."""

TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
TRANSACTION_TIMEOUT_MS: Final = 300_000


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
        connection: To the cluster.
        settings: Of the producer.

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
                    raise self._failure or self._told(error.args[0], topic) from error

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
            self._failure = self._told(error, message.topic())

    def _told(self, error: KafkaError, topic: str) -> Exception:
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
        with told(f"beginning as the producer {transactional_id!r}", connection):
            self._await(self._producer.init_transactions)

    def send(self, records: Iterable[KafkaRecord]) -> None:
        try:
            super().send(records)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                # The transaction is at its end, and says why to whoever commits it.
                self._producer.commit_transaction(self._connection.patience)
            raise

    def send_epoch(self, records: Iterable[KafkaRecord], shard: Shard, epoch: int, place: MarkerPartition) -> None:
        """Opens a transaction with the records of an epoch and its marker, and hands them to the client.

        Raises:
            StorageError: The client has failed, or the cluster takes nothing.
        """
        with told(f"sending epoch {epoch} of shard {shard[2]}", self._connection):
            self._producer.begin_transaction()
            self.send(records)
            self._producer.produce(
                place.topic, marker_value(epoch, self.transactional_id), marker_key(shard), place.partition
            )

    def commit(self) -> None:
        """Commits the transaction. Blocks.

        Raises:
            StorageError: It may be committed or not.
        """
        with told(f"committing a transaction into {sorted(self._topics)}", self._connection):
            self.flush()
            self._await(self._producer.commit_transaction)

    def _await(self, ask: Callable[[float], None]) -> None:
        try:
            ask(self._connection.patience)
        except KafkaException:
            self._producer.poll(0)  # which tells the connection why, if a broker does not know who asks
            raise
