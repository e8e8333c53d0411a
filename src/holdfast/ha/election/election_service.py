"""One driver, many components: the leader election service of a process.

:class:`~holdfast.ha.election.election_machine.ElectionMachine` decides; this module carries out. Three locks, always
taken in this order and never while a contender or a closing driver is waited for:

* ``_backend_lock`` orders what is written to the backend (publish, withdraw, opening and detaching the driver).
* ``_lock`` guards the machine and is held for moments only.
* Each contender's delivery lock makes its callbacks one at a time; it is taken with no other lock held.

Callbacks and confirmations run in one event thread, in the order in which they came. Only what the backend reports
about published information is handled in the reporting thread, so that a slow contender does not delay it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from holdfast.ha.election.election_machine import (
    CloseDriver,
    Confirm,
    ElectionMachine,
    Event,
    Granted,
    GrantNewcomer,
    InformationChanged,
    Instruction,
    NewcomerGranted,
    NotifyGrant,
    NotifyRevoke,
    OpenDriver,
    Publish,
    Register,
    RegisterChanged,
    Remove,
    Revoked,
    Withdraw,
)
from holdfast.ha.election.leader_election import (
    LeaderContender,
    LeaderElection,
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionError,
    LeaderElectionListener,
)
from holdfast.ha.election.leader_information import LeaderInformation, LeaderInformationRegister
from holdfast.kernel.secret import get_logger

_logger = get_logger(__name__)

T = TypeVar("T")

ErrorHandler = Callable[[BaseException], None]


class LeaderElectionService:
    """Multiplexes the elections of a process's components over one driver.

    Args:
        driver_factory: Makes the driver when the first contender registers.
        fallback_error_handler: Hears of errors while no contender is registered; they are logged by default.
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
        """Make the handle of one component; nothing is campaigned for until it starts.

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
        """End the service; pending events are discarded, a second call does nothing.

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
                self._carry_out(instructions)
            except BaseException:
                with self._lock:
                    self._registrations.pop(component_id, None)
                    self._machine.handle(Remove(component_id))
                raise

    def remove(self, component_id: str) -> None:
        """Take a contender out; a leader is revoked before this returns. Unknown components are ignored."""
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
        """Publish a component's address; see :meth:`LeaderElection.confirm_leadership_async`."""
        with self._lock:
            if not self._machine.is_registered(component_id):
                raise ValueError(f"No contender is registered for component {component_id!r}, so it cannot confirm.")
        return self._submit(lambda: self._confirm(component_id, leader_session_id, leader_address), None)

    def has_leadership_async(self, component_id: str, leader_session_id: uuid.UUID) -> Future[bool]:
        """Ask whether a component leads right now; see :meth:`LeaderElection.has_leadership_async`."""
        return self._submit(lambda: self._has_leadership(component_id, leader_session_id), False)

    def get_leader_session_id(self, component_id: str) -> uuid.UUID | None:
        """The session that was issued to the component and not revoked since, as far as this process knows."""
        with self._lock:
            return self._machine.issued_session_id if self._machine.is_registered(component_id) else None

    def _check_running(self) -> None:
        if not self._running:
            raise RuntimeError("The leader election service is closed.")

    # What the event thread does.

    def _confirm(self, component_id: str, session_id: uuid.UUID, address: str) -> None:
        driver = self._current_driver()
        leads = driver is not None and driver.has_leadership()
        with self._backend_lock:
            with self._lock:
                known = self._machine.is_issued(component_id, session_id)
                instructions = self._machine.handle(Confirm(component_id, session_id, address, leads))
            if not instructions:
                level = logging.WARNING if known else logging.DEBUG
                _logger.log(level, "Ignoring confirmation of %r in session %s: not leading.", component_id, session_id)
            self._carry_out(instructions)

    def _has_leadership(self, component_id: str, session_id: uuid.UUID) -> bool:
        driver = self._current_driver()
        if driver is None or not driver.has_leadership():
            return False
        with self._lock:
            return self._machine.is_issued(component_id, session_id)

    def _current_driver(self) -> LeaderElectionDriver | None:
        """The driver; waits for one that is just being made, because it may be elected before its factory returns."""
        with self._backend_lock:
            return self._driver

    def _handle_in_event_thread(self, event: Event) -> None:
        with self._lock:
            instructions = self._machine.handle(event)
        self._carry_out(instructions)

    # What the driver reports; `campaign` tells the drivers of a process apart.

    def driver_event(self, event: Granted | Revoked) -> None:
        """Queue a grant or a revocation behind what the event thread has to do already."""
        self._submit_guarded(partial(self._handle_in_event_thread, event))

    def information_event(self, event: InformationChanged | RegisterChanged) -> None:
        """Write back what was confirmed if the backend now holds something else, in the calling thread."""
        with self._backend_lock:
            with self._lock:
                instructions = self._machine.handle(event) if self._running else []
            self._carry_out(instructions)

    def error_event(self, campaign: int, error: BaseException) -> None:
        """Queue an error of a driver."""

        def deliver() -> None:
            with self._lock:
                current = self._machine.campaign in (None, campaign)
            if current:
                self._notify_error(error)

        self._submit_guarded(deliver)

    # Carrying out.

    def _carry_out(self, instructions: list[Instruction]) -> None:
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
        except Exception as error:
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
        """Run in the event thread; whatever goes wrong is told to all contenders."""

        def guarded() -> None:
            try:
                action()
            except Exception as error:
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
    """One contender and the order of its callbacks: granted and revoked alternate, and nothing comes after the end."""

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
    """The handle of one component."""

    def __init__(self, service: LeaderElectionService, component_id: str) -> None:
        self._service = service
        self._component_id = component_id

    def start_leader_election(self, contender: LeaderContender) -> None:
        """Register the contender with the service."""
        self._service.register(self._component_id, contender)

    def confirm_leadership_async(self, leader_session_id: uuid.UUID, leader_address: str) -> Future[None]:
        """Publish the address if the session still leads."""
        return self._service.confirm_leadership_async(self._component_id, leader_session_id, leader_address)

    def has_leadership_async(self, leader_session_id: uuid.UUID) -> Future[bool]:
        """Ask the backend whether this session leads right now."""
        return self._service.has_leadership_async(self._component_id, leader_session_id)

    def close(self) -> None:
        """Remove the contender from the service."""
        self._service.remove(self._component_id)

    def __repr__(self) -> str:
        return f"LeaderElection({self._component_id!r})"


class _DriverListener(LeaderElectionListener):
    """Carries what one driver reports to the service, with the number of its campaign."""

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
        # It ends with the session or the lease anyway, and leaving must not fail because the backend is away.
        _logger.warning("Could not withdraw the leader information of %r.", component_id, exc_info=True)


def _log_error(error: BaseException) -> None:
    _logger.error("Leader election failed while no contender was registered.", exc_info=error)
