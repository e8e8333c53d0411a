"""Spark sessions: the user's, and the private one in which epochs are planned."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import ConfigurationError, EngineLostError
from holdfast.kernel.configuration import Configuration, parse_duration
from holdfast.kernel.secret import get_logger
from holdfast.runtime.job.options import EXECUTION_TRIGGER, JOB_NAME, is_real_time_trigger
from holdfast.spark.java import ensure_java

logger = get_logger(__name__)
T = TypeVar("T")

_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str(2**31 - 1)  # the only value with which Spark does not add up sizes
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MESSAGES_SINCE = (4, 1)
_MOST_BATCH_ROWS = 200_000  # with more a message would count for so many rows that Spark's time for them shows
_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_PYTHON = "spark.pyspark.python"

REAL_TIME_SETTINGS: Final = {
    "spark.python.udf.pipelined.enabled": "true",
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "5",
}
"""Settings of a context with which real-time results take some milliseconds; without them about 30 more.

A thread of each task wakes in the interval of the second one: with 1 ms, those of an idle job take more than all the
rest of it.
"""

REAL_TIME_DEFAULTS: Final = {
    **REAL_TIME_SETTINGS,
    "spark.shuffle.streaming.networkBufferSize": "131072",
    "spark.dynamicAllocation.enabled": "false",
    "spark.speculation": "false",
}
"""Settings of a session that Holdfast creates for real-time jobs, unless the user sets them."""
_MASTER: Final = "spark.master"
_DAEMON: Final = "spark.python.daemon.module"
_PY_FILES: Final = "spark.submit.pyFiles"
_ALL_CORES: Final = "local[*]"  # Spark's own choice where nothing names a master
_LEAST_SLOTS: Final = 8
_SLOTS_PER_CORE: Final = 4

_NO_JVM: Final = (Py4JError, OSError, EOFError)
"""Errors of a call when the JVM is gone."""
_KEY: Final = "spark.sql.streaming.checkpointFileManagerClass"
_POLLING: Final = "spark.sql.streaming.pollingDelay"
_POLLING_DEFAULT: Final = "10"  # Spark's default, in milliseconds
_STARTING: Final = "Initializing"
_LONGEST_START: Final = 10.0
_PAUSE: Final = 0.005
_LATE_TRIGGER: Final = (
    "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor",
    "org.apache.spark.sql.execution.streaming.ProcessingTimeExecutor",
)
"""The loggers of Spark's warning about an epoch that is longer than the interval, before and since Spark 4.1."""
_WARNINGS_PER_SECOND: Final = 1 / 600


def get_or_create(configuration: Configuration) -> SparkSession:
    """Return the session that runs here, or a new one with the `spark.*` settings of the configuration.

    For a real-time job a new one also has the settings that such jobs need. Without a master it has slots for a few
    stages: four a core, at least eight. All stages hold their slots for the job's life, so most tasks wait most of the
    time.

    A session is active only in the thread that made it; in other threads Spark's builder would change its settings.

    Raises:
        ConfigurationError: There is no Java that Spark can run on, or `execution.trigger` is invalid.
    """
    running = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if running is not None and not _is_stopped(running):
        return running
    ensure_java()
    settings = configuration.to_texts()
    # Spark starts its workers by this name; left alone it takes the first python3 of the path, whatever that has. Its
    # setting says so only to spark-submit, which puts it into the environment: here there may be none.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _PYTHON in settings:
        os.environ["PYSPARK_PYTHON"] = settings[_PYTHON]
    builder = SparkSession.builder.appName(configuration.get(JOB_NAME) or "holdfast")
    of_spark = {key: text for key, text in settings.items() if key.startswith("spark.")}
    if EpochTrigger.parse(configuration.get(EXECUTION_TRIGGER)).is_real_time:
        of_spark = _for_real_time(of_spark)
    for key, text in of_spark.items():
        builder = builder.config(key, text)
    return builder.getOrCreate()


