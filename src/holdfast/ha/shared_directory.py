"""High availability over a directory that the processes of a cluster share.

::

    <storageDir>/<cluster id>/leader/            the lease: the leader and the addresses of its components
    <storageDir>/<cluster id>/execution-plans/   pointers to submitted plans
    <checkpoints>/<job id>/register/             the job's fenced register

Each of the three is a versioned document. See `holdfast.ha.cluster_storage` for the other files.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.errors import (
    ConfigurationError,
    ConflictError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.ha import options
from holdfast.ha.checkpoint_recovery import (
    RegisterCheckpointRecoveryFactory,
    recovery_from_registers,
    registers_of_files,
)
from holdfast.ha.cluster_storage import ClusterStorage
from holdfast.ha.entry_map import ENTRY_MAP_FORMAT, EntryMapStateHandleStore
from holdfast.ha.execution_plan_store import DefaultExecutionPlanStore, NamesWatcher
from holdfast.ha.leader_election import (
    DefaultLeaderRetrievalService,
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
    LeaderRetrievalDriver,
    LeaderRetrievalEventHandler,
    LeaderRetrievalService,
    Leadership,
)
from holdfast.ha.lease import Grant, LeaseForm, LeaseMachine, LeaseTiming, Revoke, Write
from holdfast.ha.services import AbstractHaServices, ClientHighAvailabilityServices, do_all, new_lock_identity
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, join
from holdfast.storage.register import FileRegister
from holdfast.storage.state_handle import RetrievableStateStorageHelper
from holdfast.storage.versioned_document import BodyVersion, FileDocument, body_format

logger = get_logger(__name__)

# A later attempt may succeed after these; any other error is damage, and ends the campaign.
_TEMPORARY_ERRORS: Final = (ConflictError, NotExistError, PossibleInconsistentStateError, StorageError)
_PUBLISH_ATTEMPTS: Final = 10
T = TypeVar("T")
_TYPE: Final = "filesystem"


@dataclass(frozen=True)
class LeaderLease:
    """The content of the lease.

    Attributes:
        holder: The leader, or the last one before the release.
        term: Counts the leaders; it never goes back.
        session_id: The leader's session id.
        duration: Seconds after which a lease that is not renewed may be taken over.
        released: Whether the holder gave it up.
        information: The confirmed information of the leader's components, as text by component.
    """

    holder: str
    term: int
    session_id: uuid.UUID
    duration: float
    released: bool = False
    information: Mapping[str, str] = field(default_factory=dict)

    def with_information(self, component_id: str, text: str) -> LeaderLease:
        """Return a lease with this information of one component; empty text removes it."""
        information = {**self.information, component_id: text}
        if not text:
            del information[component_id]
        return replace(self, information=information)

    def to_json(self) -> dict[str, Any]:
        return {
            "holder": self.holder,
            "term": self.term,
            "session_id": str(self.session_id),
            "duration": self.duration,
            "released": self.released,
            "information": dict(self.information),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> LeaderLease:
        """Read a lease.

        Raises:
            Any of `PARSE_ERRORS`: It is not one.
        """
        return cls(
            str(body["holder"]),
            int(body["term"]),
            uuid.UUID(body["session_id"]),
            float(body["duration"]),
            bool(body["released"]),
            {str(component): str(text) for component, text in body["information"].items()},
        )


class LeaderLeaseForm(LeaseForm[LeaderLease]):
    """Leases with a session id for each term; the number of the document's version makes renewals differ.

    Args:
        new_session_id: Draws the session id of a term.
    """

    def __init__(self, new_session_id: Callable[[], uuid.UUID] = uuid.uuid4) -> None:
        self._new_session_id = new_session_id

    def acquired(self, identity: str, before: LeaderLease | None, duration: float) -> LeaderLease:
        """Return a new term, also after an own one."""
        return LeaderLease(identity, before.term + 1 if before is not None else 1, self._new_session_id(), duration)

    def renewed(self, lease: LeaderLease, duration: float) -> LeaderLease:
        return replace(lease, duration=duration)

    def given_up(self, lease: LeaderLease) -> LeaderLease:
        return replace(lease, released=True, information={})


LeaseVersion = BodyVersion[LeaderLease | None]
_LEASE_FORMAT: Final = body_format(
    "leader-lease", 1, None, lambda lease: lease.to_json() if lease is not None else {}, LeaderLease.from_json
)


class LeaseDocument(FileDocument[LeaseVersion], Leadership):
    """The lease of a cluster; the body is None before the first leader. Safe to use from several threads."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        super().__init__(fs, directory, _LEASE_FORMAT)

    def term_of(self, lock_identity: str) -> int | None:
        """Return the term under which this identity has the lease; an expired one counts until it is taken over."""
        lease = self.read().body
        has_lease = lease is not None and lease.holder == lock_identity and not lease.released
        return lease.term if lease is not None and has_lease else None


