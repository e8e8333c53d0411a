"""What a failed request to the API server means: refused for good, worth another try, or of unknown outcome."""

from __future__ import annotations

import enum

import httpx2
from lightkube.core.exceptions import ApiError


class WriteOutcome(enum.Enum):
    """What is known about a write after its request failed."""

    MISSING = "missing"
    """Nothing happened: there is no such object."""
    EXISTS = "exists"
    """Nothing happened: there is such an object already."""
    CONFLICT = "conflict"
    """Nothing happened: the object has another version."""
    NOT_SENT = "not sent"
    """Nothing happened: the server was not reached, or was too busy to begin."""
    REFUSED = "refused"
    """Nothing happened, and trying again is of no use."""
    UNKNOWN = "unknown"
    """It may have happened, and may still happen."""


# The request was not sent at all.
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


def outcome_of(error: Exception) -> WriteOutcome:
    """Judge an error of lightkube or of the HTTP client under it.

    A 5xx is of unknown outcome, because a server answers so also when its storage gave no answer in time.
    """
    if isinstance(error, _NOT_SENT):
        return WriteOutcome.NOT_SENT
    if not isinstance(error, httpx2.HTTPStatusError):
        return WriteOutcome.UNKNOWN
    code = error.response.status_code
    if code == 404:
        return WriteOutcome.MISSING
    if code == 409:
        exists = isinstance(error, ApiError) and error.status.reason == "AlreadyExists"
        return WriteOutcome.EXISTS if exists else WriteOutcome.CONFLICT
    if code == 429:
        return WriteOutcome.NOT_SENT
    if code == 408 or code >= 500:
        return WriteOutcome.UNKNOWN
    return WriteOutcome.REFUSED


def is_unauthorized(error: Exception) -> bool:
    """Whether the server does not know who is asking."""
    return isinstance(error, httpx2.HTTPStatusError) and error.response.status_code == 401


def is_forbidden(error: Exception) -> bool:
    """Whether the server knows who is asking and does not allow it."""
    return isinstance(error, httpx2.HTTPStatusError) and error.response.status_code == 403


def describe(error: Exception) -> str:
    """The error in words, for messages."""
    text = str(error).splitlines()[0] if str(error) else ""
    return text or type(error).__name__
