"""Real-time jobs on Spark: one batch job whose stages run at once and exchange rows while they run.

Spark 4.3 has a *pipelined shuffle* for its own real-time mode: it starts the stages on both sides of an exchange
together, and rows go from producers to consumers without files. The exchange is one flag of the physical plan, which
`PipelinedJob` sets.

Spark waits for one row more before it hands a batch to Python, so the last message would wait for the next one, however
late. So the plan adds an empty row behind each message where it arrives, and a batch is such a row and the next
message. Tasks need not send a message to push another one.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.exchange.layout import CONTROL, PHASE, RESERVED, TARGET, MessageLayout
from holdfast.runtime.task.worker_process import collect_after_task
from holdfast.spark.exchange import layout_schema, place
from holdfast.spark.failure import TaskFailure, cause_of, text_of, translate
from holdfast.spark.frame import ArrowFunction, map_in_arrow
from holdfast.spark.quiet_logs import MARK_TASKS, OUR_NAME
from holdfast.spark.session import REAL_TIME_SETTINGS, bind_session, keeps_properties
from holdfast.spark.worker import disable_tcp_delays, end_input, end_with_jvm, error_in, wrap_errors

logger = get_logger(__name__)

_JOB_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2",  # the empty row behind a message, and the next message
    "spark.sql.execution.pandas.udf.buffer.size": "64",  # bytes go to Python at once
    "spark.sql.codegen.wholeStage": "false",  # seconds of a processor when a job starts, for a few rows a second
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",  # refused with these exchanges
}
_UNPROTECTED: Final = "real-time messages would cross the network unauthenticated and in the clear, so run it by epochs"
_FORBIDDEN: Final = {
    "spark.authenticate": _UNPROTECTED,
    "spark.network.crypto.enabled": _UNPROTECTED,
    "spark.io.encryption.enabled": _UNPROTECTED,
    "spark.ssl.enabled": _UNPROTECTED,
    "spark.ssl.rpc.enabled": _UNPROTECTED,
    "spark.speculation": "set it to false",
}
_SINCE: Final = (4, 3)
_PIPELINED_WORKER: Final = "SPARK_PIPELINED_UDF"
_warned: set[str] = set()
_functions = threading.Lock()
_SQL: Final = "spark.sql."
_EXECUTION: Final = "spark.sql.execution.id"
_TOO_FEW_SLOTS: Final = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_SLOT_PAUSE: Final = 0.05
_CANCEL_PAUSE: Final = 0.1
_CONSEQUENCES: Final = ("ClosedChannelException", "streaming shuffle writer", "streaming shuffle reader")
"""Texts of a task whose exchange ended because a task on its other side had failed."""
_LONGEST_SEARCH: Final = 3.0
_SEARCH_PAUSE: Final = 0.1
_ALL: Final = 2**31 - 1
_BUFFER: Final = "spark.shuffle.streaming.networkBufferSize"
_BUFFER_DEFAULT: Final = 32 * 1024

_MESSAGES: Final = layout_schema(MessageLayout(()))
_NUMBER: Final = f"{RESERVED}number"
_NUMBERED: Final = (CONTROL, TARGET, PHASE, f"monotonically_increasing_id() & {2**33 - 1}L as {_NUMBER}")
"""The messages of a task with their numbers; the upper bits are the number of the task."""

_FOLLOWED: Final = (
    f"explode(if({_NUMBER} = 0, array(null, {CONTROL}, null), array({CONTROL}, null))) as {CONTROL}",
    TARGET,
    PHASE,
)
"""An empty row behind each message, and another one before the first, so that each batch ends with a message."""

_NOTHING: Final = StructType([StructField(CONTROL, BinaryType())])


@dataclass(frozen=True)
class PipelinedStage:
    """A stage of a `PipelinedJob`.

    Attributes:
        function: Runs once a task. It gets what the stage before yielded for this task, one message a batch, and
            yields batches of `MessageLayout.schema`. The first stage gets no batch, the last one yields none.
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
        slot_timeout: Seconds in which executors may start, and other jobs may end, until there are slots for all tasks.
    """

    def __init__(
        self, session: SparkSession, stages: Sequence[PipelinedStage], description: str, *, slot_timeout: float = 60.0
    ) -> None:
        self._session = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
        for key, value in _JOB_SETTINGS.items():
            self._session.conf.set(key, value)
        self._stages = tuple(stages)
        self._description = description
        self._slot_timeout = slot_timeout
        self._group = f"{OUR_NAME}{uuid.uuid4()}"
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
        """The error of the task that failed first, also while Spark runs it again; None if the job was cancelled."""
        if self._failure is not None or not self.is_running or self._cancelled.is_set():
            return self._failure
        first = self._first_failure()
        return None if first is None else self._translated(first)

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
                origin = self._origin_of(error)
                failure = self._translated(origin)
                if failure is not error:
                    failure.__cause__ = error if cause_of(failure, origin) is origin else failure.__cause__
                self._failure = failure
        finally:
            self._ended.set()

    def _translated(self, failure: Exception) -> HoldfastError:
        return translate(failure, f"running {self._description}")

    def _run_when_there_are_slots(self) -> None:
        context = self._session.sparkContext
        self._set_properties()
        plan = self._frame()._jdf.queryExecution().executedPlan()
        deadline, pause = time.monotonic() + self._slot_timeout, _FIRST_PAUSE
        while not self._cancelled.is_set():
            try:
                _pipelined(context._jvm, plan).executeCollectPublic()
                return
            except Exception as error:
                if _TOO_FEW_SLOTS not in text_of(error):
                    raise
                if time.monotonic() > deadline:
                    raise self._too_few_slots() from error
            self._wait_for_slots(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _wait_for_slots(self, seconds: float) -> None:
        """Block until an executor has started, or for some seconds: other jobs may have tasks that wait."""
        deadline, before = time.monotonic() + seconds, slots_of(self._session)
        while time.monotonic() < deadline and slots_of(self._session) <= before:
            if self._cancelled.wait(_SLOT_PAUSE):
                return

    def _origin_of(self, error: Exception) -> Exception:
        """Return the failure of the task that failed first, for an error that Spark raised for the job.

        A task that fails closes its exchanges, on which the tasks behind them fail, and Spark names the task whose
        failure it learned first.
        """
        deadline = time.monotonic() + _LONGEST_SEARCH
        while _is_consequence(error) and time.monotonic() < deadline:
            first = self._first_failure()
            if first is not None:
                return first
            time.sleep(_SEARCH_PAUSE)  # Spark learns of failures one after the other
        return error

    def _first_failure(self) -> TaskFailure | None:
        """Return the failure of the task that failed first, as far as Spark knows."""
        try:
            texts = _failures_in(self._session.sparkContext, self._group)
        except Exception as failure:  # noqa: BLE001 - the JVM is ending, or knows the job no more
            logger.debug("the tasks of %s are unknown: %s", self._description, redacted_message(failure))
            return None
        found = sorted((TaskFailure(text) for text in texts), key=lambda one: error_in(one) is None)
        return next((failure for failure in found if not _is_consequence(failure)), None)

    def _set_properties(self) -> None:
        """Set what Spark sets for a query of its own: tasks see settings only as properties of the job."""
        context: Any = self._session.sparkContext
        context.setLocalProperty(_EXECUTION, None)
        settings = self._session._jsparkSession.sessionState().conf().getAllConfs()
        for key, value in context._jvm.scala.jdk.javaapi.CollectionConverters.asJava(settings).items():
            if key.startswith(_SQL):
                context.setLocalProperty(key, value)
        for key, value in MARK_TASKS.items():
            context.setLocalProperty(key, value)
        context.setJobGroup(self._group, self._description, interruptOnCancel=True)

    def _frame(self) -> Any:
        first = self._stages[0]
        frame = self._session.range(0, first.tasks, 1, first.tasks)
        for number, stage in enumerate(self._stages):
            if number:
                frame = place(frame, stage.tasks, TARGET).selectExpr(*_NUMBERED).selectExpr(*_FOLLOWED)
            is_last = number == len(self._stages) - 1
            with _pipelined_worker(self._session):
                frame = map_in_arrow(frame, _task(stage.function), _NOTHING if is_last else _MESSAGES)
        return frame

    def _too_few_slots(self) -> ConfigurationError:
        needed = sum(stage.tasks for stage in self._stages)
        return ConfigurationError(
            f"{self._description} needs {needed} slots at once, one for each task, and {slots_of(self._session)} "
            "exist, some of which other jobs may use: give the job more cores, or lower 'parallelism.default'"
        )


@contextmanager
def _pipelined_worker(session: SparkSession) -> Iterator[None]:
    """Let the workers of functions that are made inside send each batch at once, and read beside their work.

    Spark sets this variable itself in contexts with the settings of real time. Other functions get workers of their
    own, because their variables differ.
    """
    variables = session.sparkContext.environment
    with _functions:
        before = variables.get(_PIPELINED_WORKER)
        variables[_PIPELINED_WORKER] = "1"
        try:
            yield
        finally:
            if before is None:
                del variables[_PIPELINED_WORKER]
            else:
                variables[_PIPELINED_WORKER] = before


def slots_of(session: SparkSession) -> int:
    """Return the number of tasks that can run at once on the executors that have registered."""
    context: Any = session.sparkContext._jsc
    scala = context.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _is_consequence(error: Exception) -> bool:
    text = text_of(error)
    return error_in(error) is None and any(sign in text for sign in _CONSEQUENCES)


def _failures_in(context: Any, group: str) -> list[str]:
    """Return the texts of the failed tasks of a job group, in the order in which they ended."""
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    texts = []
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            tasks = store.taskList(stage, 0, _ALL)
            for task in (tasks.apply(i) for i in range(tasks.size())):
                if task.status() == "FAILED" and task.errorMessage().isDefined():
                    ended = task.launchTime().getTime() + (task.duration().get() if task.duration().isDefined() else 0)
                    texts.append((ended, task.errorMessage().get()))
    return [text for _, text in sorted(texts)]


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
                end_with_jvm()
                arriving = _Arriving(batches)
                yield from function(arriving)
                arriving.skip()
        except Exception:
            # PySpark waits for five seconds for its thread that reads, unless the input ends.
            end_input()
            raise
        finally:
            collect_after_task()

    return run


class _Arriving:
    """The messages in batches that begin with an empty row; the last batch may have nothing else.

    A stage may read in a thread of its own, which may still wait for a message when the stage has ended.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._reading = threading.Lock()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._reading:
            for batch in self._batches:
                # Linux returns to delayed acknowledgements, and the JVM waits up to 40 ms for one before it writes on.
                disable_tcp_delays()
                if batch.num_rows > 1:
                    return batch.slice(1)
        raise StopIteration

    def skip(self) -> None:
        """Read to the end: Spark hands the worker to another task, which must not find input of this one."""
        for _ in self:
            pass


