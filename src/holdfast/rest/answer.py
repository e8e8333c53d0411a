"""What a handler gets and returns."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_TRIGGER_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


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

    def fields(self, *names: str) -> None:
        """Check that the body has no other fields: a misspelt wish is not to be passed over.

        Raises:
            RefusedError: It has.
        """
        unknown = sorted(set(self.body) - set(names))
        if unknown:
            raise RefusedError(400, f"The field {unknown[0]!r} is not known; there are {sorted(names)!r}.")

    def text(self, *names: str) -> str | None:
        """Return a text of the body by its name, or by an older one; None if it is not there.

        Raises:
            RefusedError: It is no text, or an empty one.
        """
        for name in names:
            value = self.body.get(name)
            if value is None:
                continue
            if not isinstance(value, str) or not value.strip():
                raise RefusedError(400, f"{name} is text, not {value!r}.")
            return value
        return None

    def flag(self, name: str) -> bool:
        """Return a truth value of the body, False if it is not there.

        Raises:
            RefusedError: It is neither true nor false.
        """
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise RefusedError(400, f"{name} is true or false, not {value!r}.")
        return bool(value)

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return one of several texts of the body.

        Raises:
            RefusedError: It is none of them.
        """
        value = self.body.get(name)
        if value is None:
            return default
        if value not in choices:
            raise RefusedError(400, f"{name} is one of {', '.join(choices)}, not {value!r}.")
        return str(value)

    def trigger_id(self) -> str:
        """Return the id that the client chose for an operation, or a new one.

        Raises:
            RefusedError: It is no id.
        """
        given = self.body.get("triggerId")
        if given is None:
            return uuid.uuid4().hex
        if not isinstance(given, str) or not _TRIGGER_ID.fullmatch(given):
            raise RefusedError(400, f"triggerId has 1 to 64 letters, digits and '-', not {given!r}.")
        return given


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
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
