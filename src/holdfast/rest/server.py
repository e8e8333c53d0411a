"""A small HTTP server, on the loopback for one job; what is served at which path is declared where it is answered.

Of the standard library: a handful of requests a minute from this host, and no further dependency for every job.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.secret import get_logger
from holdfast.rest.absent import ABSENT
from holdfast.rest.checkpoint_api import CheckpointApi
from holdfast.rest.connection import RestBounds, RestConnection, respond_with
from holdfast.rest.graph.flow_api import FlowApi
from holdfast.rest.job_api import JobApi
from holdfast.rest.rescale_api import RescaleApi
from holdfast.rest.route.route import bound
from holdfast.rest.route.routes import Routes
from holdfast.rest.state.state_api import StateApi
from holdfast.runtime.master.job_master import JobMaster

_log = get_logger(__name__)
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
