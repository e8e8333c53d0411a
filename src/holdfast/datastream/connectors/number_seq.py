"""`NumberSequenceSource`: a bounded sequence of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.datastream.connectors.base import Source, cannot_pause
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.bounded_sources import NumberSource
from holdfast.runtime.function.source import EpochGate, SplitSource
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LARGEST = 2**63 - 2
"""One less than the largest LONG, because the end of Spark's range is exclusive."""


class NumberSequenceSource(Source):
    """Emits the integers from `start` to `end`, both included, as LONG; in order within each partition of Spark.

    The stream is bounded, and read in one epoch; in real time each task reads a range of the numbers.

    Args:
        start: The first number.
        end: The last number.

    Raises:
        ConfigurationError: The range is empty, or does not fit into 64 bits.

    Example:
        >>> from holdfast.datastream.connectors.number_seq import NumberSequenceSource
        >>> NumberSequenceSource(1, 3).element_type()
        <bigint>
    """

    def __init__(self, start: int, end: int) -> None:
        for value in (start, end):
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value <= _LARGEST:
                raise ConfigurationError(
                    f"NumberSequenceSource takes whole numbers from {-(2**63)} to {_LARGEST}, not {value!r}."
                )
        if end < start:
            raise ConfigurationError(f"NumberSequenceSource goes from {start} up to {end}: there is no such number.")
        self._start = start
        self._end = end

    def create_frame(self, session: SparkSession) -> DataFrame:
        return session.range(self._start, self._end + 1)

    def with_gate(self, gate: EpochGate) -> Source:
        """Raise `ConfigurationError`: the numbers are read in one epoch."""
        raise cannot_pause(self, "its numbers are read in one epoch, as a whole")

    def element_type(self) -> TypeInformation:
        return Types.LONG()

    def split_source(self) -> SplitSource:
        return NumberSource(self._start, self._end)
