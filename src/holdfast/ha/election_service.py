"""The leader election service of a process: one driver, many components.

`ElectionMachine` decides; `LeaderElectionService` executes. Three locks, always taken in this order and never while
waiting for a contender or for a driver to close:

* ``_backend_lock`` orders the writes to the backend (publish, withdraw, opening and detaching the driver).
* ``_lock`` guards the machine and is held for moments only.
* Each contender's delivery lock makes its callbacks one at a time; it is taken with no other lock held.

Callbacks and confirmations run in one event thread, in the order of their arrival. Only changes of published
information are handled in the thread that reports them, so that a slow contender does not delay them.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from holdfast.ha.leader_election import (
    LeaderContender,
    LeaderElection,
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionError,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
)
from holdfast.kernel.secret import get_logger

T = TypeVar("T")
ErrorHandler = Callable[[BaseException], None]


@dataclass(frozen=True)
class Register:
    component_id: str


@dataclass(frozen=True)
class Remove:
    component_id: str


@dataclass(frozen=True)
class Granted:
    campaign: int
    session_id: uuid.UUID


@dataclass(frozen=True)
class NewcomerGranted:
    """The queued grant of a component that registered while the process was leading."""

    component_id: str
    session_id: uuid.UUID


@dataclass(frozen=True)
class Revoked:
    campaign: int


@dataclass(frozen=True)
class Confirm:
    """A component confirms the session; ``leads`` is the answer of the backend just before."""

    component_id: str
    session_id: uuid.UUID
    address: str
    leads: bool


@dataclass(frozen=True)
class InformationChanged:
    """The published information of one component is now this."""

    campaign: int
    component_id: str
    information: LeaderInformation


@dataclass(frozen=True)
class RegisterChanged:
    """The published information of all components is now this."""

    campaign: int
    register: LeaderInformationRegister


Event = Register | Remove | Granted | NewcomerGranted | Revoked | Confirm | InformationChanged | RegisterChanged


@dataclass(frozen=True)
class OpenDriver:
    """Make a driver; its events have this campaign number."""

    campaign: int


@dataclass(frozen=True)
class CloseDriver:
    campaign: int


@dataclass(frozen=True)
class GrantNewcomer:
    """Queue `NewcomerGranted` behind the waiting events."""

    component_id: str
    session_id: uuid.UUID


@dataclass(frozen=True)
class NotifyGrant:
    component_id: str
    session_id: uuid.UUID


@dataclass(frozen=True)
class NotifyRevoke:
    component_id: str


@dataclass(frozen=True)
class Publish:
    component_id: str
    information: LeaderInformation


@dataclass(frozen=True)
class Withdraw:
    """Delete the component's information if the process still leads."""

    component_id: str


Instruction = OpenDriver | CloseDriver | GrantNewcomer | NotifyGrant | NotifyRevoke | Publish | Withdraw


