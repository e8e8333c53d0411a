"""HTTP requests and responses as handlers see them, and the parser of request heads. No I/O here."""

from __future__ import annotations

import hmac
import io
import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "QUERY"})
"""Known methods. A path answers the others of these with 405 and a list of those that it serves."""
_CONTENT_LENGTH: Final = re.compile("[0-9]{1,18}")
_MAX_LINE: Final = 65537
_PROBES: Final = frozenset({"/health/live", "/health/ready"})


@dataclass(frozen=True)
class Request:
    """A request that matches the schemas of its route.

    Attributes:
        path: The path parameters by name.
        query: The query; the last value of each name.
        body: The JSON object of the body, empty if there is none.
    """

    path: Mapping[str, str]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def text(self, *names: str) -> str | None:
        """Return a string of the body by the first of several names that is present; None if there is none."""
        return next((self.body[name] for name in names if self.body.get(name) is not None), None)

    def trigger_id(self) -> str:
        """Return the client's id of an operation, or a new one."""
        return self.text("triggerId") or uuid.uuid4().hex


@dataclass(frozen=True)
class Response:
    """A response.

    Attributes:
        body: JSON, or bytes of the media type.
        status: The HTTP status.
        delivered: Called after the response has been sent.
        media_type: Media type of the body.
        headers: Further headers.
    """

    body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | bytes
    status: int = 200
    delivered: Callable[[], None] | None = None
    media_type: str = "application/json; charset=UTF-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def probe_response(target: str, not_ready_reason: str | None) -> Response:
    """Return the response to a probe, ``/health/live`` or ``/health/ready``.

    Args:
        target: The path of the probe.
        not_ready_reason: Why the process is not ready, None if it is.
    """
    if target == "/health/ready" and not_ready_reason is not None:
        return Response({"errors": [not_ready_reason]}, 503)
    return Response({"status": "alive" if target == "/health/live" else "ready"})


class HttpError(Exception):
    """An error response; its body is ``{"errors": [message]}``.

    Args:
        status: The HTTP status.
        message: The reason.
        headers: Further headers of the response.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class _Parser(BaseHTTPRequestHandler):
    """The standard library's parser without its connection."""

    def __init__(self, data: bytes) -> None:
        self.rfile = io.BytesIO(data)
        self.raw_requestline = self.rfile.readline(_MAX_LINE)
        self.refused: HttpError | None = None
        if not self.parse_request() and self.refused is None:
            self.refused = HttpError(400, "The request is malformed.")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        # Shortened: the text contains the request line of an unauthenticated client.
        self.refused = HttpError(int(code), f"{message or explain or f'HTTP {int(code)}':.200}")


class RequestHead:
    """The request line and the headers of a request.

    Args:
        data: The bytes up to the empty line.

    Raises:
        HttpError: The bytes are malformed, or the method is unknown.

    Attributes:
        method: The method.
        target: Path and query.
    """

    def __init__(self, data: bytes) -> None:
        parsed = _Parser(data)
        if parsed.refused is not None:
            raise parsed.refused
        self.method: str = parsed.command
        self.target = parsed.path
        self._headers: Message = parsed.headers
        if self.method not in _METHODS:
            raise HttpError(501, f"Unsupported method ({self.method[:40]!r}).")

    def check_host(self, allowed: Collection[str]) -> None:
        """Check the Host header, against DNS rebinding: the host of a web page may resolve to this server's address.

        Args:
            allowed: Host names besides those of the loopback, in lower case.

        Raises:
            HttpError: The host is not allowed, or missing.
        """
        given = self._headers.get_all("Host", [])
        if len(given) != 1:
            raise HttpError(400, "A request needs exactly one Host header.")
        target = split_target(self.target)
        try:
            named = [urlsplit(f"//{given[0].strip()}"), target]
            hosts = [part.hostname or "" for part in (named if named[1].netloc else named[:1])]
        except ValueError:
            raise HttpError(400, f"The Host header is not a host: {given[0]!r:.80}.") from None
        for host in hosts:
            if not host:
                raise HttpError(400, f"The Host header is not a host: {given[0]!r:.80}.")
            if not _is_loopback(host) and host not in allowed:
                raise HttpError(
                    421, f"This server is not {host!r:.80}. Use localhost, or set rest.server.allowed-hosts."
                )

    def check_origin(self) -> None:
        """Check the Origin header: web pages of other servers must not send requests.

        Raises:
            HttpError: The page is of another server.
        """
        for origin in self._headers.get_all("Origin", []):
            _, separator, place = origin.strip().lower().partition("://")
            if not separator or place != self._headers.get("Host", "").strip().lower():
                raise HttpError(
                    403,
                    f"Pages of {origin!r:.80} may not send requests to this server.",
                )

    @property
    def is_probe(self) -> bool:
        """Whether the request is a liveness or readiness probe, which needs no token."""
        return self.method == "GET" and self.target in _PROBES

    def is_scrape(self, token: str | None) -> bool:
        """Return whether the request reads metrics with the token of scrapers."""
        if token is None or self.method != "GET" or self.target != "/metrics":
            return False
        given = self._headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {token}".encode())

    def check_bearer(self, bearer: str) -> None:
        """Check the bearer token.

        Raises:
            HttpError: The token is missing or wrong.
        """
        given = self._headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {bearer}".encode()):
            raise HttpError(
                401, "Show the token of the job: Authorization: Bearer <token>.", {"WWW-Authenticate": "Bearer"}
            )

    def body_length(self, most: int) -> int:
        """Return the length of the body.

        Args:
            most: Longest accepted body, in bytes.

        Raises:
            HttpError: The length is missing, invalid or too long.
        """
        if "Transfer-Encoding" in self._headers:
            raise HttpError(411, "Send the body with a Content-Length; chunks are not supported.")
        given = set(self._headers.get_all("Content-Length", ["0"]))
        text = given.pop().strip()
        if given or not text.isascii() or not text.isdecimal():
            raise HttpError(400, f"Content-Length is a number of bytes, not {text!r:.40}.")
        if not _CONTENT_LENGTH.fullmatch(text) or int(text) > most:
            raise HttpError(413, f"A body has at most {most} bytes (rest.server.max-content-length).")
        return int(text)


def split_target(target: str) -> SplitResult:
    """Split the target of a request into path and query.

    Raises:
        HttpError: The target is malformed.
    """
    try:
        return urlsplit(target)
    except ValueError as error:
        raise HttpError(400, f"{target!r:.200} is not a request target: {error!s:.200}.") from error


def parse_body(data: bytes) -> Mapping[str, Any]:
    """Parse the JSON object of a body, which may be empty.

    Raises:
        HttpError: The body is not a JSON object.
    """
    if not data:
        return {}
    try:
        body = json.loads(data)
    except RecursionError:
        raise HttpError(400, "The JSON of the body is nested too deeply.") from None
    except ValueError as error:
        raise HttpError(400, f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise HttpError(400, "The body must be a JSON object.")
    return body


def _is_loopback(host: str) -> bool:
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
