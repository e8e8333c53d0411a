"""`/jobs` and what is below it, but for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from holdfast.checkpoint.statistics import Summary
from holdfast.errors import HoldfastError
from holdfast.kernel.secret import redacted_value
from holdfast.rest.checkpoint_api import cause_of
from holdfast.rest.form import flow_form, job_form, rescale_form
from holdfast.rest.http import Answer, RefusedError, Request
from holdfast.rest.job_metrics import metrics_of, samples_of
from holdfast.rest.metrics import to_json
from holdfast.rest.prometheus import exposition
from holdfast.rest.route import STRING, serves
from holdfast.runtime.graph.plan import JobPlan, Port, Step
from holdfast.runtime.job.control import JobStatus, Rescale, RescaleHistory
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_metrics import EdgeFlow, JobFlow, SubtaskFlow, lags

# A job's operators, sources and edges in the form of Flink's plan, with the numbers of both.


class JobGraph:
    """The graph of one job; empty before its first attempt.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._flow: JobFlow = master.flow

    def plan(self) -> dict[str, Any]:
        """Return Flink's plan, in which sources are nodes, too."""
        job, plan = self._master.job, self._plan
        nodes = [] if plan is None else [*self._sources(plan), *self._operators(plan)]
        return {"jid": str(job.job_id), "name": job.name, "type": "STREAMING", "nodes": nodes}

    def vertices(self) -> list[dict[str, Any]]:
        """Return the operators with their numbers, as Flink's details of a job have them."""
        return [self._vertex(step) for step in self._steps()]

    def vertex(self, uid: str) -> dict[str, Any] | None:
        """Return one operator with its subtasks, None if there is none of this uid."""
        step = next((step for step in self._steps() if step.uid == uid), None)
        if step is None:
            return None
        subtasks = [
            {
                "subtask": flow.subtask,
                "status": self._master.status.value,
                "epochs": flow.epochs,
                "metrics": _numbers([flow]),
                "last-epoch": {"read-records": flow.last_in, "busy-time": round(flow.last_busy_ms, 3)},
                "saving-time": flow.saving_ms,
            }
            for flow in self._flow.subtasks(uid)
        ]
        return {**self._vertex(step), "now": self._master.job.clock.now_ms(), "subtasks": subtasks}

    @property
    def _plan(self) -> JobPlan | None:
        attempt = self._master.attempt
        return None if attempt is None else attempt.plan

    def _steps(self) -> list[Step]:
        plan = self._plan
        return [] if plan is None else [step for stage in plan.stages for step in stage.steps]

    def _vertex(self, step: Step) -> dict[str, Any]:
        flows = self._flow.subtasks(step.uid)
        numbers = self._master.metrics.numbers.operators.get(step.uid)
        return {
            "id": step.uid,
            "name": step.name,
            "kind": step.kind,
            "maxParallelism": step.max_parallelism,
            "parallelism": max(1, step.parallelism),
            "tasks": len(flows),
            "status": self._master.status.value,
            "metrics": _numbers(flows),
            "skew": {
                "read-records": _skew([flow.records_in for flow in flows]),
                "busy-time": _skew([flow.busy_ms for flow in flows]),
            },
            "last-epoch": {
                "read-records": sum(flow.last_in for flow in flows),
                "busy-time": round(max((flow.last_busy_ms for flow in flows), default=0.0), 3),
            },
            "state-bytes": 0 if numbers is None else numbers.state_bytes,
            "watermark": None if numbers is None else numbers.watermark,
            "sink": self._sink(step),
        }

    def _sink(self, step: Step) -> dict[str, Any] | None:
        """What a sink has committed and what waits; None for other steps, and sinks that commit nothing."""
        numbers = self._master.metrics.numbers.sinks.get(step.uid)
        if numbers is None:
            return None
        return {
            "committed-records": numbers.records,
            "committed-bytes": numbers.bytes,
            "last-epoch": numbers.last_epoch,
            "last-commit-time": numbers.last_ms,
            "commit-time": round(1000 * numbers.seconds, 1),
            "pending-records": numbers.pending_records,
            "pending-committables": numbers.pending,
            "lag": numbers.lag_ms(self._master.job.clock.now_ms()),
        }

    def _sources(self, plan: JobPlan) -> Iterator[dict[str, Any]]:
        for number, epoch_job in enumerate(plan.epoch_jobs):
            for source in epoch_job.sources:
                node = source.node
                yield {
                    "id": source.uid,
                    "parallelism": 1,
                    "operator": "transform" if source.staged else "source",
                    "description": plan.names.get(source.uid) or getattr(node, "name", None) or source.uid,
                    "stage": epoch_job.base - 1 if number == 0 else epoch_job.base,
                    "inputs": [
                        {"num": place, "id": uid, "ship_strategy": "FORWARD", "exchange": "blocking"}
                        for place, uid in enumerate(source.staged)
                    ],
                }

    def _operators(self, plan: JobPlan) -> Iterator[dict[str, Any]]:
        for stage in plan.stages:
            for step in stage.steps:
                yield {
                    "id": step.uid,
                    "parallelism": max(1, step.parallelism),
                    "operator": step.kind,
                    "description": step.name,
                    "stage": stage.index,
                    "inputs": [self._input(plan, step, number, port) for number, port in enumerate(step.inputs)],
                }

    def _input(self, plan: JobPlan, step: Step, number: int, port: Port) -> dict[str, Any]:
        edge = next((edge for edge in plan.edges if edge.name == port.name), None) if port.kind == "edge" else None
        origin = port if edge is None else edge.origin
        strategy = "FORWARD"
        if edge is not None:
            strategy = "HASH" if edge.key is not None else "BROADCAST" if edge.broadcast else "REBALANCE"
        flow = self._flow.edge(port.name, step.uid)
        if flow is None and port.kind == "step" and len(step.inputs) == 1:
            # Handed from one function to the next in the same task: no bytes, and each is read once.
            flows = self._flow.subtasks(step.uid)
            flow = EdgeFlow(sum(one.records_in for one in flows), 0, sum(one.last_in for one in flows), 0)
        return {
            "num": number,
            "id": origin.name,
            "tag": origin.tag,
            "ship_strategy": strategy,
            "exchange": "pipelined" if port.kind == "step" else "blocking",
            "records": None if flow is None else flow.rows,
            "bytes": None if flow is None or port.kind == "step" else flow.bytes,
            "last-records": None if flow is None else flow.last_rows,
            "last-bytes": None if flow is None or port.kind == "step" else flow.last_bytes,
        }


