"""`Source`, the base of all sources, and `DeliveryGuarantee`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import Sink
from holdfast.runtime.function.source import (
    EpochGate,
    SourceListener,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
    SplitInput,
    SplitSource,
)
from holdfast.runtime.function.user_function import FlatMapLike, ProcessFunction
from holdfast.types.type_information import TypeInformation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DeliveryGuarantee",
    "RealTimeSource",
    "Sink",
    "Source",
    "SourceReader",
    "SourceSplit",
    "SplitEnumerator",
    "SplitSource",
]


class Source(ABC):
    """The beginning of a stream, which a Spark DataFrame reads. Pass it to `env.from_source`.

    Only `create_frame` is required. Then the rows of its frame are the elements, and Spark keeps the position: it is in
    the checkpoint, and a job that resumes continues there. The other methods are for sources whose elements are not
    rows, or have timestamps.

    Example:
        >>> from holdfast.datastream.connectors import Source
        >>> class Ticks(Source):
        ...     def create_frame(self, session):
        ...         return session.readStream.format("rate").load()
        ...     def timestamp_column(self):
        ...         return "timestamp"
        >>> Ticks().timestamp_column()
        'timestamp'
    """

    @abstractmethod
    def create_frame(self, session: SparkSession) -> DataFrame:
        """Return the frame that reads this source, streaming or static; a static one is read once, as a whole.

        It is called once, in the driver, while the program is defined. Keep no position outside of Spark.

        Args:
            session: The Spark session of the job.

        Raises:
            ConfigurationError: The source cannot be read as it is configured.
        """

    def element_type(self) -> TypeInformation | None:
        """Return the type of the elements if they are the values of a single column; None if they are rows."""
        return None

    def splits(self) -> SplitInput | None:
        """Return what reads the elements in tasks if the frame only lists files; None if it has the elements."""
        return None

    def split_source(self) -> SplitSource | None:
        """Return what the tasks of a real-time job read in place of the frame's rows; None if only Spark reads it."""
        return None

    def timestamp_column(self) -> str | None:
        """Return the column with the event time of each row in milliseconds since 1970; None without timestamps.

        A watermark strategy without an assigner uses it, and an assigner gets it as the record timestamp.
        """
        return None

    def is_partitioned(self) -> bool:
        """Return whether each task reads one partition that is ordered: see `WatermarkStrategy.per_partition`."""
        return False

    def checkpoint_listener(self) -> SourceListener | None:
        """Return a listener in the driver for completed checkpoints and their source positions; None for none.

        It is for information only: a job resumes from its checkpoint.
        """
        return None

    def with_gate(self, gate: EpochGate) -> Source:
        """Return the same source, but paused in epochs that are planned while the gate is closed.

        It reports to the gate in each epoch whether unread data is left, as `with_watermark_alignment` needs it. In a
        real-time job every source can pause, without a gate.

        Args:
            gate: The gate.

        Raises:
            ConfigurationError: The source cannot pause, such as any source whose epochs Spark plans.
        """
        raise cannot_pause(self, "Spark plans what an epoch reads")

    def decoder(self) -> tuple[FlatMapLike | ProcessFunction, Any] | None:
        """Return a function from a row to its elements, and their type as `output_type` takes it; None for rows as is.

        The function is called like that of `flat_map`, or of `process` with side outputs, in the tasks that read the
        source.
        """
        return None


class RealTimeSource(Source, SplitSource):
    """A source of your own, for jobs with `execution.trigger: real-time`. Pass it to `env.from_source`.

    An enumerator in the driver finds the splits of the source. A reader in each task reads those that it is assigned,
    and says at each barrier how far it is, so that a job that resumes goes on there. Every element is read exactly once
    if a reader returns the same elements again from the same state. A source that cannot read anything again, such as a
    socket, has the same state always: what was read since the last checkpoint is lost when the job fails, and if the
    other side sends it again, it is read twice.

    Example:
        >>> from holdfast.common import Types
        >>> from holdfast.datastream.connectors import RealTimeSource, SourceReader, SourceSplit, SplitEnumerator
        >>> class Countdown(RealTimeSource):
        ...     def create_enumerator(self, position, tasks):
        ...         return CountdownEnumerator({"a": 3, "b": 2} if position is None else position)
        ...     def create_reader(self, task):
        ...         return CountdownReader()
        ...     def element_type(self):
        ...         return Types.LONG()
        ...     def is_bounded(self):
        ...         return True
        >>> class CountdownEnumerator(SplitEnumerator):
        ...     def __init__(self, left):
        ...         self.left = left
        ...         self.is_discovered = False
        ...     def discover(self):
        ...         self.is_discovered = True
        ...         return [SourceSplit(name, number) for name, number in self.left.items()]
        ...     def is_exhausted(self):
        ...         return self.is_discovered
        ...     def snapshot(self, splits):
        ...         return dict(splits)
        >>> class CountdownReader(SourceReader):
        ...     def __init__(self):
        ...         self.left = {}
        ...     def add_splits(self, splits):
        ...         self.left.update((split.split_id, split.state) for split in splits)
        ...     def poll(self):
        ...         for name, number in self.left.items():
        ...             if number:
        ...                 self.left[name] = number - 1
        ...                 return [number]
        ...     def snapshot(self):
        ...         states = {name: number or None for name, number in self.left.items()}
        ...         self.left = {name: number for name, number in self.left.items() if number}
        ...         return states
        ...     @property
        ...     def has_splits(self):
        ...         return any(self.left.values())
        >>> source = Countdown()
        >>> reader = source.create_reader(0)
        >>> reader.add_splits(source.create_enumerator(None, 1).discover())
        >>> [reader.poll() for _ in range(6)]
        [[3], [2], [1], [2], [1], None]
        >>> reader.snapshot()
        {'a': None, 'b': None}
    """

    def create_frame(self, session: SparkSession) -> DataFrame:
        """Raise `ConfigurationError`: Spark does not read it."""
        raise ConfigurationError(f"{self.description()} has no frame: only real-time jobs read it.")

    def is_bounded(self) -> bool:
        """Return whether the source ends: then its enumerator is exhausted once, and its readers finish each split."""
        return False

    def description(self) -> str:
        """Return what it reads, in words that are the same in every run. The uid is derived from them without one."""
        return type(self).__qualname__

    def split_source(self) -> SplitSource:
        return self

    def with_gate(self, gate: EpochGate) -> Source:
        """Return the same source: the tasks do not call a reader that waits."""
        return self


def cannot_pause(source: Source, reason: str) -> ConfigurationError:
    """Return the error of a source that cannot take part in watermark alignment."""
    return ConfigurationError(
        f"with_watermark_alignment(): {type(source).__name__} cannot wait for other sources: {reason}. Remove the "
        "alignment from its strategy; event time follows the slowest source in any case."
    )


class DeliveryGuarantee(Enum):
    """The delivery guarantee of a sink, under Flink's names."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    NONE = "none"
