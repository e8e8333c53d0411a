"""A leader contender and a retrieval listener that write down what they hear, for tests."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from holdfast.ha.election.leader_election import LeaderContender, LeaderElection
from holdfast.ha.election.leader_information import LeaderInformation
from holdfast.ha.election.leader_retrieval import LeaderRetrievalListener


def eventually(condition: Callable[[], bool], what: str, patience: float = 30.0) -> None:
    """Wait until something becomes true; real time, for backends that have their own clock.

    Raises:
        AssertionError: It did not within ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {patience} s in vain: {what}")
        time.sleep(0.01)


class RecordingContender(LeaderContender):
    """Confirms every grant under its own address and checks that grants and revocations alternate.

    Args:
        address: What it confirms.
        election: Its election; None if it shall not confirm.
    """

    def __init__(self, address: str, election: LeaderElection | None = None) -> None:
        self.address = address
        self._election = election
        self._lock = threading.Lock()
        self._events: list[uuid.UUID | None] = []
        self.errors: list[BaseException] = []

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        """Write the grant down and confirm it."""
        with self._lock:
            if self._events and self._events[-1] is not None:
                self.errors.append(AssertionError(f"{self.address}: granted twice without a revocation"))
            self._events.append(leader_session_id)
        if self._election is not None:
            self._election.confirm_leadership_async(leader_session_id, self.address)

    def revoke_leadership(self) -> None:
        """Write the revocation down."""
        with self._lock:
            if not self._events or self._events[-1] is None:
                self.errors.append(AssertionError(f"{self.address}: revoked without a grant"))
            self._events.append(None)

    def handle_error(self, error: BaseException) -> None:
        """Write the error down."""
        self.errors.append(error)

    @property
    def session_id(self) -> uuid.UUID | None:
        """The session under which it leads as far as it knows."""
        with self._lock:
            return self._events[-1] if self._events else None

    @property
    def leads(self) -> bool:
        """Whether it leads as far as it knows."""
        return self.session_id is not None

    @property
    def sessions(self) -> list[uuid.UUID]:
        """All sessions it was ever granted, in order."""
        with self._lock:
            return [event for event in self._events if event is not None]


class RecordingRetrievalListener(LeaderRetrievalListener):
    """Remembers every leader that it was told of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._history: list[LeaderInformation] = []
        self.errors: list[BaseException] = []

    def notify_leader_address(self, leader_address: str | None, leader_session_id: uuid.UUID | None) -> None:
        """Write the leader down."""
        with self._lock:
            self._history.append(LeaderInformation(leader_session_id, leader_address))

    def handle_error(self, error: BaseException) -> None:
        """Write the error down."""
        self.errors.append(error)

    @property
    def history(self) -> list[LeaderInformation]:
        """Everything it was told, in order."""
        with self._lock:
            return list(self._history)

    @property
    def address(self) -> str | None:
        """The address that it was told last."""
        with self._lock:
            return self._history[-1].leader_address if self._history else None
