"""The REST interface of a job manager. It forwards requests about a running job to the job's process."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from holdfast import __version__
from holdfast.dispatcher.dispatcher import Dispatcher
from holdfast.dispatcher.dispatcher_machine import JobEntry, Phase
from holdfast.dispatcher.process import LocalProcesses, check_options
from holdfast.dispatcher.store import DispatcherStores, SubmittedProgram, check_name
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.job_result_store import FailureCause
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.failure_text import summary, unknown_job
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.rest import job_schema
from holdfast.rest.checkpoint_api import CheckpointApi
from holdfast.rest.client import RestError
from holdfast.rest.http import HttpError, Request, Response, split_target
from holdfast.rest.job_api import FlowApi, JobApi, RescaleApi
from holdfast.rest.job_schema import DISPATCHER_FIELDS, PROCESS_DETAILS, SUMMARY_FIELDS
from holdfast.rest.prometheus import exposition
from holdfast.rest.route import (
    FLAG,
    STRING,
    TEXT,
    Handler,
    Route,
    Routes,
    UnknownPathError,
    any_of,
    array,
    bind_routes,
    choice,
    component,
    declared_routes,
    described,
    integer,
    mapping,
    nullable,
    record,
    serves,
)
from holdfast.rest.server import ABSENT_OF_JOB_MANAGERS
from holdfast.rest.state_api import StateApi
from holdfast.runtime.job.options import JOB_ID, JOB_NAME
from holdfast.runtime.master import metric_catalog as metric
from holdfast.runtime.master.metric_catalog import Sample, from_json

OVERVIEW: Final = component(
    "Overview",
    record(
        {
            "holdfast-version": STRING,
            "host": STRING,
            "pid": integer(1),
            "leader": FLAG,
            "ready": FLAG,
            "session": nullable(STRING),
            "leads-since": nullable(integer(0)),
            "jobs-taken-over": integer(0),
            "jobs-running": integer(0),
            "jobs-ended": integer(0),
        }
    ),
)
_SUMMARY: Final = component(
    "JobSummary",
    record(
        {
            **SUMMARY_FIELDS,
            **DISPATCHER_FIELDS,
            "left-to-clean-up": described("The error of the last clean-up.", nullable(STRING)),
        }
    ),
)
JOBS_OVERVIEW: Final = record({"jobs": array(_SUMMARY)})
DETAILS: Final = any_of(_SUMMARY, PROCESS_DETAILS)
SUBMISSION: Final = component(
    "Submission",
    record(
        {
            "script": described("The file that is the program.", TEXT),
            "files": described("Base64 contents by file name.", mapping(STRING, least=1)),
        },
        {"jobId": TEXT, "jobName": TEXT, "arguments": array(STRING), "options": mapping(STRING)},
    ),
)
SUBMITTED: Final = component("Submitted", record({"jobid": STRING, "name": STRING}))
_STOP: Final = "To stop a job, POST to /jobs/:jobid/stop."
CANCEL_QUERY: Final = record(None, {"mode": choice("cancel", refused={"stop": (400, _STOP)})})


logger = get_logger(__name__)
_OF_A_JOB: Final = re.compile(r"(?:/v1)?/jobs/([0-9a-f]{32})/(.*)")
_MAX_LOG_BYTES: Final = 256 * 1024
_SAMPLE_SECONDS: Final = 2.0
_STATUSES: Final = (
    "INITIALIZING",
    "RUNNING",
    "RESTARTING",
    "CANCELLING",
    "FINISHED",
    "SUSPENDED",
    "CANCELED",
    "FAILED",
)


@dataclass
class Term:
    """The objects of a job manager while it leads.

    Attributes:
        session: Its leader session.
        since: Start of the term, in milliseconds since 1970.
    """

    session: str
    since: int
    dispatcher: Dispatcher
    stores: DispatcherStores
    processes: LocalProcesses


class JobManagerApi(Routes):
    """The paths of a job manager.

    Args:
        term: Returns the current term, None while another process leads.
        clock: Time.
    """

    def __init__(self, term: Callable[[], Term | None], clock: Clock | None = None) -> None:
        super().__init__(None, lambda seconds: None)
        self._term = term
        self._clock = clock or SystemClock()
        self.not_ready_reason = self._why_not_ready
        self.serve(*bind_routes(self))
        own = {(route.method, route.path) for route in self.served}
        for api in (JobApi, FlowApi, StateApi, CheckpointApi, RescaleApi):
            for _, route in declared_routes(api):
                if "jobid" in route.parameters and (route.method, route.path) not in own:
                    self.serve(route.with_handler(self._forwarding_handler(route)))
        self.add_absent(ABSENT_OF_JOB_MANAGERS)

    def answer(self, method: str, target: str, body: Mapping[str, Any]) -> Response:
        """Handle a request, or forward it to the process of its job."""
        try:
            return super().answer(method, target, body)
        except UnknownPathError:
            parts = split_target(target)
            match = _OF_A_JOB.fullmatch(parts.path.rstrip("/"))
            if match is None:
                raise
            query = f"?{parts.query}" if parts.query else ""
            return self._forward(self._entry(match[1]), method, f"{match[2]}{query}", body)

    def _why_not_ready(self) -> str | None:
        """Return why this job manager is not ready, None if it leads or stands by. Does not block."""
        term = self._term()
        if term is None or term.dispatcher.is_ready:
            return None
        return "This job manager is recovering jobs, or is stopping."

    @serves("GET", "/overview", OVERVIEW)
    def overview(self, request: Request) -> Response:
        """This job manager, and the number of its jobs."""
        term = self._term()
        entries = [] if term is None else term.dispatcher.jobs()
        ended = [entry for entry in entries if entry.result is not None]
        return Response(
            {
                "holdfast-version": __version__,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "leader": term is not None,
                "ready": term is not None and term.dispatcher.is_ready,
                "session": None if term is None else term.session,
                "leads-since": None if term is None else term.since,
                "jobs-taken-over": sum(entry.was_taken_over for entry in entries),
                "jobs-running": len(entries) - len(ended),
                "jobs-ended": len(ended),
            }
        )

    @serves("GET", "/metrics", STRING, media_type="text/plain")
    def metrics(self, request: Request) -> Response:
        """All metrics of this process and of the jobs that it leads, in the text format of Prometheus."""
        term, samples = self._term(), self.own_samples()
        for entry in [] if term is None else term.dispatcher.jobs():
            if entry.phase is Phase.RUNNING and term is not None:
                samples += _job_samples(term, entry.job_id)
        return exposition(samples)

    def own_samples(self) -> list[Sample]:
        """Return the metrics of this process, without those of its jobs."""
        term = self._term()
        entries = [] if term is None else term.dispatcher.jobs()
        return [
            metric.MANAGER_IS_LEADER.sample(int(term is not None)),
            *(
                metric.MANAGER_JOBS.sample(sum(entry.status == status for entry in entries), status=status)
                for status in _STATUSES
            ),
            *(metric.MANAGER_PROCESSES.sample(entry.start, job_id=str(entry.job_id)) for entry in entries),
        ]

    @serves("GET", "/jobs", job_schema.JOBS)
    def jobs(self, request: Request) -> Response:
        """The jobs with their status."""
        entries = self._leading_term().dispatcher.jobs()
        return Response({"jobs": [{"id": str(entry.job_id), "status": entry.status} for entry in entries]})

    @serves("GET", "/jobs/overview", JOBS_OVERVIEW)
    def jobs_overview(self, request: Request) -> Response:
        """A summary of each job."""
        return Response({"jobs": [self._summary(entry) for entry in self._leading_term().dispatcher.jobs()]})

    @serves("POST", "/jobs", SUBMITTED, status=202, body=SUBMISSION, refusals=(409,))
    def submit(self, request: Request) -> Response:
        """Submit a job: a program with its files, arguments and options."""
        term = self._leading_term()
        script = request.body["script"]
        try:
            files = _files(request.body["files"])
            options = dict(request.body.get("options", {}))
            job_id, name = _identity(request, options, script)
            if script not in files:
                raise ConfigurationError(f"The script {script!r} is not one of the files.")
            check_options(options)
        except ConfigurationError as error:
            raise HttpError(400, str(error)) from error
        submission = secrets.token_hex(16)
        try:
            keys = term.stores.stage_files(submission, files)
        except HoldfastError as error:
            raise HttpError(500, str(error)) from error
        program = SubmittedProgram(submission, script, keys, tuple(request.body.get("arguments", ())), options)
        status, message = term.dispatcher.submit(program.to_plan(job_id, name))
        if status != 202:
            term.stores.delete_staged(submission)
            raise HttpError(status, message)
        return Response({"jobid": str(job_id), "name": name}, 202)

    @serves("GET", "/jobs/:jobid", DETAILS, query=job_schema.DETAILS_QUERY)
    def details(self, request: Request) -> Response:
        """The details of a job: a summary, and while its process runs also operators, plan, and the last epoch."""
        entry = self._entry(request.path["jobid"])
        if entry.phase is Phase.RUNNING:
            try:
                found = self._forward(entry, "GET", f"?{urlencode(request.query)}" if request.query else "", {}).body
            except HttpError:
                return Response(self._summary(entry))
            assert isinstance(found, dict)
            state = entry.status if entry.is_cancel_requested else found["state"]
            of_entry = {"processes": entry.start, "taken-over": _taken_over(entry)}
            # The process counts the failed attempts in it, the dispatcher the failed processes before it.
            return Response({**found, "state": state, "restarts": entry.failures + found["restarts"], **of_entry})
        return Response(self._summary(entry))

    @serves("GET", "/jobs/:jobid/status", job_schema.STATUS)
    def status(self, request: Request) -> Response:
        """The status of a job."""
        return Response({"status": self._entry(request.path["jobid"]).status})

    @serves("GET", "/jobs/:jobid/execution-result", job_schema.RESULT)
    def execution_result(self, request: Request) -> Response:
        """The result of a job that has ended."""
        result = self._entry(request.path["jobid"]).result
        if result is None:
            return Response({"status": {"id": "IN_PROGRESS"}})
        content: dict[str, Any] = {
            "id": str(result.job_id),
            "application-status": result.application_status.name,
            "accumulator-results": {},
            "net-runtime": result.net_runtime,
        }
        cause = result.failure_cause
        if cause is not None:
            content["failure-cause"] = {"class": cause.type_name, "message": cause.message}
        return Response({"status": {"id": "COMPLETED"}, "job-execution-result": content})

    @serves("PATCH", "/jobs/:jobid", job_schema.EMPTY, status=202, query=CANCEL_QUERY, refusals=(409,))
    def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        status, message = self._leading_term().dispatcher.cancel(self._entry(request.path["jobid"]).job_id)
        if status != 202:
            raise HttpError(status, message)
        return Response({}, 202)

    @serves("GET", "/jobs/:jobid/exceptions", job_schema.EXCEPTIONS, query=job_schema.EXCEPTIONS_QUERY)
    def exceptions(self, request: Request) -> Response:
        """The exceptions that failed attempts of a job, newest first."""
        entry = self._entry(request.path["jobid"])
        if entry.phase is Phase.RUNNING:
            return self._forward(entry, "GET", f"exceptions?{urlencode(request.query)}", {})
        causes = [cause for cause in (_cause(entry),) if cause is not None]
        entries = [
            {
                "exceptionName": cause.type_name,
                "stacktrace": cause.stack_trace or cause.message,
                "timestamp": entry.began,
            }
            for cause in causes
        ]
        return Response({"exceptionHistory": {"entries": entries, "truncated": entry.failures > len(entries)}})

    @serves("GET", "/jobs/:jobid/log", job_schema.LOG, query=job_schema.LOG_QUERY)
    def log(self, request: Request) -> Response:
        """A part of the log of a job, from an offset in bytes, or its last bytes."""
        entry = self._entry(request.path["jobid"])
        offset, tail = request.query.get("offset"), request.query.get("tail")
        path = self._leading_term().processes.log_of(entry.job_id)
        if entry.start == 0 and entry.result is not None and not path.exists():
            raise HttpError(
                404,
                f"Job {entry.job_id} has ended with status {entry.status} under an earlier leader. Its log is in the "
                "working directory of that job manager, on its host.",
            )
        size = path.stat().st_size if path.exists() else 0
        begin = min(offset or 0 if tail is None else max(0, size - tail), size)
        content = b""
        if size > begin:
            with path.open("rb") as file:
                file.seek(begin)
                content = file.read(_MAX_LOG_BYTES)
        if begin + len(content) < size and b"\n" in content:
            content = content[: content.rindex(b"\n") + 1]
        has_ended = entry.phase in (Phase.CLEANING, Phase.ENDED) and begin + len(content) >= size
        return Response(
            {
                "offset": begin,
                "next": begin + len(content),
                "text": content.decode(errors="replace"),
                "ended": has_ended,
                "host": socket.gethostname(),
            }
        )

    def _leading_term(self) -> Term:
        term = self._term()
        if term is None or not term.dispatcher.is_ready:
            what = "stands by, another one leads" if term is None else "is recovering jobs"
            raise HttpError(503, f"This job manager {what}. Service temporarily unavailable due to a leader election.")
        return term

    def _entry(self, job_id: str) -> JobEntry:
        term = self._leading_term()
        entry = term.dispatcher.job(JobID.from_hex(job_id)) if re.fullmatch("[0-9a-f]{32}", job_id) else None
        if entry is None:
            known = [(str(other.job_id), other.name) for other in term.dispatcher.jobs()]
            raise HttpError(404, unknown_job(job_id, known))
        return entry

    def _forwarding_handler(self, route: Route) -> Handler:
        """Return a handler that forwards requests of a route to the process of the job."""

        def forward(request: Request) -> Response:
            entry = self._entry(request.path["jobid"])
            path = "/".join(
                quote(request.path[part[1:]], safe="") if part.startswith(":") else part
                for part in route.path.split("/")[3:]
            )
            query = f"?{urlencode(request.query)}" if request.query else ""
            return self._forward(entry, route.method, path + query, request.body)

        return forward

    def _forward(self, entry: JobEntry, method: str, path: str, body: Mapping[str, Any]) -> Response:
        if entry.phase is not Phase.RUNNING:
            raise HttpError(503, f"Job {entry.job_id} is {entry.status} and has no running process. Try again later.")
        try:
            client = self._leading_term().processes.client_of(entry.job_id)
            status, content = client.send(method, path, body or None)
        except RestError as error:
            raise HttpError(error.status or 503, str(error)) from error
        except HoldfastError as error:
            raise HttpError(503, str(error)) from error
        return Response(content, status)

    def _summary(self, entry: JobEntry) -> dict[str, Any]:
        ended = -1 if entry.result is None else entry.result.end_time
        began = entry.began if entry.result is None else entry.result.start_time
        cause = _cause(entry)
        return {
            "jid": str(entry.job_id),
            "name": entry.name,
            "state": entry.status,
            "start-time": began,
            "end-time": ended,
            "duration": max(0, (self._clock.now_ms() if ended < 0 else ended) - began),
            "processes": entry.start,
            "taken-over": _taken_over(entry),
            "restarts": entry.failures,
            "tries-in-a-row": entry.failures if entry.phase is Phase.WAITING else 0,
            "last-failure": None if cause is None else f"{cause.type_name}: {summary(cause.message)}",
            "left-to-clean-up": entry.cleanup_error,
        }


def _job_samples(term: Term, job_id: JobID) -> list[Sample]:
    """Return the metrics of a job's process; none if it does not answer soon, as the scrape must not take long."""
    try:
        return from_json(term.processes.client_of(job_id).get("metrics/samples", timeout=_SAMPLE_SECONDS))
    except HoldfastError as error:
        logger.debug("no metrics of job %s: %s", job_id, error)
        return []


def _taken_over(entry: JobEntry) -> int | None:
    """Return the time of the takeover from an earlier leader, None if the job was submitted to this one."""
    return entry.began if entry.was_taken_over else None


def _cause(entry: JobEntry) -> FailureCause | None:
    return entry.last_failure if entry.result is None else entry.result.failure_cause


def _identity(request: Request, options: dict[str, str], script: str) -> tuple[JobID, str]:
    """Return id and name of a job. Without a given id, a named job gets the id of its name, others a new id."""
    job_name = request.text("jobName") or options.get(JOB_NAME.key)
    given = request.text("jobId") or options.pop(JOB_ID.key, None)
    if job_name is None:
        return (JobID.generate() if given is None else JobID.from_hex(given)), script
    options[JOB_NAME.key] = job_name
    by_name = JobID.from_name(job_name)
    return (by_name if given is None else JobID.from_hex(given)), job_name or script


def _files(given: Mapping[str, str]) -> dict[str, bytes]:
    files = {}
    for name, content in given.items():
        try:
            files[check_name(name)] = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigurationError(f"The content of file {name!r} is not base64: {error}.") from error
    return files