class ElectionMachine:
    """The state machine of a process's leader elections: events in, instructions out, no I/O, no clock, no thread.

    One driver campaigns for all components of the process, so there is one issued session id for all of them::

                        register (first)                        granted
        [no driver] ----------------------> [driver, candidate] --------> [driver, leader]
             ^                                |   ^                          |   |
             |          remove (last)         |   '--------- revoked --------'   |
             '--------------------------------+----------------------------------'

    A component of a leading process is first *granted* (it has the session id), then *confirmed* (it gave its address,
    which is published). Three rules make it safe:

    * On *revoked* nothing in the backend is touched: it may belong to the successor already.
    * Exactly what was confirmed in this session is published. From the grant on, any other information of a registered
      component is overwritten, with the empty information if nothing was confirmed.
    * Every driver has a campaign number; events of a driver that was closed are ignored.

    After Flink's DefaultLeaderElectionService.

    Attributes:
        issued_session_id: The session under which the process leads as far as it knows, else None.
        confirmed: The information that the process's components published in this session.
        campaign: The number of the current driver, None without one.
    """

    def __init__(self) -> None:
        self.issued_session_id: uuid.UUID | None = None
        self.confirmed = LeaderInformationRegister.empty()
        self.campaign: int | None = None
        self._campaigns = 0
        self._reported = LeaderInformationRegister.empty()  # the last published information that the backend reported
        # Components in the order of their registration, and whether each has the issued session.
        self._components: dict[str, bool] = {}

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(self._components)

    def is_registered(self, component_id: str) -> bool:
        return component_id in self._components

    def is_issued(self, component_id: str, session_id: uuid.UUID) -> bool:
        """Return whether this session was issued to this component and, as far as is known, not revoked since."""
        return component_id in self._components and self.issued_session_id == session_id

    def handle(self, event: Event) -> list[Instruction]:
        """Process an event and return the instructions, in order.

        Raises:
            RuntimeError: The event is impossible in this state; the caller or the driver is wrong.
        """
        match event:
            case Register(component_id):
                return self._register(component_id)
            case Remove(component_id):
                return self._remove(component_id)
            case Granted(campaign, session_id):
                return self._granted(session_id) if campaign == self.campaign else []
            case NewcomerGranted(component_id, session_id):
                return self._newcomer_granted(component_id, session_id)
            case Revoked(campaign):
                return self._revoked() if campaign == self.campaign else []
            case Confirm(component_id, session_id, address, leads):
                return self._confirm(component_id, session_id, address) if leads else []
            case InformationChanged(campaign, component_id, information):
                return self._changed(component_id, information) if campaign == self.campaign else []
            case RegisterChanged(campaign, register):
                return self._register_changed(register) if campaign == self.campaign else []

    def _register(self, component_id: str) -> list[Instruction]:
        if component_id in self._components:
            raise RuntimeError(
                f"There is already a contender registered for component {component_id!r}; close its leader election "
                "before you start another one."
            )
        self._components[component_id] = False
        if self.campaign is None:
            self._campaigns += 1
            self.campaign = self._campaigns
            self._reported = LeaderInformationRegister.empty()
            return [OpenDriver(self.campaign)]
        if self.issued_session_id is not None:
            stale = self._write_back(component_id, self._reported.for_component_id_or_empty(component_id))
            return [GrantNewcomer(component_id, self.issued_session_id), *stale]
        return []

    def _remove(self, component_id: str) -> list[Instruction]:
        if component_id not in self._components:
            return []
        del self._components[component_id]
        instructions: list[Instruction] = []
        if self.issued_session_id is not None:
            self.confirmed = self.confirmed.clear(component_id)
            instructions += [Withdraw(component_id), NotifyRevoke(component_id)]
        if not self._components and self.campaign is not None:
            instructions.append(CloseDriver(self.campaign))
            self.campaign = None
            self.issued_session_id = None
        return instructions

    def _granted(self, session_id: uuid.UUID) -> list[Instruction]:
        if self.issued_session_id is not None:
            raise RuntimeError(
                f"Leadership was granted as {session_id} while the session {self.issued_session_id} is not revoked."
            )
        self.issued_session_id = session_id
        self._components = dict.fromkeys(self._components, True)
        grants = [NotifyGrant(component_id, session_id) for component_id in self._components]
        return [*grants, *self._write_back_all(self._reported)]

    def _newcomer_granted(self, component_id: str, session_id: uuid.UUID) -> list[Instruction]:
        # A component that left and registered again has two grants waiting.
        if not self.is_issued(component_id, session_id) or self._components[component_id]:
            return []
        self._components[component_id] = True
        return [NotifyGrant(component_id, session_id)]

    def _revoked(self) -> list[Instruction]:
        if self.issued_session_id is None:
            raise RuntimeError("Leadership was revoked from a process that does not lead.")
        self.issued_session_id = None
        self.confirmed = LeaderInformationRegister.empty()
        self._components = dict.fromkeys(self._components, False)
        return [NotifyRevoke(component_id) for component_id in self._components]

    def _confirm(self, component_id: str, session_id: uuid.UUID, address: str) -> list[Instruction]:
        if not self.is_issued(component_id, session_id):
            return []
        if self.confirmed.has_leader_information(component_id):
            raise RuntimeError(
                f"Component {component_id!r} has confirmed its leadership in session {session_id} before; "
                "a session is confirmed once."
            )
        information = LeaderInformation.known(session_id, address)
        self.confirmed = self.confirmed.merge(component_id, information)
        return [Publish(component_id, information)]

    def _changed(self, component_id: str, information: LeaderInformation) -> list[Instruction]:
        self._reported = self._reported.merge(component_id, information)
        return self._write_back(component_id, information)

    def _register_changed(self, register: LeaderInformationRegister) -> list[Instruction]:
        self._reported = register
        return self._write_back_all(register)

    def _write_back(self, component_id: str, information: LeaderInformation) -> list[Instruction]:
        if self.issued_session_id is None:
            return []
        expected = self.confirmed.for_component_id_or_empty(component_id)
        return [] if information == expected else [Publish(component_id, expected)]

    def _write_back_all(self, register: LeaderInformationRegister) -> list[Instruction]:
        return [
            instruction
            for component_id in self._components
            for instruction in self._write_back(component_id, register.for_component_id_or_empty(component_id))
        ]


