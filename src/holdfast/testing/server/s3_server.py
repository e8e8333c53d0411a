"""An S3 server in this process: moto's, with atomic conditional writes."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from moto.server import ThreadedMotoServer

from holdfast.storage.object_store import S3Options

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class S3Server:
    """An S3 server on a free port of this host, with buckets in memory. Use it as a context manager.

    moto checks whether an object exists and then writes it, without a lock between. Requests are therefore executed one
    at a time, so that conditional writes are atomic as in a real store. All servers of a process share the buckets.

    >>> with S3Server() as server:
    ...     server.make_bucket("checkpoints")
    ...     server.requests
    ['PUT /checkpoints']

    Args:
        honours_conditions: False for a store that ignores `If-None-Match`, as old ones do.

    Attributes:
        requests: The requests so far, such as `"PUT /bucket/name"`.
        is_away: Whether every request is answered with 503, and not executed.
        strike: Called for each request, such as `"POST /bucket/name?uploads"`, one at a time. It returns `"refused"`
            (answer 503 without executing it), `"lost"` (execute it and answer 503), or None.
    """

    def __init__(self, *, honours_conditions: bool = True) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._honours_conditions = honours_conditions
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self.is_away = False
        self.strike: Callable[[str], Literal["refused", "lost"] | None] = _nothing

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server.start()
        serving = self._server._server
        assert serving is not None
        serving.app = self._serialized(serving.app)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        serving = self._server._server
        self._server.stop()
        if serving is not None:
            serving.server_close()

    @property
    def endpoint(self) -> str:
        host, port = self._server.get_host_and_port()
        return f"http://{host}:{port}"

    @property
    def options(self) -> S3Options:
        """The options of a file system on this server."""
        return S3Options(endpoint=self.endpoint, access_key="test", secret_key="test", region="us-east-1")

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of S3 clients for this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{quote(name)}", method="PUT")
        urllib.request.urlopen(request).close()

    def _serialized(self, application: Application) -> Application:
        def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            with self._lock:
                request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
                self.requests.append(request)
                query = environ.get("QUERY_STRING")
                stricken = "refused" if self.is_away else self.strike(f"{request}?{query}" if query else request)
                if not self._honours_conditions:
                    environ.pop("HTTP_IF_NONE_MATCH", None)
                if stricken == "lost":
                    list(application(environ, lambda *_: None))
                if stricken is not None:
                    start_response("503 Service Unavailable", [("Content-Length", "0")])
                    return []
                return list(application(environ, start_response))

        return serve


def _nothing(_request: str) -> None:
    return None
