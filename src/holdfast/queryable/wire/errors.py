"""What a query can end with, and how it crosses the wire: by name and text, never as an object.

::

    QueryError
     ├ BadRequestError                              the request cannot be answered as it is
     │   ├ UnknownKvStateIdError                    the server does not hold this state any more; ask where it is
     │   ├ UnknownKeyOrNamespaceError               there is no state for this key or namespace; never a default value
     │   ├ UnknownKvStateKeyGroupLocationError      no server holds the key's group now
     │   ├ WrongKeyTypeError                        the key is not of the state's key type; found before it is sent
     │   ├ WrongStateKindError                      the state is of another kind than was asked for
     │   └ LimitExceededError                       too large, too many keys, too many requests in flight
     ├ UnknownLocationError                         nobody knows where the state is: not ready, or no such job
     ├ UnknownKvStateLocationError                  the job has no queryable state of this name
     ├ UnknownJobError                              no such job
     ├ CheckpointNotAvailableError                  the checkpoint that was asked for is not retained, or never was
     ├ QueryTimeoutError                            the deadline passed before an answer was there
     ├ UnauthorizedError                            the bearer token is missing or wrong
     ├ ProtocolError                                a message is malformed; the connection ends
     ├ QueryConnectionError                         no connection, or it ended before the answer
     └ ServerFailureError                           the server failed, with the text of its failure
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import HoldfastError, StateError
from holdfast.kernel.secret import redacted_message


class QueryError(HoldfastError):
    """A query was not answered."""


class BadRequestError(QueryError):
    """The request cannot be answered as it is."""


class UnknownKvStateIdError(BadRequestError):
    """The server does not hold this state any more: ask again where it is."""


class UnknownKeyOrNamespaceError(BadRequestError):
    """There is no state for the key or namespace; a default value is never returned."""


class UnknownKvStateKeyGroupLocationError(BadRequestError):
    """No server holds the key's group at the moment."""


class WrongKeyTypeError(BadRequestError):
    """The key is not of the type of the state's keys."""


class WrongStateKindError(BadRequestError):
    """The state is of another kind than the request is about, or its values cannot be read here."""


class LimitExceededError(BadRequestError):
    """A message is too large, has too many keys, or there are too many requests in flight."""


class UnknownLocationError(QueryError):
    """Nobody knows where the state is: it is not ready, or the job does not exist."""


class UnknownKvStateLocationError(QueryError):
    """The job has no queryable state of this name."""


class UnknownJobError(QueryError):
    """There is no such job."""


class CheckpointNotAvailableError(QueryError):
    """The checkpoint that was asked for is not retained any more, or never completed."""


class QueryTimeoutError(QueryError):
    """The deadline passed before there was an answer."""


class UnauthorizedError(QueryError):
    """The bearer token is missing or wrong."""


class ProtocolError(QueryError):
    """A message is malformed, or of another protocol or version; the connection ends."""


class QueryConnectionError(QueryError):
    """There is no connection to the server, or it ended before the answer came.

    Attributes:
        was_connected: Whether it was ours and is lost, so that asking again on another one may help; False if there was
            none, and for what a server says of others, which it has asked twice itself.
    """

    was_connected: bool = True


class ServerFailureError(QueryError):
    """The server failed; the message has the text of its failure."""


class ReadOnlyStateError(StateError):
    """State that was queried cannot be changed."""


# The names under which Flink's users know them.
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
_LONGEST_TEXT: Final = 4000
RETRYABLE: Final = (UnknownKvStateIdError, UnknownKvStateKeyGroupLocationError, QueryConnectionError)
"""After these a request is repeated once with a fresh location."""


def to_wire(error: BaseException) -> dict[str, str]:
    """Return name and text of an error; one that is not a query's becomes a failure of the server."""
    name, text = type(error).__name__, redacted_message(error)
    if name in _BY_NAME:
        return {"error": name, "message": _shortened(text)}
    return {"error": ServerFailureError.__name__, "message": _shortened(f"{name}: {text}")}


def _shortened(text: str) -> str:
    """What was asked for may stand in a message, and may be long."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ... ({len(text)} characters)"


def from_wire(name: object, message: object) -> QueryError:
    """Return the error that a server sent; one of an unknown name becomes a failure of the server."""
    if isinstance(name, str) and name in _BY_NAME:
        error = _BY_NAME[name](str(message))
        if isinstance(error, QueryConnectionError):
            error.was_connected = False
        return error
    return ServerFailureError(f"{name}: {message}")