_Report = Grant[LeaderLease] | Revoke


def information_of(lease: LeaderLease | None) -> LeaderInformationRegister:
    """Return the confirmed information of the holder of a lease."""
    if lease is None or lease.released:
        return LeaderInformationRegister.empty()
    return LeaderInformationRegister(
        {component: LeaderInformation.decode(text) for component, text in lease.information.items()}
    )


class FileSystemLeaderElectionDriver(LeaderElectionDriver):
    """Campaigns for the lease in a thread of its own.

    Args:
        lease: The lease.
        lock_identity: The name of this process in the lease.
        timing: Duration, deadline and period of leases.
        listener: Is notified of grants and revocations.
        clock: Time; only the monotonic one is used.
    """

    def __init__(
        self,
        lease: LeaseDocument,
        lock_identity: str,
        timing: LeaseTiming,
        listener: LeaderElectionListener,
        clock: Clock | None = None,
    ) -> None:
        self._document = lease
        self._listener = listener
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()  # guards machine and base, and is held while files are read and written
        self._machine = LeaseMachine(lock_identity, timing, LeaderLeaseForm())
        self._base = lease.format.never_written
        self._reports: list[_Report] = []
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._campaign, name=f"lease-{lock_identity[:8]}", daemon=True)
        self._thread.start()

    def has_leadership(self) -> bool:
        """Read the lease and return whether this process has it under the term that it knows."""
        with self._lock:
            if not self._machine.leads_at(self._clock.monotonic()):
                return False
            try:
                self._read_lease()
            except HoldfastError as error:
                logger.warning("Could not find out who leads: %s", error)
                return False
            return self._machine.leads_at(self._clock.monotonic())

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Write the information into the lease if this process has it.

        Raises:
            ConflictError: Others wrote the lease again and again; nothing was written.
        """
        text = leader_information.encode()
        with self._lock:
            for _ in range(_PUBLISH_ATTEMPTS):
                now = self._clock.monotonic()
                try:
                    self._execute(self._machine.change(now, lambda lease: lease.with_information(component_id, text)))
                    return
                except (ConflictError, PossibleInconsistentStateError):
                    self._read_lease()
        raise ConflictError(
            f"Could not publish the leader information of {component_id!r} in {_PUBLISH_ATTEMPTS} attempts: others "
            f"keep writing the lease in {self._document}."
        )

    def delete_leader_information(self, component_id: str) -> None:
        self.publish_leader_information(component_id, LeaderInformation.empty())

    def close(self) -> None:
        """Stop campaigning and release the lease, so that another process can take it at once."""
        self._is_closed = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            for _ in range(2):  # once more if information was written in between
                try:
                    self._read_lease()
                    self._execute(self._machine.resign())
                    return
                except ConflictError:
                    continue
                except HoldfastError as error:
                    logger.warning("Could not release the lease, it expires by itself: %s", error)
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
        """Read and write the lease once; return an error that ends the campaign."""
        end: HoldfastError | None = None
        try:
            self._read_lease()
        except _TEMPORARY_ERRORS as error:
            logger.warning("Could not read the lease in %s: %s", self._document, error)
        except HoldfastError as error:
            end = error
        try:
            self._execute(self._machine.decide(self._clock.monotonic()))
        except ConflictError:
            logger.debug("Another process was faster in %s.", self._document)
        except _TEMPORARY_ERRORS as error:
            logger.warning("Could not write the lease in %s: %s", self._document, error)
        except HoldfastError as error:
            end = error
        return end

    def _read_lease(self) -> None:
        self._base = self._document.read()
        self._queue_reports(self._machine.observe(self._clock.monotonic(), self._base.number, self._base.body))

    def _execute(self, instructions: Sequence[Revoke | Write[LeaderLease]]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Write):
                successor = self._base.successor(instruction.lease)
                self._document.replace(self._base, successor)
                self._base = successor
                now = self._clock.monotonic()
                self._queue_reports(self._machine.wrote(now, self._base.number, instruction))
            else:
                self._queue_reports([instruction])

    def _queue_reports(self, reports: Sequence[_Report]) -> None:
        """Keep reports for the campaigning thread, so that the listener gets them in order."""
        if reports:
            self._reports += reports
            self._wake.set()

    def _report(self, report: _Report) -> None:
        if isinstance(report, Revoke):
            self._listener.on_revoke_leadership()
            return
        self._listener.on_grant_leadership(report.lease.session_id)
        try:
            self._document.sweep()
        except HoldfastError as error:
            logger.warning("Could not clean up %s: %s", self._document, error)


class FileSystemLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the drivers of one process."""

    def __init__(
        self, lease: LeaseDocument, lock_identity: str, timing: LeaseTiming, clock: Clock | None = None
    ) -> None:
        self._make = partial(FileSystemLeaderElectionDriver, lease, lock_identity, timing, clock=clock)

    def create(self, leader_election_listener: LeaderElectionListener) -> FileSystemLeaderElectionDriver:
        return self._make(leader_election_listener)


