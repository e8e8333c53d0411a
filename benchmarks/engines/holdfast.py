"""Holdfast with its default backend: a plain generator with one ``ValueState``, every row emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from benchmarks.harness.input_files import Source
from benchmarks.harness.spark_session import EpochClock, read_epochs, start_session
from benchmarks.harness.workload import PARALLELISM, Engine, Workload
from holdfast.common import Configuration, Types
from holdfast.datastream import (
    BatchSinkWriter,
    DataStream,
    KeyedStream,
    ParquetFileSink,
    Sink,
    StreamExecutionEnvironment,
    WriterInitContext,
)
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import ValueStateDescriptor


class Counter(KeyedProcessFunction):
    """Counts the rows of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value.key, value.value, count


class DiscardingWriter(BatchSinkWriter):
    """Drops every batch."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        pass


class DiscardingSink(Sink):
    """Computes everything and keeps nothing."""

    def create_writer(self, context: WriterInitContext) -> DiscardingWriter:
        return DiscardingWriter()


class HoldfastEngine:
    """The same job again and again: each run takes what is new, from its newest completed checkpoint, and ends.

    Args:
        workload: The sizes.
        count: The operator.
        backend: Its state backend.

    Attributes:
        clock: Of its epochs.
        options: Further options of the job.
    """

    options: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, workload: Workload, count: Callable[[KeyedStream], DataStream], backend: str = "hashmap"
    ) -> None:
        self._workload = workload
        self._count = count
        self._backend = backend
        self._source = Source(workload)
        self._session = start_session("keyed-count")
        self.clock = EpochClock()
        self._session.streams.addListener(self.clock)

    def run(self, epochs: int) -> Sequence[float]:
        self._source.add(epochs)
        configuration = Configuration()
        configuration.set_string("execution.trigger", "available-now")
        configuration.set_string("execution.checkpointing.dir", f"{self._workload.workspace}/checkpoints")
        configuration.set_string("parallelism.default", str(PARALLELISM))
        configuration.set_string("state.backend.type", self._backend)
        for name, text in self.options.items():
            configuration.set_string(name, text)
        environment = StreamExecutionEnvironment.get_execution_environment(configuration, spark=self._session)
        counted = self.counted(self.stream(environment))
        discarded = self._workload.sink == "discard"
        counted.sink_to(DiscardingSink() if discarded else ParquetFileSink(f"{self._workload.workspace}/output"))
        environment.execute("keyed-count")
        return self.clock.take(epochs)

    def stream(self, environment: StreamExecutionEnvironment) -> DataStream:
        """The input."""
        return environment.from_dataframe(read_epochs(self._session, self._source))

    def counted(self, stream: DataStream) -> DataStream:
        """The job between its input and its sink."""
        return self._count(stream.key_by("key")).uid("counter")

    def close(self) -> None:
        self._session.stop()


def count_rows(stream: KeyedStream) -> DataStream:
    return stream.process(Counter(), output_type="key string, value bigint, count bigint")


def make_engine(workload: Workload) -> Engine:
    return HoldfastEngine(workload, count_rows)
