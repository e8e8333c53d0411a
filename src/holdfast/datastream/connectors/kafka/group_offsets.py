"""Offsets committed to a consumer group after each checkpoint, for tools that watch groups.

No job goes on from them, unless its source is told to begin there: positions are in checkpoints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Partition

from holdfast.datastream.connectors.kafka.client import KafkaConnection, reason_of
from holdfast.datastream.connectors.kafka.topic_ranges import TopicRanges, places_of
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.source_listener import SourceListener
from holdfast.runtime.function.source_numbers import SourceNumbers

logger = get_logger(__name__)

_LAST_SECONDS: Final = 5.0
"""How long the end of an attempt waits for an answer."""

_TRIES: Final = 20
_PAUSE: Final = 0.25
_PASSING: Final = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
)
"""What a group answers whose coordinator is being made, or moves."""

Offsets = Mapping[tuple[str, int], int]


class GroupOffsets(SourceListener):
    """Commits where a source stands to its group, in a thread of its own. Nobody waits for it.

    While a request is under way only the newest offsets are kept, which are committed next.

    Args:
        ranges: The topics of the source, and its group.
    """

    def __init__(self, ranges: TopicRanges) -> None:
        assert ranges.group is not None
        self._group = ranges.group
        self._ranges = ranges
        self._connection = KafkaConnection(ranges.properties)
        self._admin: Any = None
        self._state = threading.Condition()
        self._wanted: Offsets = {}
        self._done: Offsets = {}
        self._is_running = self._is_closed = False
        self._has_failed = False
        self._commits = self._failed_commits = 0

    def numbers(self) -> SourceNumbers:
        """How often offsets were committed, and were not; tries of one commit count once."""
        return SourceNumbers(commits=self._commits, failed_commits=self._failed_commits)

    def checkpoint_completed(self, offset: Any) -> None:
        """Commits an offset of the source, as Spark's log has it."""
        wanted = places_of(self._ranges.bounds()[1] if offset is None else offset)
        with self._state:
            self._wanted, self._is_closed = wanted, False
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name=f"holdfast-group-{self._group}", daemon=True).start()
            self._state.notify_all()

    def close(self) -> None:
        """Waits a few seconds for what is under way."""
        with self._state:
            if not self._state.wait_for(lambda: self._done == self._wanted, _LAST_SECONDS):
                logger.warning("Kafka has not confirmed the offsets of the group %r yet", self._group)
            self._is_closed = True
            self._state.notify_all()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._is_closed or self._done != self._wanted)
                if self._done == self._wanted:
                    self._is_running = False
                    return
                wanted = self._wanted
            self._tell(self._failure(wanted))
            with self._state:
                self._done = wanted
                self._state.notify_all()

    def _tell(self, failure: Exception | None) -> None:
        """Counts a commit, and says once that offsets are not committed, until they are."""
        self._commits += failure is None
        self._failed_commits += failure is not None
        if failure is not None and not self._has_failed:
            logger.warning(
                "the offsets of a checkpoint were not committed to the group %r, which is tried again with the next "
                "one; the job does not need them: %s",
                self._group,
                reason_of(failure) or repr(failure),
            )
        self._has_failed = failure is not None

    def _failure(self, wanted: Offsets) -> Exception | None:
        """Commits offsets; why they are not, if so."""
        for _ in range(_TRIES):
            try:
                self._commit(wanted)
            except KafkaException as error:
                last: Exception = error
                if error.args[0].code() not in _PASSING:
                    return last
            except Exception as error:
                return error
            else:
                return None
            time.sleep(_PAUSE)
        return last

    def _commit(self, wanted: Offsets) -> None:
        if self._admin is None or self._connection.refusals:  # which have ended it
            self._admin = self._connection.admin()
        partitions = [Partition(topic, number, following) for (topic, number), following in sorted(wanted.items())]
        request = ConsumerGroupTopicPartitions(self._group, partitions)
        asked = self._admin.alter_consumer_group_offsets([request], request_timeout=self._connection.patience)
        answer = self._connection.answer(self._admin, asked[self._group])
        refused = [place.error for place in answer.topic_partitions if place.error is not None]
        if refused:
            raise KafkaException(refused[0])
