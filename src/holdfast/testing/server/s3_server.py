"""An S3 server in this process: moto's, which honours conditional writes.

with S3Server() as server:
    server.make_bucket("checkpoints")
    fs = object_store_for("s3://checkpoints/job", server.options)
"""

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
    """Serves buckets from memory on a free port of this host, until it is closed.

    moto looks whether an object exists and then writes it, without a lock between: requests are therefore carried out
    one at a time, as the atomic condition of a real store demands. All servers of a process show the same buckets.

    Args:
        honours_conditions: False makes a store that ignores ``If-None-Match``, as old ones do.

    Attributes:
        requests: What was asked for so far, such as ``"PUT /bucket/name"``.
        is_away: Whether every request is answered with 503, and nothing is carried out.
        strike: Asked of each request, such as ``"POST /bucket/name?uploads"``, what goes wrong with it: ``"refused"``,
            it is answered with 503 and not carried out; ``"lost"``, it is carried out and answered with 503; None,
            nothing. Requests are asked about one at a time.
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
        """The URL of the server."""
        host, port = self._server.get_host_and_port()
        return f"http://{host}:{port}"

    @property
    def options(self) -> S3Options:
        """How to reach it."""
        return S3Options(endpoint=self.endpoint, access_key="test", secret_key="test", region="us-east-1")

    @property
    def environment(self) -> dict[str, str]:
        """How to reach it, as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
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
