"""Leader election among processes that share a directory."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from typing import Final

from holdfast.errors import ConflictError, HoldfastError, NotExistError, PossibleInconsistentStateError, StorageError
from holdfast.ha.file_system.lease_file import LeaseFile
from holdfast.ha.file_system.versioned_file import NEVER_WRITTEN
from holdfast.ha.leader_election import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
)
from holdfast.ha.leader_information import LeaderInformation, LeaderInformationRegister
from holdfast.ha.lease import Grant, Lease, LeaseMachine, LeaseTiming, Revoke, Write
from holdfast.kernel.clock import Clock, SystemClock

_log = logging.getLogger(__name__)
# Of these a later attempt may know better; any other error of storage is damage, and campaigning ends.
_PASSING: Final = (ConflictError, NotExistError, PossibleInconsistentStateError, StorageError)
_PUBLISH_ATTEMPTS: Final = 10


def information_of(lease: Lease | None) -> LeaderInformationRegister:
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
        self._machine = LeaseMachine(lock_identity, timing)
        self._base = NEVER_WRITTEN
        self._reports: list[Grant | Revoke] = []
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
        with self._lock:
            for _ in range(_PUBLISH_ATTEMPTS):
                now = self._clock.monotonic()
                try:
                    self._carry_out(self._machine.publish(now, component_id, leader_information.encode()))
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
                register = information_of(self._machine.lease) if self._machine.term is not None else None
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
            self._carry_out(self._machine.decide(self._clock.monotonic(), uuid.uuid4()))
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

    def _carry_out(self, instructions: Sequence[Grant | Revoke | Write]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Write):
                self._base = self._file.write(self._base, instruction.lease)
                now = self._clock.monotonic()
                self._note(self._machine.wrote(now, self._base.number, instruction.lease))
            else:
                self._note([instruction])

    def _note(self, reports: Sequence[Grant | Revoke]) -> None:
        """Keep reports for the campaigning thread, so that the listener hears them in order."""
        if reports:
            self._reports += reports
            self._wake.set()

    def _report(self, report: Grant | Revoke) -> None:
        if isinstance(report, Revoke):
            self._listener.on_revoke_leadership()
            return
        self._listener.on_grant_leadership(report.session_id)
        try:
            self._file.sweep()
        except HoldfastError as error:
            _log.warning("Could not clean up %s: %s", self._file, error)


class FileSystemLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the drivers of one process."""

    def __init__(
        self, lease_file: LeaseFile, lock_identity: str, timing: LeaseTiming, clock: Clock | None = None
    ) -> None:
        self._lease_file = lease_file
        self._lock_identity = lock_identity
        self._timing = timing
        self._clock = clock

    def create(self, leader_election_listener: LeaderElectionListener) -> FileSystemLeaderElectionDriver:
        """Make a driver and let it campaign."""
        return FileSystemLeaderElectionDriver(
            self._lease_file, self._lock_identity, self._timing, leader_election_listener, self._clock
        )
