"""The election service of a process: grant, confirm, revoke and close, in every order."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import StorageError
from holdfast.ha.election_service import LeaderElectionService
from holdfast.ha.leader_election import (
    LeaderElection,
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionError,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
)
from holdfast.testing.leader_election_contract import RecordingContender
from tests.examples import examples

COMPONENTS = ("dispatcher", "resource_manager", "rest_server")


class LaterExecutor(Executor):
    """Runs what was submitted when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self.tasks.append((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut_down = True
        if cancel_futures:
            self.tasks.clear()

    def run_one(self) -> bool:
        if not self.tasks:
            return False
        future, task = self.tasks.pop(0)
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)
        return True

    def run(self) -> None:
        while self.run_one():
            pass


class Backend(LeaderElectionDriverFactory):
    """A backend that elects whom the test says; it is what clients see."""

    def __init__(self) -> None:
        self.published: dict[str, LeaderInformation] = {}
        self.leader: Driver | None = None
        self.drivers: list[Driver] = []
        self.is_away = False

    def create(self, leader_election_listener: LeaderElectionListener) -> "Driver":
        if self.is_away:
            raise StorageError("The backend is away.")
        driver = Driver(self, leader_election_listener)
        self.drivers.append(driver)
        return driver

    @property
    def driver(self) -> "Driver":
        return self.drivers[-1]

    def elect(self) -> uuid.UUID:
        self.leader = self.driver
        session_id = uuid.uuid4()
        self.driver.listener.on_grant_leadership(session_id)
        self.driver.listener.on_leader_information_register_change(LeaderInformationRegister(self.published))
        return session_id

    def depose(self) -> None:
        """Somebody else leads from now on; the driver has not noticed yet."""
        self.leader = None

    def write(self, component_id: str, information: LeaderInformation) -> None:
        """Somebody writes; the leader's driver notices."""
        if information.is_empty:
            self.published.pop(component_id, None)
        else:
            self.published[component_id] = information
        if self.drivers:
            self.driver.listener.on_leader_information_change(component_id, information)


class Driver(LeaderElectionDriver):
    def __init__(self, backend: Backend, listener: LeaderElectionListener) -> None:
        self.backend = backend
        self.listener = listener
        self.is_closed = False

    def has_leadership(self) -> bool:
        return self.backend.leader is self

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        if self.backend.is_away:
            raise StorageError("The backend is away.")
        if self.has_leadership():
            self.backend.published[component_id] = leader_information
            if leader_information.is_empty:
                del self.backend.published[component_id]

    def delete_leader_information(self, component_id: str) -> None:
        if self.backend.is_away:
            raise StorageError("The backend is away.")
        if self.has_leadership():
            self.backend.published.pop(component_id, None)

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True
        if self.backend.leader is self:
            self.backend.leader = None


class Process:
    """A service and its contenders."""

    def __init__(self) -> None:
        self.executor = LaterExecutor()
        self.backend = Backend()
        self.unheard: list[BaseException] = []
        self.service = LeaderElectionService(
            self.backend, executor=self.executor, fallback_error_handler=self.unheard.append
        )
        self.elections: dict[str, LeaderElection] = {}
        self.contenders: dict[str, RecordingContender] = {}

    def start(self, component_id: str = "dispatcher", *, confirms: bool = True) -> RecordingContender:
        election = self.service.create_leader_election(component_id)
        contender = RecordingContender(f"{component_id}:1", election if confirms else None)
        election.start_leader_election(contender)
        self.elections[component_id], self.contenders[component_id] = election, contender
        return contender

    def close(self, component_id: str = "dispatcher") -> None:
        self.elections.pop(component_id).close()
        del self.contenders[component_id]


@pytest.fixture
def process() -> Process:
    return Process()


def test_the_first_contender_joins_the_election_and_the_last_one_leaves_it(process: Process) -> None:
    assert process.backend.drivers == []
    process.start("dispatcher")
    process.start("rest_server")
    assert len(process.backend.drivers) == 1
    process.close("dispatcher")
    assert not process.backend.driver.is_closed
    process.close("rest_server")
    assert process.backend.driver.is_closed
    process.start("dispatcher")
    assert len(process.backend.drivers) == 2


def test_a_component_has_one_contender(process: Process) -> None:
    process.start()
    with pytest.raises(RuntimeError, match="already a contender registered for component 'dispatcher'"):
        process.service.create_leader_election("dispatcher")
    election = process.service.create_leader_election("rest_server")
    election.start_leader_election(RecordingContender("x:1"))
    with pytest.raises(RuntimeError, match="already a contender"):
        election.start_leader_election(RecordingContender("x:2"))


def test_a_service_with_contenders_cannot_be_closed(process: Process) -> None:
    process.start()
    with pytest.raises(RuntimeError, match="'dispatcher'"):
        process.service.close()
    process.close()
    process.service.close()
    process.service.close()
    with pytest.raises(RuntimeError, match="closed"):
        process.service.create_leader_election("dispatcher")


def test_a_driver_that_cannot_be_made_leaves_no_contender_behind(process: Process) -> None:
    process.backend.is_away = True
    with pytest.raises(StorageError):
        process.start()
    process.backend.is_away = False
    contender = process.start()
    process.backend.elect()
    process.executor.run()
    assert contender.leads


def test_only_a_confirmed_leader_is_published(process: Process) -> None:
    silent = process.start("dispatcher", confirms=False)
    process.start("rest_server")
    session_id = process.backend.elect()
    process.executor.run()
    assert silent.session_id == session_id
    assert process.backend.published == {"rest_server": LeaderInformation.known(session_id, "rest_server:1")}


def test_a_newcomer_is_granted_the_same_session_and_nobody_else_is_told_again(process: Process) -> None:
    first = process.start("dispatcher")
    session_id = process.backend.elect()
    process.executor.run()
    second = process.start("rest_server")
    assert second.session_id is None, "asynchronously"
    process.executor.run()
    assert first.sessions == second.sessions == [session_id]


def test_the_grant_of_a_newcomer_is_dropped_when_it_has_left_or_the_session_is_over(process: Process) -> None:
    process.start("dispatcher")
    process.backend.elect()
    process.executor.run()
    gone = process.start("rest_server")
    process.close("rest_server")
    late = process.start("resource_manager")
    process.backend.depose()
    process.backend.driver.listener.on_revoke_leadership()
    process.executor.tasks.reverse()  # the revocation comes first
    process.executor.run()
    assert gone.sessions == late.sessions == []


def test_leadership_is_asked_of_the_backend_and_not_of_the_memory(process: Process) -> None:
    process.start()
    election = process.elections["dispatcher"]
    session_id = process.backend.elect()
    before_the_event = election.has_leadership_async(session_id)
    process.executor.tasks.insert(0, process.executor.tasks.pop())
    process.executor.run_one()
    assert before_the_event.result() is False, "the grant has not been processed"
    process.executor.run()
    now = election.has_leadership_async(session_id)
    other = election.has_leadership_async(uuid.uuid4())
    process.executor.run()
    assert now.result() is True and other.result() is False
    process.backend.depose()
    lost = election.has_leadership_async(session_id)
    process.executor.run()
    assert lost.result() is False, "although nobody was told yet"
    process.close()
    closed = election.has_leadership_async(session_id)
    process.executor.run()
    assert closed.result() is False


def test_a_revocation_does_not_touch_the_backend(process: Process) -> None:
    contender = process.start()
    process.backend.elect()
    process.executor.run()
    successor = LeaderInformation.known(uuid.uuid4(), "successor:1")
    process.backend.depose()
    process.backend.published["dispatcher"] = successor
    process.backend.driver.listener.on_revoke_leadership()
    process.executor.run()
    assert not contender.leads
    assert process.backend.published == {"dispatcher": successor}
    process.close()
    assert process.backend.published == {"dispatcher": successor}


def test_leaving_revokes_before_it_returns_and_withdraws_what_was_published(process: Process) -> None:
    contender = process.start("dispatcher")
    process.start("rest_server")
    process.backend.elect()
    process.executor.run()
    process.close("dispatcher")
    assert not contender.leads
    assert list(process.backend.published) == ["rest_server"]


def test_leaving_succeeds_although_the_backend_is_away(process: Process) -> None:
    contender = process.start()
    process.backend.elect()
    process.executor.run()
    process.backend.is_away = True
    process.close()
    assert not contender.leads
    assert process.backend.driver.is_closed


def test_a_late_confirmation_is_ignored_and_a_second_one_is_an_error(process: Process) -> None:
    process.start(confirms=False)
    election = process.elections["dispatcher"]
    old = process.backend.elect()
    process.executor.run()
    process.backend.depose()
    deposed = election.confirm_leadership_async(old, "too-late:1")
    process.executor.run()
    assert deposed.result() is None
    process.backend.driver.listener.on_revoke_leadership()
    new = process.backend.elect()
    process.executor.run()
    stale = election.confirm_leadership_async(old, "stale:1")
    process.executor.run()
    assert stale.result() is None
    assert process.backend.published == {}
    first, second = (election.confirm_leadership_async(new, f"host:{port}") for port in (1, 2))
    process.executor.run()
    assert first.result() is None
    with pytest.raises(RuntimeError, match="confirmed once"):
        second.result()
    assert process.backend.published["dispatcher"].leader_address == "host:1"
    process.close()
    with pytest.raises(ValueError, match="dispatcher"):
        election.confirm_leadership_async(new, "gone:1")


def test_what_others_write_is_overwritten_by_the_leader_and_by_nobody_else(process: Process) -> None:
    process.start("dispatcher")
    process.start("rest_server", confirms=False)
    impostor = LeaderInformation.known(uuid.uuid4(), "impostor:1")
    process.backend.write("dispatcher", impostor)
    process.backend.write("rest_server", impostor)
    assert set(process.backend.published) == {"dispatcher", "rest_server"}, "nobody leads"
    session_id = process.backend.elect()
    process.executor.run()
    assert set(process.backend.published) == {"dispatcher"}, "what stood there before is erased"
    truth = {"dispatcher": LeaderInformation.known(session_id, "dispatcher:1")}
    process.backend.write("dispatcher", impostor)
    process.backend.write("rest_server", impostor)
    assert process.backend.published == truth, "in the reporting thread, without waiting for the event thread"
    process.backend.write("dispatcher", LeaderInformation.empty())
    assert process.backend.published == truth
    process.backend.published["unknown"] = impostor
    everything = LeaderInformationRegister({"unknown": impostor, "rest_server": impostor})
    process.backend.published["rest_server"] = impostor
    process.backend.driver.listener.on_leader_information_register_change(everything)
    assert process.backend.published == {**truth, "unknown": impostor}


def test_errors_reach_every_contender_or_the_fallback(process: Process) -> None:
    contenders = [process.start(component_id) for component_id in COMPONENTS]
    process.backend.driver.listener.on_error(OSError("the cable is out"))
    process.executor.run()
    for contender in contenders:
        (error,) = contender.errors
        assert isinstance(error, LeaderElectionError)
        assert isinstance(error.__cause__, OSError)
    listener = process.backend.driver.listener
    for component_id in COMPONENTS:
        process.close(component_id)
    listener.on_error(OSError("later"))
    process.executor.run()
    assert len(process.unheard) == 1


def test_a_backend_that_contradicts_itself_is_an_error_of_the_contenders(process: Process) -> None:
    contender = process.start()
    process.backend.elect()
    process.backend.elect()
    process.executor.run()
    assert any("not revoked" in str(error) for error in contender.errors)


def test_a_publication_that_fails_is_an_error_of_the_contenders(process: Process) -> None:
    contender = process.start()
    process.backend.elect()
    process.executor.run_one()
    process.backend.is_away = True
    process.executor.run()
    assert any("away" in str(error) for error in contender.errors)


def test_events_of_a_driver_that_was_given_up_are_ignored(process: Process) -> None:
    process.start()
    old = process.backend.driver
    process.close()
    contender = process.start()
    old.listener.on_grant_leadership(uuid.uuid4())
    old.listener.on_revoke_leadership()
    old.listener.on_leader_information_change("dispatcher", LeaderInformation.known(uuid.uuid4(), "x:1"))
    process.executor.run()
    assert contender.sessions == [] and contender.errors == []


def test_closing_waits_for_no_lock_that_the_backend_may_want() -> None:
    """FLINK-20008: closing a driver waits for its thread, which is just reporting to the service."""

    class SlowDriver(Driver):
        def close(self) -> None:
            reporter = threading.Thread(
                target=lambda: self.listener.on_leader_information_register_change(LeaderInformationRegister.empty())
            )
            reporter.start()
            reporter.join(timeout=60)
            assert not reporter.is_alive(), "deadlock"
            super().close()

    class SlowBackend(Backend):
        def create(self, leader_election_listener: LeaderElectionListener) -> Driver:
            driver = SlowDriver(self, leader_election_listener)
            self.drivers.append(driver)
            return driver

    backend = SlowBackend()
    service = LeaderElectionService(backend)
    election = service.create_leader_election("dispatcher")
    contender = RecordingContender("x:1", election)
    election.start_leader_election(contender)
    backend.elect()
    election.close()
    service.close()
    assert backend.driver.is_closed


def test_a_contender_may_close_its_election_while_it_is_granted() -> None:
    backend = Backend()
    service = LeaderElectionService(backend)
    election = service.create_leader_election("dispatcher")
    ended = threading.Event()

    class Quitter(RecordingContender):
        def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
            super().grant_leadership(leader_session_id)
            election.close()
            ended.set()

    quitter = Quitter("x:1")
    election.start_leader_election(quitter)
    backend.elect()
    assert ended.wait(60)
    assert not quitter.leads and quitter.errors == []
    service.close()


class ServiceMachine(RuleBasedStateMachine):
    """Any order of events; what contenders hear always alternates, and what is published is the leader's truth."""

    def __init__(self) -> None:
        super().__init__()
        self.process = Process()
        self.gone: list[RecordingContender] = []

    @rule(component_id=st.sampled_from(COMPONENTS), confirms=st.booleans())
    def start(self, component_id: str, confirms: bool) -> None:
        if component_id not in self.process.elections:
            self.process.start(component_id, confirms=confirms)

    @rule(component_id=st.sampled_from(COMPONENTS))
    def close(self, component_id: str) -> None:
        if component_id in self.process.elections:
            contender = self.process.contenders[component_id]
            self.process.close(component_id)
            assert not contender.leads
            self.gone.append(contender)

    @precondition(lambda self: self.process.elections and self.process.backend.leader is None)
    @rule()
    def elect(self) -> None:
        self.process.backend.elect()

    @precondition(lambda self: self.process.backend.leader is not None)
    @rule(foreign=st.booleans())
    def depose(self, foreign: bool) -> None:
        listener = self.process.backend.driver.listener
        self.process.backend.depose()
        if foreign:
            self.process.backend.published["dispatcher"] = LeaderInformation.known(uuid.uuid4(), "successor:1")
        listener.on_revoke_leadership()

    @rule(component_id=st.sampled_from(COMPONENTS))
    def meddle(self, component_id: str) -> None:
        self.process.backend.write(component_id, LeaderInformation.known(uuid.uuid4(), "impostor:1"))

    @rule()
    def run_one(self) -> None:
        self.process.executor.run_one()

    @rule()
    def run_all(self) -> None:
        self.process.executor.run()
        backend = self.process.backend
        if backend.leader is not None:
            session_id = self.process.service.get_leader_session_id(next(iter(self.process.elections)))
            for component_id, contender in self.process.contenders.items():
                assert contender.session_id == session_id
                published = backend.published.get(component_id)
                if published is not None:
                    assert published == LeaderInformation.known(session_id, contender.address)

    @invariant()
    def nobody_hears_an_error_or_anything_after_its_end(self) -> None:
        for contender in [*self.process.contenders.values(), *self.gone]:
            assert contender.errors == []
        assert all(not contender.leads for contender in self.gone)
        assert self.process.unheard == []


TestServiceMachine = ServiceMachine.TestCase
TestServiceMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
