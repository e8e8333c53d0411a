"""A small HTTP server on the loopback for one job: paths, the bearer token, JSON; what it answers is said elsewhere.

The standard library's server: a handful of requests a minute from this host, and no further dependency for every job.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.rest.absent import ABSENT
from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.checkpoint_api import CheckpointApi
from holdfast.rest.job_api import JobApi
from holdfast.rest.rescale_api import RescaleApi
from holdfast.runtime.master.job_master import JobMaster

_log = logging.getLogger(__name__)
HOST: Final = "127.0.0.1"
MAX_BODY: Final = 1024 * 1024
_IDLE_SECONDS: Final = 30.0

Handler = Callable[[Request], Answer]


class Routes:
    """What is served: method and path, such as ``GET /jobs/:jobid``, and who answers.

    Args:
        job_id: The job; paths of other jobs are answered with 404.

    Attributes:
        linger: Waits until the outcomes of operations have been fetched, at most for the given seconds.
    """

    def __init__(self, job_id: str, linger: Callable[[float], None]) -> None:
        self._job_id = job_id
        self.linger = linger
        self._routes: list[tuple[str, re.Pattern[str], Handler]] = []

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path."""
        pattern = re.sub(r":([a-z]+)", r"(?P<\1>[^/]+)", path).replace("*", ".*")
        self._routes.append((method, re.compile(f"(?:/v1)?{pattern}/?"), handler))

    def add_absent(self, method: str, path: str, reason: str) -> None:
        """Say why a path of Flink's is not served; `*` stands for anything."""

        def refuse(request: Request) -> Answer:
            raise RefusedError(501, f"{method} {path.rstrip('*')} has no meaning here. {reason}")

        self.add(method, path, refuse)

    def answer(self, method: str, target: str, body: Mapping[str, Any]) -> Answer:
        """Answer a request.

        Raises:
            RefusedError: It cannot be answered.
        """
        parts = urlsplit(target)
        others = False
        for known, pattern, handler in self._routes:
            match = pattern.fullmatch(parts.path)
            if match is None:
                continue
            if known != method:
                others = True
                continue
            path = {name: unquote(value) for name, value in match.groupdict().items()}
            if path.get("jobid", self._job_id) != self._job_id:
                raise RefusedError(404, f"Job {path['jobid']} not found; this is the master of {self._job_id}.")
            return handler(Request(path, dict(parse_qsl(parts.query)), body))
        if others:
            raise RefusedError(405, f"{method} is not served at {parts.path!r}.")
        raise RefusedError(404, f"Nothing is served at {parts.path!r}.")


def routes_of(master: JobMaster) -> Routes:
    """Return what the master of a job serves."""
    jobs, checkpoints, rescales = JobApi(master), CheckpointApi(master), RescaleApi(master)
    routes = Routes(str(master.job.job_id), checkpoints.linger)
    routes.add("GET", "/jobs", jobs.jobs)
    routes.add("GET", "/jobs/overview", jobs.overview)
    routes.add("GET", "/jobs/:jobid", jobs.details)
    routes.add("PATCH", "/jobs/:jobid", jobs.cancel)
    routes.add("GET", "/jobs/:jobid/status", jobs.status)
    routes.add("GET", "/jobs/:jobid/config", jobs.config)
    routes.add("GET", "/jobs/:jobid/plan", jobs.plan)
    routes.add("GET", "/jobs/:jobid/metrics", jobs.metrics)
    routes.add("GET", "/jobs/:jobid/execution-result", jobs.execution_result)
    routes.add("GET", "/jobs/:jobid/exceptions", jobs.exceptions)
    routes.add("GET", "/jobs/:jobid/resource-requirements", jobs.requirements)
    routes.add("PUT", "/jobs/:jobid/resource-requirements", jobs.require)
    routes.add("PATCH", "/jobs/:jobid/rescaling", jobs.rescaling)
    routes.add("GET", "/jobs/:jobid/checkpoints", checkpoints.overview)
    routes.add("POST", "/jobs/:jobid/checkpoints", checkpoints.trigger_checkpoint)
    routes.add("GET", "/jobs/:jobid/checkpoints/config", checkpoints.config)
    routes.add("GET", "/jobs/:jobid/checkpoints/details/:checkpointid", checkpoints.details)
    routes.add("GET", "/jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid", checkpoints.subtasks)
    routes.add("GET", "/jobs/:jobid/checkpoints/:triggerid", checkpoints.checkpoint_status)
    routes.add("POST", "/jobs/:jobid/savepoints", checkpoints.trigger_savepoint)
    routes.add("GET", "/jobs/:jobid/savepoints/:triggerid", checkpoints.savepoint_status)
    routes.add("POST", "/jobs/:jobid/stop", checkpoints.stop)
    routes.add("POST", "/savepoint-disposal", checkpoints.dispose)
    routes.add("GET", "/savepoint-disposal/:triggerid", checkpoints.disposal_status)
    routes.add("GET", "/jobs/:jobid/rescales/config", rescales.config)
    routes.add("GET", "/jobs/:jobid/rescales/overview", rescales.overview)
    routes.add("GET", "/jobs/:jobid/rescales/summary", rescales.summary)
    routes.add("GET", "/jobs/:jobid/rescales/history", rescales.history)
    routes.add("GET", "/jobs/:jobid/rescales/details/:rescaleuuid", rescales.details)
    for target, reason in ABSENT.items():
        method, _, path = target.partition(" ")
        routes.add_absent(method, path, reason)
    return routes


