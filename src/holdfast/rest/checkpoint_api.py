"""`/jobs/:jobid/checkpoints`, `/savepoints` and `/stop`, and `/savepoint-disposal`."""

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
from holdfast.rest.form import checkpoint_form as form
from holdfast.rest.http import Answer, RefusedError, Request
from holdfast.rest.route import serves
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.job.options import REST_STORE_DURATION
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.environment import STATE_BACKEND

# Savepoints and checkpoints that somebody asked for over REST, until their outcome was fetched or is forgotten.

Start = Callable[[], "Future[Any]"]


class AsyncOperations:
    """Operations by the id that the client chose. Safe to use from several threads.

    An operation that is under way is never forgotten, one that has ended after `store_ms`.

    Args:
        clock: Time.
        store_ms: How long an outcome is kept, in milliseconds; 0 for ever.
    """

    def __init__(self, clock: Clock, store_ms: int) -> None:
        self._clock = clock
        self._store_ms = store_ms
        self._lock = threading.Condition()
        self._futures: dict[str, Future[Any]] = {}
        self._ended: dict[str, float] = {}
        self._fetched: set[str] = set()

    def start(self, trigger_id: str, start: Start) -> None:
        """Start an operation, unless one with this id has been started before.

        Raises:
            HoldfastError: It cannot be started; nothing is remembered.
        """
        with self._lock:
            self._forget()
            if trigger_id in self._futures:
                return
            self._futures[trigger_id] = future = start()
        future.add_done_callback(lambda _: self._end(trigger_id))

    def status(self, trigger_id: str, describe: Callable[[Any], dict[str, Any]]) -> dict[str, Any] | None:
        """Return the status of an operation in Flink's form; None if there is no such operation.

        Args:
            trigger_id: The operation.
            describe: Makes JSON of its result.
        """
        with self._lock:
            self._forget()
            future = self._futures.get(trigger_id)
        if future is None:
            return None
        if not future.done():
            return {"status": {"id": "IN_PROGRESS"}, "operation": None}
        error = future.exception()
        outcome = describe(future.result()) if error is None else {"failure-cause": cause_of(error)}
        return {"status": {"id": "COMPLETED"}, "operation": outcome}

    def fetched(self, trigger_id: str) -> None:
        """The client has the outcome of an operation."""
        with self._lock:
            self._fetched.add(trigger_id)
            self._lock.notify_all()

    def wait_until_fetched(self, seconds: float) -> None:
        """Wait until clients have the outcomes of all operations, at most for some seconds."""
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


def cause_of(error: BaseException) -> dict[str, str]:
    """Return an error as JSON."""
    kind = type(error).__name__
    notes = getattr(error, "__notes__", ()) if isinstance(error, HoldfastError) else ()
    return {"class": kind, "message": without_credentials(" ".join([str(error), *notes]))}


