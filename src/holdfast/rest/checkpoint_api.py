"""`/jobs/:jobid/checkpoints`, `/savepoints` and `/stop`, and `/savepoint-disposal`.

`checkpoint/statistics.py` makes the answers about checkpoints; their schemas are in `rest/schema/checkpoint_schema.py`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from holdfast.checkpoint import statistics
from holdfast.checkpoint.claim import dispose_savepoint
from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.checkpoint.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY, SAVEPOINT_DIRECTORY
from holdfast.checkpoint.snapshot_type import SavepointFormatType
from holdfast.checkpoint.statistics import CheckpointStats
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import Clock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import without_credentials
from holdfast.rest.http import HttpError, Request, Response
from holdfast.rest.route import serves
from holdfast.rest.schema import checkpoint_schema as schema
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.job.options import REST_STORE_DURATION
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.options import STATE_BACKEND

Start = Callable[[], "Future[Any]"]
_ID: Final = re.compile("[0-9]{1,19}")
_DIRECTORY: Final = ("target-directory", "targetDirectory")


class AsyncOperations:
    """Triggered operations by the id that the client chose. Thread-safe.

    A running operation is never forgotten, a completed one after `store_ms`.

    Args:
        clock: Time.
        store_ms: Milliseconds for which a result is kept; 0 for ever.
    """

    def __init__(self, clock: Clock, store_ms: int) -> None:
        self._clock = clock
        self._store_ms = store_ms
        self._lock = threading.Condition()
        self._futures: dict[str, Future[Any]] = {}
        self._ended: dict[str, float] = {}
        self._fetched: set[str] = set()

    def start(self, trigger_id: str, start: Start) -> None:
        """Start an operation, unless one with this id was started before.

        Raises:
            HoldfastError: The operation cannot be started; its id can be used again.
        """
        with self._lock:
            self._forget()
            if trigger_id in self._futures:
                return
            self._futures[trigger_id] = future = start()
        future.add_done_callback(lambda _: self._end(trigger_id))

    def status(self, trigger_id: str, describe: Callable[[Any], dict[str, Any]]) -> dict[str, Any] | None:
        """Return the status of an operation in Flink's JSON; None if there is no such operation.

        Args:
            trigger_id: The operation.
            describe: Returns the JSON of its result.
        """
        with self._lock:
            self._forget()
            future = self._futures.get(trigger_id)
        if future is None:
            return None
        if not future.done():
            return {"status": {"id": "IN_PROGRESS"}, "operation": None}
        error = future.exception()
        outcome = describe(future.result()) if error is None else {"failure-cause": failure_json(error)}
        return {"status": {"id": "COMPLETED"}, "operation": outcome}

    def fetched(self, trigger_id: str) -> None:
        """Mark the result of an operation as fetched by the client."""
        with self._lock:
            self._fetched.add(trigger_id)
            self._lock.notify_all()

    def wait_until_fetched(self, seconds: float) -> None:
        """Wait until clients have fetched the results of all operations, at most for some seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._futures.keys() <= self._fetched, seconds)

    def _end(self, trigger_id: str) -> None:
        with self._lock:
            self._ended[trigger_id] = self._clock.monotonic() * 1000

    def _forget(self) -> None:
        if self._store_ms:
            before = self._clock.monotonic() * 1000 - self._store_ms
            for trigger_id in [name for name, ended in self._ended.items() if ended <= before]:
                del self._ended[trigger_id], self._futures[trigger_id]
                self._fetched.discard(trigger_id)


def failure_json(error: BaseException) -> dict[str, str]:
    kind = type(error).__name__
    notes = getattr(error, "__notes__", ()) if isinstance(error, HoldfastError) else ()
    return {"class": kind, "message": without_credentials(" ".join([str(error), *notes]))}


