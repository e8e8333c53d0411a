"""Spark's `transformWithState`, run by Holdfast: what `holdfast.spark.transform_with_state` is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from holdfast.spark.stateful_processor.processor import Processor, ProcessorInput


def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: Any,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    env: StreamExecutionEnvironment | None = None,
    input_uid: str | None = None,
) -> DataStream:
    """Run a `StatefulProcessor` of Spark with Holdfast's state; takes what `df.groupBy(...).transformWithState` takes.

    The processor is not changed: it is called once a key and epoch with all rows of the key as `pyspark.sql.Row`, then
    for each expired timer. State, timers and time to live are Holdfast's: in checkpoints and savepoints, rescalable,
    queryable under their names, with declared types.

    Args:
        grouped: ``df.groupBy(columns)`` of a streaming or static frame. In event time it has `withWatermark`.
        statefulProcessor: The processor.
        outputStructType: Columns of what it returns, as a `StructType` or DDL.
        outputMode: ``"Append"`` or ``"Update"``; both emit what the processor returns.
        timeMode: ``"None"``, ``"ProcessingTime"`` or ``"EventTime"``.
        initialState: A grouped static frame with the same keys, given to `handleInitialState` in the first epoch.
        eventTimeColumnName: The column of the output that is its event time, for operators after this one.
        env: The environment; a new one on the frame's session if it is not given.
        input_uid: Uid of the input, by which its position is found in checkpoints; derived from what it reads if it is
            not given.

    Returns:
        A stream of rows: end it in a sink and execute its environment, ``stream.get_execution_environment()``.

    Raises:
        ConfigurationError: An argument does not fit, or this PySpark has no `StatefulProcessor` (before 4.0).
    """
    return _transformed(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        env,
        input_uid,
        False,
    )


def transform_with_state_in_pandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: Any,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    env: StreamExecutionEnvironment | None = None,
    input_uid: str | None = None,
) -> DataStream:
    """The same for processors of `transformWithStateInPandas`: a frame of pandas a key and epoch, frames out.

    Instants in frames are without a time zone, in UTC.
    """
    return _transformed(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        env,
        input_uid,
        True,
    )


def _transformed(
    grouped: Any,
    processor: Any,
    output: Any,
    output_mode: str,
    time_mode: str,
    initial_state: Any,
    event_time_column: str,
    env: StreamExecutionEnvironment | None,
    input_uid: str | None,
    in_pandas: bool,
) -> DataStream:
    try:
        from holdfast.spark.stateful_processor.grouped import grouping_of, with_initial_state
        from holdfast.spark.stateful_processor.processor import Processor
    except ImportError as error:
        raise ConfigurationError("this PySpark has no StatefulProcessor: it came with Spark 4.0") from error
    wanted = Processor.checked(processor, output, output_mode, time_mode, event_time_column, in_pandas)
    grouping = grouping_of(grouped)
    environment = env or StreamExecutionEnvironment.get_execution_environment(spark=grouping.frame.sparkSession)
    states = None
    if initial_state is not None:
        grouping, states = with_initial_state(grouping, grouping_of(initial_state))
    stream = environment.from_dataframe(grouping.frame)
    if input_uid is not None:
        stream.uid(input_uid)
    if states is not None:
        stream = stream.union(environment.from_dataframe(states).uid("initial-state"))
    return apply_processor(stream, wanted, grouping.input)


def apply_processor(stream: DataStream, processor: Processor, given: ProcessorInput) -> DataStream:
    """Run a processor on a stream.

    Args:
        stream: Its elements are as `given` says.
        processor: What is run, and what it returns.
        given: Which columns of the elements are what.

    Raises:
        ConfigurationError: They do not fit.
    """
    from holdfast.spark.stateful_processor.processor import clock_of_input, clock_of_output, operator_of

    clock = clock_of_input(processor, given)
    if clock is not None:
        stream = stream.assign_timestamps_and_watermarks(clock)
    keyed = stream.key_by(list(given.keys))
    result = keyed._operator(operator_of(processor, given, keyed.get_type()), processor.name)
    clock = clock_of_output(processor, given)
    return result if clock is None else result.assign_timestamps_and_watermarks(clock)
