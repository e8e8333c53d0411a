"""Real-time jobs on Spark: one batch job whose stages run at once and exchange rows while they run.

Spark 4.3 has a *pipelined shuffle* for its own real-time mode: it starts the stages on both sides of an exchange
together, and rows go from producers to consumers without files. The exchange is one flag of the physical plan, which
`PipelinedJob` sets.

What a task yields is on its way at once, but each exchange holds the last row of a producer back until another row
follows or the task ends. So tasks that have nothing to send follow a message with an empty one.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.exchange.layout import CONTROL, TARGET, MessageLayout
from holdfast.runtime.task.garbage_collection import collect_after_task
from holdfast.spark.exchange import layout_schema, place
from holdfast.spark.failure import text_of, translate
from holdfast.spark.frame import ArrowFunction, map_in_arrow
from holdfast.spark.session import bind_session
from holdfast.spark.worker import disable_tcp_delays, wrap_errors

logger = get_logger(__name__)

_JOB_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",  # a message goes to Python at once
    "spark.sql.execution.pandas.udf.buffer.size": "64",  # and so do its bytes
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",  # refused with these exchanges
}
_SQL: Final = "spark.sql."
_EXECUTION: Final = "spark.sql.execution.id"
_TOO_FEW_SLOTS: Final = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
_PATIENCE: Final = 60.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_CANCEL_PAUSE: Final = 0.1

_MESSAGES: Final = layout_schema(MessageLayout(()))
_NOTHING: Final = StructType([StructField(CONTROL, BinaryType())])


@dataclass(frozen=True)
class PipelinedStage:
    """A stage of a `PipelinedJob`.

    Attributes:
        function: Runs once a task. It gets what the stage before yielded for this task, one row a batch, and yields
            batches of `MessageLayout.schema`. The first stage gets no rows, the last one yields none.
        tasks: Number of tasks; each holds a slot while the job runs.
    """

    function: ArrowFunction
    tasks: int


class PipelinedJob:
    """A chain of Python stages that run at once, as one Spark job.

    The methods may be called by any thread.

    Args:
        session: The session; it keeps its settings.
        stages: The stages.
        description: What Spark's page calls the job.
    """

    def __init__(self, session: SparkSession, stages: Sequence[PipelinedStage], description: str) -> None:
        self._session = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
        for key, value in _JOB_SETTINGS.items():
            self._session.conf.set(key, value)
        self._stages = tuple(stages)
        self._description = description
        self._group = f"holdfast-{uuid.uuid4()}"
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._cancelled = threading.Event()
        self._failure: HoldfastError | None = None

    def start(self) -> None:
        """Start the job. Does not block; a failure, also one to start, is in `failure`."""
        call = bind_session(self._session, self._run)
        self._thread = threading.Thread(target=call, name=self._group, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and not self._ended.is_set()

    @property
    def failure(self) -> HoldfastError | None:
        """Why the job failed: the error of the task that failed first. None while it runs, and if it was cancelled."""
        return self._failure

    def wait(self, seconds: float) -> bool:
        """Block until the job has ended, or for some seconds; return whether it has ended."""
        return self._ended.wait(seconds)

    def cancel(self, seconds: float = 30.0) -> bool:
        """Cancel the job and block until it has ended, or for some seconds; return whether it has ended."""
        self._cancelled.set()
        if self._thread is None:
            return True
        deadline = time.monotonic() + seconds
        while not self._ended.is_set() and time.monotonic() < deadline:
            try:
                self._session.sparkContext.cancelJobGroup(self._group)
            except Exception as error:  # noqa: BLE001 - the JVM is gone, and with it the job
                logger.debug("cancelling %s: %s", self._description, redacted_message(error))
            self._ended.wait(_CANCEL_PAUSE)
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            self._run_when_there_are_slots()
        except Exception as error:  # noqa: BLE001 - the caller that watches the job gets it
            if not self._cancelled.is_set():
                failure = translate(error, f"running {self._description}")
                if failure is not error:
                    failure.__cause__ = error
                self._failure = failure
        finally:
            self._ended.set()

    def _run_when_there_are_slots(self) -> None:
        context = self._session.sparkContext
        self._set_properties()
        plan = self._frame()._jdf.queryExecution().executedPlan()
        deadline, pause = time.monotonic() + _PATIENCE, _FIRST_PAUSE
        while not self._cancelled.is_set():
            try:
                _pipelined(context._jvm, plan).executeCollectPublic()
                return
            except Exception as error:
                if _TOO_FEW_SLOTS not in text_of(error):
                    raise
                if time.monotonic() > deadline:
                    raise self._too_few_slots() from error
            # Executors may be starting, and other jobs may have tasks that wait.
            self._cancelled.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _set_properties(self) -> None:
        """Set what Spark sets for a query of its own: tasks see settings only as properties of the job."""
        context: Any = self._session.sparkContext
        context.setLocalProperty(_EXECUTION, None)
        settings = self._session._jsparkSession.sessionState().conf().getAllConfs()
        for key, value in context._jvm.scala.jdk.javaapi.CollectionConverters.asJava(settings).items():
            if key.startswith(_SQL):
                context.setLocalProperty(key, value)
        context.setJobGroup(self._group, self._description, interruptOnCancel=True)

    def _frame(self) -> Any:
        first = self._stages[0]
        frame = self._session.range(0, first.tasks, 1, first.tasks)
        for number, stage in enumerate(self._stages):
            if number:
                frame = place(frame, stage.tasks, TARGET)
            is_last = number == len(self._stages) - 1
            frame = map_in_arrow(frame, _task(stage.function), _NOTHING if is_last else _MESSAGES)
        return frame

    def _too_few_slots(self) -> ConfigurationError:
        needed = sum(stage.tasks for stage in self._stages)
        return ConfigurationError(
            f"{self._description} needs {needed} slots at once, one for each task, and {slots_of(self._session)} "
            "exist, some of which other jobs may use: give the job more cores, or lower 'parallelism.default'"
        )


def slots_of(session: SparkSession) -> int:
    """Return the number of tasks that can run at once on the executors that have registered."""
    context: Any = session.sparkContext._jsc
    scala = context.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _pipelined(jvm: Any, plan: Any) -> Any:
    """Return a copy of a physical plan whose exchanges are pipelined."""
    children = plan.children()
    count = children.size()
    if count:
        copies = [_pipelined(jvm, children.apply(i)) for i in range(count)]
        plan = plan.withNewChildren(jvm.PythonUtils.toSeq(copies))
    if plan.getClass().getSimpleName() != "ShuffleExchangeExec":
        return plan
    partitioning, origin, size = plan.outputPartitioning(), plan.shuffleOrigin(), plan.advisoryPartitionSize()
    return plan.copy(partitioning, plan.child(), origin, size, True)


def _task(function: ArrowFunction) -> ArrowFunction:
    """Return the function of a stage as Spark's workers run it."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            with wrap_errors():
                disable_tcp_delays()
                yield from function(batches)
                # Spark hands the worker to another task, which must not find input of this one.
                for _ in batches:
                    pass
        finally:
            collect_after_task()

    return run
