"""A process's connection to ZooKeeper, and the outcome of its requests.

kazoo queues requests while it is not connected and may send them after the caller has given up, so three outcomes are
kept apart: done, certainly not done (a kazoo error that only a server that refused can have sent), and *no answer*.
Writes are conditional, so one without an answer is sent again; if the repetition is refused, the caller's
``is_committed`` finds out whether the first one was committed.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from kazoo import exceptions
from kazoo.client import KazooClient, TransactionRequest
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from holdfast.errors import ConfigurationError, HoldfastError, PossibleInconsistentStateError, StorageError
from holdfast.ha import options
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger

logger = get_logger(__name__)
T = TypeVar("T")
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
# Errors after which the request was certainly not committed.
_REFUSED: Final = (
    exceptions.NoNodeError,
    exceptions.NodeExistsError,
    exceptions.BadVersionError,
    exceptions.NotEmptyError,
    exceptions.NoAuthError,
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
    exceptions.BadArgumentsError,
    exceptions.NoChildrenForEphemeralsError,
    exceptions.NotReadOnlyCallError,
    exceptions.SessionMovedError,
)
# Those of them about the nodes, and not about the client.
_ANSWERS: Final = (
    exceptions.NoNodeError,
    exceptions.NodeExistsError,
    exceptions.BadVersionError,
    exceptions.NotEmptyError,
)
_CONSEQUENCES: Final = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


class NoAnswerError(Exception):
    """A request was perhaps sent, and no answer arrived; only within this package."""


class TransactionRefusedError(Exception):
    """A transaction was certainly not committed; only within this package.

    Attributes:
        index: Which of its operations was refused.
        reason: kazoo's error.
    """

    def __init__(self, index: int, reason: Exception) -> None:
        super().__init__(f"operation {index} of the transaction was refused: {reason!r}")
        self.index = index
        self.reason = reason


class ZooKeeperConnection:
    """A connection with one session at a time; safe to use from several threads.

    Args:
        quorum: The servers, ``host:port`` separated by commas.
        session_timeout: Seconds after which a silent process loses its session.
        connection_timeout: Seconds that connecting, and one request, may take.
        retry_wait: Seconds before the first retry of a request; doubles.
        max_retry_wait: The longest pause before a retry.
        max_retries: How often a request is retried.
        is_open: Whether every client may change the nodes; otherwise only the client that created them.
        authorization: ``scheme:credential`` of this client.
    """

    def __init__(
        self,
        quorum: str,
        *,
        session_timeout: float = options.ZOOKEEPER_SESSION_TIMEOUT.default / 1000,
        connection_timeout: float = options.ZOOKEEPER_CONNECTION_TIMEOUT.default / 1000,
        retry_wait: float = options.ZOOKEEPER_RETRY_WAIT.default / 1000,
        max_retry_wait: float = options.ZOOKEEPER_MAX_RETRY_WAIT.default / 1000,
        max_retries: int = options.ZOOKEEPER_MAX_RETRY_ATTEMPTS.default,
        is_open: bool = True,
        authorization: str | None = None,
    ) -> None:
        _check_quorum(quorum)
        scheme, colon, credential = (authorization or "").partition(":")
        if authorization is not None and not (scheme and colon and credential):
            raise ConfigurationError(
                f"Option {options.ZOOKEEPER_CLIENT_AUTHORIZATION.key!r} is scheme:credential, such as "
                "digest:user:password."
            )
        if not is_open and authorization is None:
            raise ConfigurationError(
                f"Option {options.ZOOKEEPER_CLIENT_ACL.key!r} is 'creator', but "
                f"{options.ZOOKEEPER_CLIENT_AUTHORIZATION.key!r} does not have the credentials of this client."
            )
        self.quorum: Final = quorum
        self.session_timeout: Final = session_timeout
        self._connection_timeout = connection_timeout
        self._wait_seconds = connection_timeout  # how long a request waits for a lost connection
        self._pauses = [min(max_retry_wait, retry_wait * 2**attempt) for attempt in range(max_retries)]
        self._connected = threading.Event()
        self._closing = threading.Event()
        self.client: Final[Any] = KazooClient(
            hosts=quorum,
            timeout=session_timeout,
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": max(0.1, min(retry_wait, 5.0))},
            default_acl=OPEN_ACL_UNSAFE if is_open else CREATOR_ALL_ACL,
            auth_data=[(scheme, credential)] if authorization is not None else None,
        )
        self.client.add_listener(self._note_state)

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> ZooKeeperConnection:
        """Return the connection that the options describe; it is not started.

        Raises:
            ConfigurationError: The quorum is missing or malformed.
        """
        quorum = configuration.get(options.HA_ZOOKEEPER_QUORUM)
        if not quorum or not quorum.strip():
            raise ConfigurationError(
                f"Configuration is missing the mandatory parameter {options.HA_ZOOKEEPER_QUORUM.key!r}: name the "
                "ZooKeeper servers as host:port, separated by commas."
            )
        return cls(
            quorum,
            session_timeout=configuration.get(options.ZOOKEEPER_SESSION_TIMEOUT) / 1000,
            connection_timeout=configuration.get(options.ZOOKEEPER_CONNECTION_TIMEOUT) / 1000,
            retry_wait=configuration.get(options.ZOOKEEPER_RETRY_WAIT) / 1000,
            max_retry_wait=configuration.get(options.ZOOKEEPER_MAX_RETRY_WAIT) / 1000,
            max_retries=configuration.get(options.ZOOKEEPER_MAX_RETRY_ATTEMPTS),
            is_open=configuration.get(options.ZOOKEEPER_CLIENT_ACL) is options.ZooKeeperAcl.OPEN,
            authorization=configuration.get(options.ZOOKEEPER_CLIENT_AUTHORIZATION),
        )

    def without_retries(self) -> ZooKeeperConnection:
        """Return this connection for a thread that must not wait: it sends a request once, and only while connected."""
        view = copy.copy(self)
        view._wait_seconds, view._pauses = 0.0, []
        return view

    def start(self) -> None:
        """Connect. Blocks.

        Raises:
            StorageError: No server answered within the connection timeout.
        """
        try:
            self.client.start(timeout=self._connection_timeout)
        except KazooTimeoutError as error:
            self.close()
            raise StorageError(
                f"Could not connect to ZooKeeper at {self.quorum!r} within {self._connection_timeout:g} s. Check that "
                f"the servers run and can be reached from here, and that {options.HA_ZOOKEEPER_QUORUM.key!r} names "
                "them."
            ) from error

    def close(self) -> None:
        """End the session: its ephemeral nodes are deleted at once."""
        self._closing.set()
        self.client.stop()
        self.client.close()

    @property
    def session_id(self) -> int | None:
        """The id of the current session, None without one."""
        client_id = self.client.client_id
        return int(client_id[0]) if client_id is not None else None

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected as far as it knows."""
        return self._connected.is_set()

    @property
    def is_closed(self) -> bool:
        """Whether this process closed it, and with it the session."""
        return self._closing.is_set()

    def call(self, request: Callable[[], Any]) -> Any:
        """Send one request, once, and wait for its answer.

        Args:
            request: Calls one of kazoo's ``*_async`` methods and returns its result.

        Raises:
            NoAnswerError: None came.
            StorageError: There is no connection, or the server refused for good; nothing was changed.
            NoNodeError, NodeExistsError, BadVersionError, NotEmptyError: The nodes are not as the request needs them.
        """
        if not self._connected.wait(self._wait_seconds):
            raise StorageError(
                f"The connection to ZooKeeper at {self.quorum!r} is lost, and did not come back within "
                f"{self._wait_seconds:g} s. Nothing was sent."
            )
        try:
            return request().get(timeout=self._connection_timeout)
        except _ANSWERS:
            raise
        except _REFUSED as error:
            raise storage_error(error, "answer", self.quorum) from error
        except (exceptions.KazooException, KazooTimeoutError) as error:
            raise NoAnswerError(f"ZooKeeper did not answer: {error!r}") from error

    def read(self, request: Callable[[], Any]) -> Any:
        """Send a request that changes nothing, or may be repeated, until an answer comes.

        Raises:
            StorageError: None came after all retries, or the server refused for good.
            NoNodeError, NodeExistsError, BadVersionError, NotEmptyError: The nodes are not as the request needs them.
        """
        for pause in self._attempts():
            try:
                return self.call(request)
            except NoAnswerError as error:
                if pause is None:
                    raise StorageError(
                        f"ZooKeeper at {self.quorum!r} did not answer in {len(self._pauses) + 1} attempts ({error}). "
                        "Try again when it does."
                    ) from error
                logger.warning("%s Trying again in %g s.", error, pause)
                self._pause(pause)
        raise AssertionError("the last attempt returns or raises")

    def write(self, fill: Callable[[TransactionRequest], None], *, is_committed: Callable[[], bool], what: str) -> None:
        """Commit one transaction, all or nothing.

        Args:
            fill: Adds the operations; is called once an attempt.
            is_committed: Returns whether the transaction was committed; called after an attempt without an answer.
            what: The transaction, for errors: ``"add entry 'job-1'"``.

        Raises:
            TransactionRefusedError: It was not committed.
            StorageError: It was not sent.
            PossibleInconsistentStateError: It is not known whether it was committed.
        """
        doubt: NoAnswerError | None = None
        for pause in self._attempts():
            try:
                self._commit(fill)
                return
            except NoAnswerError as error:
                doubt = error
            except (TransactionRefusedError, StorageError) as error:
                if doubt is None:
                    raise
                if isinstance(error, StorageError):
                    break
                if self._is_committed(is_committed, what, error):
                    return
                raise
            if pause is not None:
                logger.warning("It is not known yet whether ZooKeeper did %s: %s", what, doubt)
                self._pause(pause)
        if not self._is_committed(is_committed, what, doubt):
            raise PossibleInconsistentStateError(
                f"It is not known whether ZooKeeper at {self.quorum!r} did {what} ({doubt}). Nothing is deleted; look "
                "again when it answers."
            ) from doubt

    def sync(self, path: str) -> None:
        """Let this client's server catch up with everything that was committed before."""
        self.read(lambda: self.client.sync_async(path))

    def ensure_path(self, path: str) -> None:
        self.read(lambda: self.client.ensure_path_async(path))

    def _commit(self, fill: Callable[[TransactionRequest], None]) -> None:
        transaction = TransactionRequest(self.client)
        fill(transaction)
        results = self.call(transaction.commit_async)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, _CONSEQUENCES):
                raise TransactionRefusedError(index, result)
        if any(isinstance(result, Exception) for result in results):
            raise NoAnswerError(f"ZooKeeper answered without a reason: {results!r}")

    def _is_committed(self, is_committed: Callable[[], bool], what: str, error: Exception | None) -> bool:
        try:
            return is_committed()
        except (HoldfastError, exceptions.KazooException, NoAnswerError) as second:
            raise PossibleInconsistentStateError(
                f"It is not known whether ZooKeeper at {self.quorum!r} did {what} ({error}), and it could not be "
                f"looked up ({second}). Nothing is deleted; look again when it answers."
            ) from error

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise StorageError(f"The connection to ZooKeeper at {self.quorum!r} was closed.")

    def _attempts(self) -> Iterator[float | None]:
        """Yield the pause after each attempt; None after the last one."""
        yield from self._pauses
        yield None

    def _note_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()

    def __repr__(self) -> str:
        return f"ZooKeeperConnection({self.quorum!r})"


def storage_error(error: Exception, what: str, path: str) -> StorageError:
    """Return the error of a refusal that no caller expects.

    Args:
        error: kazoo's error, or the refusal of a transaction.
        what: The attempted action, as a verb.
        path: The node.
    """
    reason = error.reason if isinstance(error, TransactionRefusedError) else error
    advice = ""
    if isinstance(reason, exceptions.NoAuthError | exceptions.AuthFailedError | exceptions.InvalidACLError):
        advice = (
            " This client may not do that: check the ACL of the node and "
            f"{options.ZOOKEEPER_CLIENT_AUTHORIZATION.key!r}."
        )
    return StorageError(f"ZooKeeper refused to {what} {path!r}: {type(reason).__name__}.{advice}")


def _check_quorum(quorum: str) -> None:
    for server in quorum.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or (match[2] is not None and not 0 < int(match[2][1:]) < 65536):
            raise ConfigurationError(
                f"Option {options.HA_ZOOKEEPER_QUORUM.key!r}: {server.strip()!r} in {quorum!r} is not host:port."
            )
