"""`Source`, the base of all sources, and `DeliveryGuarantee`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import Sink
from holdfast.runtime.function.source import EpochGate, SourceListener, SplitInput
from holdfast.runtime.function.user_function import FlatMapLike, ProcessFunction
from holdfast.types.type_information import TypeInformation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeliveryGuarantee", "Sink", "Source"]


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

        It reports to the gate in each epoch whether unread data is left, as `with_watermark_alignment` needs it.

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