class FileSystemLeaderRetrievalDriver(LeaderRetrievalDriver):
    """Watches the lease. A lease that was not renewed for as long as it says has no leader that could be reached.

    Args:
        lease: The lease.
        component_id: The component whose leader is followed.
        period: Seconds between two reads.
        handler: Gets the leader after each read.
        clock: Measures how old the lease is; only the monotonic one is used.
    """

    def __init__(
        self,
        lease: LeaseDocument,
        component_id: str,
        period: float,
        handler: LeaderRetrievalEventHandler,
        clock: Clock | None = None,
    ) -> None:
        self._component_id = component_id
        self._handler = handler
        self._clock = clock or SystemClock()
        self._newest = lease.format.never_written
        self._seen_at = 0.0
        self._watch = lease.watch(self._on_version, period, on_error=handler.notify_error, clock=self._clock)

    def close(self) -> None:
        self._watch.close()

    def _on_version(self, version: LeaseVersion) -> None:
        now = self._clock.monotonic()
        if version.number != self._newest.number:
            self._newest, self._seen_at = version, now
        lease = self._newest.body
        if lease is None or now - self._seen_at >= lease.duration:
            self._handler.notify_leader_address(LeaderInformation.empty())
        else:
            self._handler.notify_leader_address(information_of(lease).for_component_id_or_empty(self._component_id))


