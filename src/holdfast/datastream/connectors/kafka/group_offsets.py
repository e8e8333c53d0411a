"""Offsets committed to a consumer group after each checkpoint, for tools that watch groups.

No job goes on from them, unless its source is told to begin there: positions are in checkpoints.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as Partition

from holdfast.datastream.connectors.kafka.client import KafkaConnection, reason_of
from holdfast.datastream.connectors.kafka.topic_ranges import TopicRanges, places_of
from holdfast.runtime.function.source_listener import SourceListener

logger = logging.getLogger(__name__)

_LAST_SECONDS: Final = 5.0
"""How long the end of an attempt waits for an answer."""


class GroupOffsets(SourceListener):
    """Commits where a source stands to its group, one request at a time. Nobody waits for the answer.

    While one is under way only the newest offsets are kept, which are committed next.

    Args:
        ranges: The topics of the source, and its group.
    """

    def __init__(self, ranges: TopicRanges) -> None:
        assert ranges.group is not None
        self._group = ranges.group
        self._ranges = ranges
        self._admin: Any = None
        self._state = threading.Condition()
        self._wanted: Mapping[tuple[str, int], int] = {}
        self._told: Mapping[tuple[str, int], int] = {}
        self._is_under_way = False
        self._has_failed = False

    def checkpoint_completed(self, offset: Any) -> None:
        """Commits an offset of the source, as Spark's log has it."""
        wanted = places_of(self._ranges.bounds()[1] if offset is None else offset)
        with self._state:
            self._wanted = wanted
            if self._is_under_way or wanted == self._told:
                return
            self._is_under_way = True
        self._send(wanted)

    def close(self) -> None:
        """Waits a few seconds for what is under way."""
        with self._state:
            if not self._state.wait_for(lambda: not self._is_under_way, _LAST_SECONDS):
                logger.warning("Kafka has not confirmed the offsets of the group %r yet", self._group)

    def _send(self, wanted: Mapping[tuple[str, int], int]) -> None:
        partitions = [Partition(topic, number, following) for (topic, number), following in sorted(wanted.items())]
        try:
            connection = KafkaConnection(self._ranges.properties)
            if self._admin is None:
                self._admin = connection.admin()
            request = ConsumerGroupTopicPartitions(self._group, partitions)
            asked = self._admin.alter_consumer_group_offsets([request], request_timeout=connection.patience)
            answer = asked[self._group]
        except Exception as error:
            self._ended(wanted, error)
            return
        answer.add_done_callback(lambda future: self._ended(wanted, _failure_of(future)))

    def _ended(self, wanted: Mapping[tuple[str, int], int], failure: BaseException | None) -> None:
        if failure is None:
            self._has_failed = False
        elif not self._has_failed:
            self._has_failed = True
            logger.warning(
                "the offsets of a checkpoint were not committed to the group %r, which is tried again with the next "
                "one; the job does not need them: %s",
                self._group,
                reason_of(failure),
            )
        with self._state:
            self._told = wanted if failure is None else {}
            following = self._wanted
            if failure is not None or following == wanted:
                self._is_under_way = False
                self._state.notify_all()
                return
        self._send(following)


def _failure_of(answer: Future[Any]) -> BaseException | None:
    failure = answer.exception()
    if failure is not None:
        return failure
    refused = [place.error for place in answer.result().topic_partitions if place.error is not None]
    return KafkaException(refused[0]) if refused else None
