"""A catalog of Iceberg behind REST: the protocol over a catalog of SQL, with answers that get lost.

What it does with a commit is pyiceberg's own: it looks at the requirements and sets the pointer to the new metadata if
it has not moved. It has as much of the protocol as clients use that write into tables.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

_STATUS = {
    CommitFailedException: 409,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
}


class IcebergRestServer:
    """Serves on a free port of this host, until it is closed.

    Args:
        place: Where its catalog is, and its tables by default.
        warehouse: Where its tables are.

    Attributes:
        requests: What was asked for so far, such as ``"POST /v1/namespaces/db/tables"``.
        strike: Asked of each request what goes wrong with it: ``"refused"``, it is not carried out; ``"lost"``, it is
            carried out, and the connection ends without an answer; None, nothing.
        is_away: Whether all requests are refused.
    """

    def __init__(self, place: Path, warehouse: str | None = None, **properties: str) -> None:
        self.catalog = SqlCatalog(
            "behind", uri=f"sqlite:///{place}/behind.db", warehouse=warehouse or f"file://{place}", **properties
        )
        self.requests: list[str] = []
        self.strike: Callable[[str], Literal["refused", "lost"] | None] = lambda request: None
        self.is_away = False
        self._lock = threading.Lock()
        rest = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = rest._answer(self.command, urlsplit(self.path).path, body)
                if answer is None:
                    self.close_connection = True
                    return
                status, text = answer
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def uri(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        with self._lock:
            request = f"{method} {path}"
            self.requests.append(request)
            stricken = "refused" if self.is_away else self.strike(request)
            if stricken == "refused":
                return 503, _error(503, "nobody is there")
            try:
                answer = 200, self._do(method, path.strip("/").split("/")[1:], body)
            except tuple(_STATUS) as error:
                status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
                answer = status, _error(status, str(error))
            except Exception as error:
                answer = 500, _error(500, repr(error))
            return None if stricken == "lost" else answer

    def _do(self, method: str, parts: list[str], body: bytes) -> bytes:
        match method, [unquote(part) for part in parts]:
            case "GET", ["config"]:
                return b'{"defaults": {}, "overrides": {}}'
            case "POST", ["namespaces"]:
                self.catalog.create_namespace(tuple(json.loads(body)["namespace"]))
                return body
            case "POST", ["namespaces", namespace, "tables"]:
                wished = {"location": None, "partition-spec": None, "write-order": None, **json.loads(body)}
                return self._create(namespace, CreateTableRequest.model_validate(wished))
            case "GET", ["namespaces", namespace, "tables", name]:
                return _shown(self.catalog.load_table((namespace, name)))
            case "DELETE", ["namespaces", namespace, "tables", name]:
                self.catalog.drop_table((namespace, name))
                return b""
            case "POST", ["namespaces", namespace, "tables", name]:
                asked = CommitTableRequest.model_validate_json(body)
                table: Any = SimpleNamespace(name=lambda: (namespace, name))
                return self.catalog.commit_table(table, asked.requirements, asked.updates).model_dump_json().encode()
        raise NoSuchTableError(f"{method} {'/'.join(parts)} is not served")

    def _create(self, namespace: str, asked: CreateTableRequest) -> bytes:
        identifier = (namespace, asked.name)
        more: dict[str, Any] = {"location": asked.location, "properties": asked.properties}
        if asked.partition_spec is not None:
            more["partition_spec"] = asked.partition_spec
        if asked.stage_create:
            if self.catalog.table_exists(identifier):
                raise TableAlreadyExistsError(f"{identifier} is there")
            return _shown(self.catalog._create_staged_table(identifier, asked.table_schema, **more))
        return _shown(self.catalog.create_table(identifier, asked.table_schema, **more))


def _shown(table: Any) -> bytes:
    metadata = table.metadata.model_dump_json()
    return f'{{"metadata-location": {json.dumps(table.metadata_location)}, "metadata": {metadata}}}'.encode()


def _error(status: int, text: str) -> bytes:
    return json.dumps({"error": {"message": text, "type": "Error", "code": status}}).encode()
