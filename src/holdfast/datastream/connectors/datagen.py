"""`DataGeneratorSource`: elements that a function makes of consecutive numbers, bounded or at a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.datastream.connectors.base import Source, cannot_pause
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.bounded_sources import NumberSource, RateSource
from holdfast.runtime.function.source import EpochGate, SplitSource
from holdfast.runtime.function.user_function import FlatMapFunction, FlatMapLike, MapFunction, MapLike, RuntimeContext
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DataGeneratorSource(Source):
    """Generates elements with a function of the numbers 0, 1, 2 and so on.

    The function should be deterministic: then an epoch that runs again has the same elements, and a job that resumes
    continues where it was.

    Args:
        generator_function: A `MapFunction`, or a function from a number to an element.
        count: The number of elements of a bounded stream, which is generated at full speed.
        rows_per_second: The rate of an unbounded stream, by the clock of Spark's `rate` source. In real time the tasks
            share it, by their clocks.
        type_info: The type of the elements, as `output_type` takes it. Without it they are pickled.

    Raises:
        ConfigurationError: Not exactly one of `count` and `rows_per_second` is given, or it is not a positive integer.

    Example:
        >>> from holdfast.datastream.connectors.datagen import DataGeneratorSource
        >>> source = DataGeneratorSource(lambda n: (n, n * n), count=10, type_info="n bigint, square bigint")
        >>> function, type_info = source.decoder()
        >>> function.flat_map(3)
        ((3, 9),)
    """

    def __init__(
        self,
        generator_function: MapLike,
        count: int | None = None,
        rows_per_second: int | None = None,
        type_info: Any = None,
    ) -> None:
        if (count is None) == (rows_per_second is None):
            raise ConfigurationError(
                "DataGeneratorSource needs either count, for a bounded stream, or rows_per_second: pass one of them."
            )
        for name, value in (("count", count), ("rows_per_second", rows_per_second)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"DataGeneratorSource: {name} must be a positive integer, not {value!r}.")
        if isinstance(generator_function, type) or not (
            callable(generator_function) or isinstance(generator_function, MapFunction)
        ):
            raise ConfigurationError(
                f"DataGeneratorSource takes a MapFunction or a function from a number to an element, not "
                f"{generator_function!r}."
            )
        self._function = generator_function
        self._count = count
        self._rate = rows_per_second
        self._type = type_info

    def create_frame(self, session: SparkSession) -> DataFrame:
        if self._count is not None:
            return session.range(self._count)
        rate: DataFrame = session.readStream.format("rate").option("rowsPerSecond", self._rate).load()
        return rate.select("value")

    def element_type(self) -> TypeInformation:
        return Types.LONG()

    def split_source(self) -> SplitSource:
        if self._count is not None:
            return NumberSource(0, self._count - 1)
        assert self._rate is not None
        return RateSource(self._rate)

    def with_gate(self, gate: EpochGate) -> Source:
        """Raise `ConfigurationError`: the epochs are planned by Spark, or there is only one."""
        bounded = "its elements are read in one epoch, as a whole"
        raise cannot_pause(self, bounded if self._count else "its elements come by the clock of Spark's rate source")

    def decoder(self) -> tuple[FlatMapLike, Any]:
        return _GeneratorFunction(self._function), self._type


class _GeneratorFunction(FlatMapFunction):
    NAME_IN_UIDS: ClassVar = "_Generate"

    def __init__(self, function: MapLike) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self._function, MapFunction):
            self._function.open(runtime_context)

    def close(self) -> None:
        if isinstance(self._function, MapFunction):
            self._function.close()

    def flat_map(self, value: Any) -> Iterable[Any]:
        call: Callable[[Any], Any] = self._function.map if isinstance(self._function, MapFunction) else self._function
        return (call(value),)
