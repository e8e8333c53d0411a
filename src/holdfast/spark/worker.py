"""The entry of a Python worker: one Spark task runs one stage for one partition."""

from __future__ import annotations

import base64
import os
import pickle
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from holdfast.errors import HoldfastError
from holdfast.runtime.exchange.stage_message import StageMessage
from holdfast.runtime.task.stage_task import StageTask, TaskIdentity, collect_after_task
from holdfast.runtime.task.worker import load_job

_MARK = "holdfast-error:"
_MARKED = re.compile(_MARK + r"([A-Za-z0-9+/=]+):")
EPOCH_PROPERTY: Final = "holdfast.epoch"
_LONGEST_TEXT: Final = 32 * 1024
"""Spark sends the properties of a job with each task, and tells them to whoever listens."""

_DESCRIPTORS: Final = Path("/proc/self/fd")


class TaskFailedError(Exception):
    """Carries an error of ours through Spark, which passes on only the text of what a task raised."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(f"{_MARK}{base64.b64encode(pickle.dumps(error)).decode()}:\n{error}")


def encode_epoch(key: str, messages: Mapping[int, StageMessage]) -> str | None:
    """What the tasks of an epoch job are told, for a property of Spark's job; None if that is too much for one.

    So the functions of stages stay the same from epoch to epoch, and Spark need not be given them anew, which takes
    dozens of calls into the JVM for each.

    Args:
        key: The job attempt.
        messages: By stage.
    """
    text = base64.b64encode(pickle.dumps((key, dict(messages)), pickle.HIGHEST_PROTOCOL)).decode()
    return text if len(text) <= _LONGEST_TEXT else None


def task_function(
    key: str, broadcast: Any, message: StageMessage | None, stage: int, next_tasks: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; the job comes by broadcast, once a process.

    Args:
        key: The job attempt.
        broadcast: The job.
        message: The epoch; None if it is in a property of Spark's job.
        stage: The stage.
        next_tasks: Number of tasks of the stage below.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(key, broadcast, message, stage, next_tasks, batches)

    return run


def run_task(
    key: str,
    broadcast: Any,
    message: StageMessage | None,
    stage: int,
    next_tasks: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs the task of this Spark partition."""
    try:
        with wrap_errors():
            disable_tcp_delays()
            context = TaskContext.get()
            assert context is not None
            told = message or _told(context, key, stage)
            job = load_job(key, lambda: broadcast.value)
            identity = TaskIdentity.fresh(stage, context.partitionId())
            yield from StageTask(job, told.for_task(identity.partition), identity, next_tasks).run(batches)
    finally:
        collect_after_task()


@contextmanager
def wrap_errors() -> Iterator[None]:
    """Lets errors of ours get from a process of Spark to the driver as they are.

    Raises:
        TaskFailedError: One was raised.
    """
    try:
        yield
    except HoldfastError as error:
        raise TaskFailedError(_portable(error)) from error


def _told(context: TaskContext, key: str, stage: int) -> StageMessage:
    meant_for, messages = pickle.loads(base64.b64decode(context.getLocalProperty(EPOCH_PROPERTY) or ""))
    if meant_for != key:
        raise AssertionError(f"a task of {key!r} was told an epoch of {meant_for!r}")
    found: StageMessage = messages[stage]
    return found


def disable_tcp_delays() -> None:
    """Tells Spark's JVM now that what it has sent has come, and lets what this task writes go out as it is written.

    A worker and its JVM speak by TCP. What a task is to do and its input are sent one after the other, as the output
    and the end of it are, and TCP holds the second of two short pieces back until the first one is acknowledged, for
    which the other side takes 40 ms unless it has something to say itself. Each stage of an epoch waited for that.
    """
    for connection in _connections():
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@cache
def _connections() -> tuple[socket.socket, ...]:
    """This worker's connections to its JVM; looked for before its first task, when there are no others."""
    found: dict[Any, socket.socket] = {}
    if not hasattr(socket, "TCP_QUICKACK") or not _DESCRIPTORS.is_dir():
        return ()
    for number in [int(descriptor.name) for descriptor in _DESCRIPTORS.iterdir()]:
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            connection = socket.socket(fileno=os.dup(number))
            if connection.family != socket.AF_UNIX and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                found.setdefault((connection.getsockname(), connection.getpeername()), connection)
    return tuple(found.values())


def error_in(failure: BaseException) -> HoldfastError | None:
    """The error of ours inside a Spark exception, None if a task failed for another reason."""
    try:
        found = _MARKED.search(str(failure))
    except Exception:  # one of Java, and the JVM is ending
        return None
    if found is None:
        return None
    error = pickle.loads(base64.b64decode(found.group(1)))
    return error if isinstance(error, HoldfastError) else None


def _portable(error: HoldfastError) -> HoldfastError:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # A key or value in the error cannot be pickled; its text can.
        return HoldfastError(str(error))
    return error
