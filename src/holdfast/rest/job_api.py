"""`/jobs` and the paths below it, except checkpoints and state."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from holdfast.checkpoint.statistics import Summary
from holdfast.errors import HoldfastError
from holdfast.kernel.default_log import FORMAT
from holdfast.kernel.secret import redacted_value
from holdfast.rest import job_schema
from holdfast.rest.checkpoint_api import failure_json
from holdfast.rest.http import HttpError, Request, Response
from holdfast.rest.metric_samples import collect_metrics, collect_samples
from holdfast.rest.prometheus import exposition
from holdfast.rest.route import STRING, serves
from holdfast.runtime.exchange.real_time_metrics import (
    OperatorRates,
    SubtaskMetrics,
    TaskTime,
    by_operator,
    least_idle,
    slowest_watermark,
)
from holdfast.runtime.graph.plan import JobPlan, Port, Step
from holdfast.runtime.job.control import JobStatus, Rescale, RescaleHistory
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_metrics import EdgeFlow, JobFlow, SubtaskFlow, lags
from holdfast.runtime.master.metric_catalog import to_json

_PACKAGE: Final = "holdfast"
_MAX_BYTES: Final = 256 * 1024
RESCALE_SECONDS: Final = 60.0
_WATCH_SLACK_SECONDS: Final = 2.0
_APPLICATION_STATUS: Final = {
    JobStatus.FINISHED: "SUCCEEDED",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FAILED: "FAILED",
    JobStatus.SUSPENDED: "UNKNOWN",
}


class RecentLog(logging.Handler):
    """Keeps the newest records of this package's loggers, as text. Their credentials are hidden already.

    Offsets count from the first byte that was ever kept, as in a file that loses its beginning.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._guard = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._begin = self._end = 0

    def start(self) -> None:
        logging.getLogger(_PACKAGE).addHandler(self)

    def stop(self) -> None:
        logging.getLogger(_PACKAGE).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")[-_MAX_BYTES:]
        with self._guard:
            self._lines.append(line)
            self._end += len(line)
            while self._end - self._begin > _MAX_BYTES:
                self._begin += len(self._lines.popleft())

    def read(self, offset: int | None, tail: int | None) -> tuple[int, str, int]:
        """Return the offset of the first byte, the text, and the offset after it.

        Args:
            offset: Offset of the first byte; an earlier one than is kept is moved to the first that is.
            tail: Number of bytes from the end; takes precedence.
        """
        with self._guard:
            content, end = b"".join(self._lines), self._end
        wanted = offset or 0 if tail is None else end - tail
        begin = min(max(wanted, end - len(content)), end)
        return begin, content[len(content) - (end - begin) :].decode(errors="replace"), end


