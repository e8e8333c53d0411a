"""`/jobs/:jobid/checkpoints`, `/savepoints` and `/stop`, and `/savepoint-disposal`.

`checkpoint/statistics.py` makes the answers about checkpoints.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
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
from holdfast.rest.job_schema import CAUSE, SPREAD
from holdfast.rest.route import (
    FLAG,
    INTEGER,
    STRING,
    TEXT,
    TRIGGER_ID,
    Schema,
    any_of,
    array,
    choice,
    component,
    described,
    integer,
    mapping,
    matching,
    nullable,
    record,
    serves,
)
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.job.options import REST_STORE_DURATION
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.options import STATE_BACKEND

_STATUS: Final = choice("IN_PROGRESS", "COMPLETED", "FAILED")
_SIZES: Final[Mapping[str, Schema]] = {
    "latest_ack_timestamp": INTEGER,
    "checkpointed_size": integer(0),
    "state_size": integer(0),
    "end_to_end_duration": INTEGER,
    "alignment_buffered": integer(0),
    "processed_data": integer(0),
    "persisted_data": integer(0),
    "num_subtasks": integer(0),
    "num_acknowledged_subtasks": integer(0),
    "alignment_duration": described("Longest alignment of a barrier in a subtask, in milliseconds.", integer(0)),
    "sync_duration": described("Longest part of a snapshot for which elements waited, in milliseconds.", integer(0)),
}
_VERTEX: Final = component("CheckpointedVertex", record({"id": integer(1), "status": _STATUS, **_SIZES}))
DETAILS: Final = component(
    "Checkpoint",
    record(
        {
            "className": choice("in_progress", "completed", "failed"),
            "id": integer(1),
            "status": _STATUS,
            "is_savepoint": FLAG,
            "savepointFormat": nullable(STRING),
            "trigger_timestamp": INTEGER,
            **_SIZES,
            "checkpoint_type": choice("CHECKPOINT", "SAVEPOINT", "SYNC_SAVEPOINT"),
            "tasks": mapping(_VERTEX),
        },
        {
            "external_path": STRING,
            "discarded": FLAG,
            "failure_timestamp": INTEGER,
            "failure_message": nullable(STRING),
        },
    ),
)
_SUMMARIZED: Final = (
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "processed_data",
    "alignment_buffered",
    "persisted_data",
)
_RESTORED: Final = record(
    {"id": integer(1), "restore_timestamp": INTEGER, "is_savepoint": FLAG, "external_path": STRING}
)
OVERVIEW: Final = component(
    "Checkpoints",
    record(
        {
            "counts": record(
                {name: integer(0) for name in ("restored", "total", "in_progress", "completed", "failed")}
            ),
            "summary": record(dict.fromkeys(_SUMMARIZED, SPREAD)),
            "latest": record(
                {
                    **dict.fromkeys(("completed", "savepoint", "failed"), nullable(DETAILS)),
                    "restored": nullable(_RESTORED),
                }
            ),
            "history": array(DETAILS),
        }
    ),
)
_SUBTASK: Final = any_of(
    record({"index": integer(0), "status": choice("pending_or_failed")}),
    record(
        {
            "index": integer(0),
            "status": choice("completed"),
            "ack_timestamp": INTEGER,
            "end_to_end_duration": INTEGER,
            "checkpointed_size": integer(0),
            "state_size": integer(0),
            "checkpoint": record({"sync": integer(0), "async": integer(0)}),
            "alignment": record({name: integer(0) for name in ("buffered", "processed", "persisted", "duration")}),
            "start_delay": integer(0),
            "unaligned_checkpoint": FLAG,
            "aborted": FLAG,
        }
    ),
)
SUBTASKS: Final = component(
    "CheckpointedSubtasks",
    record(
        {
            "id": integer(1),
            "status": _STATUS,
            **_SIZES,
            "summary": record(
                {
                    **dict.fromkeys(("checkpointed_size", "state_size", "end_to_end_duration", "start_delay"), SPREAD),
                    "checkpoint_duration": record({"sync": SPREAD, "async": SPREAD}),
                    "alignment": record(dict.fromkeys(("buffered", "processed", "persisted", "duration"), SPREAD)),
                }
            ),
            "subtasks": array(_SUBTASK),
        }
    ),
)
CONFIG: Final = component(
    "CheckpointConfig",
    record(
        {
            "mode": choice("exactly_once", "at_least_once"),
            "interval": INTEGER,
            "timeout": INTEGER,
            "min_pause": INTEGER,
            "max_concurrent": integer(1),
            "externalization": record({"enabled": FLAG, "delete_on_cancellation": FLAG}),
            "state_backend": STRING,
            "checkpoint_storage": STRING,
            "unaligned_checkpoints": FLAG,
            "tolerable_failed_checkpoints": INTEGER,
            "aligned_checkpoint_timeout": INTEGER,
            "checkpoints_after_tasks_finish": FLAG,
            "state_changelog_enabled": FLAG,
            "changelog_periodic_materialization_interval": INTEGER,
            "changelog_storage": STRING,
        }
    ),
)

TRIGGERED: Final = component("Triggered", record({"request-id": STRING}))
_TRIGGER: Final[Mapping[str, Schema]] = {
    "triggerId": described("Id of the operation. A second request with the same id starts nothing.", TRIGGER_ID)
}
_TARGET: Final[Mapping[str, Schema]] = {
    "target-directory": described("Absolute path or URI.", TEXT),
    "targetDirectory": described("Same as target-directory.", TEXT),
}
_FORMAT: Final[Mapping[str, Schema]] = {"formatType": choice(*(kind.name for kind in SavepointFormatType))}
CHECKPOINT_REQUEST: Final = record(
    None,
    {
        "checkpointType": choice(
            "CONFIGURED",
            "INCREMENTAL",
            refused={"FULL": (400, "Checkpoints are always incremental. Trigger a savepoint instead.")},
        ),
        **_TRIGGER,
    },
)
SAVEPOINT_REQUEST: Final = record(None, {**_TARGET, "cancel-job": FLAG, **_FORMAT, **_TRIGGER})
STOP_REQUEST: Final = record(None, {**_TARGET, "drain": FLAG, **_FORMAT, **_TRIGGER})
DISPOSAL_REQUEST: Final = record(
    {"savepoint-path": matching(r"(/|file:|.*://)", "the absolute path or the URI of a savepoint")}, _TRIGGER
)


def _operation(outcome: Schema) -> Schema:
    return any_of(
        record({"status": record({"id": choice("IN_PROGRESS")}), "operation": {"type": "null"}}),
        record(
            {
                "status": record({"id": choice("COMPLETED")}),
                "operation": any_of(outcome, record({"failure-cause": CAUSE})),
            }
        ),
    )


CHECKPOINT_STATUS: Final = component("CheckpointOperation", _operation(record({"checkpointId": integer(1)})))
SAVEPOINT_STATUS: Final = component("SavepointOperation", _operation(record({"location": STRING})))
DISPOSAL_STATUS: Final = component("DisposalOperation", _operation(record()))


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

    @serves("GET", "/jobs/:jobid/checkpoints", OVERVIEW)
    def overview(self, request: Request) -> Response:
        """The checkpoint statistics of a job, and its last checkpoints."""
        return Response(statistics.overview(self._master.statistics.create_snapshot()))

    @serves("GET", "/jobs/:jobid/checkpoints/config", CONFIG)
    def config(self, request: Request) -> Response:
        """The checkpoint configuration of a job."""
        return Response(
            statistics.config(
                CoordinatorConfiguration.from_options(self._options),
                state_backend=self._options.get(STATE_BACKEND),
                checkpoint_storage=self._options.get(CHECKPOINT_STORAGE) or _default_storage(self._options),
            )
        )

    @serves("GET", "/jobs/:jobid/checkpoints/details/:checkpointid", DETAILS)
    def details(self, request: Request) -> Response:
        """One checkpoint, by operators."""
        return Response(statistics.details(self._find(request)))

    @serves("GET", "/jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid", SUBTASKS)
    def subtasks(self, request: Request) -> Response:
        """The subtasks of an operator in a checkpoint."""
        vertex = request.path["vertexid"]
        found = statistics.subtask_details(self._find(request), vertex)
        if found is None:
            raise HttpError(404, f"The checkpoint has no operator {vertex!r}.")
        return Response(found)

    @serves("POST", "/jobs/:jobid/checkpoints", TRIGGERED, status=202, body=CHECKPOINT_REQUEST)
    def trigger_checkpoint(self, request: Request) -> Response:
        """Trigger a checkpoint."""
        trigger_id = request.trigger_id()
        self._checkpoints.start(trigger_id, lambda: self._master.control.request(SnapshotRequest()))
        return Response({"request-id": trigger_id}, 202)

    @serves("GET", "/jobs/:jobid/checkpoints/:triggerid", CHECKPOINT_STATUS)
    def checkpoint_status(self, request: Request) -> Response:
        """The status of a triggered checkpoint."""
        return self._status(self._checkpoints, request, "checkpoint", lambda number: {"checkpointId": number})

    @serves("POST", "/jobs/:jobid/savepoints", TRIGGERED, status=202, body=SAVEPOINT_REQUEST)
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

    @serves("POST", "/jobs/:jobid/stop", TRIGGERED, status=202, body=STOP_REQUEST)
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

    @serves("GET", "/jobs/:jobid/savepoints/:triggerid", SAVEPOINT_STATUS)
    def savepoint_status(self, request: Request) -> Response:
        """The status of a triggered savepoint, or of a stop with savepoint."""
        return self._status(self._savepoints, request, "savepoint", lambda path: {"location": path})

    @serves("POST", "/savepoint-disposal", TRIGGERED, body=DISPOSAL_REQUEST)
    def dispose(self, request: Request) -> Response:
        """Delete a savepoint, of any job."""
        path = request.body["savepoint-path"]
        trigger_id = request.trigger_id()
        self._disposals.start(trigger_id, lambda: self._disposer.submit(dispose_savepoint, path))
        return Response({"request-id": trigger_id})

    @serves("GET", "/savepoint-disposal/:triggerid", DISPOSAL_STATUS)
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
