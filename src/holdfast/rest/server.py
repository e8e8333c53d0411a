"""A small HTTP server, on the loopback for one job; what is served at which path is declared where it is answered.

Of the standard library: a handful of requests a minute from this host, and no further dependency for every job.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import threading
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
from holdfast.rest.http import Answer, RefusedError, RequestHead, parse_body, probed
from holdfast.rest.job_api import FlowApi, JobApi, RescaleApi
from holdfast.rest.page.page_files import is_page, page_at
from holdfast.rest.route import Routes, bound
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

# One connection, one request. Until it is whole it takes no thread, and everything about it has a bound.

_log = get_logger(__name__)
_LINGER_SECONDS: Final = 1.0
_CHUNK: Final = 65536
_ALWAYS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@dataclass(frozen=True)
class RestBounds:
    """What the REST interface takes.

    Attributes:
        connections: Most connections that have shown the token.
        of_one_address: The same, of one address.
        strangers: Most connections that have not; one more, and the one that has waited longest ends.
        threads: Most requests that are answered at one time; others wait.
        seconds: How long a request may take to arrive, to wait for a thread, and its answer to be read, each.
        header_bytes: Longest request without its body.
        body_bytes: Longest body.
        hosts: Names of this server in the Host header, in lower case, besides those of the loopback.
        scraper: A token that is good for reading metrics, and for nothing else; None if there is none.
    """

    connections: int = 64
    of_one_address: int = 48
    strangers: int = 32
    threads: int = 8
    seconds: float = 10.0
    header_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    hosts: frozenset[str] = frozenset()
    scraper: str | None = None


Respond = Callable[[RequestHead, bytes], Answer]


class RestConnection:
    """A connection; belongs to an event loop.

    Args:
        reader: What it reads.
        writer: What it writes.
        bounds: What is taken.
        bearer: What the request must show.
        quota: Who has connected.
        threads: As many as may be answered at one time.
        not_ready: Says why the process is not ready, None if it is. Must not block.

    Attributes:
        is_admitted: Whether it has shown the token.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        bounds: RestBounds,
        bearer: str,
        quota: ConnectionQuota[RestConnection],
        threads: asyncio.Semaphore,
        not_ready: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._bounds = bounds
        self._bearer = bearer
        self._quota = quota
        self._threads = threads
        self._not_ready = not_ready
        self.is_admitted = False
        self._is_answered = False

    def send_away(self) -> None:
        """Others came after, and there is no place: end at once, with what fits into the socket of the reason."""
        if not self._is_answered:
            reason = f"More than {self._bounds.strangers} connections send no request. Try again later."
            self._writer.write(_encoded(_refusal(RefusedError(503, reason))))
        self._writer.transport.abort()

    async def serve(self, respond: Respond) -> None:
        """Answer the request.

        Args:
            respond: Called in a thread of its own.
        """
        host = str(self._writer.get_extra_info("peername", ("",))[0])
        longest = self._quota.add(self, host)
        if longest is not None:
            longest.send_away()
        try:
            await self._send(await self._answer(respond))
        except (OSError, EOFError, TimeoutError) as error:
            _log.debug("A connection of %s ended: %r", host, error)
        finally:
            self._quota.remove(self)
            self._writer.transport.abort()

    async def _answer(self, respond: Respond) -> Answer:
        try:
            try:
                async with asyncio.timeout(self._bounds.seconds):
                    head = await self._read_head()
                    if head.is_probe:  # takes no thread: a process that is busy is alive
                        return probed(head.target, self._not_ready())
                    head.check_host(self._bounds.hosts)
                    if is_page(head.method, head.target):  # takes no thread either: who reads it is a stranger
                        return page_at(head.target)
                    body = await self._read_body(head)
            except TimeoutError:
                raise RefusedError(408, f"No whole request within {self._bounds.seconds:g} s.") from None
            try:
                async with asyncio.timeout(self._bounds.seconds):
                    await self._threads.acquire()
            except TimeoutError:
                raise RefusedError(
                    503, f"{self._bounds.threads} requests are being answered. Try again later."
                ) from None
        except RefusedError as error:
            return _refusal(error)
        return await self._in_thread(lambda: _responded(respond, head, body))

    async def _read_head(self) -> RequestHead:
        try:
            return RequestHead(await self._reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            raise RefusedError(431, f"Headers have at most {self._bounds.header_bytes} bytes.") from None

    async def _read_body(self, head: RequestHead) -> bytes:
        head.check_origin()
        if not head.is_scrape(self._bounds.scraper):
            head.check_bearer(self._bearer)
        full = self._quota.admit(self)
        if full is not None:
            raise RefusedError(503, full)
        self.is_admitted = True
        return await self._reader.readexactly(head.body_length(self._bounds.body_bytes))

    async def _in_thread(self, call: Callable[[], Answer]) -> Answer:
        """In a daemon: what hangs there does not keep the process."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def done(answer: Answer) -> None:
            self._threads.release()
            if not answered.done():
                answered.set_result(answer)

        def run() -> None:
            answer = call()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done, answer)

        threading.Thread(target=run, name="holdfast-rest-request", daemon=True).start()
        return await answered

    async def _send(self, answer: Answer) -> None:
        self._is_answered = True
        self._writer.transport.set_write_buffer_limits(high=0)
        async with asyncio.timeout(self._bounds.seconds):
            self._writer.write(_encoded(answer))
            await self._writer.drain()
        if answer.delivered is not None:
            answer.delivered()
        # Who still sends would otherwise find a lost connection and no answer.
        if not self._writer.can_write_eof():  # TLS says the end by itself
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


def _responded(respond: Respond, head: RequestHead, body: bytes) -> Answer:
    try:
        return respond(head, body)
    except RefusedError as error:
        return _refusal(error)
    except HoldfastError as error:
        return Answer({"errors": [f"{type(error).__name__}: {redacted_message(error)}"]}, 500)
    except Exception as error:
        _log.exception("%s %s failed", head.method, head.target)
        return Answer({"errors": [f"Internal error: {without_credentials(repr(error))}."]}, 500)


def respond_with(answer: Callable[..., Answer]) -> Respond:
    """Return what reads the body and then answers."""
    return lambda head, body: answer(head.method, head.target, parse_body(body))


def _refusal(error: RefusedError) -> Answer:
    return Answer({"errors": [redacted_message(error)]}, error.status, headers=error.headers)


def _encoded(answer: Answer) -> bytes:
    content = answer.body
    if not isinstance(content, bytes):
        content = json.dumps(content, ensure_ascii=False, default=str).encode(errors="backslashreplace")
    headers = {"Content-Type": answer.media_type, "Content-Length": str(len(content)), **_ALWAYS, **answer.headers}
    lines = [f"HTTP/1.0 {answer.status} {HTTPStatus(answer.status).phrase}", *map(": ".join, headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


# Paths of Flink's interface that have no meaning here: each is answered with the reason and what to do instead.

_SPARK: Final = "Spark runs the tasks: look at its own web interface and REST, at spark.ui.port (4040)."
_ONE_JOB: Final = (
    "There is no cluster here but Spark's. This is the master of one job, which runs in the process that was started "
    "with `holdfast run` or `python`, or by a job manager; it serves /jobs. Jobs are submitted to a job manager."
)
_PROGRAMS: Final = "Programs are Python, not jars: submit one with its files to a job manager, with POST /jobs."
_SUBTASKS: Final = (
    f"{_SPARK} What a subtask gave to a checkpoint is at /jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:uid."
)

_OF_A_JOB: Final[dict[str, str]] = {
    "GET /jobs/metrics": "Numbers of all jobs are at /metrics, those of one at /jobs/:jobid/metrics.",
    "GET /jobs/:jobid/accumulators": (
        "Functions have no accumulators. Count with the metrics group of the runtime context, and look at "
        "/jobs/:jobid/metrics."
    ),
    "PATCH /jobs/:jobid/clientHeartbeat": (
        "No client is attached to a job: it lives and ends with the process that runs it, so it needs no heartbeat."
    ),
    "POST /jobs/:jobid/coordinators/:uid": "Operators have no coordinators that could be asked.",
    "GET /jobs/:jobid/rescaling/:triggerid": "Rescaling by this path is given up, in Flink too: see "
    "/jobs/:jobid/rescales.",
    "GET /jobs/:jobid/vertices/:vertexid/*": _SUBTASKS,
    "GET /jobs/:jobid/taskmanagers*": _SPARK,
    "GET /jobs/:jobid/jobmanager/*": "The options of a job are at /jobs/:jobid/config, and its log is at "
    "/jobs/:jobid/log of its job manager.",
    "GET /taskmanagers*": _SPARK,
    "POST /taskmanagers*": _SPARK,
    "GET /datasets*": "Nothing is kept between jobs but their output and their checkpoints.",
    "DELETE /datasets*": "Nothing is kept between jobs but their output and their checkpoints.",
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
"""By method and path; `*` stands for anything, also for nothing. They are answered with 501."""

_LOGS: Final = "A job manager logs to where its process was told to; the log of a job is at /jobs/:jobid/log."
_DISPOSAL: Final = "`holdfast savepoint --dispose PATH` deletes a savepoint; it needs no job, and no job manager."
_APPLICATIONS: Final = "A program is one job: look at /jobs."
ABSENT_OF_JOB_MANAGERS: Final[dict[str, str]] = {
    **_OF_A_JOB,
    "POST /savepoint-disposal": _DISPOSAL,
    "GET /savepoint-disposal/*": _DISPOSAL,
    "GET /config": "It is what Flink's page asks for; the one here has nothing that could be configured.",
    "GET /jobmanager/config": "It has the options that it was started with; those of a job are at /jobs/:jobid/config.",
    "GET /jobmanager/environment": "There is no JVM; the version of Holdfast is at /overview.",
    "GET /jobmanager/metrics": "Its numbers are at /metrics.",
    "GET /jobmanager/log*": _LOGS,
    "GET /jobmanager/stdout": _LOGS,
    "GET /jobmanager/thread-dump": "The process is not a JVM: `py-spy dump` shows what its threads do.",
    "GET /jobmanager/profiler*": "The process is not a JVM: `py-spy` profiles it.",
    "POST /jobmanager/profiler*": "The process is not a JVM: `py-spy` profiles it.",
    "GET /applications*": _APPLICATIONS,
    "POST /applications*": _APPLICATIONS,
    "DELETE /cluster": "A job manager is ended on its host: one that gets SIGTERM hands its jobs over to the next.",
}
"""The same of a job manager."""


HOST: Final = "127.0.0.1"
_BACKLOG: Final = 1024
_CLOSE_SECONDS: Final = 2.0


def routes_of(master: JobMaster) -> Routes:
    """Return what the master of a job serves."""
    jobs, checkpoints = JobApi(master), CheckpointApi(master)
    routes = Routes(str(master.job.job_id), checkpoints.linger)
    routes.not_ready = jobs.not_ready
    for api in (jobs, FlowApi(master), StateApi(master), checkpoints, RescaleApi(master)):
        routes.serve(*bound(api))
    routes.add_absent(ABSENT)
    return routes


class RestServer:
    """Serves a job's REST interface beside the job, from `start` to `close`.

    Connections are held by an event loop in a thread of its own, so that those who say nothing, or say it slowly, take
    no thread; whole requests are answered in others.

    Args:
        routes: What is served.
        bearer: What a request must show in its ``Authorization`` header.
        ports: Of which the first free one is taken; 0 is any.
        bounds: What is taken.
        host: Where it listens.
        tls: Encrypts what is sent; None for plain HTTP.
    """

    def __init__(
        self,
        routes: Routes,
        bearer: str,
        ports: tuple[int, ...] = (0,),
        bounds: RestBounds | None = None,
        host: str = HOST,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._routes = routes
        self._bearer = bearer
        self._ports = ports
        self._host = host
        self._tls = tls
        self._bounds = bounds or RestBounds()
        self._quota: ConnectionQuota[RestConnection] = ConnectionQuota(
            self._bounds.connections, self._bounds.of_one_address, self._bounds.strangers
        )
        self._threads = asyncio.Semaphore(self._bounds.threads)
        self._open: dict[asyncio.Task[None], RestConnection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server

    def start(self) -> str:
        """Listen; returns the URL.

        Raises:
            ConfigurationError: All ports are taken.
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
        """Listen no more, once what was asked for has been answered.

        Args:
            linger: Seconds for which clients may still fetch the outcome of what they asked for.
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
                    limit=self._bounds.header_bytes,
                    backlog=_BACKLOG,
                    **self._encryption(),
                )
            except OSError as error:
                _log.debug("port %d: %s", port, error)
            else:
                return int(self._server.sockets[0].getsockname()[1])
        raise ConfigurationError(
            f"rest.bind-port: none of the ports {', '.join(map(str, self._ports))} is free on {self._host}; 0 takes "
            "any."
        )

    def _encryption(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {"ssl": self._tls, "ssl_handshake_timeout": self._bounds.seconds, "ssl_shutdown_timeout": _CLOSE_SECONDS}

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
            reader, writer, self._bounds, self._bearer, self._quota, self._threads, self._routes.not_ready
        )
        self._open[task] = connection
        try:
            await connection.serve(respond_with(self._routes.answer))
        except asyncio.CancelledError:
            _log.debug("The REST interface has ended before a connection.")
        finally:
            del self._open[task]


# The REST interface in the process of a job.

_SHUTDOWN_LINGER_SECONDS: Final = 5.0


class EmbeddedRestServer(JobObserver):
    """Listens on the loopback while the job runs here; its address is in the job's directory while it leads."""

    def check(self, configuration: Configuration) -> None:
        """Look at the options of REST."""
        ports_from(configuration, REST_PORT)
        bounds_from(configuration)

    def started(self, master: JobMaster) -> None:
        """Listen.

        Raises:
            ConfigurationError: It cannot listen.
        """
        self._bearer = secrets.token_urlsafe(32)
        options = master.job.configuration
        ports, bounds = ports_from(options, REST_PORT), bounds_from(options)
        self._server = RestServer(routes_of(master), self._bearer, ports, bounds)
        self._file = AddressFile(master.job.directory)
        self._url = master.rest_url = self._server.start()
        _log.info("REST of job %r is served at %s", master.job.name, self._url)

    def leads(self, token: int) -> None:
        """Say so in the job's directory.

        Raises:
            StorageError: It cannot be written.
        """
        self._file.publish(self._url, self._bearer, token)

    def ended(self) -> None:
        """Listen no more, once the outcome of a stop with a savepoint has been fetched."""
        self._server.close(_SHUTDOWN_LINGER_SECONDS)
        self._file.withdraw()


def bounds_from(options: Configuration) -> RestBounds:
    """Return what the REST interface takes.

    Raises:
        ConfigurationError: With one of the options nobody could ask anything.
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
    return RestBounds(
        connections=options.get(REST_CONNECTIONS),
        of_one_address=options.get(REST_CONNECTIONS_OF_ADDRESS),
        strangers=options.get(REST_STRANGERS),
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
        raise ConfigurationError(f"{REST_METRICS_TOKEN_FILE.key}: {file!r} is empty, and a token is not.")
    return token