class JobGraph:
    """The sources, operators and edges of a job in the form of Flink's plan, with their metrics.

    It is empty before the job's first attempt.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._flow: JobFlow = master.flow

    def plan(self) -> dict[str, Any]:
        """Return Flink's plan, with sources as further nodes."""
        job, plan = self._master.job, self._plan
        nodes = [] if plan is None else [*self._sources(plan), *self._operators(plan)]
        return {"jid": str(job.job_id), "name": job.name, "type": "STREAMING", "nodes": nodes}

    def vertices(self) -> list[dict[str, Any]]:
        """Return the operators with their metrics, as in Flink's details of a job."""
        return [self._vertex(step) for step in self._steps()]

    def vertex(self, uid: str) -> dict[str, Any] | None:
        """Return an operator with its subtasks, None if there is none with this uid."""
        step = next((step for step in self._steps() if step.uid == uid), None)
        if step is None:
            return None
        live = {one.subtask: one for one in by_operator(self._master.job.engine.task_metrics()).get(uid, ())}
        # Before their first barrier, after a start or a rescale, real-time tasks have only what they do now.
        flows = {n: SubtaskFlow(n) for n in live} | {flow.subtask: flow for flow in self._flow.subtasks(uid)}
        subtasks = [
            {
                "subtask": flow.subtask,
                "status": self._master.status.value,
                "epochs": flow.epochs,
                "metrics": _numbers([flow]),
                "last-epoch": {"read-records": flow.last_in, "busy-time": round(flow.last_busy_ms, 3)},
                "saving-time": flow.saving_ms,
                "real-time": _live_subtask(flow, live.get(flow.subtask)),
            }
            for _, flow in sorted(flows.items())
        ]
        since = self._flow.rescaled(uid) or self._master.history.start_time
        return {
            **self._vertex(step),
            "now": self._master.job.clock.now_ms(),
            "subtasks-since": since,
            "subtasks": subtasks,
        }

    def back_pressure(self, uid: str) -> dict[str, Any] | None:
        """Return the back-pressure of an operator or a source as Flink does, None if there is none with this uid.

        Flink calls numbers that it does not have "deprecated". A job by epochs has none: no task waits for another one.
        """
        plan = self._plan
        sources = () if plan is None else (source.uid for job in plan.epoch_jobs for source in job.sources)
        if uid not in {*sources, *(step.uid for step in self._steps())}:
            return None
        subtasks = by_operator(self._master.job.engine.task_metrics()).get(uid)
        if not subtasks:
            return {"status": "deprecated"}
        return {
            "status": "ok",
            "backpressure-level": _level(max(one.time.back_pressured for one in subtasks)),
            "end-timestamp": self._master.job.clock.now_ms(),
            "subtasks": [
                {
                    "subtask": one.subtask,
                    "backpressure-level": _level(one.time.back_pressured),
                    "ratio": one.time.back_pressured / 1000,
                    "idleRatio": one.time.idle / 1000,
                    "busyRatio": one.time.busy / 1000,
                }
                for one in subtasks
            ],
        }

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
        live = by_operator(self._master.job.engine.task_metrics()).get(step.uid, [])
        reached = slowest_watermark(live)
        return {
            "id": step.uid,
            "name": step.name,
            "kind": step.kind,
            "maxParallelism": step.max_parallelism,
            "parallelism": max(1, step.parallelism),
            "tasks": len(flows),
            "status": self._master.status.value,
            "metrics": _numbers([self._flow.total(step.uid)]),
            "skew": {
                "read-records": _skew([flow.records_in for flow in flows]),
                "busy-time": _skew([flow.busy_ms for flow in flows]),
            },
            "last-epoch": {
                "read-records": sum(flow.last_in for flow in flows),
                "busy-time": round(max((flow.last_busy_ms for flow in flows), default=0.0), 3),
            },
            "state-bytes": 0 if numbers is None else numbers.state_bytes,
            "watermark": reached if reached is not None or numbers is None else numbers.watermark,
            "sink": self._sink(step),
            "real-time": _live(live),
        }

    def _sink(self, step: Step) -> dict[str, Any] | None:
        """Return committed and pending output of a sink; None for other operators, and sinks without commits."""
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
        live = by_operator(self._master.job.engine.task_metrics())
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
                    "real-time": _live(live.get(source.uid)),
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
            # A chained operator in the same task: no bytes are exchanged, and each element is read once.
            flows = self._flow.subtasks(step.uid)
            flow = EdgeFlow(self._flow.total(step.uid).records_in, 0, sum(one.last_in for one in flows), 0)
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


def _live(subtasks: Sequence[SubtaskMetrics] | None) -> dict[str, Any] | None:
    """Return what an operator does in the last second; None in a job by epochs.

    Its time is that of its least idle subtask.
    """
    return None if not subtasks else _of_second(least_idle(subtasks), [one.rates for one in subtasks])


def _live_subtask(flow: SubtaskFlow, metrics: SubtaskMetrics | None) -> dict[str, Any] | None:
    if metrics is None:
        return None
    barrier = flow.barrier
    return {
        **_of_second(metrics.time, [metrics.rates]),
        "watermark": metrics.rates.watermark,
        "alignment-time": 0 if barrier is None else barrier.alignment / 1000,
        "sync-time": 0 if barrier is None else barrier.sync / 1000,
    }


