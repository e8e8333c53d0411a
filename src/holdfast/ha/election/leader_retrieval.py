"""Finding the leader of a component."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.ha.election.leader_information import LeaderInformation
from holdfast.kernel.secret import get_logger

_logger = get_logger(__name__)


class LeaderRetrievalError(HoldfastError):
    """The leader of a component cannot be followed any more."""


class LeaderRetrievalListener(ABC):
    """Hears who leads; the calls come one at a time and must not block."""

    @abstractmethod
    def notify_leader_address(self, leader_address: str | None, leader_session_id: uuid.UUID | None) -> None:
        """The leader is now this one; both None: unknown."""

    @abstractmethod
    def handle_error(self, error: BaseException) -> None:
        """Following the leader failed for good."""


class LeaderRetrievalService(ABC):
    """Follows the leader of one component for one listener."""

    @abstractmethod
    def start(self, listener: LeaderRetrievalListener) -> None:
        """Begin to follow, once in the life of a service.

        Raises:
            RuntimeError: It was started before, stopped or not.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop following; no notification begins after this returned."""


class LeaderRetrievalEventHandler(ABC):
    """What a retrieval driver tells its service."""

    @abstractmethod
    def notify_leader_address(self, leader_information: LeaderInformation) -> None:
        """The backend now holds this information."""

    @abstractmethod
    def notify_error(self, error: BaseException) -> None:
        """The backend cannot be followed any more."""


class LeaderRetrievalDriver(ABC):
    """Follows one component in one backend."""

    @abstractmethod
    def close(self) -> None:
        """Stop following."""


LeaderRetrievalDriverFactory = Callable[[LeaderRetrievalEventHandler], LeaderRetrievalDriver]


class DefaultLeaderRetrievalService(LeaderRetrievalService, LeaderRetrievalEventHandler):
    """Follows a leader through a driver and tells the listener about changes only."""

    def __init__(self, driver_factory: LeaderRetrievalDriverFactory) -> None:
        self._driver_factory = driver_factory
        self._lock = threading.RLock()
        self._listener: LeaderRetrievalListener | None = None
        self._driver: LeaderRetrievalDriver | None = None
        self._running = False
        self._last = LeaderInformation.empty()

    def start(self, listener: LeaderRetrievalListener) -> None:
        """Begin to follow; blocks while the driver connects."""
        with self._lock:
            if self._listener is not None:
                raise RuntimeError("A leader retrieval service can be started once only.")
            self._listener = listener
            self._running = True
        driver = self._driver_factory(self)
        with self._lock:
            if self._running:
                self._driver = driver
                return
        driver.close()  # stopped by another thread while it was starting

    def stop(self) -> None:
        """Stop following; the driver is closed outside of the lock, because its thread may be waiting for it."""
        with self._lock:
            if not self._running:
                return
            self._running = False
            driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def notify_leader_address(self, leader_information: LeaderInformation) -> None:
        """Tell the listener if this differs from what it heard last."""
        with self._lock:
            if not self._running or self._listener is None or leader_information == self._last:
                return
            self._last = leader_information
            try:
                self._listener.notify_leader_address(
                    leader_information.leader_address, leader_information.leader_session_id
                )
            except Exception as error:
                self.notify_error(error)

    def notify_error(self, error: BaseException) -> None:
        """Tell the listener, unless it has stopped."""
        with self._lock:
            if not self._running or self._listener is None:
                _logger.debug("Ignoring an error of leader retrieval after its stop.", exc_info=error)
                return
            if not isinstance(error, LeaderRetrievalError):
                wrapped = LeaderRetrievalError(f"Could not follow the leader: {error}")
                wrapped.__cause__ = error
                error = wrapped
            self._listener.handle_error(error)


class StandaloneLeaderRetrievalService(LeaderRetrievalService):
    """Tells a configured address, because nobody is elected."""

    def __init__(self, leader_address: str, leader_session_id: uuid.UUID) -> None:
        self._information = LeaderInformation.known(leader_session_id, leader_address)
        self._started = False

    def start(self, listener: LeaderRetrievalListener) -> None:
        """Tell the listener the configured leader."""
        if self._started:
            raise RuntimeError("A leader retrieval service can be started once only.")
        self._started = True
        listener.notify_leader_address(self._information.leader_address, self._information.leader_session_id)

    def stop(self) -> None:
        """Nothing to stop."""
