"""The roles of leader election: contender, election, driver, and those of leader retrieval.

A *contender* is one component of a process (dispatcher, resource manager, REST endpoint, one job master a job). It has
a `LeaderElection`, which the process-wide `LeaderElectionService` made for it. The service has one *driver*, which
campaigns in the backend for the whole process, so that all components of a process win or lose together.

The life of a leadership::

    (none) --granted: a session id is issued, but clients cannot find the leader--> granted
    granted --confirmed: the address is published, clients find the leader--> confirmed
    granted | confirmed --revoked--> (none)

Only a confirmed leader is visible. A process learns late that it leads, and even later that it does not, so nothing may
depend on it: every write of a pointer is fenced by itself.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import FencedError, HoldfastError
from holdfast.kernel.secret import get_logger


@dataclass(frozen=True)
class LeaderInformation:
    """Session id and address of a confirmed leader; both are None if there is none.

    There is one empty instance a process.
    """

    leader_session_id: uuid.UUID | None
    leader_address: str | None

    _EMPTY: ClassVar[LeaderInformation]

    def __post_init__(self) -> None:
        if (self.leader_session_id is None) != (self.leader_address is None):
            raise ValueError(
                f"Leader information needs both a session id and an address, got {self.leader_session_id!r} and "
                f"{self.leader_address!r}; use LeaderInformation.empty() if there is no leader."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the empty instance single across copies and processes."""
        if self.is_empty:
            return LeaderInformation.empty, ()
        return LeaderInformation, (self.leader_session_id, self.leader_address)

    @classmethod
    def known(cls, leader_session_id: uuid.UUID, leader_address: str) -> LeaderInformation:
        """Return the information of a confirmed leader."""
        return cls(leader_session_id, leader_address)

    @classmethod
    def empty(cls) -> LeaderInformation:
        """Return the information that there is no leader; always the same object."""
        return cls._EMPTY

    @property
    def is_empty(self) -> bool:
        """Whether there is no leader."""
        return self.leader_session_id is None

    def encode(self) -> str:
        """Return the stored text ``<session id>,<address>``; empty if there is no leader."""
        return "" if self.is_empty else f"{self.leader_session_id},{self.leader_address}"

    @classmethod
    def decode(cls, text: str) -> LeaderInformation:
        """Read the text of `encode`; a text that cannot be read counts as no leader."""
        session, comma, address = text.partition(",")
        if not comma:
            return cls._EMPTY
        try:
            return cls(uuid.UUID(session), address)
        except ValueError:
            return cls._EMPTY


LeaderInformation._EMPTY = LeaderInformation(None, None)