def _for_real_time(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a new session with those that real-time jobs need."""
    found = {**REAL_TIME_DEFAULTS, **settings}
    # Spark's files and command line have settings, too. Only the JVM knows them, and it starts with these settings.
    conf = SparkConf(loadDefaults=False)
    for key, text in found.items():
        conf.set(key, text)
    SparkContext._ensure_initialized(conf=conf)
    of_spark = SparkConf()
    if _MASTER not in found and of_spark.get(_MASTER, _ALL_CORES) == _ALL_CORES:
        jvm: Any = SparkContext._jvm
        cores = jvm.java.lang.Runtime.getRuntime().availableProcessors()
        found[_MASTER] = f"local[{max(_LEAST_SLOTS, _SLOTS_PER_CORE * cores)}]"
    # The process that forks workers does not see the files of `--py-files`, nor what only other hosts lack.
    is_local = str(found.get(_MASTER) or of_spark.get(_MASTER)).startswith("local")
    if is_local and not any(found.get(key) or of_spark.get(key, "") for key in (_DAEMON, _PY_FILES)):
        found[_DAEMON] = "holdfast.spark.daemon"
    return found


def warn_ignored_options(session: SparkSession, configuration: Configuration) -> None:
    """Warn of `spark.*` options that do not hold, because the session existed before the job."""
    for key, text in sorted(configuration.to_texts().items()):
        if key.startswith("spark.") and str(session.conf.get(key, None)).lower() != text.lower():
            logger.warning(
                "option %s has no effect: the job runs on an existing Spark session; set it where the session is made",
                key,
            )


def private_session(session: SparkSession) -> SparkSession:
    """Return a clone with the settings that epochs need; the user's session keeps its own.

    Raises:
        ConfigurationError: The session is a Spark Connect session, or was stopped.
    """
    if not hasattr(session, "_jsparkSession"):
        raise ConfigurationError(
            "this is a Spark Connect session, on which Holdfast does not run yet: create a classic session (without "
            "spark.remote)"
        )
    if _is_stopped(session):
        raise ConfigurationError(
            "the Spark session of this environment was stopped: make a new one, and a new environment on it; its jobs "
            "go on from their last completed checkpoints"
        )
    clone = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
    epoch_settings(clone)
    if not clone._jsparkSession.sessionState().conf().contains(_SHUFFLE_PARTITIONS):
        # Nothing makes 200 partitions fewer when adaptive execution is off, and each may become a Python task.
        clone.conf.set(_SHUFFLE_PARTITIONS, str(session.sparkContext.defaultParallelism))
    return clone


def require_running(session: SparkSession) -> None:
    """Check that the session runs: a query that waits for input does not notice that it was stopped.

    Raises:
        EngineLostError: It was stopped.
    """
    if _is_stopped(session):
        raise EngineLostError(
            "the Spark session was stopped under the job; run it again on a new session, it resumes from its last "
            "completed checkpoint"
        )


def _is_stopped(session: SparkSession) -> bool:
    return session.sparkContext._jsc is None


def arrow_batch_rows(session: SparkSession) -> int:
    """Return the rows of a batch that Spark hands to Python; 0 without a fit limit, or for an untested version."""
    major, minor, *_ = session.version.split(".")
    rows = int(session.conf.get(_BATCH_ROWS) or 0)
    return rows if (int(major), int(minor)) >= _MESSAGES_SINCE and 0 < rows <= _MOST_BATCH_ROWS else 0


def epoch_settings(session: SparkSession) -> None:
    """Set what every epoch runs with.

    Adaptive execution off: with it each shuffle is a job of its own, and two tasks may read different attempts of one
    upstream task. Shuffle checksums on, so that a recomputed map stage with other rows is noticed; earlier versions
    than 4.1 ignore them. No limit on the bytes of a batch, unless the user has set one: to keep it, Spark (since 4.1)
    adds up the sizes of all buffers after each row, a third of the time of its tasks. The number of rows is limited
    anyway.
    """
    session.conf.set("spark.sql.adaptive.enabled", "false")
    if session.conf.get(_BATCH_BYTES, None) is None:
        session.conf.set(_BATCH_BYTES, _NO_LIMIT)
    for key in _CHECKSUMS:
        session.conf.set(key, "true")


def keeps_properties() -> bool:
    """Return whether each thread of Python has a thread of the JVM, so that jobs have the properties it set."""
    return isinstance(SparkContext._gateway, ClientServer)


def bind_session(session: SparkSession, call: Callable[[], T]) -> Callable[[], T]:
    """Return a call for another thread, with Spark's properties of this thread and the session as the active one.

    Without a JVM, or with a stopped session, the call is made without them: it may need no Spark.
    """
    context = session.sparkContext
    java = context._jsc
    if not keeps_properties() or java is None:
        return call  # threads of Python have none of their own in the JVM
    of_version = getattr(SparkSession, "_get_j_spark_session_class", lambda jvm: jvm.SparkSession)
    try:
        properties = java.sc().getLocalProperties().clone()
    except _NO_JVM:
        return call

    def made() -> T:
        with suppress(*_NO_JVM):
            java.sc().setLocalProperties(properties)
            of_version(context._jvm).setActiveSession(session._jsparkSession)
        return call()

    return made


def new_folder(session: SparkSession, prefix: str, *others: str) -> Path:
    """Return a new folder for temporary files; the JVM removes it at its end, `remove_folder` before.

    A process that is killed removes nothing, but the JVM that it started notices that it is gone.

    Args:
        session: Session of the JVM.
        prefix: Prefix of its name.
        others: Further paths that the JVM removes at its end.
    """
    path = tempfile.mkdtemp(prefix=prefix)
    jvm: Any = session.sparkContext._jvm
    for each in (path, *others):
        jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(each))
    return Path(path)


def remove_folder(session: SparkSession, path: Path) -> None:
    """Remove a folder now. Never raises."""
    shutil.rmtree(path, ignore_errors=True)
    jvm: Any = session.sparkContext._jvm
    with suppress(Exception):  # the JVM may be gone, and what it would have removed is not there
        jvm.org.apache.spark.util.ShutdownHookManager.removeShutdownDeleteDir(jvm.java.io.File(str(path)))


# Logs of streaming queries. By default Spark starts a `readlink` process for each file that it renames on a local disk:
# 24 processes a batch, which take 60 to 100 ms. The logs of our queries are scratch (a checkpoint has copies), so they
# are written through the plain file-system API. Spark reads this setting from the session of the query's input,
# while the query starts.

_PLAIN: Final = tuple(
    f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
    for package in ("checkpointing.", "")  # since Spark 4.1, and before
)

_starting = threading.Lock()


def start_with_plain_logs(
    session: SparkSession, start: Callable[[], StreamingQuery], interval: float | None = None
) -> StreamingQuery:
    """Start a query whose logs are written plainly; return when it and its sources have made their logs.

    Args:
        session: The session of the query's input. It has the settings for this moment; the user's own stay.
        start: Starts the query.
        interval: Seconds between two looks for new input while there is none; None for Spark's own.
    """
    limit_late_trigger_warnings(session)
    with _starting, _plain_logs(session), _looking_every(session, interval):
        query = start()
        deadline = time.monotonic() + _LONGEST_START
        while query.isActive and query.status["message"].startswith(_STARTING) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return query


@contextmanager
def _looking_every(session: SparkSession, interval: float | None) -> Iterator[None]:
    if interval is None or session.conf.get(_POLLING, None) not in (None, _POLLING_DEFAULT):
        yield
        return
    session.conf.set(_POLLING, f"{max(1, round(1000 * interval))}ms")
    try:
        yield
    finally:
        session.conf.unset(_POLLING)


def limit_late_trigger_warnings(session: SparkSession) -> None:
    """Let Spark warn once in ten minutes, and not once a batch, that batches take longer than the trigger's interval.

    Does nothing where Spark does not log by Log4j 2, and where its configuration names the loggers.
    """
    with suppress(Exception):
        jvm = session.sparkContext._jvm
        assert jvm is not None
        log4j = jvm.org.apache.logging.log4j
        context = log4j.LogManager.getContext(False)
        logging = context.getConfiguration()
        for name in _LATE_TRIGGER:
            if logging.getLoggerConfig(name).getName() != name:
                builder = log4j.core.filter.BurstFilter.newBuilder()
                builder.setLevel(log4j.Level.WARN).setRate(_WARNINGS_PER_SECOND).setMaxBurst(1)
                logger = log4j.core.config.LoggerConfig(name, None, True)
                logger.addFilter(builder.build())
                logging.addLogger(name, logger)
        context.updateLoggers()


@contextmanager
def _plain_logs(session: SparkSession) -> Iterator[None]:
    name = _plain_manager(session)
    if name is None:
        yield
        return
    session.conf.set(_KEY, name)
    try:
        yield
    finally:
        session.conf.unset(_KEY)


def _plain_manager(session: SparkSession) -> str | None:
    """Return the class that writes plainly; None if the user set one, or this Spark has none of the known names."""
    jvm = session.sparkContext._jvm
    if jvm is None or session.conf.get(_KEY, None) is not None:
        return None
    for name in _PLAIN:
        try:
            jvm.java.lang.Class.forName(name)
        except Py4JJavaError:
            continue
        return name
    return None


@dataclass(frozen=True)
class EpochTrigger:
    """A parsed `execution.trigger`.

    Attributes:
        ends: Whether the query ends when the present input has been processed.
        interval: Milliseconds between starts of batches; 0 means as soon as possible.
        is_real_time: Whether one Spark job runs for many checkpoints, instead of one or more an epoch.
    """

    ends: bool = False
    interval: int = 0
    is_real_time: bool = False

    @property
    def waits(self) -> bool:
        """Whether Spark waits for a time between two batches, by the wall clock."""
        return not self.ends and self.interval > 0

    @classmethod
    def parse(cls, text: str) -> EpochTrigger:
        """Parse `continuous`, `available-now`, `real-time` or an interval such as `10 s`.

        Raises:
            ConfigurationError: It is none of these.
        """
        word = text.strip().lower()
        if word == "continuous":
            return cls()
        if word in ("available-now", "availablenow"):
            return cls(ends=True)
        if is_real_time_trigger(word):
            return cls(is_real_time=True)
        try:
            return cls(interval=parse_duration(text))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"execution.trigger {text!r} is neither 'continuous', 'available-now', 'real-time' nor an interval "
                "such as '10 s'"
            ) from error

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `DataStreamWriter.trigger`; a real-time job has no streaming query."""
        assert not self.is_real_time
        if self.ends:
            return {"availableNow": True}
        return {"processingTime": f"{self.interval} milliseconds"}
