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
from typing import Any, Self
from urllib.parse import quote

from moto.server import ThreadedMotoServer

from holdfast.storage.file_system.s3_connection import S3Options

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
    """

    def __init__(self, *, honours_conditions: bool = True) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._honours_conditions = honours_conditions
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self.is_away = False

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
                self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
                if self.is_away:
                    start_response("503 Service Unavailable", [("Content-Length", "0")])
                    return []
                if not self._honours_conditions:
                    environ.pop("HTTP_IF_NONE_MATCH", None)
                return list(application(environ, start_response))

        return serve
