"""The contract of leader election backends as a pytest class, `LeaderElectionContract`.

Every test judges by what contenders and retrieval listeners are notified of.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import pytest

from holdfast.ha.election_service import LeaderElectionService
from holdfast.ha.leader_election import (
    DefaultLeaderRetrievalService,
    LeaderContender,
    LeaderElection,
    LeaderElectionDriverFactory,
    LeaderInformation,
    LeaderRetrievalDriverFactory,
    LeaderRetrievalListener,
)


def eventually(condition: Callable[[], bool], what: str, patience: float = 30.0) -> None:
    """Wait until a condition holds, in real time, because backends have clocks of their own.

    Raises:
        AssertionError: It did not hold within `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {patience} s in vain: {what}")
        time.sleep(0.01)


class RecordingContender(LeaderContender):
    """A contender that confirms every grant under its own address and records that grants and revocations alternate.

    Args:
        address: The address that it confirms.
        election: Its election; None to confirm nothing.
    """

    def __init__(self, address: str, election: LeaderElection | None = None) -> None:
        self.address = address
        self._election = election
        self._lock = threading.Lock()
        self._events: list[uuid.UUID | None] = []
        self.errors: list[BaseException] = []

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        with self._lock:
            if self._events and self._events[-1] is not None:
                self.errors.append(AssertionError(f"{self.address}: granted twice without a revocation"))
            self._events.append(leader_session_id)
        if self._election is not None:
            self._election.confirm_leadership_async(leader_session_id, self.address)

    def revoke_leadership(self) -> None:
        with self._lock:
            if not self._events or self._events[-1] is None:
                self.errors.append(AssertionError(f"{self.address}: revoked without a grant"))
            self._events.append(None)

    def handle_error(self, error: BaseException) -> None:
        self.errors.append(error)

    @property
    def session_id(self) -> uuid.UUID | None:
        """The session under which it leads as far as it knows; None if it does not."""
        with self._lock:
            return self._events[-1] if self._events else None

    @property
    def leads(self) -> bool:
        return self.session_id is not None

    @property
    def sessions(self) -> list[uuid.UUID]:
        """All sessions that it was ever granted, in order."""
        with self._lock:
            return [event for event in self._events if event is not None]


class RecordingRetrievalListener(LeaderRetrievalListener):
    """A listener that records every leader that it is notified of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._history: list[LeaderInformation] = []
        self.errors: list[BaseException] = []

    def notify_leader_address(self, leader_address: str | None, leader_session_id: uuid.UUID | None) -> None:
        with self._lock:
            self._history.append(LeaderInformation(leader_session_id, leader_address))

    def handle_error(self, error: BaseException) -> None:
        self.errors.append(error)

    @property
    def history(self) -> list[LeaderInformation]:
        with self._lock:
            return list(self._history)

    @property
    def address(self) -> str | None:
        """The newest address; None if there is no leader."""
        with self._lock:
            return self._history[-1].leader_address if self._history else None


class ElectionProcess(ABC):
    """One process of the cluster, with its own connection to the backend."""

    @property
    @abstractmethod
    def driver_factory(self) -> LeaderElectionDriverFactory:
        """The factory of the election drivers of this process."""

    @abstractmethod
    def retrieval_driver_factory(self, component_id: str) -> LeaderRetrievalDriverFactory:
        """Return the factory of the retrieval drivers of this process."""

    @abstractmethod
    def cut_off(self) -> None:
        """Block all traffic between this process and the backend, in both directions, until `mend`."""

    @abstractmethod
    def mend(self) -> None:
        """Undo `cut_off`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection of the process."""


class ElectionBackend(ABC):
    """The election of one cluster, as its processes see it.

    Attributes:
        patience: Seconds within which a new leader must be elected after the old one was cut off.
        can_cut_off: Whether processes can be cut off; False where all of them are one process.
    """

    patience: float = 30.0
    can_cut_off: bool = True

    @abstractmethod
    def new_process(self) -> ElectionProcess:
        """Connect one more process."""

    @abstractmethod
    def write_information(self, component_id: str, information: LeaderInformation) -> None:
        """Write leader information directly, bypassing the election; empty information deletes it."""

    @abstractmethod
    def read_information(self, component_id: str) -> LeaderInformation:
        """Read the leader information that is published now."""


class Candidate:
    """A process with an election service and one contender for each component."""

    def __init__(self, process: ElectionProcess, address: str) -> None:
        self.process = process
        self.address = address
        self.service = LeaderElectionService(process.driver_factory)
        self.elections: dict[str, LeaderElection] = {}
        self.contenders: dict[str, RecordingContender] = {}

    def start(self, component_id: str = "dispatcher", *, confirm: bool = True) -> RecordingContender:
        """Let one component of the process campaign."""
        election = self.service.create_leader_election(component_id)
        contender = RecordingContender(self.address, election if confirm else None)
        self.elections[component_id] = election
        self.contenders[component_id] = contender
        election.start_leader_election(contender)
        return contender

    def has_leadership(self, session_id: uuid.UUID, component_id: str = "dispatcher") -> bool:
        """Return whether the backend confirms the session."""
        return self.elections[component_id].has_leadership_async(session_id).result(timeout=60)

    def close(self) -> None:
        """Leave the election cleanly."""
        for election in self.elections.values():
            election.close()
        self.service.close()
        self.process.close()


class Cluster:
    """The candidates and retrievers of one test, closed at its end."""

    def __init__(self, backend: ElectionBackend) -> None:
        self.backend = backend
        self.candidates: list[Candidate] = []
        self._retrievals: list[tuple[DefaultLeaderRetrievalService, ElectionProcess]] = []
        self._numbers = itertools.count(1)

    def candidate(self) -> Candidate:
        """Connect a process that may campaign."""
        candidate = Candidate(self.backend.new_process(), f"host-{next(self._numbers)}:6123")
        self.candidates.append(candidate)
        return candidate

    def retriever(self, component_id: str = "dispatcher") -> RecordingRetrievalListener:
        """Connect a process that follows the leader of a component."""
        process = self.backend.new_process()
        retrieval = DefaultLeaderRetrievalService(process.retrieval_driver_factory(component_id))
        self._retrievals.append((retrieval, process))
        listener = RecordingRetrievalListener()
        retrieval.start(listener)
        return listener

    def leave(self, candidate: Candidate) -> None:
        """Let a candidate leave cleanly."""
        self.candidates.remove(candidate)
        candidate.close()

    def leader(self, *, among: list[Candidate] | None = None) -> Candidate:
        """Wait until exactly one candidate leads, and return it."""
        candidates = self.candidates if among is None else among

        def leading() -> list[Candidate]:
            campaigning = [candidate for candidate in candidates if candidate.contenders]
            return [c for c in campaigning if all(contender.leads for contender in c.contenders.values())]

        eventually(lambda: len(leading()) == 1, "exactly one candidate leads", self.backend.patience)
        return leading()[0]

    def close(self) -> None:
        for retrieval, process in self._retrievals:
            retrieval.stop()
            process.close()
        for candidate in self.candidates:
            candidate.process.mend()
            candidate.close()


@pytest.mark.timeout(180)
class LeaderElectionContract:
    """The tests that every election backend must pass. Derive a test class and override the fixture `election_backend`.

    >>> class TestMyElection(LeaderElectionContract):
    ...     @pytest.fixture
    ...     def election_backend(self):
    ...         yield MyElectionBackend()
    """

    @pytest.fixture
    def election_backend(self) -> Iterator[ElectionBackend]:
        """Return the backend under test."""
        raise RuntimeError("A class derived from LeaderElectionContract gives the fixture election_backend.")

    @pytest.fixture
    def cluster(self, election_backend: ElectionBackend) -> Iterator[Cluster]:
        """Return an empty cluster, closed after the test."""
        cluster = Cluster(election_backend)
        yield cluster
        cluster.close()

    def _follows(self, cluster: Cluster, listener: RecordingRetrievalListener, address: str | None) -> None:
        eventually(
            lambda: listener.address == address,
            f"the retriever hears of {address!r}, it heard {listener.history}",
            cluster.backend.patience,
        )

    def test_a_single_candidate_leads_and_is_found_once_it_has_confirmed(self, cluster: Cluster) -> None:
        listener = cluster.retriever()
        candidate = cluster.candidate()
        contender = candidate.start()
        cluster.leader()
        self._follows(cluster, listener, candidate.address)
        assert contender.session_id is not None
        assert candidate.has_leadership(contender.session_id)
        assert listener.history[-1] == LeaderInformation.known(contender.session_id, candidate.address)
        assert contender.errors == []
        assert listener.errors == []

    def test_a_leader_that_did_not_confirm_is_not_found(self, cluster: Cluster) -> None:
        listener = cluster.retriever()
        candidate = cluster.candidate()
        contender = candidate.start(confirm=False)
        cluster.leader()
        assert contender.session_id is not None
        assert candidate.has_leadership(contender.session_id)
        assert cluster.backend.read_information("dispatcher").is_empty
        assert [entry for entry in listener.history if not entry.is_empty] == []

    def test_exactly_one_of_many_leads(self, cluster: Cluster) -> None:
        candidates = [cluster.candidate() for _ in range(4)]
        contenders = [candidate.start() for candidate in candidates]
        leader = cluster.leader()
        session_id = leader.contenders["dispatcher"].session_id
        assert session_id is not None
        assert [c.has_leadership(session_id) for c in candidates] == [c is leader for c in candidates]
        assert sum(len(contender.sessions) for contender in contenders) == 1

    def test_leadership_is_only_of_the_session_that_was_issued(self, cluster: Cluster) -> None:
        candidate = cluster.candidate()
        contender = candidate.start()
        cluster.leader()
        assert contender.session_id is not None
        assert candidate.has_leadership(contender.session_id)
        assert not candidate.has_leadership(uuid.uuid4())

    def test_when_a_leader_leaves_another_leads_under_a_new_session(self, cluster: Cluster) -> None:
        listener = cluster.retriever()
        for _ in range(3):
            cluster.candidate().start()
        seen: set[uuid.UUID] = set()
        while cluster.candidates:
            leader = cluster.leader()
            contender = leader.contenders["dispatcher"]
            assert contender.session_id is not None
            assert contender.session_id not in seen
            seen.add(contender.session_id)
            self._follows(cluster, listener, leader.address)
            cluster.leave(leader)
            assert not contender.leads
            assert contender.errors == []
        self._follows(cluster, listener, None)

    def test_a_candidate_that_leaves_does_not_disturb_the_leader(self, cluster: Cluster) -> None:
        first, second = cluster.candidate(), cluster.candidate()
        first.start()
        leader_at_first = cluster.leader()
        assert leader_at_first is first
        second.start()
        cluster.leave(second)
        assert first.contenders["dispatcher"].leads
        assert len(first.contenders["dispatcher"].sessions) == 1

    def test_all_components_of_a_process_lead_together(self, cluster: Cluster) -> None:
        candidate, other = cluster.candidate(), cluster.candidate()
        candidate.start("dispatcher")
        cluster.leader()
        newcomer = candidate.start("resource_manager")
        other.start("dispatcher")
        other.start("resource_manager")
        eventually(lambda: newcomer.leads, "the newcomer is granted as well", cluster.backend.patience)
        assert newcomer.session_id == candidate.contenders["dispatcher"].session_id
        assert not any(contender.leads for contender in other.contenders.values())
        for component_id in ("dispatcher", "resource_manager"):
            self._follows(cluster, cluster.retriever(component_id), candidate.address)

    def test_a_component_that_leaves_withdraws_its_address_and_no_other(self, cluster: Cluster) -> None:
        candidate = cluster.candidate()
        for component_id in ("dispatcher", "rest_server"):
            candidate.start(component_id)
        cluster.leader()
        dispatcher, rest = cluster.retriever("dispatcher"), cluster.retriever("rest_server")
        self._follows(cluster, dispatcher, candidate.address)
        self._follows(cluster, rest, candidate.address)
        candidate.elections.pop("rest_server").close()
        assert not candidate.contenders.pop("rest_server").leads
        self._follows(cluster, rest, None)
        assert candidate.contenders["dispatcher"].leads
        assert cluster.backend.read_information("dispatcher").leader_address == candidate.address

    def test_a_component_may_campaign_again(self, cluster: Cluster) -> None:
        candidate = cluster.candidate()
        first = candidate.start()
        cluster.leader()
        candidate.elections["dispatcher"].close()
        second = candidate.start()
        cluster.leader()
        assert not first.leads
        assert second.sessions and second.sessions[0] not in first.sessions

    def test_a_confirmation_of_an_old_session_is_ignored(self, cluster: Cluster) -> None:
        candidate = cluster.candidate()
        contender = candidate.start(confirm=False)
        cluster.leader()
        candidate.elections["dispatcher"].confirm_leadership_async(uuid.uuid4(), "nobody:1").result(timeout=60)
        assert cluster.backend.read_information("dispatcher").is_empty
        assert contender.leads

    def test_a_leader_writes_back_what_it_confirmed(self, cluster: Cluster) -> None:
        candidate = cluster.candidate()
        contender = candidate.start()
        cluster.leader()
        self._follows(cluster, cluster.retriever(), candidate.address)
        truth = LeaderInformation.known(contender.sessions[0], candidate.address)
        for lie in (LeaderInformation.known(uuid.uuid4(), "impostor:1"), LeaderInformation.empty()):
            cluster.backend.write_information("dispatcher", lie)
            eventually(
                lambda: cluster.backend.read_information("dispatcher") == truth,
                f"{lie} is overwritten",
                cluster.backend.patience,
            )

    def test_a_leader_that_did_not_confirm_erases_what_others_wrote(self, cluster: Cluster) -> None:
        candidate = cluster.candidate()
        candidate.start(confirm=False)
        cluster.leader()
        cluster.backend.write_information("dispatcher", LeaderInformation.known(uuid.uuid4(), "impostor:1"))
        eventually(
            lambda: cluster.backend.read_information("dispatcher").is_empty,
            "the impostor's address is erased",
            cluster.backend.patience,
        )

    def test_a_retriever_that_starts_late_is_notified_of_the_leader(self, cluster: Cluster) -> None:
        candidate = cluster.candidate()
        candidate.start()
        self._follows(cluster, cluster.retriever(), candidate.address)
        self._follows(cluster, cluster.retriever(), candidate.address)

    def test_a_leader_that_is_cut_off_is_replaced_and_revoked(self, cluster: Cluster) -> None:
        self._needs_cut_off(cluster)
        listener = cluster.retriever()
        candidates = [cluster.candidate() for _ in range(3)]
        for candidate in candidates:
            candidate.start()
        old = cluster.leader()
        old_contender = old.contenders["dispatcher"]
        old_session = old_contender.session_id
        assert old_session is not None
        old.process.cut_off()
        others = [candidate for candidate in candidates if candidate is not old]
        new = cluster.leader(among=others)
        self._follows(cluster, listener, new.address)
        # The old leader may learn it late, but it must learn it: without the backend it cannot claim to lead.
        eventually(lambda: not old_contender.leads, "the old leader is revoked", cluster.backend.patience)
        assert not old.has_leadership(old_session)
        old.process.mend()
        assert cluster.leader() is new
        assert len(new.contenders["dispatcher"].sessions) == 1

    def test_a_leader_that_was_cut_off_and_came_back_may_lead_again(self, cluster: Cluster) -> None:
        self._needs_cut_off(cluster)
        candidate = cluster.candidate()
        contender = candidate.start()
        cluster.leader()
        listener = cluster.retriever()
        self._follows(cluster, listener, candidate.address)
        candidate.process.cut_off()
        eventually(lambda: not contender.leads, "the leader is revoked", cluster.backend.patience)
        candidate.process.mend()
        eventually(lambda: contender.leads, "it leads again", cluster.backend.patience)
        assert len(set(contender.sessions)) == len(contender.sessions) >= 2
        self._follows(cluster, listener, candidate.address)
        eventually(
            lambda: listener.history[-1].leader_session_id == contender.session_id,
            "the retriever hears of the new session",
            cluster.backend.patience,
        )

    def test_ten_leaders_in_a_row_are_lost(self, cluster: Cluster) -> None:
        listener = cluster.retriever()
        candidates = [cluster.candidate() for _ in range(10)]
        for candidate in candidates:
            candidate.start()
        alive = list(candidates)
        sessions: set[uuid.UUID] = set()
        while alive:
            leader = cluster.leader(among=alive)
            contender = leader.contenders["dispatcher"]
            assert contender.session_id is not None
            assert contender.session_id not in sessions
            sessions.add(contender.session_id)
            self._follows(cluster, listener, leader.address)
            alive.remove(leader)
            cluster.leave(leader)
        assert len(sessions) == 10

    def _needs_cut_off(self, cluster: Cluster) -> None:
        if not cluster.backend.can_cut_off:
            pytest.skip("all candidates of this backend are one process")
