"""The roles of leader election: contender, election, driver.

A *contender* is one component of a process (dispatcher, resource manager, REST endpoint, one job master a job). It
holds a :class:`LeaderElection`, which the process-wide
:class:`~holdfast.ha.election.election_service.LeaderElectionService` made for it. The service has one *driver*, which
campaigns in the backend for the process as a whole, so that all components of a process win or lose together.

The life of a leadership::

    (none) --granted: a session id is issued, nobody can find me--> granted
    granted --confirmed: the address is published, clients find me--> confirmed
    granted | confirmed --revoked--> (none)

Only a confirmed leader is visible. Leadership is learnt late and lost even later, so nothing that matters may depend
on what is said here: every write of a pointer is fenced by itself.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from concurrent.futures import Future

from holdfast.errors import HoldfastError
from holdfast.ha.election.leader_information import LeaderInformation, LeaderInformationRegister


class LeaderElectionError(HoldfastError):
    """Leader election failed for good; the contender cannot know any more whether it leads."""


class LeaderContender(ABC):
    """A component that wants to lead; its methods are called by one thread, one at a time, and must not block."""

    @abstractmethod
    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        """Lead from now on, under this session id; make yourself visible by confirming it."""

    @abstractmethod
    def revoke_leadership(self) -> None:
        """Stop leading; somebody else may lead already."""

    @abstractmethod
    def handle_error(self, error: BaseException) -> None:
        """Hear of an error after which leadership cannot be decided any more."""


class LeaderElection(ABC):
    """The part in the election of one component."""

    @abstractmethod
    def start_leader_election(self, contender: LeaderContender) -> None:
        """Register the contender and join the election.

        Raises:
            RuntimeError: The service is closed, or the component has a contender already.
        """

    @abstractmethod
    def confirm_leadership_async(self, leader_session_id: uuid.UUID, leader_address: str) -> Future[None]:
        """Publish the address under which the leader of this session can be reached.

        The future completes normally also where the confirmation comes too late and is ignored.
        """

    @abstractmethod
    def has_leadership_async(self, leader_session_id: uuid.UUID) -> Future[bool]:
        """Ask the backend whether this session leads right now."""

    @abstractmethod
    def close(self) -> None:
        """Leave the election; a leader is revoked before this returns, and what it published is withdrawn."""


class LeaderElectionListener(ABC):
    """What a driver tells its service; any thread may call, and none of the calls waits for a contender."""

    @abstractmethod
    def on_grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        """The process has been elected; the driver made a new random session id."""

    @abstractmethod
    def on_revoke_leadership(self) -> None:
        """The process leads no more."""

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

    A driver that loses leadership campaigns again by itself until it is closed. Publishing without leadership writes
    nothing. Neither method may need the thread that calls the listener to make progress.
    """

    @abstractmethod
    def has_leadership(self) -> bool:
        """Whether the backend says right now that this process leads; may block for an answer."""

    @abstractmethod
    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Make the information visible if this process leads, otherwise do nothing; empty information withdraws it."""

    @abstractmethod
    def delete_leader_information(self, component_id: str) -> None:
        """Withdraw the information of a component if this process leads, otherwise do nothing."""

    @abstractmethod
    def close(self) -> None:
        """Leave the campaign, giving up leadership at once; no listener call begins after this returned."""


class LeaderElectionDriverFactory(ABC):
    """Makes the driver of a process when its first contender registers."""

    @abstractmethod
    def create(self, leader_election_listener: LeaderElectionListener) -> LeaderElectionDriver:
        """Make a driver and let it join the election."""