class RestServer:
    """Serves a job's REST interface in threads of its own, from `start` to `close`.

    Args:
        routes: What is served.
        bearer: What a request must show in its ``Authorization`` header.
        ports: Of which the first free one is taken; 0 is any.
    """

    def __init__(self, routes: Routes, bearer: str, ports: tuple[int, ...] = (0,)) -> None:
        self._routes = routes
        self._bearer = bearer
        self._ports = ports
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> str:
        """Listen; returns the URL.

        Raises:
            ConfigurationError: All ports are taken.
        """
        routes, bearer = self._routes, self._bearer

        class Connection(_Connection):
            def __init__(self, *arguments: Any) -> None:
                self.routes, self.bearer = routes, bearer
                super().__init__(*arguments)

        server = self._bound(Connection)
        server.daemon_threads = True
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.2,), name="holdfast-rest", daemon=True).start()
        return f"http://{HOST}:{server.server_address[1]}"

    def _bound(self, connection: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
        for port in self._ports:
            try:
                return ThreadingHTTPServer((HOST, port), connection)
            except OSError as error:
                _log.debug("port %d: %s", port, error)
        raise ConfigurationError(
            f"rest.bind-port: none of the ports {', '.join(map(str, self._ports))} is free on {HOST}; 0 takes any."
        )

    def close(self, linger: float = 0.0) -> None:
        """Listen no more.

        Args:
            linger: Seconds for which clients may still fetch the outcome of what they asked for.
        """
        if self._server is not None:
            self._routes.linger(linger)
            self._server.shutdown()
            self._server.server_close()


class _Connection(BaseHTTPRequestHandler):
    """One connection, one request."""

    timeout = _IDLE_SECONDS
    routes: Routes
    bearer: str

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request that could be read, as everything else is answered."""
        self._send(Answer({"errors": [message or explain or f"HTTP {int(code)}"]}, int(code)))
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # the base class names it so
        _log.debug(format, *args)

    def _answer(self) -> None:
        try:
            self._check_bearer()
            answer = self.routes.answer(self.command, self.path, self._body())
        except RefusedError as error:
            answer = Answer({"errors": [str(error)]}, error.status)
        except HoldfastError as error:
            answer = Answer({"errors": [f"{type(error).__name__}: {error}"]}, 500)
        except Exception as error:
            _log.exception("%s %s failed", self.command, self.path)
            answer = Answer({"errors": [f"Internal error: {error!r}."]}, 500)
        self._send(answer)
        if answer.delivered is not None:
            answer.delivered()

    def _send(self, answer: Answer) -> None:
        content = json.dumps(answer.body, ensure_ascii=False, default=str).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _check_bearer(self) -> None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.bearer}".encode()):
            raise RefusedError(401, "Show the token of the job: Authorization: Bearer <token>.")

    def _body(self) -> Mapping[str, Any]:
        if "Transfer-Encoding" in self.headers:
            raise RefusedError(411, "Send the body with its Content-Length, and not in chunks.")
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            raise RefusedError(400, "Content-Length is no number.") from None
        if length < 0:
            raise RefusedError(400, "Content-Length is negative.")
        if length > MAX_BODY:
            raise RefusedError(413, f"A body has at most {MAX_BODY} bytes.")
        if not length:
            return {}
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"The body is no JSON: {error}.") from error
        if not isinstance(body, dict):
            raise RefusedError(400, "The body must be a JSON object.")
        return body
