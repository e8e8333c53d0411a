"""Runs real-time jobs without a JVM: each task is a thread, and queues stand for Spark's exchange.

For tests. Job master, tasks, barriers, control connections and everything durable are those of a job on Spark.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.exchange.layout import TARGET
from holdfast.runtime.exchange.stage_message import JobDescriptor
from holdfast.runtime.function.source import SplitSource
from holdfast.runtime.graph.stream_graph import SourceNode
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.options import EXECUTION_TRIGGER
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.realtime.engine import RealTimeEngine, TaskGroup
from holdfast.runtime.realtime.task import RealTimeStage, run_stages
from holdfast.runtime.task import worker_process
from holdfast.testing.epoch_runner import OPTIONS, run_job
from holdfast.types.type_parser import to_type

_QUEUED: Final = 1024
_POLL_SECONDS: Final = 0.05
_lock = threading.Lock()


class _Cancelled(Exception):
    """Ends the thread of a task whose group has failed."""


class ThreadedTasks(TaskGroup):
    """The tasks of one launch, each in a thread.

    Args:
        run: Runs a task: (stage, partition, input) to output.
        tasks: Number of tasks of each stage.
    """

    def __init__(
        self, run: Callable[[int, int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], tasks: Sequence[int]
    ) -> None:
        self._queues = [[queue.Queue[Any](_QUEUED) for _ in range(count)] for count in tasks]
        self._open = list(tasks)
        self._run = run
        self._cancelled = threading.Event()
        self._failure: HoldfastError | None = None
        self._guard = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run_task, args=(stage, partition), name=f"task-{stage}-{partition}")
            for stage, count in enumerate(tasks)
            for partition in range(count)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    @property
    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads) and not self._cancelled.is_set()

    @property
    def failure(self) -> HoldfastError | None:
        return self._failure

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def cancel(self) -> None:
        self._cancelled.set()
        self.wait(10.0)

    def _run_task(self, stage: int, partition: int) -> None:
        try:
            output = self._run(stage, partition, self._input(stage, partition))
            for batch in output:
                self._hand_over(stage, batch)
        except _Cancelled:
            return
        except Exception as error:  # noqa: BLE001 - it is the failure of the group
            with self._guard:
                if self._failure is None and not self._cancelled.is_set():
                    failure = error if isinstance(error, HoldfastError) else HoldfastError(f"a task failed: {error!r}")
                    failure.__cause__ = None if failure is error else error
                    self._failure = failure
            self._cancelled.set()
            return
        with self._guard:
            self._open[stage] -= 1
            is_last = not self._open[stage]
        if is_last and stage + 1 < len(self._queues):
            for own in self._queues[stage + 1]:
                self._put(own, None)

    def _input(self, stage: int, partition: int) -> Iterator[pa.RecordBatch]:
        if stage == 0:
            return
        own = self._queues[stage][partition]
        while True:
            try:
                batch = own.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._cancelled.is_set():
                    raise _Cancelled from None
                continue
            if batch is None:
                return
            yield batch

    def _hand_over(self, stage: int, batch: pa.RecordBatch) -> None:
        targets = batch.column(batch.schema.get_field_index(TARGET)).to_pylist()
        for row, target in enumerate(targets):
            self._put(self._queues[stage + 1][target], batch.slice(row, 1))

    def _put(self, own: queue.Queue[Any], item: Any) -> None:
        while True:
            try:
                own.put(item, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                if self._cancelled.is_set():
                    raise _Cancelled from None


class LocalRealTimeEngine(RealTimeEngine):
    """Runs the tasks of real-time jobs in threads of this process.

    Args:
        configuration: The options of the job.
        source_tasks: Number of tasks that read sources.
        clock: Processing time.
        interceptor: Called with (stage, partition) when a task begins; if it raises, the task fails.
    """

    def __init__(
        self,
        configuration: Mapping[str, Any] | None = None,
        *,
        source_tasks: int = 2,
        clock: Clock | None = None,
        interceptor: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(Configuration(dict(configuration or {})), source_tasks)
        self._clock = clock or SystemClock()
        self._interceptor = interceptor

    def start_tasks(
        self, job: JobDescriptor, stages: Sequence[Sequence[RealTimeStage]], workers: Sequence[int]
    ) -> TaskGroup:
        content = job.to_bytes()

        def run(at: int, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            if self._interceptor is not None:
                for stage in stages[at]:
                    self._interceptor(stage.stage, partition)
            with _lock:  # a worker of Spark loads it once, for all its tasks
                loaded = worker_process.load_job(job.key, lambda: content)
            yield from run_stages(loaded, stages[at], partition, self._clock, batches)

        return ThreadedTasks(run, workers)

    def control_hosts(self) -> tuple[str, str]:
        return "127.0.0.1", "127.0.0.1"

    def services(self) -> Mapping[str, Any]:
        return {"read_parquet": lambda paths: pa.concat_tables([pq.read_table(path) for path in paths])}

    def close(self) -> None:
        super().close()
        worker_process.unload_all()


class RealTimeProgram(StreamExecutionEnvironment):
    """A stream environment whose programs run here in real time, without Spark and Java.

    Run again over the same directory, a job resumes from its newest checkpoint.
    """

    def __init__(self) -> None:
        super().__init__(Configuration({EXECUTION_TRIGGER.key: "real-time"}), None)

    def source(self, uid: str, split_source: SplitSource, type_info: Any, *, is_bounded: bool = False) -> DataStream:
        """Add a source that tasks read, and return its stream.

        Args:
            uid: Uid of the source.
            split_source: The source.
            type_info: Type of its elements, as `output_type` takes it.
            is_bounded: Whether it ends.
        """
        kind = to_type(type_info)
        node = SourceNode(name=uid, uid=uid, element_type=kind, is_streaming=not is_bounded, split_source=split_source)
        return DataStream(self, node)

    def master(
        self,
        directory: Path | str,
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "job",
        clock: Clock | None = None,
        parallelism: int = 2,
        source_tasks: int = 2,
        interceptor: Callable[[int, int], None] | None = None,
    ) -> JobMaster:
        """Return the master of the job, ready to `run()`.

        Args:
            directory: Checkpoint directory.
            options: Options of the job, added to `OPTIONS` of the epoch runner.
            name: Name of the job; its id is derived from it.
            clock: For timers, intervals and pauses.
            parallelism: Parallelism of keyed operators that set none.
            source_tasks: Number of tasks that read sources.
            interceptor: Called with (stage, subtask) when a task begins; if it raises, the task fails.
        """
        configuration = {**OPTIONS, "execution.checkpointing.interval": "50 ms", **(options or {})}
        engine = LocalRealTimeEngine(configuration, source_tasks=source_tasks, clock=clock, interceptor=interceptor)
        graph = self.get_stream_graph()
        return run_job(graph, directory, engine, configuration, name=name, clock=clock, parallelism=parallelism)

    def run(self, directory: Path | str, options: Mapping[str, Any] | None = None, **others: Any) -> JobStatus:
        """Run the program until its sources end. Blocks; see `master` for the arguments."""
        return self.master(directory, options, **others).run()