def _numbers(flows: Sequence[SubtaskFlow]) -> dict[str, Any]:
    """Numbers of subtasks under Flink's names."""
    return {
        "read-bytes": sum(flow.bytes_in for flow in flows),
        "read-bytes-complete": True,
        "read-records": sum(flow.records_in for flow in flows),
        "read-records-complete": True,
        "write-records": sum(flow.records_out for flow in flows),
        "write-records-complete": True,
        "accumulated-busy-time": round(sum(flow.busy_ms for flow in flows), 3),
    }


def _skew(values: Sequence[float]) -> float:
    """The greatest divided by the mean: 1 is even; 0 if there is nothing to divide."""
    total = sum(values)
    return round(max(values) * len(values) / total, 2) if total else 0.0


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
        options = {key: redacted_value(key, text) for key, text in self._master.job.configuration.to_texts().items()}
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


# `/jobs/:jobid/epochs` and `/jobs/:jobid/vertices/:vertexid`.


class FlowApi:
    """What goes on in the one job of a master.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._graph = JobGraph(master)

    @serves("GET", "/jobs/:jobid/epochs", flow_form.EPOCHS, query=flow_form.EPOCHS_QUERY)
    def epochs(self, request: Request) -> Answer:
        """The recent epochs of a job, oldest first, or with ?since=TIME those that began later."""
        since = request.query.get("since", 0)
        recent = [epoch.to_dict() for epoch in self._master.progress.recent if epoch.started > since]
        master = self._master
        numbers, now = master.metrics.numbers, master.job.clock.now_ms()
        return Answer(
            {
                "now": now,
                "total": numbers.epochs,
                "repeated": numbers.repeated,
                "rows": numbers.rows,
                **lags(numbers.sinks, master.job.engine.source_numbers(), now),
                "epochs": recent,
            }
        )

    @serves("GET", "/jobs/:jobid/vertices/:vertexid", flow_form.VERTEX)
    def vertex(self, request: Request) -> Answer:
        """An operator with its subtasks."""
        uid = request.path["vertexid"]
        found = self._graph.vertex(uid)
        if found is None:
            raise RefusedError(404, f"The job has no operator {uid!r:.80}.")
        return Answer(found)


# `/jobs/:jobid/rescales`: what became of the wishes for another parallelism, in the form of Flink's history.


class RescaleApi:
    """The rescales of one job since this process runs it.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._history = master.control.rescales

    @serves("GET", "/jobs/:jobid/rescales/config", rescale_form.CONFIG)
    def config(self, request: Request) -> Answer:
        """How many rescales are remembered."""
        return Answer({"rescaleHistoryMax": RescaleHistory.SIZE})

    @serves("GET", "/jobs/:jobid/rescales/overview", rescale_form.OVERVIEW)
    def overview(self, request: Request) -> Answer:
        """How many rescales there were, and the latest of them."""
        completed, failed = self._history.latest(done=True), self._history.latest(done=False)
        return Answer(
            {
                "rescalesCounts": self._counts(),
                "latest": {
                    "completed": None if completed is None else _described(completed),
                    "failed": None if failed is None else _described(failed),
                    "ignored": None,
                },
            }
        )

    @serves("GET", "/jobs/:jobid/rescales/summary", rescale_form.SUMMARY)
    def summary(self, request: Request) -> Answer:
        """How long rescales took."""
        durations = Summary(self._history.durations).to_json()
        return Answer({"rescalesCounts": self._counts(), "completedRescalesDurationStatsInMillis": durations})

    @serves("GET", "/jobs/:jobid/rescales/history", rescale_form.HISTORY)
    def history(self, request: Request) -> Answer:
        """The last rescales, newest first."""
        return Answer({"rescaleHistory": [_described(rescale) for rescale in self._history.newest_first()]})

    @serves("GET", "/jobs/:jobid/rescales/details/:rescaleuuid", rescale_form.RESCALE)
    def details(self, request: Request) -> Answer:
        """One rescale."""
        wanted = request.path["rescaleuuid"]
        found = self._history.find(wanted)
        if found is None:
            raise RefusedError(404, f"Rescale {wanted} is not known, or forgotten: the last {RescaleHistory.SIZE} are.")
        return Answer(_described(found))

    def _counts(self) -> dict[str, int]:
        return {
            "completed": self._history.completed,
            "failed": self._history.failed,
            "ignored": 0,
            "inProgress": 0,
        }


def _described(rescale: Rescale) -> dict[str, Any]:
    everywhere = rescale.wanted.get("")
    return {
        "rescaleUuid": rescale.id,
        "rescaleAttemptId": rescale.number,
        "triggerCause": "UPDATE_REQUIREMENT",
        "terminalState": "COMPLETED" if rescale.refusal is None else "FAILED",
        "terminatedReason": "SUCCEEDED" if rescale.refusal is None else rescale.refusal,
        "startTimestampInMillis": rescale.started,
        "endTimestampInMillis": rescale.ended,
        "vertices": {
            uid: {
                "jobVertexId": uid,
                "desiredParallelism": rescale.wanted.get(uid, everywhere or before),
                "preRescaleParallelism": before,
                "postRescaleParallelism": rescale.after.get(uid, before),
            }
            for uid, before in rescale.before.items()
        },
        "slots": {},
        "schedulerStates": [],
    }
