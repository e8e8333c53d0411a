"""What a job manager answers: about the jobs that it leads. The rest it hands on to their processes."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from holdfast import __version__
from holdfast.dispatcher.dispatcher import Dispatcher
from holdfast.dispatcher.process import LocalProcesses, check_options
from holdfast.dispatcher.protocol import JobEntry, Phase
from holdfast.dispatcher.store import DispatcherStores, SubmittedProgram, check_name
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.job_result_store import FailureCause
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.rest import metrics as metric
from holdfast.rest.checkpoint_api import CheckpointApi
from holdfast.rest.client import RestError
from holdfast.rest.form import job_form
from holdfast.rest.form import job_manager_form as form
from holdfast.rest.http import Answer, RefusedError, Request, parts_of
from holdfast.rest.job_api import FlowApi, JobApi, RescaleApi
from holdfast.rest.metrics import Sample, from_json
from holdfast.rest.prometheus import exposition
from holdfast.rest.route import STRING, Handler, Route, Routes, UnknownPathError, bound, declared, serves
from holdfast.rest.server import ABSENT_OF_JOB_MANAGERS
from holdfast.rest.state_api import StateApi
from holdfast.runtime.job.options import JOB_ID, JOB_NAME
from holdfast.runtime.job.progress import first_line

_log = get_logger(__name__)
_OF_A_JOB: Final = re.compile(r"(?:/v1)?/jobs/([0-9a-f]{32})/(.*)")
_MOST_LOG: Final = 256 * 1024
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


class Term:
    """What a job manager has while it leads.

    Attributes:
        session: The session in which it leads.
        since: Since when, in milliseconds since 1970.
    """

    def __init__(
        self, session: str, since: int, dispatcher: Dispatcher, stores: DispatcherStores, processes: LocalProcesses
    ) -> None:
        self.session = session
        self.since = since
        self.dispatcher = dispatcher
        self.stores = stores
        self.processes = processes


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
        self.not_ready = self.why_not_ready
        self.serve(*bound(self))
        own = {(route.method, route.path) for route in self.served}
        for api in (JobApi, FlowApi, StateApi, CheckpointApi, RescaleApi):
            for _, route in declared(api):
                if "jobid" in route.parameters and (route.method, route.path) not in own:
                    self.serve(route.bound(self._asked_of_process(route)))
        self.add_absent(ABSENT_OF_JOB_MANAGERS)

    def answer(self, method: str, target: str, body: Mapping[str, Any]) -> Answer:
        """Answer a request, or hand it on to the process of its job."""
        try:
            return super().answer(method, target, body)
        except UnknownPathError:
            parts = parts_of(target)
            match = _OF_A_JOB.fullmatch(parts.path.rstrip("/"))
            if match is None:
                raise
            query = f"?{parts.query}" if parts.query else ""
            return self._hand_on(self._entry(match[1]), method, f"{match[2]}{query}", body)

    def why_not_ready(self) -> str | None:
        """Why this job manager is not ready, None if it is: it leads, or stands by to do so. Does not block."""
        term = self._term()
        if term is None or term.dispatcher.is_ready:
            return None
        return "This job manager reads what was submitted before, or ends."

    @serves("GET", "/overview", form.OVERVIEW)
    def overview(self, request: Request) -> Answer:
        """This job manager, and how many jobs it leads."""
        term = self._term()
        entries = [] if term is None else term.dispatcher.jobs()
        ended = [entry for entry in entries if entry.result is not None]
        return Answer(
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
    def metrics(self, request: Request) -> Answer:
        """All numbers of this process and of the jobs that it leads, as Prometheus reads them."""
        term, samples = self._term(), self.own_samples()
        for entry in [] if term is None else term.dispatcher.jobs():
            if entry.phase is Phase.RUNNING and term is not None:
                samples += _samples_of(term, entry.job_id)
        return exposition(samples)

    def own_samples(self) -> list[Sample]:
        """The numbers of this process, without those of its jobs."""
        term = self._term()
        entries = [] if term is None else term.dispatcher.jobs()
        return [
            metric.MANAGER_IS_LEADER.of(int(term is not None)),
            *(
                metric.MANAGER_JOBS.of(sum(entry.status == status for entry in entries), status=status)
                for status in _STATUSES
            ),
            *(metric.MANAGER_PROCESSES.of(entry.start, job_id=str(entry.job_id)) for entry in entries),
        ]

    @serves("GET", "/jobs", job_form.JOBS)
    def jobs(self, request: Request) -> Answer:
        """The jobs and their states."""
        return Answer({"jobs": [{"id": str(e.job_id), "status": e.status} for e in self._led().dispatcher.jobs()]})

    @serves("GET", "/jobs/overview", form.JOBS_OVERVIEW)
    def jobs_overview(self, request: Request) -> Answer:
        """The jobs, each in a few words."""
        return Answer({"jobs": [self._summary(entry) for entry in self._led().dispatcher.jobs()]})

    @serves("POST", "/jobs", form.SUBMITTED, status=202, body=form.SUBMISSION, refusals=(409,))
    def submit(self, request: Request) -> Answer:
        """Submit a job: a program with its files, arguments and options."""
        term = self._led()
        script = request.body["script"]
        try:
            files = _files(request.body["files"])
            options = dict(request.body.get("options", {}))
            job_id, name = _identity(request, options, script)
            if script not in files:
                raise ConfigurationError(f"The script {script!r} is none of the files.")
            check_options(options)
        except ConfigurationError as error:
            raise RefusedError(400, str(error)) from error
        submission = secrets.token_hex(16)
        try:
            keys = term.stores.take(submission, files)
        except HoldfastError as error:
            raise RefusedError(500, str(error)) from error
        program = SubmittedProgram(submission, script, keys, tuple(request.body.get("arguments", ())), options)
        status, message = term.dispatcher.submit(program.to_plan(job_id, name))
        if status != 202:
            term.stores.forget(submission)
            raise RefusedError(status, message)
        return Answer({"jobid": str(job_id), "name": name}, 202)

    @serves("GET", "/jobs/:jobid", form.DETAILS)
    def details(self, request: Request) -> Answer:
        """A job; while its process runs with its operators and what it has done last."""
        entry = self._entry(request.path["jobid"])
        if entry.phase is Phase.RUNNING:
            try:
                found = self._hand_on(entry, "GET", "", {}).body
            except RefusedError:
                return Answer(self._summary(entry))
            assert isinstance(found, dict)
            state = entry.status if entry.cancel_wanted else found["state"]
            return Answer({**found, "state": state, "processes": entry.start, "taken-over": _taken_over(entry)})
        return Answer(self._summary(entry))

    @serves("GET", "/jobs/:jobid/status", job_form.STATUS)
    def status(self, request: Request) -> Answer:
        """The state of a job."""
        return Answer({"status": self._entry(request.path["jobid"]).status})

    @serves("GET", "/jobs/:jobid/execution-result", job_form.RESULT)
    def execution_result(self, request: Request) -> Answer:
        """How a job has ended, if it has."""
        result = self._entry(request.path["jobid"]).result
        if result is None:
            return Answer({"status": {"id": "IN_PROGRESS"}})
        told: dict[str, Any] = {
            "id": str(result.job_id),
            "application-status": result.application_status.name,
            "accumulator-results": {},
            "net-runtime": result.net_runtime,
        }
        cause = result.failure_cause
        if cause is not None:
            told["failure-cause"] = {"class": cause.type_name, "message": cause.message}
        return Answer({"status": {"id": "COMPLETED"}, "job-execution-result": told})

    @serves("PATCH", "/jobs/:jobid", job_form.NOTHING, status=202, query=form.CANCEL_QUERY, refusals=(409,))
    def cancel(self, request: Request) -> Answer:
        """End a job for good."""
        status, message = self._led().dispatcher.cancel(self._entry(request.path["jobid"]).job_id)
        if status != 202:
            raise RefusedError(status, message)
        return Answer({}, 202)

    @serves("GET", "/jobs/:jobid/exceptions", job_form.EXCEPTIONS, query=job_form.EXCEPTIONS_QUERY)
    def exceptions(self, request: Request) -> Answer:
        """What made attempts of a job fail, newest first."""
        entry = self._entry(request.path["jobid"])
        if entry.phase is Phase.RUNNING:
            return self._hand_on(entry, "GET", f"exceptions?{urlencode(request.query)}", {})
        causes = [cause for cause in (_cause(entry),) if cause is not None]
        entries = [
            {
                "exceptionName": cause.type_name,
                "stacktrace": cause.stack_trace or cause.message,
                "timestamp": entry.began,
            }
            for cause in causes
        ]
        return Answer({"exceptionHistory": {"entries": entries, "truncated": entry.failures > len(entries)}})

    @serves("GET", "/jobs/:jobid/log", form.LOG, query=form.LOG_QUERY)
    def log(self, request: Request) -> Answer:
        """A part of the log of a job, from an offset in bytes, or of its end."""
        entry = self._entry(request.path["jobid"])
        offset, tail = request.query.get("offset"), request.query.get("tail")
        path = self._led().processes.log_of(entry.job_id)
        if entry.start == 0 and entry.result is not None and not path.exists():
            raise RefusedError(
                404,
                f"Job {entry.job_id} has ended {entry.status} under a leader before. Its log is in the working "
                "directory of that one, on its host.",
            )
        size = path.stat().st_size if path.exists() else 0
        begin = min(offset or 0 if tail is None else max(0, size - tail), size)
        content = b""
        if size > begin:
            with path.open("rb") as file:
                file.seek(begin)
                content = file.read(_MOST_LOG)
        if begin + len(content) < size and b"\n" in content:
            content = content[: content.rindex(b"\n") + 1]
        has_ended = entry.phase in (Phase.CLEANING, Phase.ENDED) and begin + len(content) >= size
        return Answer(
            {
                "offset": begin,
                "next": begin + len(content),
                "text": content.decode(errors="replace"),
                "ended": has_ended,
                "host": socket.gethostname(),
            }
        )

    def _led(self) -> Term:
        term = self._term()
        if term is None or not term.dispatcher.is_ready:
            what = "stands by: another one leads" if term is None else "reads what was submitted before"
            raise RefusedError(
                503, f"This job manager {what}. Service temporarily unavailable due to a leader election."
            )
        return term

    def _entry(self, job_id: str) -> JobEntry:
        entry = self._led().dispatcher.job(JobID.from_hex(job_id)) if re.fullmatch("[0-9a-f]{32}", job_id) else None
        if entry is None:
            raise RefusedError(404, f"Job {job_id:.40} not found.")
        return entry

    def _asked_of_process(self, route: Route) -> Handler:
        """What answers a path that only the process of a job knows the answer of."""

        def ask(request: Request) -> Answer:
            entry = self._entry(request.path["jobid"])
            path = "/".join(
                quote(request.path[part[1:]], safe="") if part.startswith(":") else part
                for part in route.path.split("/")[3:]
            )
            query = f"?{urlencode(request.query)}" if request.query else ""
            return self._hand_on(entry, route.method, path + query, request.body)

        return ask

    def _hand_on(self, entry: JobEntry, method: str, path: str, body: Mapping[str, Any]) -> Answer:
        if entry.phase is not Phase.RUNNING:
            raise RefusedError(503, f"Job {entry.job_id} is {entry.status}: it has no process that could be asked.")
        try:
            client = self._led().processes.client_of(entry.job_id)
            status, content = client.send(method, path, body or None)
        except RestError as error:
            raise RefusedError(error.status or 503, str(error)) from error
        except HoldfastError as error:
            raise RefusedError(503, str(error)) from error
        return Answer(content, status)

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
            "last-failure": None if cause is None else f"{cause.type_name}: {first_line(cause.message)}",
            "left-to-clean-up": entry.left,
        }


def _samples_of(term: Term, job_id: JobID) -> list[Sample]:
    """What the process of a job counts; nothing if it does not answer soon, because others are waiting."""
    try:
        return from_json(term.processes.client_of(job_id).get("metrics/samples", timeout=_SAMPLE_SECONDS))
    except HoldfastError as error:
        _log.debug("no metrics of job %s: %s", job_id, error)
        return []


def _taken_over(entry: JobEntry) -> int | None:
    """When the job was taken over from a leader before, None if it was submitted to this one."""
    return entry.began if entry.was_taken_over else None


def _cause(entry: JobEntry) -> FailureCause | None:
    return entry.last_failure if entry.result is None else entry.result.failure_cause


def _identity(request: Request, options: dict[str, str], script: str) -> tuple[JobID, str]:
    """Id and name of a job; the id is that of its name if it was given one, else a new one."""
    named = request.text("jobName") or options.get(JOB_NAME.key)
    given = request.text("jobId") or options.pop(JOB_ID.key, None)
    if named is None:
        return (JobID.generate() if given is None else JobID.from_hex(given)), script
    options[JOB_NAME.key] = named
    by_name = JobID.from_name(named)
    return (by_name if given is None else JobID.from_hex(given)), named or script


def _files(given: Mapping[str, str]) -> dict[str, bytes]:
    files = {}
    for name, content in given.items():
        try:
            files[check_name(name)] = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigurationError(f"The content of file {name!r} is not base64: {error}.") from error
    return files
