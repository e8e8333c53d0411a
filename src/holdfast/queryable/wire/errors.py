"""The errors of queries. Servers send them by name and text, never as objects.

::

    QueryError
     ├ BadRequestError                              the request is invalid
     │   ├ UnknownKvStateIdError                    the server does not serve this state any more; locate it again
     │   ├ UnknownKeyOrNamespaceError               there is no state for this key or namespace; never a default value
     │   ├ UnknownKvStateKeyGroupLocationError      no server serves the key's group at the moment
     │   ├ WrongKeyTypeError                        the key has another type than the state's keys; nothing was sent
     │   ├ WrongStateKindError                      the state is of another kind than the request needs
     │   └ LimitExceededError                       too large, too many keys, too many requests in flight
     ├ UnknownLocationError                         the location of the state is unknown: not ready, or no such job
     ├ UnknownKvStateLocationError                  the job has no queryable state of this name, or no checkpoint yet
     ├ UnknownJobError                              no such job
     ├ CheckpointNotAvailableError                  the requested checkpoint is not retained, or never completed
     ├ QueryTimeoutError                            the deadline passed before the answer
     ├ UnauthorizedError                            the bearer token is missing or wrong
     ├ ProtocolError                                a message is malformed; the connection ends
     ├ QueryConnectionError                         no connection, or it ended before the answer
     └ ServerFailureError                           the server failed, with the text of its failure
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import HoldfastError, StateError
from holdfast.kernel.secret import redacted_message

_LONGEST_TEXT: Final = 4000


class QueryError(HoldfastError):
    """A query was not answered."""


class BadRequestError(QueryError):
    """The request is invalid."""


class UnknownKvStateIdError(BadRequestError):
    """The server does not serve this state any more; its location must be requested again."""


class UnknownKeyOrNamespaceError(BadRequestError):
    """There is no state for the key or namespace; a default value is never returned."""


class UnknownKvStateKeyGroupLocationError(BadRequestError):
    """No server serves the key's group at the moment."""


class WrongKeyTypeError(BadRequestError):
    """The key has another type than the state's keys."""


class WrongStateKindError(BadRequestError):
    """The state is of another kind than the request needs, or its values cannot be read here."""


class LimitExceededError(BadRequestError):
    """A message is too large or has too many keys, or there are too many requests in flight."""


class UnknownLocationError(QueryError):
    """The location of the state is unknown: the state is not ready, or the job does not exist."""


class UnknownKvStateLocationError(QueryError):
    """The job has no queryable state of this name, or no checkpoint yet."""


class UnknownJobError(QueryError):
    """There is no such job."""


class CheckpointNotAvailableError(QueryError):
    """The requested checkpoint is not retained any more, or never completed."""


class QueryTimeoutError(QueryError):
    """The deadline passed before the answer."""


class UnauthorizedError(QueryError):
    """The bearer token is missing or wrong."""


class ProtocolError(QueryError):
    """A message is malformed, or of another protocol or version; the connection is closed."""


class QueryConnectionError(QueryError):
    """The server cannot be reached, or the connection was lost before the answer.

    Attributes:
        was_connected: Whether this client's own connection was lost, so that a retry on another one may help. False if
            there was no connection, and for the connections of a server to others, which it has retried itself.
    """

    was_connected: bool = True


class ServerFailureError(QueryError):
    """The server failed; the message contains its error."""


class ReadOnlyStateError(StateError):
    """Queried state is read-only."""


# Flink's names.
UnknownKvStateLocation = UnknownKvStateLocationError
FlinkJobNotFoundException = UnknownJobError

_BY_NAME: Final[dict[str, type[QueryError]]] = {
    kind.__name__: kind
    for kind in (
        BadRequestError,
        UnknownKvStateIdError,
        UnknownKeyOrNamespaceError,
        UnknownKvStateKeyGroupLocationError,
        WrongKeyTypeError,
        WrongStateKindError,
        LimitExceededError,
        UnknownLocationError,
        UnknownKvStateLocationError,
        UnknownJobError,
        CheckpointNotAvailableError,
        QueryTimeoutError,
        UnauthorizedError,
        ProtocolError,
        QueryConnectionError,
        ServerFailureError,
    )
}
RETRYABLE: Final = (UnknownKvStateIdError, UnknownKvStateKeyGroupLocationError, QueryConnectionError)
"""After these errors a request is retried once with a new location."""


def to_wire(error: BaseException) -> dict[str, str]:
    """Return name and text of an error; an error that is no `QueryError` becomes a `ServerFailureError`."""
    name, text = type(error).__name__, redacted_message(error)
    if name in _BY_NAME:
        return {"error": name, "message": _shortened(text)}
    return {"error": ServerFailureError.__name__, "message": _shortened(f"{name}: {text}")}


def _shortened(text: str) -> str:
    # Messages quote parts of requests, which may be long.
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ... ({len(text)} characters)"


def from_wire(name: object, message: object) -> QueryError:
    """Return the error that a server sent; an unknown name becomes a `ServerFailureError`."""
    if isinstance(name, str) and name in _BY_NAME:
        error = _BY_NAME[name](str(message))
        if isinstance(error, QueryConnectionError):
            error.was_connected = False
        return error
    return ServerFailureError(f"{name}: {message}")
