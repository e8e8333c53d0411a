"""What a handler gets and returns."""

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


@dataclass(frozen=True)
class Request:
    """A request whose path was recognised, and which is as the path declares it.

    Attributes:
        path: The parts of the path that vary, by name.
        query: Its query, the last value of each name.
        body: Its JSON object, empty if there is none.
    """

    path: Mapping[str, str]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def text(self, *names: str) -> str | None:
        """Return a text of the body by its name, or by an older one; None if it is not there."""
        return next((self.body[name] for name in names if self.body.get(name) is not None), None)

    def trigger_id(self) -> str:
        """Return the id that the client chose for an operation, or a new one."""
        return self.text("triggerId") or uuid.uuid4().hex


@dataclass(frozen=True)
class Answer:
    """JSON with its status, or bytes of another type.

    Attributes:
        delivered: Called when the answer has been sent.
        media_type: What it is.
        headers: Further headers.
    """

    body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | bytes
    status: int = 200
    delivered: Callable[[], None] | None = None
    media_type: str = "application/json; charset=UTF-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def probed(target: str, not_ready: str | None) -> Answer:
    """Return the answer to a probe, ``/health/live`` or ``/health/ready``.

    Args:
        target: Which one.
        not_ready: Why the process is not ready, None if it is.
    """
    if target == "/health/ready" and not_ready is not None:
        return Answer({"errors": [not_ready]}, 503)
    return Answer({"status": "alive" if target == "/health/live" else "ready"})


class RefusedError(Exception):
    """A request that cannot be answered as asked; becomes ``{"errors": [...]}``.

    Args:
        status: The HTTP status.
        message: Why.
        headers: What the answer says besides.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


# What a request says before its body: read by the standard library's parser, and checked. No I/O here.

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "QUERY"})
"""All that there are; of those that are served nowhere a path says which ones it has instead."""
_LENGTH: Final = re.compile("[0-9]{1,18}")
_MOST_LINE: Final = 65537
_PROBES: Final = frozenset({"/health/live", "/health/ready"})


class _Parser(BaseHTTPRequestHandler):
    """The library's parser without its connection."""

    def __init__(self, data: bytes) -> None:
        self.rfile = io.BytesIO(data)
        self.raw_requestline = self.rfile.readline(_MOST_LINE)
        self.refused: RefusedError | None = None
        if not self.parse_request() and self.refused is None:
            self.refused = RefusedError(400, "This is no request.")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        said = message or explain or f"HTTP {int(code)}"  # with the line in it, of somebody who has shown no token
        self.refused = RefusedError(int(code), f"{said:.200}")


class RequestHead:
    """The first line and the headers of a request.

    Args:
        data: The bytes up to the empty line.

    Raises:
        RefusedError: It is no request, or of a method that is not served.

    Attributes:
        method: Its method.
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
            raise RefusedError(501, f"Unsupported method ({self.method[:40]!r}).")

    def check_host(self, allowed: Collection[str]) -> None:
        """Check that the request is meant for this server: a page of another name may have been led to its address.

        Args:
            allowed: Names besides those of the loopback, in lower case.

        Raises:
            RefusedError: It is not, or does not say.
        """
        given = self._headers.get_all("Host", [])
        if len(given) != 1:
            raise RefusedError(400, "A request has one Host header.")
        target = parts_of(self.target)
        try:
            named = [urlsplit(f"//{given[0].strip()}"), target]
            hosts = [part.hostname or "" for part in (named if named[1].netloc else named[:1])]
        except ValueError:
            raise RefusedError(400, f"The Host header names no host: {given[0]!r:.80}.") from None
        for host in hosts:
            if not host:
                raise RefusedError(400, f"The Host header names no host: {given[0]!r:.80}.")
            if not _is_loopback(host) and host not in allowed:
                raise RefusedError(
                    421, f"This is not the server of {host!r:.80}. Ask for localhost, or set rest.server.allowed-hosts."
                )

    def check_origin(self) -> None:
        """Check that a page which sent the request came from this server: others have nothing to ask here.

        Raises:
            RefusedError: It came from elsewhere.
        """
        for origin in self._headers.get_all("Origin", []):
            _, separator, place = origin.strip().lower().partition("://")
            if not separator or place != self._headers.get("Host", "").strip().lower():
                raise RefusedError(403, f"Pages of {origin!r:.80} may ask nothing here: only this server's own may.")

    @property
    def is_probe(self) -> bool:
        """Whether the request only asks whether the process is alive, or ready: whoever reaches it may know that."""
        return self.method == "GET" and self.target in _PROBES

    def is_scrape(self, token: str | None) -> bool:
        """Whether the request only reads metrics, and shows the token that is good for that."""
        if token is None or self.method != "GET" or self.target != "/metrics":
            return False
        given = self._headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {token}".encode())

    def check_bearer(self, bearer: str) -> None:
        """Check the token.

        Raises:
            RefusedError: It is not this one.
        """
        given = self._headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {bearer}".encode()):
            raise RefusedError(
                401, "Show the token of the job: Authorization: Bearer <token>.", {"WWW-Authenticate": "Bearer"}
            )

    def body_length(self, most: int) -> int:
        """Return how many bytes follow.

        Args:
            most: So many are taken.

        Raises:
            RefusedError: It does not say, or they are too many.
        """
        if "Transfer-Encoding" in self._headers:
            raise RefusedError(411, "Send the body with its Content-Length, and not in chunks.")
        given = set(self._headers.get_all("Content-Length", ["0"]))
        text = given.pop().strip()
        if given or not text.isascii() or not text.isdecimal():
            raise RefusedError(400, f"Content-Length is a number of bytes, not {text!r:.40}.")
        if not _LENGTH.fullmatch(text) or int(text) > most:
            raise RefusedError(413, f"A body has at most {most} bytes (rest.server.max-content-length).")
        return int(text)


def parts_of(target: str) -> SplitResult:
    """Return path and query of a request's target.

    Raises:
        RefusedError: It has none.
    """
    try:
        return urlsplit(target)
    except ValueError as error:
        raise RefusedError(400, f"{target!r:.200} is no target of a request: {error!s:.200}.") from error


def parse_body(data: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body, an empty one if there is none.

    Raises:
        RefusedError: It is none.
    """
    if not data:
        return {}
    try:
        body = json.loads(data)
    except RecursionError:
        raise RefusedError(400, "The body is JSON that is nested too deep.") from None
    except ValueError as error:
        raise RefusedError(400, f"The body is no JSON: {error}.") from error
    if not isinstance(body, dict):
        raise RefusedError(400, "The body must be a JSON object.")
    return body


def _is_loopback(host: str) -> bool:
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