class LeaderInformationRegister(Mapping[str, LeaderInformation]):
    """The confirmed leaders by component; an immutable mapping without empty entries."""

    def __init__(self, entries: Mapping[str, LeaderInformation] | None = None) -> None:
        self._entries = {name: entry for name, entry in (entries or {}).items() if not entry.is_empty}

    @classmethod
    def empty(cls) -> LeaderInformationRegister:
        return cls()

    def merge(self, component_id: str, information: LeaderInformation) -> LeaderInformationRegister:
        """Return a register with this entry replaced; empty information removes it."""
        return LeaderInformationRegister({**self._entries, component_id: information})

    def clear(self, component_id: str) -> LeaderInformationRegister:
        return self.merge(component_id, LeaderInformation.empty())

    def for_component_id_or_empty(self, component_id: str) -> LeaderInformation:
        """Return the entry of a component; the empty information if it has none."""
        return self._entries.get(component_id, LeaderInformation.empty())

    def has_leader_information(self, component_id: str) -> bool:
        return component_id in self._entries

    def __getitem__(self, component_id: str) -> LeaderInformation:
        return self._entries[component_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"LeaderInformationRegister({self._entries!r})"


class LeaderElectionError(HoldfastError):
    """Leader election failed for good; the contender cannot find out any more whether it leads."""


class LeaderContender(ABC):
    """A component that wants to lead; one thread calls it, one call at a time. The methods must not block."""

    @abstractmethod
    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        """Begin to lead under this session id. Confirm it to become visible to clients."""

    @abstractmethod
    def revoke_leadership(self) -> None:
        """Stop leading; another process may lead already."""

    @abstractmethod
    def handle_error(self, error: BaseException) -> None:
        """Handle an error after which leadership cannot be decided any more."""


class LeaderElection(ABC):
    """The election of one component."""

    @abstractmethod
    def start_leader_election(self, contender: LeaderContender) -> None:
        """Register the contender and join the election. Blocks while the driver starts.

        Raises:
            RuntimeError: The service is closed, or the component has a contender already.
        """

    @abstractmethod
    def confirm_leadership_async(self, leader_session_id: uuid.UUID, leader_address: str) -> Future[None]:
        """Publish the address of the leader of this session.

        Returns:
            A future that completes normally also if the session is over and the confirmation is ignored.
        """

    @abstractmethod
    def has_leadership_async(self, leader_session_id: uuid.UUID) -> Future[bool]:
        """Ask the backend whether this session leads right now."""

    @abstractmethod
    def close(self) -> None:
        """Leave the election; a leader is revoked before this returns, and its information is withdrawn."""


class LeaderElectionListener(ABC):
    """The events of a driver; any thread may call, and no call waits for a contender."""

    @abstractmethod
    def on_grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        """The process was elected; the driver made a new random session id."""

    @abstractmethod
    def on_revoke_leadership(self) -> None:
        """The process does not lead any more."""

    @abstractmethod
    def on_leader_information_change(self, component_id: str, leader_information: LeaderInformation) -> None:
        """The published information of one component is now this."""

    @abstractmethod
    def on_leader_information_register_change(self, register: LeaderInformationRegister) -> None:
        """The published information of all components is now this."""

    @abstractmethod
    def on_error(self, error: BaseException) -> None:
        """The driver failed for good."""


class LeaderElectionDriver(ABC):
    """The campaign of one process in one backend.

    A driver that loses leadership campaigns again by itself until it is closed. Without leadership, publishing writes
    nothing. No method may depend on progress of the thread that calls the listener.
    """

    @abstractmethod
    def has_leadership(self) -> bool:
        """Return whether the backend says right now that this process leads. May block."""

    @abstractmethod
    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Publish the information if this process leads, otherwise do nothing; empty information withdraws it."""

    @abstractmethod
    def delete_leader_information(self, component_id: str) -> None:
        """Withdraw the information of a component if this process leads, otherwise do nothing."""

    @abstractmethod
    def close(self) -> None:
        """Leave the campaign and give up leadership at once; no listener call begins after this returned."""


class LeaderElectionDriverFactory(ABC):
    """Makes the driver of a process when its first contender registers."""

    @abstractmethod
    def create(self, leader_election_listener: LeaderElectionListener) -> LeaderElectionDriver:
        """Return a driver that has joined the election."""


logger = get_logger(__name__)


class LeaderRetrievalError(HoldfastError):
    """The leader of a component cannot be followed any more."""


class LeaderRetrievalListener(ABC):
    """Is notified of the leader; the calls come one at a time and must not block."""

    @abstractmethod
    def notify_leader_address(self, leader_address: str | None, leader_session_id: uuid.UUID | None) -> None:
        """The leader is now this one; both are None if it is unknown."""

    @abstractmethod
    def handle_error(self, error: BaseException) -> None:
        """Following the leader failed for good."""


class LeaderRetrievalService(ABC):
    """Follows the leader of one component for one listener."""

    @abstractmethod
    def start(self, listener: LeaderRetrievalListener) -> None:
        """Start to follow, once in the life of a service. May block while it connects.

        Raises:
            RuntimeError: It was started before, stopped or not.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop following; no notification begins after this returned."""


class LeaderRetrievalEventHandler(ABC):
    """The events of a retrieval driver."""

    @abstractmethod
    def notify_leader_address(self, leader_information: LeaderInformation) -> None:
        """The published information is now this."""

    @abstractmethod
    def notify_error(self, error: BaseException) -> None:
        """The backend cannot be followed any more."""


class LeaderRetrievalDriver(ABC):
    """Follows one component in one backend."""

    @abstractmethod
    def close(self) -> None: ...


LeaderRetrievalDriverFactory = Callable[[LeaderRetrievalEventHandler], LeaderRetrievalDriver]


class DefaultLeaderRetrievalService(LeaderRetrievalService, LeaderRetrievalEventHandler):
    """Follows a leader through a driver and notifies the listener of changes only."""

    def __init__(self, driver_factory: LeaderRetrievalDriverFactory) -> None:
        self._driver_factory = driver_factory
        self._lock = threading.RLock()
        self._listener: LeaderRetrievalListener | None = None
        self._driver: LeaderRetrievalDriver | None = None
        self._running = False
        self._last = LeaderInformation.empty()

    def start(self, listener: LeaderRetrievalListener) -> None:
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
        """Stop following. The driver is closed outside of the lock, because its thread may be waiting for it."""
        with self._lock:
            if not self._running:
                return
            self._running = False
            driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def notify_leader_address(self, leader_information: LeaderInformation) -> None:
        with self._lock:
            if not self._running or self._listener is None or leader_information == self._last:
                return
            self._last = leader_information
            try:
                self._listener.notify_leader_address(
                    leader_information.leader_address, leader_information.leader_session_id
                )
            except Exception as error:  # noqa: BLE001 - the listener's own error handler gets it
                self.notify_error(error)

    def notify_error(self, error: BaseException) -> None:
        with self._lock:
            if not self._running or self._listener is None:
                logger.debug("Ignoring an error of leader retrieval after its stop.", exc_info=error)
                return
            if not isinstance(error, LeaderRetrievalError):
                wrapped = LeaderRetrievalError(f"Could not follow the leader: {error}")
                wrapped.__cause__ = error
                error = wrapped
            self._listener.handle_error(error)


class StandaloneLeaderRetrievalService(LeaderRetrievalService):
    """Reports a configured address, because there is no election."""

    def __init__(self, leader_address: str, leader_session_id: uuid.UUID) -> None:
        self._information = LeaderInformation.known(leader_session_id, leader_address)
        self._started = False

    def start(self, listener: LeaderRetrievalListener) -> None:
        if self._started:
            raise RuntimeError("A leader retrieval service can be started once only.")
        self._started = True
        listener.notify_leader_address(self._information.leader_address, self._information.leader_session_id)

    def stop(self) -> None: ...


class Leadership(ABC):
    """The current leadership, according to the backend."""

    @abstractmethod
    def term_of(self, lock_identity: str) -> int | None:
        """Return the term under which this identity leads right now, None if it does not; terms only grow.

        Raises:
            StorageError: The backend does not answer.
        """

    def require_term_of(self, lock_identity: str) -> int:
        """Return the term under which this identity leads right now.

        Raises:
            FencedError: It does not lead.
        """
        term = self.term_of(lock_identity)
        if term is None:
            raise FencedError(
                f"{lock_identity!r} does not lead any more, so it may not change anything. This process stops; "
                "the leader continues."
            )
        return term