class CheckpointApi:
    """The checkpoints and savepoints of one job.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._options = master.job.configuration
        store_ms = self._options.get(REST_STORE_DURATION)
        self._checkpoints = AsyncOperations(master.job.clock, store_ms)
        self._savepoints = AsyncOperations(master.job.clock, store_ms)
        self._disposals = AsyncOperations(master.job.clock, store_ms)
        self._disposer = ThreadPoolExecutor(1, "holdfast-rest-disposal")

    @serves("GET", "/jobs/:jobid/checkpoints", schema.OVERVIEW)
    def overview(self, request: Request) -> Response:
        """The checkpoint statistics of a job, and its last checkpoints."""
        return Response(statistics.overview(self._master.statistics.create_snapshot()))

    @serves("GET", "/jobs/:jobid/checkpoints/config", schema.CONFIG)
    def config(self, request: Request) -> Response:
        """The checkpoint configuration of a job."""
        return Response(
            statistics.config(
                CoordinatorConfiguration.from_options(self._options),
                state_backend=self._options.get(STATE_BACKEND),
                checkpoint_storage=self._options.get(CHECKPOINT_STORAGE) or _default_storage(self._options),
            )
        )

    @serves("GET", "/jobs/:jobid/checkpoints/details/:checkpointid", schema.DETAILS)
    def details(self, request: Request) -> Response:
        """One checkpoint, by operators."""
        return Response(statistics.details(self._find(request)))

    @serves("GET", "/jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid", schema.SUBTASKS)
    def subtasks(self, request: Request) -> Response:
        """The subtasks of an operator in a checkpoint."""
        vertex = request.path["vertexid"]
        found = statistics.subtask_details(self._find(request), vertex)
        if found is None:
            raise HttpError(404, f"The checkpoint has no operator {vertex!r}.")
        return Response(found)

    @serves("POST", "/jobs/:jobid/checkpoints", schema.TRIGGERED, status=202, body=schema.CHECKPOINT_REQUEST)
    def trigger_checkpoint(self, request: Request) -> Response:
        """Trigger a checkpoint."""
        trigger_id = request.trigger_id()
        self._checkpoints.start(trigger_id, lambda: self._master.control.request(SnapshotRequest()))
        return Response({"request-id": trigger_id}, 202)

    @serves("GET", "/jobs/:jobid/checkpoints/:triggerid", schema.CHECKPOINT_STATUS)
    def checkpoint_status(self, request: Request) -> Response:
        """The status of a triggered checkpoint."""
        return self._status(self._checkpoints, request, "checkpoint", lambda number: {"checkpointId": number})

    @serves("POST", "/jobs/:jobid/savepoints", schema.TRIGGERED, status=202, body=schema.SAVEPOINT_REQUEST)
    def trigger_savepoint(self, request: Request) -> Response:
        """Trigger a savepoint."""
        directory = self._directory(request, *_DIRECTORY)
        wanted = SnapshotRequest(is_savepoint=True, directory=directory, format_type=_format(request))
        cancel = bool(request.body.get("cancel-job"))
        trigger_id = request.trigger_id()

        def start() -> Future[Any]:
            future = self._master.control.request(wanted)
            if cancel:
                future.add_done_callback(self._cancel_if_done)
            return future

        self._savepoints.start(trigger_id, start)
        return Response({"request-id": trigger_id}, 202)

    @serves("POST", "/jobs/:jobid/stop", schema.TRIGGERED, status=202, body=schema.STOP_REQUEST)
    def stop(self, request: Request) -> Response:
        """Stop a job with a savepoint."""
        wanted = SnapshotRequest(
            is_savepoint=True,
            directory=self._directory(request, *reversed(_DIRECTORY)),
            stop=True,
            drain=bool(request.body.get("drain")),
            format_type=_format(request),
        )
        trigger_id = request.trigger_id()
        self._savepoints.start(trigger_id, lambda: self._master.control.request(wanted))
        return Response({"request-id": trigger_id}, 202)

    @serves("GET", "/jobs/:jobid/savepoints/:triggerid", schema.SAVEPOINT_STATUS)
    def savepoint_status(self, request: Request) -> Response:
        """The status of a triggered savepoint, or of a stop with savepoint."""
        return self._status(self._savepoints, request, "savepoint", lambda path: {"location": path})

    @serves("POST", "/savepoint-disposal", schema.TRIGGERED, body=schema.DISPOSAL_REQUEST)
    def dispose(self, request: Request) -> Response:
        """Delete a savepoint, of any job."""
        path = request.body["savepoint-path"]
        trigger_id = request.trigger_id()
        self._disposals.start(trigger_id, lambda: self._disposer.submit(dispose_savepoint, path))
        return Response({"request-id": trigger_id})

    @serves("GET", "/savepoint-disposal/:triggerid", schema.DISPOSAL_STATUS)
    def disposal_status(self, request: Request) -> Response:
        """The status of the deletion of a savepoint."""
        return self._status(self._disposals, request, "disposal", lambda path: {})

    def linger(self, seconds: float) -> None:
        """Wait until clients have fetched every result, at most for some seconds."""
        deadline = time.monotonic() + seconds
        self._savepoints.wait_until_fetched(seconds)
        self._checkpoints.wait_until_fetched(max(0.0, deadline - time.monotonic()))
        self._disposals.wait_until_fetched(max(0.0, deadline - time.monotonic()))
        self._disposer.shutdown(wait=False)

    def _status(
        self, operations: AsyncOperations, request: Request, kind: str, describe: Callable[[Any], dict[str, Any]]
    ) -> Response:
        trigger_id = request.path["triggerid"]
        found = operations.status(trigger_id, describe)
        if found is None:
            job = self._master.job.job_id
            raise HttpError(404, f"There is no {kind} operation with triggerId={trigger_id} for job {job}.")
        is_over = found["operation"] is not None
        return Response(found, delivered=(lambda: operations.fetched(trigger_id)) if is_over else None)

    def _find(self, request: Request) -> CheckpointStats:
        text = request.path["checkpointid"]
        found = self._master.statistics.create_snapshot().find(int(text)) if _ID.fullmatch(text) else None
        if found is None:
            raise HttpError(404, f"Checkpoint {text} is unknown, or older than the history (web.checkpoints.history).")
        return found

    def _directory(self, request: Request, name: str, other: str) -> str | None:
        """Return the directory that a request names, None if it names none and one is configured."""
        directory = request.text(name, other)
        if directory is None and self._options.get(SAVEPOINT_DIRECTORY) is None:
            raise HttpError(
                400, f"Config key [{SAVEPOINT_DIRECTORY.key}] is not set. Property [{name}] must be provided."
            )
        return directory

    def _cancel_if_done(self, future: Future[Any]) -> None:
        if future.exception() is None:
            self._master.control.cancel()


def _default_storage(options: Configuration) -> str:
    return "jobmanager" if options.get(CHECKPOINTS_DIRECTORY) is None else "filesystem"


def _format(request: Request) -> SavepointFormatType:
    return SavepointFormatType[request.body.get("formatType", SavepointFormatType.CANONICAL.name)]