logger = get_logger(__name__)


class LeaderElectionService:
    """Runs the elections of all components of a process over one driver.

    Args:
        driver_factory: Makes the driver when the first contender registers.
        fallback_error_handler: Gets errors while no contender is registered; they are logged by default.
        executor: Runs callbacks and confirmations one at a time, in order; a thread of its own by default.
    """

    def __init__(
        self,
        driver_factory: LeaderElectionDriverFactory,
        *,
        fallback_error_handler: ErrorHandler | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._driver_factory = driver_factory
        self._fallback_error_handler = fallback_error_handler or _log_error
        self._executor = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="leader-election-event")
        self._lock = threading.Lock()
        self._backend_lock = threading.RLock()
        self._machine = ElectionMachine()
        self._registrations: dict[str, _Registration] = {}
        self._driver: LeaderElectionDriver | None = None
        self._running = True

    def create_leader_election(self, component_id: str) -> LeaderElection:
        """Return the election of one component; it joins when it is started.

        Raises:
            RuntimeError: The service is closed, or a contender of this component is registered.
        """
        with self._lock:
            self._check_running()
            if self._machine.is_registered(component_id):
                raise RuntimeError(
                    f"There is already a contender registered for component {component_id!r}; close its leader "
                    "election before you create another one."
                )
        return _ComponentElection(self, component_id)

    def close(self) -> None:
        """Close the service; pending events are discarded, a second call does nothing.

        Raises:
            RuntimeError: Contenders are still registered.
        """
        with self._lock:
            if not self._running:
                return
            if self._machine.components:
                raise RuntimeError(
                    f"Contenders are still registered for {list(self._machine.components)!r}; close their leader "
                    "elections before the service."
                )
            self._running = False
        self._executor.shutdown(wait=False, cancel_futures=True)

    def register(self, component_id: str, contender: LeaderContender) -> None:
        """Register a contender; the first one makes the process a candidate. Blocks while the driver starts."""
        with self._backend_lock:
            with self._lock:
                self._check_running()
                instructions = self._machine.handle(Register(component_id))
                self._registrations[component_id] = _Registration(contender)
            try:
                self._execute(instructions)
            except BaseException:
                with self._lock:
                    self._registrations.pop(component_id, None)
                    self._machine.handle(Remove(component_id))
                raise

    def remove(self, component_id: str) -> None:
        """Remove a contender; a leader is revoked before this returns. Unknown components are ignored."""
        with self._backend_lock:
            with self._lock:
                instructions = self._machine.handle(Remove(component_id))
                registration = self._registrations.pop(component_id, None)
            driver = self._driver
            for instruction in instructions:
                if isinstance(instruction, Withdraw) and driver is not None:
                    _withdraw(driver, instruction.component_id)
                elif isinstance(instruction, CloseDriver):
                    self._driver = None
        if registration is not None:
            registration.end()
        if any(isinstance(instruction, CloseDriver) for instruction in instructions) and driver is not None:
            # Outside of all locks: closing waits for the backend's thread, which may be waiting for one of them.
            driver.close()

    def confirm_leadership_async(
        self, component_id: str, leader_session_id: uuid.UUID, leader_address: str
    ) -> Future[None]:
        with self._lock:
            if not self._machine.is_registered(component_id):
                raise ValueError(f"No contender is registered for component {component_id!r}, so it cannot confirm.")
        return self._submit(lambda: self._confirm(component_id, leader_session_id, leader_address), None)

    def has_leadership_async(self, component_id: str, leader_session_id: uuid.UUID) -> Future[bool]:
        return self._submit(lambda: self._has_leadership(component_id, leader_session_id), False)

    def get_leader_session_id(self, component_id: str) -> uuid.UUID | None:
        """Return the session that was issued to the component and not revoked since, as far as this process knows."""
        with self._lock:
            return self._machine.issued_session_id if self._machine.is_registered(component_id) else None

    def _check_running(self) -> None:
        if not self._running:
            raise RuntimeError("The leader election service is closed.")

    # In the event thread.

    def _confirm(self, component_id: str, session_id: uuid.UUID, address: str) -> None:
        driver = self._current_driver()
        leads = driver is not None and driver.has_leadership()
        with self._backend_lock:
            with self._lock:
                known = self._machine.is_issued(component_id, session_id)
                instructions = self._machine.handle(Confirm(component_id, session_id, address, leads))
            if not instructions:
                level = logging.WARNING if known else logging.DEBUG
                logger.log(level, "Ignoring confirmation of %r in session %s: not leading.", component_id, session_id)
            self._execute(instructions)

    def _has_leadership(self, component_id: str, session_id: uuid.UUID) -> bool:
        driver = self._current_driver()
        if driver is None or not driver.has_leadership():
            return False
        with self._lock:
            return self._machine.is_issued(component_id, session_id)

    def _current_driver(self) -> LeaderElectionDriver | None:
        """Return the driver; waits for one that is being made, because it may be elected before its factory returns."""
        with self._backend_lock:
            return self._driver

    def _handle_in_event_thread(self, event: Event) -> None:
        with self._lock:
            instructions = self._machine.handle(event)
        self._execute(instructions)

    # Events of the driver; `campaign` tells the drivers of a process apart.

    def driver_event(self, event: Granted | Revoked) -> None:
        self._submit_guarded(partial(self._handle_in_event_thread, event))

    def information_event(self, event: InformationChanged | RegisterChanged) -> None:
        """Write the confirmed information back if the backend has another one, in the calling thread."""
        with self._backend_lock:
            with self._lock:
                instructions = self._machine.handle(event) if self._running else []
            self._execute(instructions)

    def error_event(self, campaign: int, error: BaseException) -> None:
        def deliver() -> None:
            with self._lock:
                current = self._machine.campaign in (None, campaign)
            if current:
                self._notify_error(error)

        self._submit_guarded(deliver)

    # Executing instructions.

    def _execute(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case OpenDriver(campaign):
                    self._driver = self._driver_factory.create(_DriverListener(self, campaign))
                case GrantNewcomer(component_id, session_id):
                    event = NewcomerGranted(component_id, session_id)
                    self._submit_guarded(partial(self._handle_in_event_thread, event))
                case NotifyGrant(component_id, session_id):
                    if registration := self._registrations.get(component_id):
                        registration.grant(session_id)
                case NotifyRevoke(component_id):
                    if registration := self._registrations.get(component_id):
                        registration.revoke()
                case Publish(component_id, information):
                    driver = self._current_driver()
                    if driver is not None:
                        self._publish(driver, component_id, information)
                case Withdraw() | CloseDriver():
                    raise AssertionError(f"{instruction} comes from remove() alone")

    def _publish(self, driver: LeaderElectionDriver, component_id: str, information: LeaderInformation) -> None:
        try:
            driver.publish_leader_information(component_id, information)
        except Exception as error:  # noqa: BLE001 - all contenders are notified
            self._submit_guarded(partial(self._notify_error, error))

    def _notify_error(self, error: BaseException) -> None:
        if not isinstance(error, LeaderElectionError):
            wrapped = LeaderElectionError(f"Leader election failed: {error}")
            wrapped.__cause__ = error
            error = wrapped
        with self._lock:
            registrations = list(self._registrations.values())
        if not registrations:
            self._fallback_error_handler(error)
        for registration in registrations:
            registration.fail(error)

    def _submit_guarded(self, action: Callable[[], None]) -> None:
        """Run in the event thread; all contenders are notified of an error."""

        def guarded() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - all contenders are notified
                self._notify_error(error)

        self._submit(guarded, None)

    def _submit(self, action: Callable[[], T], when_closed: T) -> Future[T]:
        if self._running:
            try:
                return self._executor.submit(action)
            except RuntimeError:  # the executor was shut down between the two lines
                pass
        future: Future[T] = Future()
        future.set_result(when_closed)
        return future


class _Registration:
    """One contender and the order of its callbacks: grants and revocations alternate, and none comes after `end`."""

    def __init__(self, contender: LeaderContender) -> None:
        self._contender = contender
        self._delivery = threading.RLock()  # re-entrant: a contender may close its election in a callback
        self._granted = False
        self._ended = False

    def grant(self, session_id: uuid.UUID) -> None:
        with self._delivery:
            if not self._ended:
                self._granted = True
                self._contender.grant_leadership(session_id)

    def revoke(self) -> None:
        with self._delivery:
            if self._granted and not self._ended:
                self._granted = False
                self._contender.revoke_leadership()

    def fail(self, error: BaseException) -> None:
        with self._delivery:
            if not self._ended:
                self._contender.handle_error(error)

    def end(self) -> None:
        with self._delivery:
            self.revoke()
            self._ended = True


class _ComponentElection(LeaderElection):
    def __init__(self, service: LeaderElectionService, component_id: str) -> None:
        self._service = service
        self._component_id = component_id

    def start_leader_election(self, contender: LeaderContender) -> None:
        self._service.register(self._component_id, contender)

    def confirm_leadership_async(self, leader_session_id: uuid.UUID, leader_address: str) -> Future[None]:
        return self._service.confirm_leadership_async(self._component_id, leader_session_id, leader_address)

    def has_leadership_async(self, leader_session_id: uuid.UUID) -> Future[bool]:
        return self._service.has_leadership_async(self._component_id, leader_session_id)

    def close(self) -> None:
        self._service.remove(self._component_id)

    def __repr__(self) -> str:
        return f"LeaderElection({self._component_id!r})"


class _DriverListener(LeaderElectionListener):
    """Passes the events of one driver to the service, with the number of its campaign."""

    def __init__(self, service: LeaderElectionService, campaign: int) -> None:
        self._service = service
        self._campaign = campaign

    def on_grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        self._service.driver_event(Granted(self._campaign, leader_session_id))

    def on_revoke_leadership(self) -> None:
        self._service.driver_event(Revoked(self._campaign))

    def on_leader_information_change(self, component_id: str, leader_information: LeaderInformation) -> None:
        self._service.information_event(InformationChanged(self._campaign, component_id, leader_information))

    def on_leader_information_register_change(self, register: LeaderInformationRegister) -> None:
        self._service.information_event(RegisterChanged(self._campaign, register))

    def on_error(self, error: BaseException) -> None:
        self._service.error_event(self._campaign, error)


def _withdraw(driver: LeaderElectionDriver, component_id: str) -> None:
    try:
        driver.delete_leader_information(component_id)
    except Exception:
        # It ends with the session or the lease anyway, and leaving must not fail because the backend is unreachable.
        logger.warning("Could not withdraw the leader information of %r.", component_id, exc_info=True)


def _log_error(error: BaseException) -> None:
    logger.error("Leader election failed while no contender was registered.", exc_info=error)
