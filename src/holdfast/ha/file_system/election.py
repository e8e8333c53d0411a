"""Leader election among processes that share a directory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

from holdfast.errors import ConflictError, HoldfastError, NotExistError, PossibleInconsistentStateError, StorageError
from holdfast.ha.election.leader_election import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
)
from holdfast.ha.election.leader_information import LeaderInformation, LeaderInformationRegister
from holdfast.ha.election.lease import Grant, LeaseMachine, LeaseTiming, Revoke, Write
from holdfast.ha.file_system.lease_file import LeaderLease, LeaderLeaseForm, LeaseFile
from holdfast.ha.file_system.versioned_file import NEVER_WRITTEN
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)
# Of these a later attempt may know better; any other error of storage is damage, and campaigning ends.
_PASSING: Final = (ConflictError, NotExistError, PossibleInconsistentStateError, StorageError)
_PUBLISH_ATTEMPTS: Final = 10
_Report = Grant[LeaderLease] | Revoke


def information_of(lease: LeaderLease | None) -> LeaderInformationRegister:
    """What the components of a lease's holder confirmed."""
    if lease is None or lease.released:
        return LeaderInformationRegister.empty()
    return LeaderInformationRegister(
        {component: LeaderInformation.decode(text) for component, text in lease.information.items()}
    )


class FileSystemLeaderElectionDriver(LeaderElectionDriver):
    """Campaigns for the lease in a thread of its own.

    Args:
        lease_file: The lease.
        lock_identity: The name of this process in the lease.
        timing: How leases are held.
        listener: Hears of grants and revocations.
        clock: Time; only the monotonic one is used.
    """

    def __init__(
        self,
        lease_file: LeaseFile,
        lock_identity: str,
        timing: LeaseTiming,
        listener: LeaderElectionListener,
        clock: Clock | None = None,
    ) -> None:
        self._file = lease_file
        self._listener = listener
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()  # guards machine and base, and is held while files are read and written
        self._machine = LeaseMachine(lock_identity, timing, LeaderLeaseForm())
        self._base = NEVER_WRITTEN
        self._reports: list[_Report] = []
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._campaign, name=f"lease-{lock_identity[:8]}", daemon=True)
        self._thread.start()

    def has_leadership(self) -> bool:
        """Read the lease and see whether it is held by this process under the term that it knows of."""
        with self._lock:
            if not self._machine.leads_at(self._clock.monotonic()):
                return False
            try:
                self._look()
            except HoldfastError as error:
                _log.warning("Cannot tell who leads: %s", error)
                return False
            return self._machine.leads_at(self._clock.monotonic())

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Write the information into the lease if this process holds it."""
        text = leader_information.encode()
        with self._lock:
            for _ in range(_PUBLISH_ATTEMPTS):
                now = self._clock.monotonic()
                try:
                    self._carry_out(self._machine.change(now, lambda lease: lease.with_information(component_id, text)))
                    return
                except (ConflictError, PossibleInconsistentStateError):
                    self._look()
        raise ConflictError(
            f"Could not publish the leader information of {component_id!r} in {_PUBLISH_ATTEMPTS} attempts: others "
            f"keep writing the lease in {self._file}."
        )

    def delete_leader_information(self, component_id: str) -> None:
        """Withdraw the information if this process holds the lease."""
        self.publish_leader_information(component_id, LeaderInformation.empty())

    def close(self) -> None:
        """Stop campaigning and release the lease, so that another can take it at once."""
        self._is_closed = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            for _ in range(2):  # once more if information was written in between
                try:
                    self._look()
                    self._carry_out(self._machine.resign())
                    return
                except ConflictError:
                    continue
                except HoldfastError as error:
                    _log.warning("Could not release the lease, it runs out by itself: %s", error)
                    return

    def _campaign(self) -> None:
        while not self._is_closed:
            with self._lock:
                error = self._step()
                reports, self._reports = self._reports, []
                register = information_of(self._machine.lease) if self._machine.is_leading else None
                pause = self._machine.pause(self._clock.monotonic())
            for report in reports:
                self._report(report)
            if error is not None:
                self._listener.on_error(error)
                return
            if register is not None:
                self._listener.on_leader_information_register_change(register)
            self._clock.sleep(pause, self._wake)
            self._wake.clear()

    def _step(self) -> HoldfastError | None:
        """Look and act once; returns an error that ends the campaign."""
        end: HoldfastError | None = None
        try:
            self._look()
        except _PASSING as error:
            _log.warning("Could not read the lease in %s: %s", self._file, error)
        except HoldfastError as error:
            end = error
        try:
            self._carry_out(self._machine.decide(self._clock.monotonic()))
        except ConflictError:
            _log.debug("Somebody else was faster in %s.", self._file)
        except _PASSING as error:
            _log.warning("Could not write the lease in %s: %s", self._file, error)
        except HoldfastError as error:
            end = error
        return end

    def _look(self) -> None:
        version, lease = self._file.read()
        self._base = version
        self._note(self._machine.observe(self._clock.monotonic(), version.number, lease))

    def _carry_out(self, instructions: Sequence[Revoke | Write[LeaderLease]]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Write):
                self._base = self._file.write(self._base, instruction.lease)
                now = self._clock.monotonic()
                self._note(self._machine.wrote(now, self._base.number, instruction))
            else:
                self._note([instruction])

    def _note(self, reports: Sequence[_Report]) -> None:
        """Keep reports for the campaigning thread, so that the listener hears them in order."""
        if reports:
            self._reports += reports
            self._wake.set()

    def _report(self, report: _Report) -> None:
        if isinstance(report, Revoke):
            self._listener.on_revoke_leadership()
            return
        self._listener.on_grant_leadership(report.lease.session_id)
        try:
            self._file.sweep()
        except HoldfastError as error:
            _log.warning("Could not clean up %s: %s", self._file, error)


class FileSystemLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the drivers of one process."""

    def __init__(
        self, lease_file: LeaseFile, lock_identity: str, timing: LeaseTiming, clock: Clock | None = None
    ) -> None:
        self._make = partial(FileSystemLeaderElectionDriver, lease_file, lock_identity, timing, clock=clock)

    def create(self, leader_election_listener: LeaderElectionListener) -> FileSystemLeaderElectionDriver:
        """Make a driver and let it campaign."""
        return self._make(leader_election_listener)
