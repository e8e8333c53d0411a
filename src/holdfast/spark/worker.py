"""The entry of a Python worker: one Spark task runs one stage for one partition."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from holdfast.errors import HoldfastError
from holdfast.runtime.exchange.stage_message import StageMessage
from holdfast.runtime.task.identity import TaskIdentity
from holdfast.runtime.task.stage_task import StageTask
from holdfast.runtime.task.worker import load_job

_MARK = "holdfast-error:"
_MARKED = re.compile(_MARK + r"([A-Za-z0-9+/=]+):")


class TaskFailedError(Exception):
    """Carries an error of ours through Spark, which passes on only the text of what a task raised."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(f"{_MARK}{base64.b64encode(pickle.dumps(error)).decode()}:\n{error}")


def task_function(
    key: str, broadcast: Any, message: StageMessage, stage: int, next_tasks: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; it holds only the epoch: the job comes by broadcast, once a process."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(key, broadcast, message, stage, next_tasks, batches)

    return run


def run_task(
    key: str, broadcast: Any, message: StageMessage, stage: int, next_tasks: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs the task of this Spark partition."""
    try:
        context = TaskContext.get()
        assert context is not None
        job = load_job(key, lambda: broadcast.value)
        identity = TaskIdentity.fresh(stage, context.partitionId())
        task = StageTask(job, message.for_task(identity.partition), identity, next_tasks)
        yield from task.run(batches)
    except HoldfastError as error:
        raise TaskFailedError(_portable(error)) from error


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
