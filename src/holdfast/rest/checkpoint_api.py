"""`/jobs/:jobid/checkpoints`, `/savepoints` and `/stop`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from holdfast.checkpoint import statistics_report as report
from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.checkpoint.options import SAVEPOINT_DIRECTORY
from holdfast.checkpoint.statistics import CheckpointStats
from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.operation import AsyncOperations
from holdfast.runtime.control import SnapshotRequest
from holdfast.runtime.job_master import JobMaster
from holdfast.runtime.rest_options import REST_STORE_DURATION
from holdfast.state.options import STATE_BACKEND


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

    def overview(self, request: Request) -> Answer:
        """GET /jobs/:jobid/checkpoints."""
        return Answer(report.overview(self._master.statistics.create_snapshot()))

    def config(self, request: Request) -> Answer:
        """GET /jobs/:jobid/checkpoints/config."""
        return Answer(
            report.config(
                CoordinatorConfiguration.from_options(self._options),
                state_backend=self._options.get(STATE_BACKEND),
                checkpoint_storage="filesystem",
            )
        )

    def details(self, request: Request) -> Answer:
        """GET /jobs/:jobid/checkpoints/details/:checkpointid."""
        return Answer(report.details(self._find(request)))

    def subtasks(self, request: Request) -> Answer:
        """GET /jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid."""
        vertex = request.path["vertexid"]
        found = report.subtask_details(self._find(request), vertex)
        if found is None:
            raise RefusedError(404, f"No operator {vertex!r} takes part in the checkpoint.")
        return Answer(found)

    def trigger_checkpoint(self, request: Request) -> Answer:
        """POST /jobs/:jobid/checkpoints."""
        kind = request.body.get("checkpointType", "CONFIGURED")
        if kind not in ("CONFIGURED", "FULL"):
            raise RefusedError(400, f"checkpointType is CONFIGURED or FULL, not {kind!r}.")
        if kind == "FULL":
            raise RefusedError(400, "A checkpoint always refers to files of earlier ones; take a savepoint instead.")
        trigger_id = _trigger_id(request)
        self._checkpoints.start(trigger_id, lambda: self._master.control.request(SnapshotRequest()))
        return Answer({"request-id": trigger_id}, 202)

    def checkpoint_status(self, request: Request) -> Answer:
        """GET /jobs/:jobid/checkpoints/:triggerid."""
        return self._status(self._checkpoints, request, "checkpoint", lambda number: {"checkpointId": number})

    def trigger_savepoint(self, request: Request) -> Answer:
        """POST /jobs/:jobid/savepoints."""
        directory = self._directory(request.body, "target-directory")
        trigger_id = _trigger_id(request)
        cancel = bool(request.body.get("cancel-job", False))

        def start() -> Future[Any]:
            future = self._master.control.request(SnapshotRequest(is_savepoint=True, directory=directory))
            if cancel:
                future.add_done_callback(self._cancel_if_done)
            return future

        self._savepoints.start(trigger_id, start)
        return Answer({"request-id": trigger_id}, 202)

    def stop(self, request: Request) -> Answer:
        """POST /jobs/:jobid/stop."""
        directory = self._directory(request.body, "targetDirectory")
        drain = bool(request.body.get("drain", False))
        wanted = SnapshotRequest(is_savepoint=True, directory=directory, stop=True, drain=drain)
        trigger_id = _trigger_id(request)
        self._savepoints.start(trigger_id, lambda: self._master.control.request(wanted))
        return Answer({"request-id": trigger_id}, 202)

    def savepoint_status(self, request: Request) -> Answer:
        """GET /jobs/:jobid/savepoints/:triggerid."""
        return self._status(self._savepoints, request, "savepoint", lambda path: {"location": path})

    def linger(self, seconds: float) -> None:
        """Wait until every outcome has been fetched, at most for some seconds."""
        deadline = time.monotonic() + seconds
        self._savepoints.wait_until_fetched(seconds)
        self._checkpoints.wait_until_fetched(max(0.0, deadline - time.monotonic()))

    def _status(self, operations: AsyncOperations, request: Request, kind: str, describe: Any) -> Answer:
        trigger_id = request.path["triggerid"]
        found = operations.status(trigger_id, describe)
        if found is None:
            job = self._master.job.job_id
            raise RefusedError(404, f"There is no {kind} operation with triggerId={trigger_id} for job {job}.")
        is_over = found["operation"] is not None
        return Answer(found, delivered=(lambda: operations.fetched(trigger_id)) if is_over else None)

    def _find(self, request: Request) -> CheckpointStats:
        text = request.path["checkpointid"]
        found = self._master.statistics.create_snapshot().find(int(text)) if text.isdecimal() else None
        if found is None:
            raise RefusedError(404, f"Checkpoint {text} is not known, or forgotten (web.checkpoints.history).")
        return found

    def _directory(self, body: Mapping[str, Any], name: str) -> str | None:
        """The directory that a request names; without one there must be a configured one."""
        other = "targetDirectory" if name == "target-directory" else "target-directory"
        directory = body.get(name) or body.get(other)
        if directory is not None and not isinstance(directory, str):
            raise RefusedError(400, f"{name} is text, not {directory!r}.")
        kind = body.get("formatType", "NATIVE")
        if kind != "NATIVE":
            raise RefusedError(400, f"formatType is NATIVE, not {kind!r}: a savepoint copies the files as they are.")
        if directory is None and self._options.get(SAVEPOINT_DIRECTORY) is None:
            raise RefusedError(
                400, f"Config key [{SAVEPOINT_DIRECTORY.key}] is not set. Property [{name}] must be provided."
            )
        return directory

    def _cancel_if_done(self, future: Future[Any]) -> None:
        if future.exception() is None:
            self._master.control.cancel()


def _trigger_id(request: Request) -> str:
    given = request.body.get("triggerId")
    if given is None:
        return uuid.uuid4().hex
    if not isinstance(given, str) or not given.isalnum() or len(given) > 64:
        raise RefusedError(400, f"triggerId has 1 to 64 letters and digits, not {given!r}.")
    return given
