"""Publishes staged epochs: in transactions that also say which epoch they are of, or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from holdfast.datastream.connectors.kafka.client import KafkaConnection, told
from holdfast.datastream.connectors.kafka.marker_log import MarkerLog
from holdfast.datastream.connectors.kafka.marker_topic import MarkerPartition, Shard
from holdfast.datastream.connectors.kafka.record.record_staging import staged_records
from holdfast.datastream.connectors.kafka.shard_producer import RecordProducer, RefusedByTopicError, ShardProducer
from holdfast.datastream.connectors.kafka.topic_limits import limits_of
from holdfast.datastream.sinks.task_owned import checked_paths, not_written_by
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.job.naming import FileName

logger = get_logger(__name__)

_EXACT: Final = {
    "file": str, "guarantee": str, "incarnation": str, "uid": str, "shard": int, "shards": int,
    "transactional_id": str,
}  # fmt: skip
_PLAIN: Final = {"file": str, "guarantee": str}


class PlainCommitter(Committer):
    """Publishes without transactions: at least once, or as often as it happens to come.

    Args:
        connection: To the cluster.
        context: Of the committer.
    """

    def __init__(self, connection: KafkaConnection, context: CommitterInitContext) -> None:
        self._connection = connection
        self._context = context
        self._producer: RecordProducer | None = None

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            require_form(request.committable, _PLAIN)
            try:
                with told(f"sending epoch {request.epoch} of subtask {request.subtask}", self._connection):
                    if self._producer is None:
                        self._producer = RecordProducer(self._connection)
                    self._producer.send(staged_records(*checked_paths(self._context, [request])))
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
        connection: To the cluster.
        context: Of the committer.
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
        for place, group in groupby(exact, key=_place_of):
            self._commit(place, list(group))

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
            for request in waiting:
                [path] = checked_paths(self._context, [request])
                producer = self._producer(request.committable["transactional_id"])
                producer.send_epoch(staged_records(path), shard_of(request), request.epoch, place)
            done = [request for request in requests if request not in waiting]
            for request in waiting:
                self._producer(request.committable["transactional_id"]).commit()
                log.note(shard_of(request), request.epoch)
                done.append(request)
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
    except MALFORMED as error:
        raise not_written_by("KafkaSink", committable, error) from error
