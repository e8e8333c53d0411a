"""What a program asks for when it runs a `StatefulProcessor`, and the operator that this becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import TimestampAssigner, WatermarkStrategy
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.spark.stateful_processor.function import ProcessorFunction
from holdfast.spark.stateful_processor.handle import TIME_MODES, TimeMode
from holdfast.spark.stateful_processor.row_form import PandasFrames, RowForm, SparkRows
from holdfast.state.layout.value_codec import exact_class
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import RowTypeInformation, TypeInformation

_OUTPUT_MODES: Final = ("append", "update")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_PLAIN_KEYS: Final = (bool, int, str, bytes)


@dataclass(frozen=True)
class ProcessorInput:
    """What the elements are that a processor gets.

    Attributes:
        row_type: Of its rows. Elements are these, with further columns behind, or have such a row in their first field.
        keys: The columns of the elements that are the key.
        event_time: The column of the rows that has a watermark; None for none.
        delay: By how many milliseconds the watermark is behind.
        state_type: Of rows of initial state, in the second field of elements; None if there are none.
        is_timed: Whether the elements have timestamps and watermarks already.
    """

    row_type: RowTypeInformation
    keys: tuple[str, ...]
    event_time: str | None = None
    delay: int = 0
    state_type: RowTypeInformation | None = None
    is_timed: bool = False


@dataclass(frozen=True)
class OutputTime(TimestampAssigner):
    """The event time of what a processor returns: a column of it, or else the time that it has.

    Attributes:
        column: The column.
        at: Its position.
    """

    column: str
    at: int

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """The instant in the column."""
        found = event_time_at(self.at)(value)
        return record_timestamp if found is None else found


@dataclass(frozen=True)
class Processor:
    """A processor and what it returns; make one with `checked`."""

    processor: StatefulProcessor
    output_type: RowTypeInformation
    time_mode: TimeMode
    output_event_time: str | None
    in_pandas: bool

    @staticmethod
    def checked(
        processor: Any, output: Any, output_mode: str, time_mode: str, output_event_time: str, in_pandas: bool
    ) -> Processor:
        """Check what a program has given.

        Raises:
            ConfigurationError: An argument is none of what Spark takes.
        """
        checked_processor(processor)
        if str(output_mode).lower() not in _OUTPUT_MODES:
            raise ConfigurationError(f"outputMode is 'Append' or 'Update', not {output_mode!r}")
        mode: Any = str(time_mode).lower()
        if mode not in TIME_MODES:
            raise ConfigurationError(f"timeMode is 'None', 'ProcessingTime' or 'EventTime', not {time_mode!r}")
        output_type = to_type(output)
        if not isinstance(output_type, RowTypeInformation):
            raise ConfigurationError(f"outputStructType is a StructType or 'name type, ...', not {output!r}")
        if output_event_time and output_event_time not in output_type.names:
            raise ConfigurationError(
                f"eventTimeColumnName {output_event_time!r} is no column of the output: {list(output_type.names)!r}"
            )
        return Processor(processor, output_type, mode, output_event_time or None, in_pandas)

    @property
    def name(self) -> str:
        """Of the operator."""
        return type(self.processor).__name__


def checked_processor(processor: Any) -> StatefulProcessor:
    """What a program has given, which must be a processor.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(processor, StatefulProcessor):
        raise ConfigurationError(f"transform_with_state() takes an instance of StatefulProcessor, not {processor!r}")
    return processor


def operator_of(processor: Processor, given: ProcessorInput, element_type: TypeInformation) -> OperatorSpec:
    """The operator that runs a processor.

    Raises:
        ConfigurationError: It needs event time, and its input has none.
    """
    if processor.time_mode == "eventtime" and given.event_time is None:
        raise ConfigurationError(
            "timeMode 'EventTime' needs withWatermark() before groupBy(), as in Spark, or eventTimeColumnName of the "
            "processor before"
        )
    if processor.output_event_time is not None and given.event_time is None:
        raise ConfigurationError("eventTimeColumnName needs withWatermark() before groupBy(), as in Spark")
    form: RowForm = SparkRows(given.row_type, given.state_type)
    if processor.in_pandas:
        form = PandasFrames(given.row_type, given.state_type, processor.output_type)
    is_late = None
    if given.event_time is not None and processor.time_mode == "eventtime":
        is_late = given.row_type.names.index(given.event_time)
    assert isinstance(element_type, RowTypeInformation)
    key_at = tuple(element_type.names.index(name) for name in given.keys)
    key_types = tuple(element_type.types[at] for at in key_at)
    function = ProcessorFunction(
        processor.processor,
        processor.time_mode,
        form,
        tuple(given.row_type.names),
        key_types,
        key_at if all(exact_class(one) in _PLAIN_KEYS for one in key_types) else None,
        None if is_late is None else event_time_at(is_late),
        given.state_type is not None,
    )
    return OperatorSpec(function, "groups", True, element_type, processor.output_type)


def clock_of_input(processor: Processor, given: ProcessorInput) -> WatermarkStrategy | None:
    """The clock by which a processor, or who comes after it, goes; None if it goes by none, or by that of its input."""
    is_needed = processor.time_mode == "eventtime" or processor.output_event_time is not None
    if given.event_time is None or given.is_timed or not is_needed:
        return None
    of_row = event_time_at(given.row_type.names.index(given.event_time))

    def of_element(element: Any, timestamp: int) -> int:
        row = element if given.state_type is None else element[0]
        found = None if row is None else of_row(row)
        return timestamp if found is None else found

    # Flink's watermark is a millisecond more than the delay behind. Spark's is the delay behind, and rows at or
    # before it are late.
    return WatermarkStrategy(given.delay - 1).with_timestamp_assigner(of_element)


def times_of_output(processor: Processor) -> WatermarkStrategy | None:
    """The timestamps of what a processor returns that names its event time; watermarks are those of its input."""
    column = processor.output_event_time
    if column is None:
        return None
    return WatermarkStrategy.no_watermarks().with_timestamp_assigner(
        OutputTime(column, processor.output_type.names.index(column))
    )


def event_time_at(position: int) -> Callable[[Any], int | None]:
    """Return the function that tells the event time of a row, in milliseconds rounded down; None for null."""

    def of_row(row: Any) -> int | None:
        instant = row[position]
        if instant is None:
            return None
        return (instant - (_EPOCH if instant.tzinfo is not None else _NAIVE_EPOCH)) // _MILLISECOND  # type: ignore[no-any-return]

    return of_row
