"""Leader election among contenders of one process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from holdfast.ha.election.leader_election import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
)
from holdfast.ha.election.leader_information import LeaderInformation, LeaderInformationRegister
from holdfast.ha.election.leader_retrieval import LeaderRetrievalDriver, LeaderRetrievalEventHandler
from holdfast.ha.election.leadership import Leadership


class EmbeddedElection(Leadership):
    """An election in memory; drivers and retrievals that share the object take part in one election.

    Who registered first leads, until he leaves.
    """

    def __init__(self) -> None:
        # Re-entrant: a listener may answer a notification by writing its own information back.
        self._lock = threading.RLock()
        self._candidates: list[EmbeddedLeaderElectionDriver] = []
        self._register = LeaderInformationRegister.empty()
        self._followers: list[tuple[str, LeaderRetrievalEventHandler]] = []
        self._term = 0

    @property
    def register(self) -> LeaderInformationRegister:
        """What is published now."""
        with self._lock:
            return self._register

    def term_of(self, lock_identity: str) -> int | None:
        """The term under which this identity leads."""
        with self._lock:
            leads = bool(self._candidates) and self._candidates[0].lock_identity == lock_identity
            return self._term if leads else None

    def join(self, driver: EmbeddedLeaderElectionDriver) -> None:
        """Let a driver take part; it leads at once if nobody does."""
        with self._lock:
            self._candidates.append(driver)
            if len(self._candidates) == 1:
                self._elect()

    def leave(self, driver: EmbeddedLeaderElectionDriver) -> None:
        """Take a driver out; the next one leads if it did."""
        with self._lock:
            if driver not in self._candidates:
                return
            led = self.leads(driver)
            self._candidates.remove(driver)
            if led:
                self._replace(LeaderInformationRegister.empty())
                if self._candidates:
                    self._elect()

    def leads(self, driver: EmbeddedLeaderElectionDriver) -> bool:
        """Whether this driver leads now."""
        with self._lock:
            return bool(self._candidates) and self._candidates[0] is driver

    def publish(self, driver: EmbeddedLeaderElectionDriver, component_id: str, information: LeaderInformation) -> None:
        """Publish for a driver if it leads."""
        with self._lock:
            if self.leads(driver):
                self.write(component_id, information)

    def write(self, component_id: str, information: LeaderInformation) -> None:
        """Publish whoever leads; for tests of what a leader does against it."""
        with self._lock:
            self._replace(self._register.merge(component_id, information))

    def follow(self, component_id: str, handler: LeaderRetrievalEventHandler) -> Callable[[], None]:
        """Tell a handler about one component, now and at every change; returns what ends it."""
        follower = (component_id, handler)
        with self._lock:
            self._followers.append(follower)
            handler.notify_leader_address(self._register.for_component_id_or_empty(component_id))

        def stop() -> None:
            with self._lock:
                if follower in self._followers:
                    self._followers.remove(follower)

        return stop

    def _elect(self) -> None:
        self._term += 1
        self._candidates[0].listener.on_grant_leadership(uuid.uuid4())

    def _replace(self, register: LeaderInformationRegister) -> None:
        self._register = register
        for component_id, handler in list(self._followers):
            handler.notify_leader_address(register.for_component_id_or_empty(component_id))
        if self._candidates:
            self._candidates[0].listener.on_leader_information_register_change(self._register)


class EmbeddedLeaderElectionDriver(LeaderElectionDriver):
    """One candidate of an :class:`EmbeddedElection`."""

    def __init__(self, election: EmbeddedElection, lock_identity: str, listener: LeaderElectionListener) -> None:
        self._election = election
        self.lock_identity = lock_identity
        self.listener = listener

    def has_leadership(self) -> bool:
        """Whether this candidate leads now."""
        return self._election.leads(self)

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Publish if this candidate leads."""
        self._election.publish(self, component_id, leader_information)

    def delete_leader_information(self, component_id: str) -> None:
        """Withdraw if this candidate leads."""
        self._election.publish(self, component_id, LeaderInformation.empty())

    def close(self) -> None:
        """Leave the election."""
        self._election.leave(self)


class EmbeddedLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the drivers of one contender's services."""

    def __init__(self, election: EmbeddedElection, lock_identity: str) -> None:
        self._election = election
        self._lock_identity = lock_identity

    def create(self, leader_election_listener: LeaderElectionListener) -> EmbeddedLeaderElectionDriver:
        """Make a driver and let it join."""
        driver = EmbeddedLeaderElectionDriver(self._election, self._lock_identity, leader_election_listener)
        self._election.join(driver)
        return driver


class EmbeddedLeaderRetrievalDriver(LeaderRetrievalDriver):
    """Follows one component of an :class:`EmbeddedElection`."""

    def __init__(self, election: EmbeddedElection, component_id: str, handler: LeaderRetrievalEventHandler) -> None:
        self._stop = election.follow(component_id, handler)

    def close(self) -> None:
        """Stop following."""
        self._stop()