def _of_second(time: TaskTime, rates: Sequence[OperatorRates]) -> dict[str, Any]:
    return {
        "busy": time.busy,
        "back-pressured": time.back_pressured,
        "idle": time.idle,
        "read-records": round(sum(one.records_in for one in rates), 1),
        "write-records": round(sum(one.records_out for one in rates), 1),
    }


def _numbers(flows: Sequence[SubtaskFlow]) -> dict[str, Any]:
    """Sum the metrics of subtasks under Flink's names."""
    return {
        "read-bytes": sum(flow.bytes_in for flow in flows),
        "read-bytes-complete": True,
        "read-records": sum(flow.records_in for flow in flows),
        "read-records-complete": True,
        "write-records": sum(flow.records_out for flow in flows),
        "write-records-complete": True,
        "accumulated-busy-time": round(sum(flow.busy_ms for flow in flows), 3),
    }


def _level(back_pressured: int) -> str:
    """Return Flink's word for the back-pressured milliseconds of a second."""
    return "ok" if back_pressured <= 100 else "low" if back_pressured <= 500 else "high"


def _skew(values: Sequence[float]) -> float:
    """Return maximum divided by mean: 1 if evenly distributed, 0 without values."""
    total = sum(values)
    return round(max(values) * len(values) / total, 2) if total else 0.0


