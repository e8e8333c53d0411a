"""The engine of real-time jobs on Spark: all tasks are one pipelined job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from holdfast.kernel.clock import SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.exchange.stage_message import JobDescriptor
from holdfast.runtime.function.source import PositionFiles, SourceStatistics
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.realtime.engine import RealTimeEngine, TaskGroup
from holdfast.runtime.realtime.source_coordinator import SourceCoordinator
from holdfast.runtime.realtime.task import RealTimeStage, run_stages
from holdfast.runtime.task.worker_process import load_job
from holdfast.spark.failure import translate_fatal
from holdfast.spark.frame import ArrowFunction, staged_frame
from holdfast.spark.input.positions import SourceListeners
from holdfast.spark.input.real_time import describe_inputs, written_frames
from holdfast.spark.realtime import PipelinedJob, PipelinedStage, check_real_time, frame_bytes
from holdfast.spark.session import bind_session

T = TypeVar("T")


class SparkRealTimeEngine(RealTimeEngine):
    """Runs one real-time job on a Spark session.

    Args:
        session: The user's session; its settings are not changed.
        configuration: The options of the job.
        source_tasks: Number of tasks that read sources.
    """

    def __init__(self, session: SparkSession, configuration: Configuration, source_tasks: int) -> None:
        super().__init__(configuration, source_tasks)
        self._session = session
        self._broadcast: Any = None
        self._listeners = SourceListeners()

    def check(self, plan: JobPlan, workers: Sequence[int], *, is_running: bool) -> None:
        check_real_time(self._session, workers, is_running=is_running)

    def frame_bytes(self) -> int:
        return frame_bytes(self._session)

    def coordinator(
        self, plan: JobPlan, positions: Mapping[str, Any] | None, rules: InputRules, files: PositionFiles
    ) -> SourceCoordinator:
        self._listeners = SourceListeners(plan.sources)
        with translate_fatal("preparing the sources"):
            self.web_url = self._session.sparkContext.uiWebUrl
            return SourceCoordinator(
                plan,
                positions,
                self.source_tasks,
                rules,
                inputs=describe_inputs(plan, self._session),
                written=written_frames(self._job, self._session),
                files=files,
            )

    def checkpoint_completed(self, positions: Mapping[str, Any]) -> None:
        self._listeners.notify_completed(positions)

    def source_metrics(self) -> Mapping[str, SourceStatistics]:
        found = dict(super().source_metrics())
        for uid, numbers in self._listeners.numbers().items():
            found[uid] = found[uid] + numbers if uid in found else numbers
        return found

    def start_tasks(
        self, job: JobDescriptor, stages: Sequence[Sequence[RealTimeStage]], workers: Sequence[int]
    ) -> TaskGroup:
        with translate_fatal("shipping the job"):
            self._destroy_broadcast()
            self._broadcast = self._session.sparkContext.broadcast(job.to_bytes())
            functions = [_worker_function(job.key, self._broadcast, group) for group in stages]
            pipelined = [PipelinedStage(run, count) for run, count in zip(functions, workers, strict=True)]
            group = PipelinedJob(self._session, pipelined, f"{job.job_name}: real time")
            group.start()
        return group

    def control_hosts(self) -> tuple[str, str]:
        settings = self._session.sparkContext.getConf()
        host = settings.get("spark.driver.host") or "127.0.0.1"
        return host, settings.get("spark.driver.bindAddress") or host

    def bind_session(self, call: Callable[[], T]) -> Callable[[], T]:
        return bind_session(self._session, call)

    def services(self) -> Mapping[str, Any]:
        return {"read_parquet": self._read_parquet, "spark": self._session}

    def _read_parquet(self, paths: list[str]) -> DataFrame:
        return staged_frame(self._session, paths)

    def close(self) -> None:
        super().close()
        self._listeners.close()
        self._destroy_broadcast()

    def _destroy_broadcast(self) -> None:
        broadcast, self._broadcast = self._broadcast, None
        if broadcast is not None:
            with suppress(Exception):  # the JVM may be gone
                broadcast.destroy()


def _worker_function(key: str, broadcast: Any, stages: Sequence[RealTimeStage]) -> ArrowFunction:
    """Return the function of stages that share their workers; the job comes by broadcast."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        job = load_job(key, lambda: broadcast.value)
        yield from run_stages(job, stages, context.partitionId(), SystemClock(), batches)

    return run
