"""The client's side of one connection, without the connection: what is sent on it, and what has arrived. No I/O here.

::

    bytes of greeting() --> the server --> its answer: greeted() --> bytes of request() --> the server --> feed()
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Final

from holdfast.queryable.wire.errors import ProtocolError, QueryConnectionError, from_wire
from holdfast.queryable.wire.frame import Frame, FrameReader, FrameType, encode, to_header
from holdfast.queryable.wire.location import Address

MAX_ANSWER: Final = 256 * 1024 * 1024
CONNECT_TIMEOUT: Final = 10.0
"""Seconds until there is a connection, and again until its greeting is answered."""
GREETING: Final = 0
"""The number of the greeting; requests are numbered from 1."""


class ClientSession:
    """What both kinds of connections do in the same way.

    Args:
        address: Of the server, for errors.

    Attributes:
        most_in_flight: Requests that may wait at the server at one time, as its greeting says; None if it does not.
        most_bytes: The longest request; a longer one would end the connection, and with it what others have asked on
            it.
    """

    def __init__(self, address: Address) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._reader = FrameReader(MAX_ANSWER, header_limit=None)
        self._numbers = itertools.count(GREETING + 1)
        self._process = os.getpid()
        self.most_in_flight: int | None = None
        self.most_bytes: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process began it; a forked child has the connection too, and must not use it."""
        return self._process == os.getpid()

    def check_ours(self) -> None:
        """Refuse to be used by a forked child, which would take its parent's answers.

        Raises:
            QueryConnectionError: This process is one.
        """
        if not self.is_ours:
            raise _never_connected(
                f"The connection to {self._name} is that of process {self._process}, and this is its child "
                f"{os.getpid()}: begin again here, on a connection of its own."
            )

    def greeting(self, token: str | None) -> bytes:
        """Return the first frame of the connection."""
        return encode(FrameType.HELLO, GREETING, to_header({} if token is None else {"token": token}))

    def greeted(self, answer: Frame) -> None:
        """Take the answer to the greeting, which says what may be sent.

        Raises:
            UnauthorizedError: The token is missing or wrong.
            ProtocolError: It is no such answer.
        """
        if raise_failure(answer).type != FrameType.RESULT:
            raise ProtocolError(f"{self._name} answered a greeting with a message of type {answer.type}.")
        limits = answer.fields().get("limits")
        if isinstance(limits, dict):
            self.most_in_flight = _positive(limits.get("in_flight"))
            self.most_bytes = _positive(limits.get("message_bytes"))

    def request(self, kind: FrameType, header: bytes, body: Any = ()) -> tuple[int, bytes]:
        """Return the number and the frame of a request.

        Raises:
            LimitExceededError: It is longer than the server takes; the connection stays as it is.
        """
        number = next(self._numbers)
        return number, encode(kind, number, header, *body, limit=self.most_bytes)

    def feed(self, data: bytes) -> list[Frame]:
        """Take what has arrived, and return the answers that are whole now.

        Raises:
            ProtocolError or LimitExceededError: It is nothing that a server of this version sends.
        """
        return self._reader.feed(data)

    def unreachable(self, reason: object) -> QueryConnectionError:
        """Make the error for a connection that was not made."""
        return _never_connected(f"No connection to {self._name}: {reason}.")

    def silent(self, seconds: float) -> QueryConnectionError:
        """Make the error for a server that does not answer a greeting."""
        return _never_connected(f"{self._name} did not answer within {seconds} seconds.")


def raise_failure(frame: Frame) -> Frame:
    """Return the frame, unless it says that the request failed.

    Raises:
        QueryError: The error that the server sent.
    """
    if frame.type in (FrameType.FAILURE, FrameType.SERVER_FAILURE):
        fields = frame.fields()
        raise from_wire(fields.get("error"), fields.get("message"))
    return frame


def _positive(limit: Any) -> int | None:
    return limit if type(limit) is int and limit > 0 else None


def _never_connected(text: str) -> QueryConnectionError:
    error = QueryConnectionError(text)
    error.was_connected = False
    return error
