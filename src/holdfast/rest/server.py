"""The HTTP server of the REST interface, and Flink's paths that are not served.

It is a small server on the standard library: it gets a handful of requests a minute, and every job would need any
further dependency.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.secret import get_logger, redacted_message, without_credentials
from holdfast.queryable.server.server_connection import ports_from
from holdfast.rest.checkpoint_api import CheckpointApi
from holdfast.rest.client import AddressFile
from holdfast.rest.http import HttpError, RequestHead, Response, parse_body, probe_response
from holdfast.rest.job_api import FlowApi, JobApi, RecentLog, RescaleApi
from holdfast.rest.page.page_files import is_page_request, page_file
from holdfast.rest.route import Routes, bind_routes
from holdfast.rest.state_api import StateApi
from holdfast.runtime.job.options import (
    REST_CONNECTIONS,
    REST_CONNECTIONS_OF_ADDRESS,
    REST_HOSTS,
    REST_MAX_BODY,
    REST_MAX_HEADER,
    REST_METRICS_TOKEN_FILE,
    REST_PORT,
    REST_REQUEST_TIMEOUT,
    REST_STRANGERS,
    REST_THREADS,
)
from holdfast.runtime.master.job_master import JobMaster, JobObserver

logger = get_logger(__name__)
_LINGER_SECONDS: Final = 1.0
_CHUNK: Final = 65536
_ALWAYS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@dataclass(frozen=True)
class RestLimits:
    """Limits of the REST interface.

    Attributes:
        connections: Most connections that have shown the token.
        per_address: Most of these from one address.
        unauthenticated: Most other connections; for one more, the one that has waited longest is closed.
        threads: Most requests that are handled at one time; others wait.
        seconds: Timeout for a request to arrive, for its wait for a thread, and for its response to be read, each.
        header_bytes: Longest request line with headers.
        body_bytes: Longest body.
        hosts: Allowed values of the Host header, in lower case, besides names of the loopback.
        scraper: A token that can only read metrics; None if there is none.
    """

    connections: int = 64
    per_address: int = 48
    unauthenticated: int = 32
    threads: int = 8
    seconds: float = 10.0
    header_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    hosts: frozenset[str] = frozenset()
    scraper: str | None = None


Respond = Callable[[RequestHead, bytes], Response]


class RestConnection:
    """A connection with one request; belongs to an event loop. An incomplete request occupies no thread.

    Args:
        reader: Reads from the connection.
        writer: Writes to the connection.
        limits: Limits of the request.
        bearer: The token that the request must show.
        quota: Counts the connections.
        threads: Limits the requests that are handled at one time.
        not_ready_reason: Returns why the process is not ready, None if it is. Must not block.

    Attributes:
        is_admitted: Whether the connection has shown the token.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: RestLimits,
        bearer: str,
        quota: ConnectionQuota[RestConnection],
        threads: asyncio.Semaphore,
        not_ready_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._bearer = bearer
        self._quota = quota
        self._threads = threads
        self._not_ready = not_ready_reason
        self.is_admitted = False
        self._is_answered = False

    def reject(self) -> None:
        """Close the connection in favor of a newer one, with as much of an error as fits into the socket."""
        if not self._is_answered:
            reason = f"More than {self._limits.unauthenticated} connections have sent no request. Try again later."
            self._writer.write(_encoded(_refusal(HttpError(503, reason))))
        self._writer.transport.abort()

    async def serve(self, respond: Respond) -> None:
        """Handle the request.

        Args:
            respond: Makes the response; called in a thread of its own.
        """
        host = str(self._writer.get_extra_info("peername", ("",))[0])
        longest = self._quota.add(self, host)
        if longest is not None:
            longest.reject()
        try:
            await self._send(await self._answer(respond))
        except (OSError, EOFError, TimeoutError) as error:
            logger.debug("A connection of %s ended: %r", host, error)
        finally:
            self._quota.remove(self)
            self._writer.transport.abort()

    async def _answer(self, respond: Respond) -> Response:
        try:
            try:
                async with asyncio.timeout(self._limits.seconds):
                    head = await self._read_head()
                    if head.is_probe:  # in the event loop, so that a busy process counts as alive
                        return probe_response(head.target, self._not_ready())
                    head.check_host(self._limits.hosts)
                    if is_page_request(head.method, head.target):  # in the event loop too: it needs no token
                        return page_file(head.target)
                    body = await self._read_body(head)
            except TimeoutError:
                raise HttpError(408, f"The request was not complete after {self._limits.seconds:g} s.") from None
            try:
                async with asyncio.timeout(self._limits.seconds):
                    await self._threads.acquire()
            except TimeoutError:
                raise HttpError(
                    503, f"{self._limits.threads} other requests are being handled. Try again later."
                ) from None
        except HttpError as error:
            return _refusal(error)
        return await self._in_thread(lambda: _responded(respond, head, body))

    async def _read_head(self) -> RequestHead:
        try:
            return RequestHead(await self._reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            raise HttpError(431, f"Headers have at most {self._limits.header_bytes} bytes.") from None

    async def _read_body(self, head: RequestHead) -> bytes:
        head.check_origin()
        if not head.is_scrape(self._limits.scraper):
            head.check_bearer(self._bearer)
        full = self._quota.admit(self)
        if full is not None:
            raise HttpError(503, full)
        self.is_admitted = True
        return await self._reader.readexactly(head.body_length(self._limits.body_bytes))

    async def _in_thread(self, call: Callable[[], Response]) -> Response:
        # A daemon thread: a handler that hangs must not keep the process alive.
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Response] = loop.create_future()

        def done(answer: Response) -> None:
            self._threads.release()
            if not answered.done():
                answered.set_result(answer)

        def run() -> None:
            answer = call()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done, answer)

        threading.Thread(target=run, name="holdfast-rest-request", daemon=True).start()
        return await answered

    async def _send(self, answer: Response) -> None:
        self._is_answered = True
        self._writer.transport.set_write_buffer_limits(high=0)
        async with asyncio.timeout(self._limits.seconds):
            self._writer.write(_encoded(answer))
            await self._writer.drain()
        if answer.delivered is not None:
            answer.delivered()
        # Read on for a while: a client that is still sending would see a lost connection instead of the response.
        if not self._writer.can_write_eof():  # TLS
            self._writer.close()
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    await self._writer.wait_closed()
            return
        self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while await self._reader.read(_CHUNK):
                    pass


