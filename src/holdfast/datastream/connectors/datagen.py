"""Elements that a function makes of consecutive numbers: bounded, or so many a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.datastream.connectors.base import Source, cannot_wait
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.source import EpochGate
from holdfast.runtime.function.user_function import FlatMapFunction, FlatMapLike, MapFunction, MapLike, RuntimeContext
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DataGeneratorSource(Source):
    """What a function makes of the numbers 0, 1, 2 and so on.

    The function should return the same for the same number: then an epoch that runs again has the same elements, and a
    job that resumes goes on where it was.

    Args:
        generator_function: A `MapFunction` or a function from a number to an element.
        count: How many elements; the stream is bounded, and as fast as it can be.
        rows_per_second: Elements a second of a stream without end; its clock is that of Spark's `rate` source.
        type_info: Type of the elements, as `output_type` takes it. Without it they are pickled.

    Raises:
        ConfigurationError: Not exactly one of `count` and `rows_per_second` is given, or it is no positive number.
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
                "DataGeneratorSource is either bounded, by count, or has so many rows_per_second and no end: give one."
            )
        for name, value in (("count", count), ("rows_per_second", rows_per_second)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"DataGeneratorSource: {name} is a positive whole number, not {value!r}.")
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
        """A static range, or Spark's `rate` source."""
        if self._count is not None:
            return session.range(self._count)
        rate: DataFrame = session.readStream.format("rate").option("rowsPerSecond", self._rate).load()
        return rate.select("value")

    def element_type(self) -> TypeInformation:
        """LONG, before the function is applied."""
        return Types.LONG()

    def with_gate(self, gate: EpochGate) -> Source:
        """Refused: elements of a `count` are one epoch, and others come by the clock of Spark's `rate` source."""
        bounded = "its elements are read in one epoch, as a whole"
        raise cannot_wait(self, bounded if self._count else "its elements come by the clock of Spark's rate source")

    def decoder(self) -> tuple[FlatMapLike, Any]:
        """The function, and the type of what it returns."""
        return _Generate(self._function), self._type


class _Generate(FlatMapFunction):
    """One element for each number; a function with `open` and `close` is opened and closed."""

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
