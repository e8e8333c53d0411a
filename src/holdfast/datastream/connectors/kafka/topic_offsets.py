"""What the driver asks Kafka about the topics of a source: which there are, and where they begin and end.

For one process; the connection is made when it is first used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, OffsetSpec

from holdfast.datastream.connectors.kafka.client import KafkaConnection, told
from holdfast.datastream.connectors.kafka.offsets_initializer import (
    NO_GROUP,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    OffsetKind,
)
from holdfast.errors import ConfigurationError, StorageError

Place = tuple[str, int]
"""Topic and partition."""

_PAUSE: Final = 0.1
_HEARD: Final = 5.0
"""Seconds within which all brokers have heard of a new topic."""

_PASSING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)


class TopicOffsets:
    """Topics of a cluster.

    Args:
        connection: To the cluster.
        is_committed: Whether the end is that of what is committed.
    """

    def __init__(self, connection: KafkaConnection, *, is_committed: bool) -> None:
        self._connection = connection
        self._isolation = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        self._admin: AdminClient = connection.admin()

    def matching(self, pattern: str) -> list[str]:
        """The topics whose whole names match."""
        with told("listing the topics of Kafka", self._connection):
            found = self._connection.metadata(self._admin).topics
        return sorted(name for name in found if re.fullmatch(pattern, name))

    def described(self, topics: Iterable[str], known: Collection[str] = ()) -> dict[str, tuple[str, list[int]]]:
        """Id and partitions of each topic; those that are not there are left out.

        A broker that has just begun, or has not heard of a new topic, is asked again: for as long as a request may take
        where a topic is known to have been there, and else for some seconds, because its name may be mistyped.
        """
        names = sorted(set(topics))
        result = self._described(names)
        began = time.monotonic()
        while missing := [name for name in names if name not in result]:
            patience = self._connection.patience if not set(known).isdisjoint(missing) else _HEARD
            if time.monotonic() - began > min(patience, self._connection.patience):
                break
            time.sleep(_PAUSE)
            result |= self._described(missing)
        return result

    def _described(self, names: list[str]) -> dict[str, tuple[str, list[int]]]:
        if not names:
            return {}
        result = {}
        with told("asking Kafka about topics", self._connection):
            answers = self._admin.describe_topics(TopicCollection(names), request_timeout=self._connection.patience)
            for name in names:
                try:
                    said = self._connection.answer(self._admin, answers[name])
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                else:
                    result[name] = str(said.topic_id), sorted(partition.id for partition in said.partitions)
        return result

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The end of each partition."""
        return self._asked(dict.fromkeys(places, OffsetSpec.latest()))

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset of the first record that there is, in each partition."""
        return self._asked(dict.fromkeys(places, OffsetSpec.earliest()))

    def resolved(self, wanted: KafkaOffsetsInitializer, places: Iterable[Place], group: str | None) -> dict[Place, int]:
        """Where reading begins or ends in each partition.

        Raises:
            ConfigurationError: Nothing says where.
        """
        listed = sorted(places)
        if wanted.kind is OffsetKind.EARLIEST:
            return self.beginnings(listed)
        if wanted.kind is OffsetKind.LATEST:
            return self.ends(listed)
        if wanted.kind is OffsetKind.TIMESTAMP:
            found = self._asked(dict.fromkeys(listed, OffsetSpec.for_timestamp(wanted.timestamp_ms)))
            absent = [place for place in listed if found[place] < 0]
            return {**found, **self.ends(absent)}
        known = {(topic, n): offset for topic, n, offset in wanted.given}
        if wanted.kind is OffsetKind.COMMITTED:
            known = self._committed(listed, group)
        return {**self._reset(wanted.reset, [p for p in listed if p not in known], group), **{
            place: known[place] for place in listed if place in known
        }}  # fmt: skip

    def _reset(self, strategy: KafkaOffsetResetStrategy, absent: list[Place], group: str | None) -> dict[Place, int]:
        if not absent:
            return {}
        if strategy is KafkaOffsetResetStrategy.NONE:
            raise ConfigurationError(
                f"Nothing says where reading begins in {absent[0][0]!r}, partition {absent[0][1]}: the group {group!r} "
                "has committed no offset there, or none was given. Name a KafkaOffsetResetStrategy."
            )
        return self.beginnings(absent) if strategy is KafkaOffsetResetStrategy.EARLIEST else self.ends(absent)

    def _committed(self, places: list[Place], group: str | None) -> dict[Place, int]:
        if not group:
            raise ConfigurationError(NO_GROUP)
        partitions = [Partition(topic, number) for topic, number in places]
        with told(f"asking Kafka for the offsets of the group {group!r}", self._connection):
            request = ConsumerGroupTopicPartitions(group, partitions)
            patience = self._connection.patience
            answer = self._admin.list_consumer_group_offsets([request], request_timeout=patience)[group]
            found = self._connection.answer(self._admin, answer).topic_partitions
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def _asked(self, wanted: Mapping[Place, Any]) -> dict[Place, int]:
        if not wanted:
            return {}
        patience = self._connection.patience
        deadline = time.monotonic() + patience
        while True:
            request = {Partition(topic, number): spec for (topic, number), spec in wanted.items()}
            try:
                with told("asking Kafka where partitions begin and end", self._connection):
                    answers = self._admin.list_offsets(
                        request, isolation_level=self._isolation, request_timeout=patience
                    )
                    found = {p: self._connection.answer(self._admin, answer).offset for p, answer in answers.items()}
                return {(p.topic, p.partition): int(offset) for p, offset in found.items()}
            except StorageError as error:
                cause = error.__cause__
                is_passing = isinstance(cause, KafkaException) and cause.args[0].code() in _PASSING
                if not is_passing or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
