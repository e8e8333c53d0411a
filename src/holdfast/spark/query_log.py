"""The logs that a streaming query keeps of its batches, and how Spark writes them.

Spark's default asks `readlink` in a process of its own about each file that it renames on a local disk: 24 processes a
batch, which take 60 to 100 ms. The logs of our queries are scratch (what a checkpoint needs of them is copied), so they
are written through the plain file-system API, which asks nobody. Which way a query writes is a setting of the session
that its input belongs to, and is read while the query starts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_KEY: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN: Final = tuple(
    f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
    for package in ("checkpointing.", "")  # since Spark 4.1, and before
)
_POLLING: Final = "spark.sql.streaming.pollingDelay"
_POLLING_DEFAULT: Final = "10"  # as Spark tells it: milliseconds
_STARTING: Final = "Initializing"
_LONGEST_START: Final = 10.0
_PAUSE: Final = 0.005

_starting = threading.Lock()


def start_with_plain_logs(
    session: SparkSession, start: Callable[[], StreamingQuery], interval: float | None = None
) -> StreamingQuery:
    """Starts a query whose logs are written plainly; returns when it and its sources have made their logs.

    Args:
        session: The session of the query's input. Its settings are there for this moment; those of the user stay.
        start: Starts the query.
        interval: Seconds between two looks for new input while there is none; None for Spark's own.
    """
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
    """The class that writes plainly, None if the user has chosen one or this Spark has none by a name known here."""
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
