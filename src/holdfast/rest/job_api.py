"""`/jobs` and what is below it, but for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.kernel.secret import shown
from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.graph.job_graph import JobGraph
from holdfast.rest.metric.job_numbers import metrics_of
from holdfast.rest.metric.prometheus import exposition
from holdfast.rest.metric.sample import samples_of, to_json
from holdfast.rest.operation import cause_of
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.job.status import JobStatus
from holdfast.runtime.master.job_master import JobMaster

RESCALE_SECONDS: Final = 60.0
_APPLICATION_STATUS: Final = {
    JobStatus.FINISHED: "SUCCEEDED",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FAILED: "FAILED",
    JobStatus.SUSPENDED: "UNKNOWN",
}


class JobApi:
    """The one job of a master.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._id = str(master.job.job_id)
        self._graph = JobGraph(master)

    def not_ready(self) -> str | None:
        """Why the process is not ready, None if it is: the job runs, or stands by to go on with it. Does not block."""
        status = self._master.status
        is_ready = status in (JobStatus.CREATED, JobStatus.RUNNING)
        return None if is_ready else f"The job is {status.value}."

    def jobs(self, request: Request) -> Answer:
        """GET /jobs."""
        return Answer({"jobs": [{"id": self._id, "status": self._master.status.value}]})

    def overview(self, request: Request) -> Answer:
        """GET /jobs/overview."""
        summary = self._summary()
        tasks = {"total": sum(max(1, step.parallelism) for step in self._steps())}
        return Answer({"jobs": [summary | {"tasks": tasks, "pending-operators": 0}]})

    def details(self, request: Request) -> Answer:
        """GET /jobs/:jobid."""
        history = self._master.history.entered
        vertices = self._graph.vertices()
        running = self._master.status.value
        return Answer(
            self._summary()
            | {
                "isStoppable": False,
                "job-type": "STREAMING",
                "now": self._now(),
                "timestamps": {status.value: history.get(status, 0) for status in JobStatus},
                "vertices": vertices,
                "status-counts": {running: len(vertices)},
                "plan": self._graph.plan(),
                "pending-operators": 0,
                "progress": self._progress(),
            }
        )

    def status(self, request: Request) -> Answer:
        """GET /jobs/:jobid/status."""
        return Answer({"status": self._master.status.value})

    def config(self, request: Request) -> Answer:
        """GET /jobs/:jobid/config; secrets are left out."""
        options = {key: shown(key, text) for key, text in self._master.job.configuration.to_texts().items()}
        return Answer(
            {
                "jid": self._id,
                "name": self._master.job.name,
                "execution-config": {
                    "job-parallelism": self._master.job.default_parallelism,
                    "object-reuse-mode": False,
                    "user-config": options,
                },
            }
        )

    def plan(self, request: Request) -> Answer:
        """GET /jobs/:jobid/plan."""
        return Answer({"plan": self._graph.plan()})

    def exceptions(self, request: Request) -> Answer:
        """GET /jobs/:jobid/exceptions."""
        limit = _limit(request.query.get("maxExceptions", "20"))
        if "failureLabelFilter" in request.query:
            raise RefusedError(400, "Failures have no labels here, so there is nothing to filter by.")
        failures = self._master.history.failures
        entries: list[dict[str, Any]] = [
            {
                "exceptionName": failure.name,
                "stacktrace": failure.stack_trace,
                "message": failure.message,
                "timestamp": failure.timestamp,
                "taskName": failure.uid,
                "concurrentExceptions": [],
                "failureLabels": {},
            }
            for failure in failures[:limit]
        ]
        truncated = len(failures) > limit or self._master.history.has_forgotten
        return Answer({"exceptionHistory": {"entries": entries, "truncated": truncated}})

    def cancel(self, request: Request) -> Answer:
        """PATCH /jobs/:jobid?mode=cancel."""
        mode = request.query.get("mode", "cancel")
        if mode == "stop":
            raise RefusedError(
                308,
                'The termination mode "stop" has been removed. For an ungraceful shutdown, please use "cancel" '
                'instead. For a graceful shutdown, please use "jobs/:jobId/stop" instead.',
            )
        if mode != "cancel":
            raise RefusedError(400, f"mode is 'cancel', not {mode!r}.")
        status = self._master.status
        if status.is_terminal_state() and status is not JobStatus.CANCELED:
            raise RefusedError(409, f"The job has ended {status.value}, so it cannot be cancelled.")
        self._master.control.cancel()
        return Answer({}, 202)

    def metrics(self, request: Request) -> Answer:
        """GET /jobs/:jobid/metrics: the names, or with ?get=a,b the values."""
        known = metrics_of(self._master)
        wanted = request.query.get("get")
        if wanted is None:
            return Answer([{"id": name} for name in known])
        names = [name for name in wanted.split(",") if name in known]
        return Answer([{"id": name, "value": str(known[name])} for name in names])

    def prometheus(self, request: Request) -> Answer:
        """GET /metrics."""
        return exposition(samples_of(self._master))

    def samples(self, request: Request) -> Answer:
        """GET /jobs/:jobid/metrics/samples, which a job manager gathers."""
        return Answer(to_json(samples_of(self._master)))

    def execution_result(self, request: Request) -> Answer:
        """GET /jobs/:jobid/execution-result."""
        status, failure = self._master.status, self._master.failure
        if not status.is_terminal_state():
            return Answer({"status": {"id": "IN_PROGRESS"}})
        result: dict[str, Any] = {
            "id": self._id,
            "application-status": _APPLICATION_STATUS[status],
            "accumulator-results": {},
            "net-runtime": self._summary()["duration"],
        }
        if failure is not None:
            result["failure-cause"] = cause_of(failure)
        return Answer({"status": {"id": "COMPLETED"}, "job-execution-result": result})

    def requirements(self, request: Request) -> Answer:
        """GET /jobs/:jobid/resource-requirements."""
        return Answer(
            {
                step.uid: {"parallelism": {"lowerBound": 1, "upperBound": step.parallelism}}
                for step in self._steps()
                if step.parallelism
            }
        )

    def require(self, request: Request) -> Answer:
        """PUT /jobs/:jobid/resource-requirements; answers when the parallelism is in force."""
        wanted = {uid: _upper_bound(uid, entry) for uid, entry in request.body.items()}
        if not wanted:
            raise RefusedError(400, "The body names no operator.")
        future = self._master.control.rescale(wanted)
        try:
            future.result(timeout=RESCALE_SECONDS)
        except FutureTimeoutError:
            raise RefusedError(
                503, f"No epoch began within {RESCALE_SECONDS:.0f} s; the job rescales at the next one."
            ) from None
        except HoldfastError as error:
            raise RefusedError(400, str(error)) from error
        return Answer({})

    def rescaling(self, request: Request) -> Answer:
        """PATCH /jobs/:jobid/rescaling, which Flink has given up."""
        raise RefusedError(503, "Rescaling is temporarily disabled. Use PUT jobs/:jobid/resource-requirements.")

    def _summary(self) -> dict[str, Any]:
        master = self._master
        entered = master.history.entered
        last = master.history.last_failure
        ended = entered.get(master.status, -1) if master.status.is_terminal_state() else -1
        return {
            "jid": self._id,
            "name": master.job.name,
            "state": master.status.value,
            "start-time": master.history.start_time,
            "end-time": ended,
            "duration": (ended if ended >= 0 else self._now()) - master.history.start_time,
            "last-modification": max(entered.values()),
            "restarts": master.history.failure_count,
            "tries-in-a-row": master.tries,
            "last-failure": None if last is None else last.in_one_line,
        }

    def _progress(self) -> dict[str, Any] | None:
        recent = self._master.progress.recent
        return recent[-1].to_dict() if recent else None

    def _steps(self) -> list[Step]:
        attempt = self._master.attempt
        return [] if attempt is None else [step for stage in attempt.plan.stages for step in stage.steps]

    def _now(self) -> int:
        return self._master.job.clock.now_ms()


def _limit(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise RefusedError(400, f"maxExceptions is a whole number of at least 1, not {text!r}.")
    return int(text)


def _upper_bound(uid: str, entry: Any) -> int:
    bounds = entry.get("parallelism") if isinstance(entry, Mapping) else None
    upper = bounds.get("upperBound") if isinstance(bounds, Mapping) else None
    if not isinstance(upper, int) or isinstance(upper, bool) or upper < 1:
        raise RefusedError(400, f"{uid!r} needs {{'parallelism': {{'upperBound': N}}}} with N of at least 1.")
    return upper