_ID: Final = re.compile("[0-9]{1,19}")
_DIRECTORY: Final = ("target-directory", "targetDirectory")


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

    @serves("GET", "/jobs/:jobid/checkpoints", form.OVERVIEW)
    def overview(self, request: Request) -> Answer:
        """The checkpoints of a job: how many, how large, how long, and the last ones."""
        return Answer(statistics.overview(self._master.statistics.create_snapshot()))

    @serves("GET", "/jobs/:jobid/checkpoints/config", form.CONFIG)
    def config(self, request: Request) -> Answer:
        """How checkpoints are taken."""
        return Answer(
            statistics.config(
                CoordinatorConfiguration.from_options(self._options),
                state_backend=self._options.get(STATE_BACKEND),
                checkpoint_storage=self._options.get(CHECKPOINT_STORAGE) or _default_storage(self._options),
            )
        )

    @serves("GET", "/jobs/:jobid/checkpoints/details/:checkpointid", form.DETAILS)
    def details(self, request: Request) -> Answer:
        """One checkpoint, by operators."""
        return Answer(statistics.details(self._find(request)))

    @serves("GET", "/jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid", form.SUBTASKS)
    def subtasks(self, request: Request) -> Answer:
        """What each subtask of an operator gave to a checkpoint."""
        vertex = request.path["vertexid"]
        found = statistics.subtask_details(self._find(request), vertex)
        if found is None:
            raise RefusedError(404, f"No operator {vertex!r} takes part in the checkpoint.")
        return Answer(found)

    @serves("POST", "/jobs/:jobid/checkpoints", form.TRIGGERED, status=202, body=form.CHECKPOINT_WISH)
    def trigger_checkpoint(self, request: Request) -> Answer:
        """Ask for a checkpoint."""
        trigger_id = request.trigger_id()
        self._checkpoints.start(trigger_id, lambda: self._master.control.request(SnapshotRequest()))
        return Answer({"request-id": trigger_id}, 202)

    @serves("GET", "/jobs/:jobid/checkpoints/:triggerid", form.CHECKPOINT_STATUS)
    def checkpoint_status(self, request: Request) -> Answer:
        """What has become of a checkpoint that was asked for."""
        return self._status(self._checkpoints, request, "checkpoint", lambda number: {"checkpointId": number})

    @serves("POST", "/jobs/:jobid/savepoints", form.TRIGGERED, status=202, body=form.SAVEPOINT_WISH)
    def trigger_savepoint(self, request: Request) -> Answer:
        """Ask for a savepoint."""
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
        return Answer({"request-id": trigger_id}, 202)

    @serves("POST", "/jobs/:jobid/stop", form.TRIGGERED, status=202, body=form.STOP_WISH)
    def stop(self, request: Request) -> Answer:
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
        return Answer({"request-id": trigger_id}, 202)

    @serves("GET", "/jobs/:jobid/savepoints/:triggerid", form.SAVEPOINT_STATUS)
    def savepoint_status(self, request: Request) -> Answer:
        """What has become of a savepoint, or of a stop, that was asked for."""
        return self._status(self._savepoints, request, "savepoint", lambda path: {"location": path})

    @serves("POST", "/savepoint-disposal", form.TRIGGERED, body=form.DISPOSAL_WISH)
    def dispose(self, request: Request) -> Answer:
        """Have a savepoint deleted, of any job."""
        path = request.body["savepoint-path"]
        trigger_id = request.trigger_id()
        self._disposals.start(trigger_id, lambda: self._disposer.submit(dispose_savepoint, path))
        return Answer({"request-id": trigger_id})

    @serves("GET", "/savepoint-disposal/:triggerid", form.DISPOSAL_STATUS)
    def disposal_status(self, request: Request) -> Answer:
        """What has become of the disposal of a savepoint."""
        return self._status(self._disposals, request, "disposal", lambda path: {})

    def linger(self, seconds: float) -> None:
        """Wait until every outcome has been fetched, at most for some seconds."""
        deadline = time.monotonic() + seconds
        self._savepoints.wait_until_fetched(seconds)
        self._checkpoints.wait_until_fetched(max(0.0, deadline - time.monotonic()))
        self._disposals.wait_until_fetched(max(0.0, deadline - time.monotonic()))
        self._disposer.shutdown(wait=False)

    def _status(
        self, operations: AsyncOperations, request: Request, kind: str, describe: Callable[[Any], dict[str, Any]]
    ) -> Answer:
        trigger_id = request.path["triggerid"]
        found = operations.status(trigger_id, describe)
        if found is None:
            job = self._master.job.job_id
            raise RefusedError(404, f"There is no {kind} operation with triggerId={trigger_id} for job {job}.")
        is_over = found["operation"] is not None
        return Answer(found, delivered=(lambda: operations.fetched(trigger_id)) if is_over else None)

    def _find(self, request: Request) -> CheckpointStats:
        text = request.path["checkpointid"]
        found = self._master.statistics.create_snapshot().find(int(text)) if _ID.fullmatch(text) else None
        if found is None:
            raise RefusedError(404, f"Checkpoint {text} is not known, or forgotten (web.checkpoints.history).")
        return found

    def _directory(self, request: Request, name: str, other: str) -> str | None:
        """The directory that a request names; without one there must be a configured one."""
        directory = request.text(name, other)
        if directory is None and self._options.get(SAVEPOINT_DIRECTORY) is None:
            raise RefusedError(
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