class JobApi:
    """The paths of one job.

    Args:
        master: The job's master.
        log: The log of this process; None for an empty one.
    """

    def __init__(self, master: JobMaster, log: RecentLog | None = None) -> None:
        self._master = master
        self._log = log or RecentLog()
        self._id = str(master.job.job_id)
        self._graph = JobGraph(master)
        self._watched_until = 0.0

    def linger(self, seconds: float) -> None:
        """Wait until clients that watch the job have had the time to see how it ended, at most for some seconds."""
        time.sleep(max(0.0, min(seconds, self._watched_until - time.monotonic())))

    def not_ready_reason(self) -> str | None:
        """Return why the process is not ready, None if the job runs or the process stands by. Does not block."""
        status = self._master.status
        is_ready = status in (JobStatus.CREATED, JobStatus.RUNNING)
        return None if is_ready else f"The job is {status.value}."

    @serves("GET", "/jobs", job_schema.JOBS)
    def jobs(self, request: Request) -> Response:
        """The jobs with their status."""
        return Response({"jobs": [{"id": self._id, "status": self._master.status.value}]})

    @serves("GET", "/jobs/overview", job_schema.OVERVIEW)
    def overview(self, request: Request) -> Response:
        """A summary of each job."""
        summary = self._summary()
        tasks = {"total": sum(max(1, step.parallelism) for step in self._steps())}
        return Response({"jobs": [summary | {"tasks": tasks, "pending-operators": 0}]})

    @serves("GET", "/jobs/:jobid", job_schema.DETAILS, query=job_schema.DETAILS_QUERY)
    def details(self, request: Request) -> Response:
        """The details of a job: operators, plan, and the last epoch."""
        watch = request.query.get("watch", 0)
        if watch:
            self._watched_until = max(self._watched_until, time.monotonic() + watch / 1000 + _WATCH_SLACK_SECONDS)
        history = self._master.history.entered
        vertices = self._graph.vertices()
        running = self._master.status.value
        return Response(
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
                "engine-url": self._master.job.engine.web_url,
            }
        )

    @serves("GET", "/jobs/:jobid/status", job_schema.STATUS)
    def status(self, request: Request) -> Response:
        """The status of a job."""
        return Response({"status": self._master.status.value})

    @serves("GET", "/jobs/:jobid/config", job_schema.CONFIG)
    def config(self, request: Request) -> Response:
        """The options of a job; secrets are hidden."""
        options = {key: redacted_value(key, text) for key, text in self._master.job.configuration.to_texts().items()}
        return Response(
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

    @serves("GET", "/jobs/:jobid/plan", job_schema.JOB_PLAN)
    def plan(self, request: Request) -> Response:
        """The plan of a job."""
        return Response({"plan": self._graph.plan()})

    @serves("GET", "/jobs/:jobid/exceptions", job_schema.EXCEPTIONS, query=job_schema.EXCEPTIONS_QUERY)
    def exceptions(self, request: Request) -> Response:
        """The exceptions that failed attempts of a job, newest first."""
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
        return Response({"exceptionHistory": {"entries": entries, "truncated": truncated}})

    @serves("GET", "/jobs/:jobid/log", job_schema.LOG, query=job_schema.LOG_QUERY)
    def log(self, request: Request) -> Response:
        """A part of the log of a job, from an offset in bytes, or its last bytes."""
        offset, text, end = self._log.read(request.query.get("offset"), request.query.get("tail"))
        is_over = self._master.status.is_terminal_state()
        return Response({"offset": offset, "next": end, "text": text, "ended": is_over, "host": socket.gethostname()})

    @serves("PATCH", "/jobs/:jobid", job_schema.EMPTY, status=202, query=job_schema.CANCEL_QUERY, refusals=(308, 409))
    def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        status = self._master.status
        if status.is_terminal_state() and status is not JobStatus.CANCELED:
            raise HttpError(409, f"The job has ended with status {status.value} and cannot be cancelled.")
        self._master.control.cancel()
        return Response({}, 202)

    @serves("GET", "/jobs/:jobid/metrics", job_schema.METRICS, query=job_schema.METRICS_QUERY)
    def metrics(self, request: Request) -> Response:
        """The names of the metrics of a job, or with ?get=a,b their values."""
        known = collect_metrics(self._master)
        wanted = request.query.get("get")
        if wanted is None:
            return Response([{"id": name} for name in known])
        names = [name for name in wanted.split(",") if name in known]
        return Response([{"id": name, "value": str(known[name])} for name in names])

    @serves("GET", "/metrics", STRING, media_type="text/plain")
    def prometheus(self, request: Request) -> Response:
        """All metrics in the text format of Prometheus."""
        return exposition(collect_samples(self._master))

    @serves("GET", "/jobs/:jobid/metrics/samples", job_schema.SAMPLES)
    def samples(self, request: Request) -> Response:
        """The metrics of a job as JSON, for its job manager."""
        return Response(to_json(collect_samples(self._master)))

    @serves("GET", "/jobs/:jobid/execution-result", job_schema.RESULT)
    def execution_result(self, request: Request) -> Response:
        """The result of a job that has ended."""
        status, failure = self._master.status, self._master.failure
        if not status.is_terminal_state():
            return Response({"status": {"id": "IN_PROGRESS"}})
        result: dict[str, Any] = {
            "id": self._id,
            "application-status": _APPLICATION_STATUS[status],
            "accumulator-results": {},
            "net-runtime": self._summary()["duration"],
        }
        if failure is not None:
            result["failure-cause"] = failure_json(failure)
        return Response({"status": {"id": "COMPLETED"}, "job-execution-result": result})

    @serves("GET", "/jobs/:jobid/resource-requirements", job_schema.REQUIREMENTS)
    def requirements(self, request: Request) -> Response:
        """The parallelism of the operators with state."""
        return Response(
            {
                step.uid: {"parallelism": {"lowerBound": 1, "upperBound": step.parallelism}}
                for step in self._steps()
                if step.parallelism
            }
        )

    @serves("PUT", "/jobs/:jobid/resource-requirements", job_schema.EMPTY, body=job_schema.REQUIREMENTS_REQUEST)
    def require(self, request: Request) -> Response:
        """Change the parallelism of operators; the response is sent when the change applies."""
        wanted = {}
        for uid, entry in request.body.items():
            wanted[uid] = entry["parallelism"]["upperBound"]
            if entry["parallelism"].get("lowerBound", 1) > wanted[uid]:
                raise HttpError(400, f"The lowerBound of {uid!r} is greater than its upperBound {wanted[uid]}.")
        future = self._master.control.rescale(wanted)
        try:
            future.result(timeout=RESCALE_SECONDS)
        except FutureTimeoutError:
            raise HttpError(
                503, f"No epoch has started within {RESCALE_SECONDS:.0f} s; the job rescales before the next one."
            ) from None
        except HoldfastError as error:
            raise HttpError(400, str(error)) from error
        return Response({})

    @serves("PATCH", "/jobs/:jobid/rescaling", job_schema.EMPTY, status=503, query=job_schema.RESCALING_QUERY)
    def rescaling(self, request: Request) -> Response:
        """Always refused, as in Flink: use PUT at resource-requirements."""
        raise HttpError(503, "Rescaling is temporarily disabled. Use PUT jobs/:jobid/resource-requirements.")

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
            "tries-in-a-row": master.failures_in_a_row,
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


class FlowApi:
    """The epochs and operators of one job.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._graph = JobGraph(master)

    @serves("GET", "/jobs/:jobid/epochs", job_schema.EPOCHS, query=job_schema.EPOCHS_QUERY)
    def epochs(self, request: Request) -> Response:
        """The recent epochs of a job, oldest first, or with ?since=TIME those that started later."""
        since = request.query.get("since", 0)
        recent = [epoch.to_dict() for epoch in self._master.progress.recent if epoch.started > since]
        master = self._master
        numbers, now = master.metrics.numbers, master.job.clock.now_ms()
        return Response(
            {
                "now": now,
                "total": numbers.epochs,
                "repeated": numbers.repeated,
                "rows": numbers.rows,
                **lags(numbers.sinks, master.job.engine.source_metrics(), now),
                "epochs": recent,
            }
        )

    @serves("GET", "/jobs/:jobid/vertices/:vertexid", job_schema.VERTEX)
    def vertex(self, request: Request) -> Response:
        """An operator with its subtasks."""
        return _of_operator(request, self._graph.vertex)

    @serves("GET", "/jobs/:jobid/vertices/:vertexid/backpressure", job_schema.BACK_PRESSURE)
    def back_pressure(self, request: Request) -> Response:
        """The back-pressure of an operator or a source of a real-time job in the last second."""
        return _of_operator(request, self._graph.back_pressure)


def _of_operator(request: Request, find: Callable[[str], dict[str, Any] | None]) -> Response:
    uid = request.path["vertexid"]
    found = find(uid)
    if found is None:
        raise HttpError(404, f"The job has no operator {uid!r:.80}.")
    return Response(found)


class RescaleApi:
    """The rescales of one job since the start of this process, in the form of Flink's history.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._history = master.control.rescales

    @serves("GET", "/jobs/:jobid/rescales/config", job_schema.RESCALE_CONFIG)
    def config(self, request: Request) -> Response:
        """The length of the rescale history."""
        return Response({"rescaleHistoryMax": RescaleHistory.SIZE})

    @serves("GET", "/jobs/:jobid/rescales/overview", job_schema.RESCALE_OVERVIEW)
    def overview(self, request: Request) -> Response:
        """Counts of rescales, and the latest ones."""
        completed, failed = self._history.latest(done=True), self._history.latest(done=False)
        return Response(
            {
                "rescalesCounts": self._counts(),
                "latest": {
                    "completed": None if completed is None else _described(completed),
                    "failed": None if failed is None else _described(failed),
                    "ignored": None,
                },
            }
        )

    @serves("GET", "/jobs/:jobid/rescales/summary", job_schema.RESCALE_SUMMARY)
    def summary(self, request: Request) -> Response:
        """Statistics of the duration of rescales."""
        durations = Summary(self._history.durations).to_json()
        return Response({"rescalesCounts": self._counts(), "completedRescalesDurationStatsInMillis": durations})

    @serves("GET", "/jobs/:jobid/rescales/history", job_schema.RESCALE_HISTORY)
    def history(self, request: Request) -> Response:
        """The last rescales, newest first."""
        return Response({"rescaleHistory": [_described(rescale) for rescale in self._history.newest_first()]})

    @serves("GET", "/jobs/:jobid/rescales/details/:rescaleuuid", job_schema.RESCALE)
    def details(self, request: Request) -> Response:
        """One rescale."""
        wanted = request.path["rescaleuuid"]
        found = self._history.find(wanted)
        if found is None:
            raise HttpError(404, f"Rescale {wanted} is unknown, or older than the last {RescaleHistory.SIZE}.")
        return Response(_described(found))

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