def _responded(respond: Respond, head: RequestHead, body: bytes) -> Response:
    try:
        return respond(head, body)
    except HttpError as error:
        return _refusal(error)
    except HoldfastError as error:
        return Response({"errors": [f"{type(error).__name__}: {redacted_message(error)}"]}, 500)
    except Exception as error:
        logger.exception("%s %s failed", head.method, head.target)
        return Response({"errors": [f"Internal error: {without_credentials(repr(error))}."]}, 500)


def respond_with(answer: Callable[..., Response]) -> Respond:
    """Adapt a dispatcher of method, target and body to `Respond`."""
    return lambda head, body: answer(head.method, head.target, parse_body(body))


def _refusal(error: HttpError) -> Response:
    return Response({"errors": [redacted_message(error)]}, error.status, headers=error.headers)


def _encoded(answer: Response) -> bytes:
    content = answer.body
    if not isinstance(content, bytes):
        content = json.dumps(content, ensure_ascii=False, default=str).encode(errors="backslashreplace")
    headers = {"Content-Type": answer.media_type, "Content-Length": str(len(content)), **_ALWAYS, **answer.headers}
    lines = [f"HTTP/1.0 {answer.status} {HTTPStatus(answer.status).phrase}", *map(": ".join, headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


# Flink's paths that are not served: each is answered with the reason and the alternative.

_SPARK: Final = "Spark runs the tasks: see its web interface and REST API at spark.ui.port (4040)."
_ONE_JOB: Final = (
    "This is the master of one job, in the process that was started with `holdfast run` or `python`, or by a job "
    "manager; it serves /jobs. Submit jobs to a job manager. The only cluster is Spark's."
)
_PROGRAMS: Final = "Programs are Python, not jars: submit a program with its files to a job manager, with POST /jobs."
_SUBTASKS: Final = (
    f"{_SPARK} The subtasks of a checkpoint are at /jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:uid."
)

_OF_A_JOB: Final[dict[str, str]] = {
    "GET /jobs/metrics": "Metrics of all jobs are at /metrics, those of one job at /jobs/:jobid/metrics.",
    "GET /jobs/:jobid/accumulators": (
        "Functions have no accumulators. Use the metric group of the runtime context, and read /jobs/:jobid/metrics."
    ),
    "PATCH /jobs/:jobid/clientHeartbeat": ("No client is attached to a job, so it needs no heartbeat."),
    "POST /jobs/:jobid/coordinators/:uid": "Operators have no coordinators.",
    "GET /jobs/:jobid/rescaling/:triggerid": "This path is deprecated in Flink too: see /jobs/:jobid/rescales.",
    "GET /jobs/:jobid/vertices/:vertexid/*": _SUBTASKS,
    "GET /jobs/:jobid/taskmanagers*": _SPARK,
    "GET /jobs/:jobid/jobmanager/*": "The options of a job are at /jobs/:jobid/config, and its log is at "
    "/jobs/:jobid/log.",
    "GET /taskmanagers*": _SPARK,
    "POST /taskmanagers*": _SPARK,
    "GET /datasets*": "Jobs keep no data sets, only output and checkpoints.",
    "DELETE /datasets*": "Jobs keep no data sets, only output and checkpoints.",
    "GET /jars*": _PROGRAMS,
    "POST /jars*": _PROGRAMS,
    "DELETE /jars*": _PROGRAMS,
}

ABSENT: Final[dict[str, str]] = {
    **_OF_A_JOB,
    "POST /jobs": _ONE_JOB,
    "GET /jobmanager/*": _ONE_JOB,
    "POST /jobmanager/*": _ONE_JOB,
    "GET /overview": _ONE_JOB,
    "GET /config": _ONE_JOB,
    "GET /applications*": _ONE_JOB,
    "POST /applications*": _ONE_JOB,
    "DELETE /cluster": f"{_ONE_JOB} End it with PATCH /jobs/:jobid?mode=cancel, or with POST /jobs/:jobid/stop.",
}
"""Paths that are answered with 501, by method and path; `*` matches any text, also none."""

_LOGS: Final = "The log of a job manager is where its process writes it; the log of a job is at /jobs/:jobid/log."
_DISPOSAL: Final = "`holdfast savepoint --dispose PATH` deletes a savepoint, without a job or job manager."
_APPLICATIONS: Final = "A program is one job: see /jobs."
ABSENT_OF_JOB_MANAGERS: Final[dict[str, str]] = {
    **_OF_A_JOB,
    "POST /savepoint-disposal": _DISPOSAL,
    "GET /savepoint-disposal/*": _DISPOSAL,
    "GET /config": "It configures Flink's web page; the page here needs no configuration.",
    "GET /jobmanager/config": "The options of a job are at /jobs/:jobid/config.",
    "GET /jobmanager/environment": "There is no JVM; the version of Holdfast is at /overview.",
    "GET /jobmanager/metrics": "Its metrics are at /metrics.",
    "GET /jobmanager/log*": _LOGS,
    "GET /jobmanager/stdout": _LOGS,
    "GET /jobmanager/thread-dump": "The process is not a JVM: `py-spy dump` shows what its threads do.",
    "GET /jobmanager/profiler*": "The process is not a JVM: `py-spy` profiles it.",
    "POST /jobmanager/profiler*": "The process is not a JVM: `py-spy` profiles it.",
    "GET /applications*": _APPLICATIONS,
    "POST /applications*": _APPLICATIONS,
    "DELETE /cluster": "Stop a job manager on its host: after SIGTERM the next one takes over its jobs.",
}
"""The same for job managers."""

HOST: Final = "127.0.0.1"
_BACKLOG: Final = 1024
_CLOSE_SECONDS: Final = 2.0


def job_routes(master: JobMaster, log: RecentLog | None = None) -> Routes:
    jobs, checkpoints = JobApi(master, log), CheckpointApi(master)

    def linger(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        checkpoints.linger(seconds)
        jobs.linger(max(0.0, deadline - time.monotonic()))

    routes = Routes(str(master.job.job_id), linger)
    routes.not_ready_reason = jobs.not_ready_reason
    for api in (jobs, FlowApi(master), StateApi(master), checkpoints, RescaleApi(master)):
        routes.serve(*bind_routes(api))
    routes.add_absent(ABSENT)
    return routes


class RestServer:
    """The REST server of a job or a job manager.

    An event loop in a thread of its own reads all connections, so that slow and silent clients occupy no thread.
    Complete requests are handled in other threads.

    Args:
        routes: The routes.
        bearer: The token that requests must show in the ``Authorization`` header.
        ports: Ports to try; the server listens on the first free one. 0 is any free port.
        limits: Limits for connections and requests.
        host: The address to listen on.
        tls: TLS context; None for plain HTTP.
    """

    def __init__(
        self,
        routes: Routes,
        bearer: str,
        ports: tuple[int, ...] = (0,),
        limits: RestLimits | None = None,
        host: str = HOST,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._routes = routes
        self._bearer = bearer
        self._ports = ports
        self._host = host
        self._tls = tls
        self._limits = limits or RestLimits()
        self._quota: ConnectionQuota[RestConnection] = ConnectionQuota(
            self._limits.connections, self._limits.per_address, self._limits.unauthenticated
        )
        self._threads = asyncio.Semaphore(self._limits.threads)
        self._open: dict[asyncio.Task[None], RestConnection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server

    def start(self) -> str:
        """Start listening and return the URL.

        Raises:
            ConfigurationError: All ports are in use.
        """
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="holdfast-rest", daemon=True)
        self._thread.start()
        try:
            port = asyncio.run_coroutine_threadsafe(self._listen(), loop).result()
        except BaseException:
            self._end(loop)
            raise
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{self._host}]' if ':' in self._host else self._host}:{port}"

    def close(self, linger: float = 0.0) -> None:
        """Stop listening after running requests have been answered. Blocks.

        Args:
            linger: Seconds for which clients may still fetch the results of triggered operations, and the end of the
                job if they watch it.
        """
        if self._loop is not None:
            self._routes.linger(linger)
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._end(self._loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()

    async def _listen(self) -> int:
        for port in self._ports:
            try:
                self._server = await asyncio.start_server(
                    self._serve,
                    self._host,
                    port,
                    limit=self._limits.header_bytes,
                    backlog=_BACKLOG,
                    **self._encryption(),
                )
            except OSError as error:
                logger.debug("port %d: %s", port, error)
            else:
                return int(self._server.sockets[0].getsockname()[1])
        raise ConfigurationError(
            f"rest.bind-port: none of the ports {', '.join(map(str, self._ports))} is free on {self._host}. Set other "
            "ports, or 0 for any free port."
        )

    def _encryption(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {"ssl": self._tls, "ssl_handshake_timeout": self._limits.seconds, "ssl_shutdown_timeout": _CLOSE_SECONDS}

    async def _close(self) -> None:
        self._server.close()
        answering = [task for task, connection in self._open.items() if connection.is_admitted]
        if answering:
            await asyncio.wait(answering, timeout=_CLOSE_SECONDS)
        rest = list(self._open)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = RestConnection(
            reader, writer, self._limits, self._bearer, self._quota, self._threads, self._routes.not_ready_reason
        )
        self._open[task] = connection
        try:
            await connection.serve(respond_with(self._routes.answer))
        except asyncio.CancelledError:
            logger.debug("A connection was open when the REST interface was closed.")
        finally:
            del self._open[task]


_SHUTDOWN_LINGER_SECONDS: Final = 5.0


class EmbeddedRestServer(JobObserver):
    """Runs the REST server in a job's process, on the loopback, and publishes its address in the job's directory."""

    def check(self, configuration: Configuration) -> None:
        ports_from(configuration, REST_PORT)
        limits_from(configuration)

    def started(self, master: JobMaster) -> None:
        self._bearer = secrets.token_urlsafe(32)
        options = master.job.configuration
        ports, limits = ports_from(options, REST_PORT), limits_from(options)
        self._log = RecentLog()
        self._server = RestServer(job_routes(master, self._log), self._bearer, ports, limits)
        self._file = AddressFile(master.job.directory)
        self._url = master.rest_url = self._server.start()
        self._log.start()
        logger.info("REST of job %r is served at %s", master.job.name, self._url)

    def leads(self, token: int) -> None:
        """Publish the address in the job's directory, as this process leads the job now.

        Raises:
            StorageError: The address cannot be written.
        """
        self._file.publish(self._url, self._bearer, token)

    def ended(self) -> None:
        """Close the server after clients have fetched their savepoint and seen the job's end, or after some seconds."""
        self._server.close(_SHUTDOWN_LINGER_SECONDS)
        self._log.stop()
        self._file.withdraw()


def limits_from(options: Configuration) -> RestLimits:
    """Read the limits of the REST interface from the options.

    Raises:
        ConfigurationError: An option is invalid.
    """
    for option in (
        REST_CONNECTIONS,
        REST_CONNECTIONS_OF_ADDRESS,
        REST_STRANGERS,
        REST_THREADS,
        REST_REQUEST_TIMEOUT,
        REST_MAX_HEADER,
    ):
        if options.get(option) <= 0:
            raise ConfigurationError(f"{option.key} must be more than 0.")
    return RestLimits(
        connections=options.get(REST_CONNECTIONS),
        per_address=options.get(REST_CONNECTIONS_OF_ADDRESS),
        unauthenticated=options.get(REST_STRANGERS),
        threads=options.get(REST_THREADS),
        seconds=options.get(REST_REQUEST_TIMEOUT) / 1000,
        header_bytes=options.get(REST_MAX_HEADER),
        body_bytes=options.get(REST_MAX_BODY),
        scraper=_scraper_token(options.get(REST_METRICS_TOKEN_FILE)),
        hosts=frozenset(name.strip().lower() for name in options.get(REST_HOSTS)),
    )


def _scraper_token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{REST_METRICS_TOKEN_FILE.key}: {file!r} cannot be read: {error}.") from error
    if not token:
        raise ConfigurationError(f"{REST_METRICS_TOKEN_FILE.key}: {file!r} is empty; write a token into it.")
    return token
