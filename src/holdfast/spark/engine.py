"""The Spark engine: a streaming query feeds epochs through `foreachBatch`; each epoch job is one Spark action."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.errors import EngineUnavailableError, HoldfastError
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, StepDetector
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor, StageMessage
from holdfast.runtime.exchange.task_report import TaskReport, decode_report
from holdfast.runtime.function.source import SourceStatistics
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import JobPlan, Stage
from holdfast.runtime.job.engine import Engine, EpochDriver, EpochInput, Outcome, StagedInput
from holdfast.runtime.source_alignment import require_gates
from holdfast.spark.exchange import EpochJobPlan, RunStage
from holdfast.spark.failure import cause_of, translate, translate_fatal
from holdfast.spark.frame import ArrowStep, map_in_arrow, staged_frame
from holdfast.spark.input.description import records_behind
from holdfast.spark.input.files import ConsumedFiles
from holdfast.spark.input.positions import QueryDirectory, SourceListeners
from holdfast.spark.input.source import JobFrames, StagedFrames
from holdfast.spark.quiet_logs import MARK_TASKS, OUR_NAME, BatchFailedError
from holdfast.spark.session import (
    EpochTrigger,
    arrow_batch_rows,
    bind_session,
    epoch_settings,
    keeps_properties,
    new_folder,
    private_session,
    remove_folder,
    require_running,
    start_with_plain_logs,
)
from holdfast.spark.worker import EPOCH_PROPERTY, encode_epoch, task_function
from holdfast.storage.job_directory import JobDirectory

logger = get_logger(__name__)
T = TypeVar("T")


def _clock_was_set_back(step_ms: int) -> EngineUnavailableError:
    return EngineUnavailableError(
        f"The clock of this host was set back by {step_ms / 1000:.0f} s, and Spark waits for the next trigger by this "
        "clock. The streaming query was started again, nothing was lost; check the time synchronization of the host."
    )


class SparkEpochInput(EpochInput):
    """The batch of a streaming query, or static frames, or both."""

    def __init__(self, frame: DataFrame, positions: Any, frames: JobFrames, *, is_last: bool) -> None:
        self.frame = frame
        self.is_last = is_last
        self.ended_sources = frames.static_sources  # the first epoch reads them to their ends
        self._positions = positions

    def positions(self) -> dict[str, Any]:
        result: dict[str, Any] = self._positions()
        return result


class SparkEngine(Engine):
    """Runs one job on a Spark session.

    Args:
        session: The user's session; its settings are not changed, except while a query starts
            (`start_with_plain_logs`).
        directory: The job's directory in checkpoint storage.
        trigger: When Spark starts batches.
        clock: The clock of this host, by which Spark waits for a trigger.
    """

    def __init__(self, session: SparkSession, directory: JobDirectory, trigger: EpochTrigger, clock: Clock) -> None:
        self._user_session = session
        self._session = private_session(session)
        self._directory = directory
        self._trigger = trigger
        self._clock = clock
        self._query: StreamingQuery | None = None
        self._query_directory: QueryDirectory | None = None
        self._consumed = ConsumedFiles()
        self._broadcast: Any = None
        self._failure: BaseException | None = None
        self._between_batches = threading.Event()
        self._restart_lock = threading.Lock()
        self._is_restarting = False
        self._listeners = SourceListeners()
        self._between_batches.set()

    def prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int, rules: InputRules) -> None:
        with translate_fatal("preparing the job"):
            self._prepare(job, positions, token, rules)

    def _prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int, rules: InputRules) -> None:
        self._failure = None
        self._is_set_up = False
        self.web_url = self._user_session.sparkContext.uiWebUrl
        self._last_batch = -1
        options = Configuration(dict(job.configuration))
        checkpoints = CoordinatorConfiguration.from_options(options)
        goes_back = checkpoints.interval > 0 or checkpoints.tolerable_failures > 0
        self._frames = JobFrames(job.plan, self._session, goes_back=goes_back)
        beginning = self._frames.identities.begin(positions, rules)
        self._listeners = SourceListeners(job.plan.sources)
        self._consumed.require_again(self._frames.identities.lines, beginning.streaming, self._session)
        self.update_plan(job)
        self._unread = beginning.unread
        self._restored: dict[str, Any] = dict(positions or {})
        gates = [gate.place for gate in require_gates(job.plan.aligned).values()]
        folder = new_folder(self._session, "holdfast-query-", *gates)
        self._query_directory = QueryDirectory(folder, self._directory, token)
        if beginning.streaming is not None:
            self._query_directory.seed(beginning.streaming)

    def source_metrics(self) -> Mapping[str, SourceStatistics]:
        found = self._listeners.numbers()
        for uid, records in self._pending_records().items():
            found[uid] = found.get(uid, SourceStatistics()) + SourceStatistics(records=records)
        directory = self._query_directory
        for uid, files in ({} if directory is None else self._frames.splits.waiting(directory.path)).items():
            found[uid] = found.get(uid, SourceStatistics()) + files
        return found

    def _pending_records(self) -> Mapping[str, int]:
        query = self._query
        try:
            progress = None if query is None else query.lastProgress
        except Exception as error:  # noqa: BLE001 - the JVM is gone, or is ending
            logger.debug("the backlog of sources is unknown: %s", error)
            progress = None
        if progress is None:
            return {}
        sources = progress["sources"]
        found: dict[str, int] = {}
        for line, source in zip(self._frames.identities.lines, sources, strict=False):
            behind = records_behind(source)
            if behind is not None:
                found[line.leaf.uid] = found.get(line.leaf.uid, 0) + behind
        return found

    def update_plan(self, job: JobDescriptor) -> None:
        self._job = job
        self._plan: JobPlan = job.plan
        self._steps: dict[int, ArrowStep] = {}
        with translate_fatal("shipping the job"):
            epoch_settings(self._session)
            self._epoch_job_plans = [EpochJobPlan(epoch_job) for epoch_job in job.plan.epoch_jobs]
            self._staged = {
                n: StagedFrames(epoch_job, self._session) for n, epoch_job in enumerate(job.plan.epoch_jobs) if n
            }
            before, self._broadcast = self._broadcast, self._session.sparkContext.broadcast(job.to_bytes())
            if before is not None:
                before.unpersist()

    def drive(self, driver: EpochDriver) -> Outcome:
        with translate_fatal("running the streaming query"):
            return self._drive(driver)

    def _drive(self, driver: EpochDriver) -> Outcome:
        if self._frames.streaming is None:
            self._read_static(driver, is_last=True)
            return Outcome.STOPPED if driver.is_stopping else Outcome.ENDED
        frame = self._epoch_job_plans[0].prepared(self._frames.streaming)
        self._start_query(frame, driver)
        assert self._query is not None
        steps, step_back = StepDetector(self._clock), 0
        try:
            while self._query.isActive and not driver.is_stopping:
                require_running(self._session)
                step_back += steps.step_back_ms() if self._trigger.waits else 0
                if step_back and self._stop_between_batches(self._query):
                    driver.report(_clock_was_set_back(step_back))
                    self._start_query(frame, driver)
                    step_back = 0
                driver.tick_if_due()
                driver.wait(0.05 if self._trigger.ends else 0.2)
            if driver.is_stopping:
                # Spark cancels the jobs of a query that is stopped, and the running epoch must end first. The driver
                # starts no other one.
                self._between_batches.wait()
                # Commits belong to the query as well, and must not be cancelled.
                driver.wait_all_committed()
                self._query.stop()
        except HoldfastError:
            raise
        except Exception as error:
            raise translate(error, "running the streaming query") from error
        outcome = self._outcome(driver)
        if outcome is Outcome.EXHAUSTED:
            # No batch has read them yet.
            self._read_static(driver, is_last=False)
        return outcome

    def _read_static(self, driver: EpochDriver, *, is_last: bool) -> None:
        """Read the static inputs that no epoch has read; the streams stay where they are."""
        static = self._frames.static(self._unread)
        if static is None or driver.is_stopping:
            return
        streaming = self._restored.get("streaming")
        positions = self._positions(None if self._frames.streaming is None else streaming)
        frame = self._epoch_job_plans[0].prepared(static)
        driver.process(SparkEpochInput(frame, lambda: positions, self._frames, is_last=is_last))
        self._unread = frozenset()

    def _positions(self, streaming: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the positions of the sources for a checkpoint, when all static inputs have been read."""
        static = [leaf.to_json() for leaf in self._frames.identities.static]
        return {"static_consumed": True, "static": static, **({"streaming": streaming} if streaming else {})}

    def _outcome(self, driver: EpochDriver) -> Outcome:
        assert self._query is not None
        if self._failure is not None:
            raise self._failure
        if driver.is_stopping:
            return Outcome.STOPPED
        failure = self._query.exception()
        if failure is not None:
            raise translate(failure, "running the streaming query") from failure
        return Outcome.EXHAUSTED

    def _stop_between_batches(self, query: StreamingQuery) -> bool:
        """Stop the query, to start it again; return False, without effect, if a batch runs or has failed."""
        with self._restart_lock:
            if self._failure is not None or not self._between_batches.is_set():
                return False
            self._is_restarting = True
        try:
            query.stop()
        finally:
            self._is_restarting = False
        return True

    def _start_query(self, frame: DataFrame, driver: EpochDriver) -> None:
        assert self._query_directory is not None
        directory = self._query_directory

        def each_batch(batch: DataFrame, batch_id: int) -> None:
            with self._restart_lock:
                if self._is_restarting:  # the next query has this batch again
                    raise RuntimeError(f"batch {batch_id} was not run, because the query is started again")
                self._between_batches.clear()
            try:
                self._run_batch(driver, directory, batch, batch_id)
            except BaseException as error:  # noqa: BLE001 - the job gets it after Spark has ended the query
                self._failure = (
                    error if isinstance(error, HoldfastError) else translate(error, f"running batch {batch_id}")
                )
                # Spark searches the text of an error by an expression that overflows its stack, so it gets a short one.
                raise BatchFailedError(f"batch {batch_id} failed; the error of the job has the cause") from None
            finally:
                self._between_batches.set()

        writer = (
            frame.writeStream.foreachBatch(each_batch)
            .queryName(f"{OUR_NAME}{self._job.key}")
            .option("checkpointLocation", directory.uri)
            .trigger(**self._trigger.arguments())
        )
        try:
            self._query = start_with_plain_logs(frame.sparkSession, writer.start, self._frames.splits.interval)
        except Exception as error:
            raise translate(error, "starting the streaming query") from error

    def _run_batch(self, driver: EpochDriver, directory: QueryDirectory, batch: DataFrame, batch_id: int) -> None:
        if batch_id <= self._last_batch:  # the query was stopped before it committed the batch
            return
        if not self._is_set_up:
            epoch_settings(batch.sparkSession)
            self._is_set_up = True
        planned = self._frames.splits.replace_listings(batch, directory.path, batch_id)
        frame = self._frames.with_static(planned, self._unread)

        def positions() -> dict[str, Any]:
            streaming = directory.positions(batch_id, driver.epoch)
            inputs = self._frames.identities.to_json(streaming["offsets"][str(batch_id)])
            return self._positions({**streaming, "inputs": inputs})

        driver.process(SparkEpochInput(frame, positions, self._frames, is_last=False))
        self._last_batch = batch_id
        self._unread = frozenset()
        with fault.point("spark.commit"):
            # On return Spark writes its own commit entry, on which Holdfast does not depend.
            return

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> list[TaskReport]:
        session, number, sources = self._session, 0, None
        if isinstance(epoch_input, StagedInput):
            number = epoch_input.epoch_job
        elif epoch_input is not None:
            assert isinstance(epoch_input, SparkEpochInput)
            sources = epoch_input.frame
            session = session if self._frames.streaming is None else sources.sparkSession
        plan = self._epoch_job_plans[number]
        epoch_job = f", epoch job {number}" if number else ""
        try:
            session.sparkContext.setJobDescription(f"{self._job.job_name}: epoch {epoch.epoch}{epoch_job}")
            if isinstance(epoch_input, StagedInput):
                sources = plan.prepared(self._staged[number].frame(epoch_input, epoch.epoch))
            with self._stages_of(epoch, number, session) as run_stage:
                rows = plan.build(sources, session, run_stage).collect()
        except Exception as error:  # noqa: BLE001 - raised again, in our words
            failure = translate(error, f"running epoch {epoch.epoch}{epoch_job}")
            raise failure from cause_of(failure, error)
        return [decode_report(bytes(row[0]), self._directory) for row in rows]

    @contextmanager
    def _stages_of(self, epoch: EpochDescriptor, number: int, session: SparkSession) -> Iterator[RunStage]:
        """Yield the function that runs the stages of an epoch job; meanwhile the epoch is a property of Spark jobs."""
        epoch_job, key, broadcast = self._plan.epoch_jobs[number], self._job.key, self._broadcast
        messages = {stage.index: StageMessage.of(epoch, stage) for stage in epoch_job.stages}
        text = encode_epoch(key, messages) if keeps_properties() else None
        properties = dict(MARK_TASKS) if keeps_properties() else {}
        if text is not None:
            properties[EPOCH_PROPERTY] = text

        def run_stage(frame: DataFrame, stage: Stage, columns: StructType) -> DataFrame:
            next_tasks = epoch_job.tasks.get(stage.index + 1, 0)
            if text is None:
                function = task_function(key, broadcast, messages[stage.index], stage.index, next_tasks)
                return map_in_arrow(frame, function, columns)
            if stage.index not in self._steps:
                function = task_function(key, broadcast, None, stage.index, next_tasks)
                self._steps[stage.index] = ArrowStep(function, columns, frame.columns)
            return self._steps[stage.index].over(frame)

        context: Any = session.sparkContext
        for name, value in properties.items():
            context.setLocalProperty(name, value)
        try:
            yield run_stage
        finally:
            for name in properties:
                context.setLocalProperty(name, None)

    def process_all_available(self, ended: threading.Event) -> None:
        """Block until a query of the job has processed all present input, or the job has ended."""
        while not ended.is_set():
            query = self._query
            if query is None:  # not started yet, or between two attempts
                ended.wait(0.05)
                continue
            try:
                with translate_fatal("waiting for the streaming query"):
                    query.processAllAvailable()
                if self._query is query and not self._is_restarting:
                    return
            except StreamingQueryException:
                while self._query is query and not ended.wait(0.05):
                    pass  # the job master sees the failure, and decides on another attempt

    @property
    def batch_rows(self) -> int:
        return arrow_batch_rows(self._session)

    def checkpoint_completed(self, positions: Mapping[str, Any]) -> None:
        self._listeners.notify_completed(positions)

    def bind_session(self, call: Callable[[], T]) -> Callable[[], T]:
        return bind_session(self._user_session, call)

    def services(self) -> Mapping[str, Any]:
        return {"read_parquet": self._read_parquet, "spark": self._user_session}

    def _read_parquet(self, paths: list[str]) -> DataFrame:
        return staged_frame(self._user_session, paths)

    def close(self) -> None:
        self._listeners.close()
        try:
            if self._query is not None and self._query.isActive:
                self._query.stop()
            if self._broadcast is not None:
                self._broadcast.destroy()
        except Exception as error:  # noqa: BLE001 - the error that failed the attempt matters, not this one
            logger.debug("closing the attempt: %s", error)
        self._query = None
        self._broadcast = None
        if self._query_directory is not None:
            with suppress(OSError):  # the error that failed the attempt matters, not this one
                self._consumed.record(self._frames.identities.lines, self._query_directory.path / "sources")
            remove_folder(self._session, self._query_directory.path)
            self._query_directory = None
