"""What every connector has in common: how a source tells where a stream begins."""

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
    """Where a stream begins: it knows the Spark DataFrame that reads a place. `env.from_source` makes the stream.

    One method is enough: `create_frame`. The rows of its frame are the elements then, and Spark keeps the position: it
    is in the checkpoint, and a job that resumes reads on from there. The other methods are for sources whose elements
    are no rows, or have timestamps.
    """

    @abstractmethod
    def create_frame(self, session: SparkSession) -> DataFrame:
        """The frame that reads this source, streaming or static; a static one is read once, as a whole.

        It is called once, in the driver, while the program is defined. Nothing may be kept outside of Spark: where the
        stream has come to is what Spark says.

        Raises:
            ConfigurationError: The source cannot be read as it is described.
        """

    def element_type(self) -> TypeInformation | None:
        """Type of the elements if the frame has one column and they are its values; None if the rows are elements."""
        return None

    def splits(self) -> SplitInput | None:
        """What reads the elements in tasks, if the frame only lists files; `element_type` says what they are then."""
        return None

    def timestamp_column(self) -> str | None:
        """Column with the event time of each row in milliseconds since 1970; None if rows have no timestamps.

        A watermark strategy without an assigner goes by it, and an assigner is given it.
        """
        return None

    def is_partitioned(self) -> bool:
        """Whether each task reads one partition, which is ordered by itself: see `WatermarkStrategy.per_partition`."""
        return False

    def checkpoint_listener(self) -> SourceListener | None:
        """What is told in the driver of each completed checkpoint, and where the source stands in it; None for nobody.

        Nothing depends on it: a job goes on from its checkpoint.
        """
        return None

    def with_gate(self, gate: EpochGate) -> Source:
        """The same source, which reads nothing in an epoch that is planned while a gate is closed.

        It tells the gate of each epoch whether it has left anything, as `with_watermark_alignment` needs it.

        Raises:
            ConfigurationError: It cannot wait; so is any source of which Spark says what an epoch reads.
        """
        raise cannot_wait(self, "Spark says what an epoch reads of it")

    def decoder(self) -> tuple[FlatMapLike | ProcessFunction, Any] | None:
        """A function from a row to the elements that it stands for, and their type as `output_type` takes it.

        It is called as that of `flat_map`, or of `process` with its side outputs, in the tasks that read the source.
        None if rows are elements as they are.
        """
        return None


def cannot_wait(source: Source, reason: str) -> ConfigurationError:
    """What a source raises that cannot wait for others, and why."""
    return ConfigurationError(
        f"with_watermark_alignment(): {type(source).__name__} cannot wait for other sources: {reason}. Leave the "
        "alignment out of its strategy; event time follows the source that lags in any case."
    )


class DeliveryGuarantee(Enum):
    """What a sink promises of each row; Flink's names."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    NONE = "none"
