"""A bounded sequence of numbers, for tests and for programs that make their own elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.datastream.connectors.base import Source, cannot_wait
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.source import EpochGate
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST = 2**63 - 2
"""Spark's ranges end before their end."""


class NumberSequenceSource(Source):
    """The whole numbers from `start` to `end`, both included, as LONG; in order within each partition of Spark.

    Raises:
        ConfigurationError: The range is empty, or does not fit into 64 bits.
    """

    def __init__(self, start: int, end: int) -> None:
        for value in (start, end):
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value <= _MOST:
                raise ConfigurationError(
                    f"NumberSequenceSource takes whole numbers from {-(2**63)} to {_MOST}, not {value!r}."
                )
        if end < start:
            raise ConfigurationError(f"NumberSequenceSource goes from {start} up to {end}: there is no such number.")
        self._start = start
        self._end = end

    def create_frame(self, session: SparkSession) -> DataFrame:
        """A static frame of these numbers."""
        return session.range(self._start, self._end + 1)

    def with_gate(self, gate: EpochGate) -> Source:
        """Refused: the numbers are read in one epoch, as a whole."""
        raise cannot_wait(self, "its numbers are read in one epoch, as a whole")

    def element_type(self) -> TypeInformation:
        """LONG."""
        return Types.LONG()