class FileSystemStateHandleStore(EntryMapStateHandleStore[T]):
    """Pointers in a versioned document in a directory, state in storage.

    A change is a new version that is created exclusively, so no lock of the operating system is needed, and any file
    system or object store works that can create a file only if it does not exist.

    Args:
        fs: The file system of the directory.
        directory: The directory of the versions.
        storage: The storage of the states.
        lock_identity: The process that must lead for a change to be allowed; None skips the check.
        leadership: The current leadership; needed with a lock identity.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        storage: RetrievableStateStorageHelper[T],
        *,
        lock_identity: str | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        document = FileDocument(fs, directory, ENTRY_MAP_FORMAT)
        super().__init__(document, storage, lock_identity=lock_identity, leadership=leadership)


def _lease_timing(configuration: Configuration) -> LeaseTiming:
    """Return the configured timing of leases.

    Raises:
        ConfigurationError: Two processes could lead at once with it.
    """
    timing = LeaseTiming.of(
        configuration,
        options.FILE_SYSTEM_LEASE_DURATION,
        options.FILE_SYSTEM_RENEW_DEADLINE,
        options.FILE_SYSTEM_RETRY_PERIOD,
    )
    if timing.renew_deadline == timing.lease_duration:
        # One thread renews and revokes; while it waits for the file system the leader is not notified of its deadline.
        raise ConfigurationError(
            f"Option {options.FILE_SYSTEM_RENEW_DEADLINE.key!r}: {timing.renew_deadline} s must be shorter than the "
            f"{timing.lease_duration} s of {options.FILE_SYSTEM_LEASE_DURATION.key!r}, so that a leader stops in time."
        )
    return timing


class FileSystemHaServices(AbstractHaServices):
    """High availability over a shared directory. Blocks while the directory is checked.

    Args:
        config: The configuration.
        io_executor: Runs clean-up that blocks.

    Raises:
        ConfigurationError: An option is missing or wrong, or the directory belongs to another cluster.
        StorageError: The directory cannot be written.
        CorruptFileError, FormatVersionError: A file in the directory cannot be read.
    """

    def __init__(self, config: Configuration, io_executor: Executor) -> None:
        storage = ClusterStorage(config)
        self._timing = _lease_timing(config)
        storage.open(_TYPE)
        self._lock_identity = new_lock_identity()
        self._lease = LeaseDocument(storage.fs, join(storage.path, "leader"))
        self._lease.read()  # damage, or a newer version, is an error at start and not only while campaigning
        self._plans = FileDocument(storage.fs, join(storage.path, "execution-plans"), ENTRY_MAP_FORMAT)
        drivers = FileSystemLeaderElectionDriverFactory(self._lease, self._lock_identity, self._timing)
        self._storage = storage
        super().__init__(config, drivers, io_executor, storage.blob_store(), storage.job_result_store(io_executor))

    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        return _retrieval(self._lease, leader_name, self._timing)

    def create_checkpoint_recovery_factory(self) -> RegisterCheckpointRecoveryFactory:
        return recovery_from_registers(self.configuration, self.register_for)

    def register_for(self, job_id: JobID) -> FileRegister:
        return registers_of_files(self.configuration)(job_id)

    def create_execution_plan_store(self) -> DefaultExecutionPlanStore:
        watcher = NamesWatcher(lambda wake: sorted(self._plans.read().entries), self._timing.retry_period)
        store = EntryMapStateHandleStore(
            self._plans,
            self._storage.execution_plan_storage(),
            lock_identity=self._lock_identity,
            leadership=self._lease,
        )
        return DefaultExecutionPlanStore(store, watcher)

    def internal_close(self) -> None: ...

    def internal_cleanup(self) -> None:
        self._storage.clean_up(self._remove_pointers)

    def _remove_pointers(self) -> None:
        do_all(
            (self._plans.delete_all, self._lease.delete_all), f"Could not delete the pointers in {self._storage.path!r}"
        )

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        """Do nothing: the register is deleted with the job's directory."""


class FileSystemClientHaServices(ClientHighAvailabilityServices):
    """The services of a client of a cluster over a shared directory; they only read."""

    def __init__(self, configuration: Configuration) -> None:
        storage = ClusterStorage(configuration)
        self._timing = _lease_timing(configuration)
        self._lease = LeaseDocument(storage.fs, join(storage.path, "leader"))

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        return _retrieval(self._lease, FileSystemHaServices.REST_SERVER, self._timing)

    def close(self) -> None: ...


def _retrieval(lease: LeaseDocument, leader_name: str, timing: LeaseTiming) -> LeaderRetrievalService:
    return DefaultLeaderRetrievalService(
        partial(FileSystemLeaderRetrievalDriver, lease, leader_name, timing.retry_period)
    )
