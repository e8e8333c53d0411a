"""`/jobs` and what is below it, but for checkpoints."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.kernel.secret import shown
from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.form import job_form
from holdfast.rest.graph.job_graph import JobGraph
from holdfast.rest.metric.job_numbers import metrics_of
from holdfast.rest.metric.job_samples import samples_of
from holdfast.rest.metric.prometheus import exposition
from holdfast.rest.metric.sample import to_json
from holdfast.rest.operation import cause_of
from holdfast.rest.route.route import serves
from holdfast.rest.route.schema import STRING
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

    @serves("GET", "/jobs", job_form.JOBS)
    def jobs(self, request: Request) -> Answer:
        """The jobs and their states."""
        return Answer({"jobs": [{"id": self._id, "status": self._master.status.value}]})

    @serves("GET", "/jobs/overview", job_form.OVERVIEW)
    def overview(self, request: Request) -> Answer:
        """The jobs, each in a few words."""
        summary = self._summary()
        tasks = {"total": sum(max(1, step.parallelism) for step in self._steps())}
        return Answer({"jobs": [summary | {"tasks": tasks, "pending-operators": 0}]})

    @serves("GET", "/jobs/:jobid", job_form.DETAILS)
    def details(self, request: Request) -> Answer:
        """A job with its operators and what it has done last."""
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

    @serves("GET", "/jobs/:jobid/status", job_form.STATUS)
    def status(self, request: Request) -> Answer:
        """The state of a job."""
        return Answer({"status": self._master.status.value})

    @serves("GET", "/jobs/:jobid/config", job_form.CONFIG)
    def config(self, request: Request) -> Answer:
        """The options of a job; secrets are left out."""
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

    @serves("GET", "/jobs/:jobid/plan", job_form.PLAN_OF_JOB)
    def plan(self, request: Request) -> Answer:
        """The operators of a job, and what they read."""
        return Answer({"plan": self._graph.plan()})

    @serves("GET", "/jobs/:jobid/exceptions", job_form.EXCEPTIONS, query=job_form.EXCEPTIONS_QUERY)
    def exceptions(self, request: Request) -> Answer:
        """What made attempts of a job fail, newest first."""
        limit = request.query.get("maxExceptions", 20)
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

    @serves("PATCH", "/jobs/:jobid", job_form.NOTHING, status=202, query=job_form.CANCEL_QUERY, refusals=(308, 409))
    def cancel(self, request: Request) -> Answer:
        """End a job for good."""
        status = self._master.status
        if status.is_terminal_state() and status is not JobStatus.CANCELED:
            raise RefusedError(409, f"The job has ended {status.value}, so it cannot be cancelled.")
        self._master.control.cancel()
        return Answer({}, 202)

    @serves("GET", "/jobs/:jobid/metrics", job_form.METRICS, query=job_form.METRICS_QUERY)
    def metrics(self, request: Request) -> Answer:
        """The names of the numbers of a job, or with ?get=a,b their values."""
        known = metrics_of(self._master)
        wanted = request.query.get("get")
        if wanted is None:
            return Answer([{"id": name} for name in known])
        names = [name for name in wanted.split(",") if name in known]
        return Answer([{"id": name, "value": str(known[name])} for name in names])

    @serves("GET", "/metrics", STRING, media_type="text/plain")
    def prometheus(self, request: Request) -> Answer:
        """All numbers, as Prometheus reads them."""
        return exposition(samples_of(self._master))

    @serves("GET", "/jobs/:jobid/metrics/samples", job_form.SAMPLES)
    def samples(self, request: Request) -> Answer:
        """The numbers of a job, as a job manager gathers them."""
        return Answer(to_json(samples_of(self._master)))

    @serves("GET", "/jobs/:jobid/execution-result", job_form.RESULT)
    def execution_result(self, request: Request) -> Answer:
        """How a job has ended, if it has."""
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

    @serves("GET", "/jobs/:jobid/resource-requirements", job_form.REQUIREMENTS)
    def requirements(self, request: Request) -> Answer:
        """The parallelism of the operators with state."""
        return Answer(
            {
                step.uid: {"parallelism": {"lowerBound": 1, "upperBound": step.parallelism}}
                for step in self._steps()
                if step.parallelism
            }
        )

    @serves("PUT", "/jobs/:jobid/resource-requirements", job_form.NOTHING, body=job_form.WANTED_REQUIREMENTS)
    def require(self, request: Request) -> Answer:
        """Have another parallelism; answered when it is in force."""
        wanted = {}
        for uid, entry in request.body.items():
            wanted[uid] = entry["parallelism"]["upperBound"]
            if entry["parallelism"].get("lowerBound", 1) > wanted[uid]:
                raise RefusedError(400, f"{uid!r} is to have at least more subtasks than at most: {wanted[uid]}.")
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

    @serves("PATCH", "/jobs/:jobid/rescaling", job_form.NOTHING, status=503, query=job_form.RESCALING_QUERY)
    def rescaling(self, request: Request) -> Answer:
        """Refused, as in Flink: have another parallelism with PUT at resource-requirements."""
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