def check_real_time(session: SparkSession, workers: Sequence[int], *, is_running: bool = False) -> None:
    """Check that real-time jobs can run on a session; log a warning, once a context, if they will be slow.

    Args:
        session: The session.
        workers: Number of workers of each stage, or of several stages that share theirs. Each needs a slot.
        is_running: Whether the job runs on the session. Before it does, executors of a cluster may still be starting.

    Raises:
        ConfigurationError: They cannot run on it.
    """
    if not hasattr(session, "_jsparkSession"):
        raise _refused("a Spark Connect session", "create a classic session (without spark.remote)")
    if _version(session.version) < _SINCE:
        raise _refused(f"Spark {session.version}", "install PySpark 4.3 or newer, or run it by epochs")
    if not keeps_properties():
        raise _refused("PYSPARK_PIN_THREAD=false", "remove this variable before the session starts")
    context: Any = session.sparkContext
    conf = context.getConf()
    for key, why in _FORBIDDEN.items():
        if (conf.get(key) or "").lower() == "true":
            raise _refused(f"{key}=true", why)
    scala = context._jsc.sc()
    if context._jvm.org.apache.spark.util.Utils.isDynamicAllocationEnabled(scala.conf()):
        remedy = "set it to false, and spark.executor.instances to what the job needs"
        raise _refused("spark.dynamicAllocation.enabled=true", remedy)
    needed, slots = sum(workers), slots_of(session)
    if needed > slots and (scala.isLocal() or is_running):
        more = f"use spark.master=local[{needed}]" if scala.isLocal() else "give it more executors or cores"
        raise ConfigurationError(
            f"The job needs {needed} slots at once, one for each task of its stages, and spark.master={context.master} "
            f"has {slots}: {more}, or lower 'parallelism.default'."
        )
    _warn_if_slow(context.applicationId, {key: conf.get(key) for key in REAL_TIME_SETTINGS})


def frame_bytes(session: SparkSession) -> int:
    """Return the most bytes of a message: three quarters of a network buffer, which has Spark's own bytes too.

    A message that is longer than a buffer makes Spark allocate more for it, in a slow job until no memory is left.
    """
    context: Any = session.sparkContext._jsc
    return int(context.sc().conf().getInt(_BUFFER, _BUFFER_DEFAULT)) * 3 // 4


def _refused(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"A real-time job cannot run with {what}: {remedy}.")


def _version(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


def _is_slower(found: str | None, wanted: str) -> bool:
    if found is not None and found.isdigit() and wanted.isdigit():
        return int(found) > int(wanted)
    return found != wanted


def _warn_if_slow(application: str, settings: Mapping[str, str | None]) -> None:
    missing = {key: value for key, value in REAL_TIME_SETTINGS.items() if _is_slower(settings[key], value)}
    if not missing or application in _warned:
        return
    _warned.add(application)
    logger.warning(
        "real-time results take about 30 ms longer on this Spark context than they need: start it with %s",
        " ".join(f"--conf {key}={value}" for key, value in missing.items()),
    )
