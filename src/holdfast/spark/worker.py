"""The entry of a Python worker: one Spark task runs one stage for one partition.

Each worker imports this module, so its imports stay few.
"""

from __future__ import annotations

import base64
import os
import pickle
import re
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from holdfast.errors import HoldfastError
from holdfast.runtime.exchange.stage_message import StageMessage
from holdfast.runtime.task.stage_task import StageTask, TaskIdentity
from holdfast.runtime.task.worker_process import collect_after_task, load_job

ERROR_MARK: Final = "holdfast-error:"
CRASHED: Final = (
    "Python worker exited unexpectedly",
    # A broken pipe on the way to the worker of a real-time task: Spark wrote to it before it read that it had ended.
    "PipelinedWriterRunnable.flushToSocket",
)
"""Texts of a task whose Python worker was killed, or crashed."""
_MARKED = re.compile(ERROR_MARK + r"([A-Za-z0-9+/=]+):")
EPOCH_PROPERTY: Final = "holdfast.epoch"
_LONGEST_TEXT: Final = 32 * 1024
"""Spark sends the properties of a job with each task and to all listeners, so they must be short."""

_DESCRIPTORS: Final = Path("/proc/self/fd")
_GRACE_SECONDS: Final = 2.0
_input_ended = threading.Event()


class TaskFailedError(Exception):
    """Carries an error of Holdfast through Spark, which passes on only the text of an exception in a task."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(f"{ERROR_MARK}{base64.b64encode(pickle.dumps(error)).decode()}:\n{error}")


def encode_epoch(key: str, messages: Mapping[int, StageMessage]) -> str | None:
    """Return the stage messages of an epoch as a property of Spark's job; None if they are too long for one.

    The functions of stages then stay the same from epoch to epoch, so Spark need not receive them again, which takes
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
    """Return the function for `mapInArrow`; the job comes by broadcast, once a process.

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
    try:
        with wrap_errors():
            disable_tcp_delays()
            context = TaskContext.get()
            assert context is not None
            stage_message = message or _message_of(context, key, stage)
            job = load_job(key, lambda: broadcast.value)
            identity = TaskIdentity.fresh(stage, context.partitionId())
            yield from StageTask(job, stage_message.for_task(identity.partition), identity, next_tasks).run(batches)
    finally:
        collect_after_task()


@contextmanager
def wrap_errors() -> Iterator[None]:
    """Raise errors of Holdfast as `TaskFailedError`, so that the driver gets them as they are.

    Raises:
        TaskFailedError: An error of Holdfast was raised.
    """
    try:
        yield
    except HoldfastError as error:
        raise TaskFailedError(_picklable(error)) from error


def _message_of(context: TaskContext, key: str, stage: int) -> StageMessage:
    message = base64.b64decode(context.getLocalProperty(EPOCH_PROPERTY) or "")
    target_key, messages = pickle.loads(message)  # noqa: S301 - the driver of this job wrote it
    if target_key != key:
        raise AssertionError(f"a task of {key!r} received an epoch of {target_key!r}")
    found: StageMessage = messages[stage]
    return found


def disable_tcp_delays() -> None:
    """Acknowledge Spark's input at once, and send the output as it is written.

    A worker and its JVM speak by TCP. The task's order and its input are sent one after the other, as the output and
    its end are, and TCP holds the second of two short pieces back until the first one is acknowledged, which takes 40
    ms where the other side has nothing to send. Each stage of an epoch waited for that.
    """
    for connection in _connections():
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@cache
def end_with_jvm() -> None:
    """End this process when its JVM gives it up; called before its first task, and again without effect.

    Spark closes the connection to the worker of a task that was cancelled. A worker that reads or writes notices that;
    one that sleeps, or waits for a service, would live on.
    """
    for connection in _connections():
        threading.Thread(target=_end_after, args=(connection,), name="holdfast-jvm", daemon=True).start()


def _end_after(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    if not _input_ended.is_set():
        time.sleep(_GRACE_SECONDS)  # a task that noticed it closes what it has opened
        os._exit(1)


def end_input() -> None:
    """Let this worker read no more from its JVM: its task has failed, and the worker ends after it has said so."""
    _input_ended.set()
    for connection in _connections():
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RD)


@cache
def _connections() -> tuple[socket.socket, ...]:
    """Return this worker's connections to its JVM; called before its first task, when there are no others."""
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
    """Return the error of Holdfast inside a Spark exception; None if a task failed for another reason."""
    try:
        found = _MARKED.search(str(failure))
    except Exception:  # noqa: BLE001 - one of Java, and the JVM is ending
        return None
    if found is None:
        return None
    error = pickle.loads(base64.b64decode(found.group(1)))  # noqa: S301 - this job's own task wrote it
    return error if isinstance(error, HoldfastError) else None


def _picklable(error: HoldfastError) -> HoldfastError:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - these bytes are from here
    except Exception:  # noqa: BLE001 - user code may pickle to anything
        # A key or value in the error cannot be pickled; its text can.
        return HoldfastError(str(error))
    return error
