"""Epochs as Spark jobs: a streaming query feeds them through `foreachBatch`; each leg is one job with one action."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel import fault
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.barrier import Barrier
from holdfast.runtime.barrier_row import unpack
from holdfast.runtime.descriptor import EpochDescriptor, JobDescriptor
from holdfast.runtime.engine import Engine, EpochDriver, EpochInput, Outcome, StagedInput
from holdfast.runtime.plan import JobPlan, Level
from holdfast.spark.exchange import LegPlan
from holdfast.spark.failure import final_failures_told, translate
from holdfast.spark.frame import arrow_files
from holdfast.spark.positions import QueryDirectory
from holdfast.spark.query_log import start_with_plain_logs
from holdfast.spark.session import epoch_settings, private_session
from holdfast.spark.source import JobFrames, StagedFrames
from holdfast.spark.trigger import Trigger
from holdfast.spark.worker import task_function
from holdfast.storage.job_directory import JobDirectory

logger = logging.getLogger(__name__)


class SparkEpochInput(EpochInput):
    """The batch of a streaming query, or static frames, or both."""

    def __init__(self, frame: DataFrame, positions: Any, is_last: bool) -> None:
        self.frame = frame
        self.is_last = is_last
        self._positions = positions

    def positions(self) -> dict[str, Any]:
        result: dict[str, Any] = self._positions()
        return result


class SparkEngine(Engine):
    """Runs one job on a Spark session.

    Args:
        session: The user's session; its settings are not changed, but for one while a query starts (`query_log`).
        directory: The job's directory in checkpoint storage.
        trigger: When Spark starts batches.
    """

    def __init__(self, session: SparkSession, directory: JobDirectory, trigger: Trigger) -> None:
        self._user_session = session
        self._session = private_session(session)
        self._directory = directory
        self._trigger = trigger
        self._query: StreamingQuery | None = None
        self._private: QueryDirectory | None = None
        self._broadcast: Any = None
        self._failure: BaseException | None = None
        self._between_batches = threading.Event()
        self._between_batches.set()

    def prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int) -> None:
        with final_failures_told("preparing the job"):
            self._prepare(job, positions, token)

    def _prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int) -> None:
        self._failure = None
        self._is_set_up = False
        options = Configuration(dict(job.configuration))
        checkpoints = CoordinatorConfiguration.from_options(options)
        goes_back = checkpoints.interval > 0 or checkpoints.tolerable_failures > 0
        self._frames = JobFrames(job.plan, self._session, goes_back=goes_back)
        self.reship(job)
        self._static_consumed = bool(positions and positions.get("static_consumed"))
        self._private = QueryDirectory(Path(tempfile.mkdtemp(prefix="holdfast-query-")), self._directory, token)
        if positions and positions.get("streaming"):
            if self._frames.streaming is None:
                raise ConfigurationError(
                    "the checkpoint has positions of streaming inputs, but this job has none: start with --fresh, or "
                    "restore the inputs"
                )
            self._private.seed(positions["streaming"])
        self._positions: dict[str, Any] = dict(positions or {})

    def reship(self, job: JobDescriptor) -> None:
        self._job = job
        self._plan: JobPlan = job.plan
        with final_failures_told("shipping the job"):
            self._leg_plans = [LegPlan(leg, self._session) for leg in job.plan.legs]
            self._staged = {n: StagedFrames(leg, self._session) for n, leg in enumerate(job.plan.legs) if n}
            before, self._broadcast = self._broadcast, self._session.sparkContext.broadcast(job.to_bytes())
            if before is not None:
                before.unpersist()

    def drive(self, driver: EpochDriver) -> Outcome:
        with final_failures_told("running the streaming query"):
            return self._drive(driver)

    def _drive(self, driver: EpochDriver) -> Outcome:
        if self._frames.streaming is None:
            if not self._static_consumed:
                assert self._frames.static is not None
                frame = self._leg_plans[0].prepared(self._frames.static)
                driver.process(SparkEpochInput(frame, lambda: {"static_consumed": True}, is_last=True))
            return Outcome.STOPPED if driver.stopping else Outcome.ENDED
        self._start_query(self._leg_plans[0].prepared(self._frames.streaming), driver)
        assert self._query is not None
        try:
            while self._query.isActive and not driver.stopping:
                driver.tick_if_due()
                driver.wait(0.05 if self._trigger.ends else 0.2)
            if driver.stopping:
                # Spark cancels the jobs of a query that is stopped, and the epoch that runs is to come to its end. No
                # other one begins: the driver lets none in.
                self._between_batches.wait()
                self._query.stop()
        except HoldfastError:
            raise
        except Exception as error:
            raise translate(error, "running the streaming query") from error
        return self._outcome(driver)

    def _outcome(self, driver: EpochDriver) -> Outcome:
        assert self._query is not None
        if self._failure is not None:
            raise self._failure
        if driver.stopping:
            return Outcome.STOPPED
        failure = self._query.exception()
        if failure is not None:
            raise translate(failure, "running the streaming query") from failure
        return Outcome.EXHAUSTED

    def _start_query(self, frame: DataFrame, driver: EpochDriver) -> None:
        assert self._private is not None
        private = self._private

        def each_batch(batch: DataFrame, batch_id: int) -> None:
            self._between_batches.clear()
            try:
                self._run_batch(driver, private, batch, batch_id)
            except BaseException as error:
                self._failure = (
                    error if isinstance(error, HoldfastError) else translate(error, f"running batch {batch_id}")
                )
                raise
            finally:
                self._between_batches.set()

        writer = (
            frame.writeStream.foreachBatch(each_batch)
            .option("checkpointLocation", private.uri)
            .trigger(**self._trigger.arguments())
        )
        try:
            self._query = start_with_plain_logs(frame.sparkSession, writer.start)
        except Exception as error:
            raise translate(error, "starting the streaming query") from error

    def _run_batch(self, driver: EpochDriver, private: QueryDirectory, batch: DataFrame, batch_id: int) -> None:
        if not self._is_set_up:
            epoch_settings(batch.sparkSession)
            self._is_set_up = True
        frame = batch if self._static_consumed else self._frames.with_static(batch)
        assert frame is not None

        def positions() -> dict[str, Any]:
            streaming = private.positions(batch_id, driver.epoch)
            return {"streaming": streaming, "static_consumed": True}

        driver.process(SparkEpochInput(frame, positions, is_last=False))
        self._static_consumed = True
        with fault.point("spark.commit"):
            # Returning makes Spark write its own commit entry, which nothing of ours depends on.
            return

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> list[Barrier]:
        session, number, sources = self._session, 0, None
        if isinstance(epoch_input, StagedInput):
            number = epoch_input.leg
        elif epoch_input is not None:
            assert isinstance(epoch_input, SparkEpochInput)
            sources = epoch_input.frame
            session = session if self._frames.streaming is None else sources.sparkSession
        tasks, plan = self._plan.legs[number].tasks, self._leg_plans[number]

        def run_level(frame: DataFrame, level: Level, columns: StructType) -> DataFrame:
            function = task_function(self._job.key, self._broadcast, epoch, level.index, tasks.get(level.index + 1, 0))
            return frame.mapInArrow(function, columns)

        leg = f", leg {number}" if number else ""
        try:
            session.sparkContext.setJobDescription(f"{self._job.job_name}: epoch {epoch.epoch}{leg}")
            if isinstance(epoch_input, StagedInput):
                sources = plan.prepared(self._staged[number].frame(epoch_input, epoch.epoch))
            rows = plan.build(sources, session, run_level).collect()
        except Exception as error:
            raise translate(error, f"running epoch {epoch.epoch}{leg}") from error
        return [unpack(bytes(row[0]), self._directory) for row in rows]

    def process_all_available(self, ended: threading.Event) -> None:
        """Blocks until a query of the job has processed what its sources hold now, or the job has ended."""
        while not ended.is_set():
            query = self._query
            if query is None:  # not started yet, or between two attempts
                ended.wait(0.05)
                continue
            try:
                with final_failures_told("waiting for the streaming query"):
                    query.processAllAvailable()
                return
            except StreamingQueryException:
                while self._query is query and not ended.wait(0.05):
                    pass  # the job master learns of it, and decides whether there is another attempt

    def services(self) -> Mapping[str, Any]:
        return {"read_parquet": self._read_parquet, "spark": self._user_session}

    def _read_parquet(self, paths: list[str]) -> DataFrame:
        return arrow_files(self._user_session).parquet(*paths)

    def close(self) -> None:
        try:
            if self._query is not None and self._query.isActive:
                self._query.stop()
            if self._broadcast is not None:
                self._broadcast.destroy()
        except Exception as error:
            logger.debug("closing the attempt: %s", error)
        self._query = None
        self._broadcast = None
        if self._private is not None:
            shutil.rmtree(self._private.path, ignore_errors=True)
            self._private = None
