"""What a handler gets and returns."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
