"""Spark's `transformWithState` on Holdfast; users import it from `holdfast.spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.graph.stream_graph import TimestampNode
from holdfast.types.composite import RowTypeInformation

if TYPE_CHECKING:
    from pyspark.sql import GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from holdfast.spark.stateful_processor import Processor, ProcessorInput


def transform_with_state(
    grouped: GroupedData | KeyedStream,
    statefulProcessor: StatefulProcessor,
    outputStructType: Any,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    env: StreamExecutionEnvironment | None = None,
    input_uid: str | None = None,
    initial_state_uid: str = "initial-state",
) -> DataStream:
    """Run a `StatefulProcessor` of Spark with Holdfast's state; takes what `df.groupBy(...).transformWithState` takes.

    The processor is not changed: it is called once a key and epoch with all rows of the key as `pyspark.sql.Row`, then
    for each expired timer. State, timers and time to live are Holdfast's: in checkpoints and savepoints, rescalable,
    queryable under their names, with declared types.

        >>> from holdfast.spark import transform_with_state
        >>> counts = transform_with_state(  # doctest: +SKIP
        ...     frame.groupBy("city"), Counter(), "city string, n bigint", "Append", "None"
        ... )
        >>> counts.print()  # doctest: +SKIP
        >>> counts.get_execution_environment().execute("counts")  # doctest: +SKIP

    Args:
        grouped: `df.groupBy(columns)` of a streaming or static frame. In event time it has `withWatermark`. For a
            processor after another one, `stream.key_by(columns)` of that one's output.
        statefulProcessor: The processor.
        outputStructType: Columns of what it returns, as a `StructType` or DDL.
        outputMode: "Append" or "Update"; both emit what the processor returns.
        timeMode: "None", "ProcessingTime" or "EventTime".
        initialState: A grouped static frame with the same keys, passed to `handleInitialState` in the first epoch.
        eventTimeColumnName: The column of the output with its event time, for operators after this one; the watermark
            is that of the input.
        env: The environment; a new one on the frame's session by default.
        input_uid: Uid of the input, by which a restart finds its position; derived from what it reads by default.
        initial_state_uid: The same for `initialState`; a second processor of a job that has one needs another.

    Returns:
        A stream of rows: end it in a sink and execute its environment.

    Raises:
        ConfigurationError: An argument does not fit, or this PySpark has no `StatefulProcessor` (before 4.0).
    """
    processor = _checked(statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName, False)
    return _transformed(grouped, processor, initialState, env, input_uid, initial_state_uid)


def transform_with_state_in_pandas(
    grouped: GroupedData | KeyedStream,
    statefulProcessor: StatefulProcessor,
    outputStructType: Any,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    env: StreamExecutionEnvironment | None = None,
    input_uid: str | None = None,
    initial_state_uid: str = "initial-state",
) -> DataStream:
    """Run a processor of `transformWithStateInPandas`: a frame of pandas a key and epoch, frames out.

    Arguments, result and errors are those of `transform_with_state`. Instants in frames are without a time zone, in
    UTC.
    """
    processor = _checked(statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName, True)
    return _transformed(grouped, processor, initialState, env, input_uid, initial_state_uid)


def _checked(
    processor: Any, output: Any, output_mode: str, time_mode: str, event_time_column: str, in_pandas: bool
) -> Processor:
    try:
        from holdfast.spark.stateful_processor import Processor
    except ImportError as error:
        raise ConfigurationError("This PySpark has no StatefulProcessor: it came with Spark 4.0.") from error
    return Processor.checked(processor, output, output_mode, time_mode, event_time_column, in_pandas)


def _transformed(
    grouped: Any,
    processor: Processor,
    initial_state: Any,
    env: StreamExecutionEnvironment | None,
    input_uid: str | None,
    initial_state_uid: str,
) -> DataStream:
    from holdfast.spark.stateful_processor import grouping_of, with_initial_state

    if isinstance(grouped, KeyedStream):
        if initial_state is not None or env is not None or input_uid is not None:
            raise ConfigurationError("initialState, env and input_uid are for df.groupBy(...), not for a stream.")
        return apply_processor(grouped, processor, _input_of(grouped))
    grouping = grouping_of(grouped)
    environment = env or StreamExecutionEnvironment.get_execution_environment(spark=grouping.frame.sparkSession)
    states = None
    if initial_state is not None:
        grouping, states = with_initial_state(grouping, grouping_of(initial_state))
    stream = environment.from_dataframe(grouping.frame)
    if input_uid is not None:
        stream.uid(input_uid)
    if states is not None:
        stream = stream.union(environment.from_dataframe(states).uid(initial_state_uid))
    return apply_processor(stream, processor, grouping.input)


def apply_processor(stream: DataStream, processor: Processor, given: ProcessorInput) -> DataStream:
    """Run a processor on a stream.

    Args:
        stream: Its elements are as `given` describes them.
        processor: The processor, and its output.
        given: The columns of the elements.

    Raises:
        ConfigurationError: They do not fit.
    """
    from holdfast.spark.stateful_processor import input_watermarks, operator_of, output_timestamps

    clock = input_watermarks(processor, given)
    if clock is not None:
        stream = stream.assign_timestamps_and_watermarks(clock)
    keyed = stream.key_by(list(given.keys))
    result = keyed._operator(operator_of(processor, given, keyed.get_type()), processor.name)
    times = output_timestamps(processor)
    return result if times is None else _TimedOutput(result, times)


class _TimedOutput(DataStream):
    """A processor's output with its event time. Name, uid and parallelism are those of the operator."""

    def __init__(self, output: DataStream, times: WatermarkStrategy) -> None:
        node = TimestampNode(
            inputs=(output._node,),
            name="timestamps",
            element_type=output.get_type(),
            strategy=times,
            keeps_watermarks=True,
        )
        super().__init__(output._environment, node)
        self._output = output

    def name(self, name: str) -> Self:
        self._output.name(name)
        return self

    def get_name(self) -> str:
        return self._output.get_name()

    def uid(self, uid: str) -> Self:
        self._output.uid(uid)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        self._output.set_parallelism(parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        self._output.set_max_parallelism(max_parallelism)
        return self


def _input_of(keyed: KeyedStream) -> ProcessorInput:
    """Return the columns of a stream, which may be the output of another processor."""
    from holdfast.spark.stateful_processor import OutputTime, ProcessorInput

    rows = keyed.get_type()
    if not isinstance(rows, RowTypeInformation) or not keyed._key.columns:
        raise ConfigurationError("transform_with_state() takes a stream of rows that is keyed by columns.")
    assigner = keyed._node.strategy.assigner if isinstance(keyed._node, TimestampNode) else None
    time = assigner.column if isinstance(assigner, OutputTime) else None
    return ProcessorInput(rows, keyed._key.columns, time, is_timed=time is not None)
