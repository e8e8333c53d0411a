"""What a handler gets and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """A request whose path was recognised.

    Attributes:
        path: The parts of the path that vary, by name.
        query: Its query, the last value of each name.
        body: Its JSON object, empty if there is none.
    """

    path: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A JSON object with its status.

    Attributes:
        delivered: Called when the answer has been sent.
    """

    body: Mapping[str, Any]
    status: int = 200
    delivered: Callable[[], None] | None = None


class RefusedError(Exception):
    """A request that cannot be answered as asked; becomes ``{"errors": [...]}``.

    Args:
        status: The HTTP status.
        message: Why.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
