"""What the markers of a sink say, read up to their end, also past transactions that nobody has ended.

A reader of committed records stops where the oldest open transaction of any producer begins: what was committed behind
it is hidden. So "there is no marker" is said only when the reader has come to the end that the partition had for
readers of everything. What is open and of this sink is ended: by the producer of the same transactional id, whose start
aborts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from holdfast.datastream.connectors.kafka.client import KafkaConnection, told
from holdfast.datastream.connectors.kafka.marker_topic import MarkerPartition, Shard, parsed_marker, require_same
from holdfast.errors import StorageError
from holdfast.kernel.secret import get_logger

logger = get_logger(__name__)

_POLL: Final = 1.0
_PAUSE: Final = 0.05
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
        connection: To the cluster.
        place: The partition.
    """

    def __init__(self, connection: KafkaConnection, place: MarkerPartition) -> None:
        self._connection = connection
        self._place = place
        self._admin: AdminClient = connection.admin()
        self._committed: dict[Shard, int] = {}
        self._position = 0

    def last(self, shard: Shard) -> int | None:
        """The last epoch of a shard that is committed, None if there is none, as of the last `read_to_end`."""
        return self._committed.get(shard)

    def last_of(self, incarnation: str, uid: str) -> int | None:
        """The last epoch of any shard of a sink."""
        epochs = [epoch for shard, epoch in self._committed.items() if shard[:2] == (incarnation, uid)]
        return max(epochs, default=None)

    def note(self, shard: Shard, epoch: int) -> None:
        """A transaction of this process has been committed."""
        self._committed[shard] = max(epoch, self._committed.get(shard, epoch))

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
        with told("reading which epochs are committed", self._connection):
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
            time.sleep(_PAUSE)

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
        shard, epoch, _ = marker
        self.note(shard, epoch)

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
