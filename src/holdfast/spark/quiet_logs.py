"""Filters for messages of Spark and Py4J about failed tasks and batches of Holdfast. Its jobs log the error themselves.

With HOLDFAST_LOG_LEVEL=DEBUG, as `holdfast run --verbose` sets it, they log everything. Only what Spark writes to the
console is filtered: its log files have everything. Messages about other jobs of the session are not filtered, except
two that name no job: a task that was lost with its Python worker, and, once a real-time job has run, a closed exchange.

Spark copies properties of a job that begin with `mdc.` into the log context of the threads that run its tasks in the
driver's process. A property of that kind marks the tasks of Holdfast's jobs.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import SparkSession

from holdfast.kernel.default_log import log_level
from holdfast.spark.worker import CRASHED, ERROR_MARK

OUR_NAME: Final = "holdfast-"
"""Prefix of the names of our streaming queries and groups of jobs."""

TASK_MARK: Final = "mdc.holdfast"
"""The property of Spark's jobs, and the key of the log context, that tasks of Holdfast have."""

_YES: Final = "true"
MARK_TASKS: Final = {TASK_MARK: _YES}
"""The properties to set for a Spark job of Holdfast."""

_HIDDEN: Final = (
    rf"(?s).*{ERROR_MARK}.*|"  # a lost task
    rf"(?s)Lost task .* cancelled job group {OUR_NAME}.*|"  # the other tasks of its real-time job
    # It was killed, and so were the other tasks of its stage.
    rf"(?s)Lost task .*({'|'.join(map(re.escape, CRASHED))}).*|"
    rf"Query {OUR_NAME}.* terminated with error"
)
_HIDDEN_IN_REAL_TIME: Final = r"A fatal error has occurred\."  # an exchange whose other side has failed
_HIDDEN_IN_TASKS: Final = r"Exception in task \d.*"  # the failure of a task by an executor in the driver's process
_CONSOLE: Final = "org.apache.logging.log4j.core.appender.ConsoleAppender"


class BatchFailedError(RuntimeError):
    """Ends a batch of Spark whose error the job has already."""


class _WithoutFailedBatches(logging.Filter):
    """Drops what Py4J logs of an error that it passes on to Spark."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], BatchFailedError))


_without_failed_batches: Final = _WithoutFailedBatches()


def hide_task_failures(session: SparkSession, *, is_real_time: bool = False) -> None:
    """Keep stack traces of failed tasks of Holdfast's jobs off the console, unless the log level is DEBUG.

    Does nothing where Spark does not log by Log4j 2.

    Args:
        session: A session of the JVM.
        is_real_time: Whether to hide failures of exchanges, too.
    """
    if log_level() == "DEBUG":
        return
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_without_failed_batches)
    with suppress(Exception):
        jvm: Any = session.sparkContext._jvm
        core = jvm.org.apache.logging.log4j.core
        context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
        deny, neutral, accept = core.Filter.Result.DENY, core.Filter.Result.NEUTRAL, core.Filter.Result.ACCEPT
        pattern = core.filter.RegexFilter.createFilter
        gateway: Any = session.sparkContext._gateway
        pairs = gateway.new_array(core.util.KeyValuePair, 1)
        pairs[0] = core.util.KeyValuePair(TASK_MARK, _YES)
        for appender in context.getConfiguration().getAppenders().values():
            if appender.getClass().getName() != _CONSOLE:
                continue
            if not _has_filter(appender, ERROR_MARK):
                appender.addFilter(pattern(_HIDDEN, None, False, deny, neutral))
                # Filters are asked in turn until one does not answer "neutral".
                appender.addFilter(pattern(_HIDDEN_IN_TASKS, None, False, neutral, accept))
                appender.addFilter(core.filter.ThreadContextMapFilter.createFilter(pairs, "and", deny, accept))
            if is_real_time and not _has_filter(appender, _HIDDEN_IN_REAL_TIME):
                others = appender.getFilter()
                appender.removeFilter(others)
                appender.addFilter(pattern(_HIDDEN_IN_REAL_TIME, None, False, deny, neutral))
                appender.addFilter(others)


def _has_filter(appender: Any, text: str) -> bool:
    present = appender.getFilter()
    return present is not None and text in str(present.toString())
