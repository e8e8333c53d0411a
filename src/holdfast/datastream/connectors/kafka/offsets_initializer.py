"""Where reading a topic begins, and where it ends; the names are PyFlink's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.errors import ConfigurationError

NO_GROUP: Final = "committed_offsets() needs set_group_id(): it is the group that has committed them."


@dataclass(frozen=True)
class KafkaTopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int


class KafkaOffsetResetStrategy(Enum):
    """Where a partition begins for which no offset is given."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class OffsetKind(Enum):
    """How the offset of a partition is found."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    COMMITTED = "committed"
    GIVEN = "given"


@dataclass(frozen=True)
class KafkaOffsetsInitializer:
    """Where reading begins or ends in each partition; made by the methods that PyFlink has.

    Attributes:
        kind: How.
        timestamp_ms: Milliseconds since 1970.
        given: Offsets by topic and partition.
        reset: Where partitions begin that have none.
    """

    kind: OffsetKind
    timestamp_ms: int = 0
    given: tuple[tuple[str, int, int], ...] = ()
    reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """The first record that there is."""
        return KafkaOffsetsInitializer(OffsetKind.EARLIEST)

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """The end as it is when the job starts for the first time."""
        return KafkaOffsetsInitializer(OffsetKind.LATEST)

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """The first record of this time or a later one, in milliseconds since 1970; the end if there is none."""
        if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
            raise ConfigurationError(f"timestamp() takes milliseconds since 1970, not {timestamp!r}.")
        return KafkaOffsetsInitializer(OffsetKind.TIMESTAMP, timestamp_ms=timestamp)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """What the group of the source has committed, for instance when another program read it before."""
        return KafkaOffsetsInitializer(OffsetKind.COMMITTED, reset=_strategy(offset_reset_strategy))

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """An offset for each partition."""
        given = []
        for partition, offset in offsets.items():
            if not isinstance(partition, KafkaTopicPartition) or not isinstance(offset, int) or offset < 0:
                raise ConfigurationError(
                    f"offsets() takes offsets from 0 by KafkaTopicPartition, not {partition!r}: {offset!r}."
                )
            given.append((partition.topic, partition.partition, offset))
        return KafkaOffsetsInitializer(
            OffsetKind.GIVEN, given=tuple(sorted(given)), reset=_strategy(offset_reset_strategy)
        )


def _strategy(given: KafkaOffsetResetStrategy) -> KafkaOffsetResetStrategy:
    if not isinstance(given, KafkaOffsetResetStrategy):
        raise ConfigurationError(f"offset_reset_strategy is a KafkaOffsetResetStrategy, not {given!r}.")
    return given
