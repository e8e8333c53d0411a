"""Spark's `transformWithState`, run by Holdfast: what `holdfast.spark.transform_with_state` is."""

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

    Args:
        grouped: ``df.groupBy(columns)`` of a streaming or static frame. In event time it has `withWatermark`. For a
            processor after another one, ``stream.key_by(columns)`` of what that has returned.
        statefulProcessor: The processor.
        outputStructType: Columns of what it returns, as a `StructType` or DDL.
        outputMode: ``"Append"`` or ``"Update"``; both emit what the processor returns.
        timeMode: ``"None"``, ``"ProcessingTime"`` or ``"EventTime"``.
        initialState: A grouped static frame with the same keys, given to `handleInitialState` in the first epoch.
        eventTimeColumnName: The column of the output that is its event time, for operators after this one; the
            watermark is that of the input.
        env: The environment; a new one on the frame's session if it is not given.
        input_uid: Uid of the input, by which its position is found in checkpoints; derived from what it reads if it is
            not given.
        initial_state_uid: The same for `initialState`; a second processor of a job that has one needs another.

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
        initial_state_uid,
        False,
    )


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
        initial_state_uid,
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
    initial_state_uid: str,
    in_pandas: bool,
) -> DataStream:
    try:
        from holdfast.spark.stateful_processor import Processor, grouping_of, with_initial_state
    except ImportError as error:
        raise ConfigurationError("this PySpark has no StatefulProcessor: it came with Spark 4.0") from error
    wanted = Processor.checked(processor, output, output_mode, time_mode, event_time_column, in_pandas)
    if isinstance(grouped, KeyedStream):
        if initial_state is not None or env is not None or input_uid is not None:
            raise ConfigurationError("initialState, env and input_uid are for df.groupBy(...), not for a stream")
        return apply_processor(grouped, wanted, _input_of(grouped))
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
    from holdfast.spark.stateful_processor import input_watermarks, operator_of, output_timestamps

    clock = input_watermarks(processor, given)
    if clock is not None:
        stream = stream.assign_timestamps_and_watermarks(clock)
    keyed = stream.key_by(list(given.keys))
    result = keyed._operator(operator_of(processor, given, keyed.get_type()), processor.name)
    times = output_timestamps(processor)
    return result if times is None else _TimedOutput(result, times)


class _TimedOutput(DataStream):
    """What a processor returns, with its event time. Name, uid and parallelism are those of the operator."""

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
        """Names the operator."""
        self._output.name(name)
        return self

    def get_name(self) -> str:
        """The operator's name."""
        return self._output.get_name()

    def uid(self, uid: str) -> Self:
        """Identifies the operator, whose state is found again under this uid."""
        self._output.uid(uid)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Sets the number of subtasks of the operator."""
        self._output.set_parallelism(parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Sets the number of key groups of the operator."""
        self._output.set_max_parallelism(max_parallelism)
        return self


def _input_of(keyed: KeyedStream) -> ProcessorInput:
    """What the elements of a stream are, which may be what another processor has returned."""
    from holdfast.spark.stateful_processor import OutputTime, ProcessorInput

    rows = keyed.get_type()
    if not isinstance(rows, RowTypeInformation) or not keyed._key.columns:
        raise ConfigurationError("transform_with_state() takes a stream of rows that is keyed by columns")
    assigner = keyed._node.strategy.assigner if isinstance(keyed._node, TimestampNode) else None
    time = assigner.column if isinstance(assigner, OutputTime) else None
    return ProcessorInput(rows, keyed._key.columns, time, is_timed=time is not None)
