"""Filters for messages of Spark and Py4J about failed tasks and batches. The job logs the error itself.

With HOLDFAST_LOG_LEVEL=DEBUG, as `holdfast run --verbose` sets it, they log everything. Only what Spark writes to the
console is filtered: its log files have everything.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import SparkSession

from holdfast.kernel.default_log import log_level
from holdfast.spark.worker import ERROR_MARK

QUERY_NAME: Final = "holdfast-"
"""Prefix of the names of our streaming queries."""

_HIDDEN: Final = (
    rf"(?s).*{ERROR_MARK}.*|"  # a lost task
    r"Exception in task \d.*|"  # the same, by an executor in the driver's process
    r"A fatal error has occurred\.|"  # its neighbours in a real-time job
    r"(?s).*Task \d+ in stage [\d.]+ failed \d+ times; aborting job.*|"
    rf"Query {QUERY_NAME}.* terminated with error"
)
_CONSOLE: Final = "org.apache.logging.log4j.core.appender.ConsoleAppender"


class BatchFailedError(RuntimeError):
    """Ends a batch of Spark whose error the job has already."""


class _WithoutFailedBatches(logging.Filter):
    """Drops what Py4J logs of an error that it passes on to Spark."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], BatchFailedError))


_without_failed_batches: Final = _WithoutFailedBatches()


def hide_task_failures(session: SparkSession) -> None:
    """Keep stack traces of failed tasks of jobs off the console, unless the log level is DEBUG.

    Does nothing where Spark does not log by Log4j 2.
    """
    if log_level() == "DEBUG":
        return
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_without_failed_batches)
    with suppress(Exception):
        jvm: Any = session.sparkContext._jvm
        core = jvm.org.apache.logging.log4j.core
        context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
        deny, neutral = core.Filter.Result.DENY, core.Filter.Result.NEUTRAL
        for appender in context.getConfiguration().getAppenders().values():
            if appender.getClass().getName() == _CONSOLE and not _has_filter(appender):
                appender.addFilter(core.filter.RegexFilter.createFilter(_HIDDEN, None, False, deny, neutral))


def _has_filter(appender: Any) -> bool:
    present = appender.getFilter()
    return present is not None and ERROR_MARK in str(present.toString())
