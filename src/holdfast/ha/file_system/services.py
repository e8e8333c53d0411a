"""Services for processes that share a directory.

::

    <storageDir>/<cluster id>/leader/            the lease: who leads, and where its components are
    <storageDir>/<cluster id>/execution-plans/   pointers to submitted plans
    <checkpoints>/<job id>/register/             the job's fenced register

See ``holdfast.ha.services.cluster_storage`` for the rest.
"""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.ha.election.leader_retrieval import DefaultLeaderRetrievalService, LeaderRetrievalService
from holdfast.ha.election.lease import LeaseTiming
from holdfast.ha.file_system.election import FileSystemLeaderElectionDriverFactory
from holdfast.ha.file_system.lease_file import LeaseFile
from holdfast.ha.file_system.retrieval import FileSystemLeaderRetrievalDriver
from holdfast.ha.file_system.store import FileEntryMapBackend, FileSystemStateHandleStore
from holdfast.ha.job_manager_store.execution_plan_store import DefaultExecutionPlanStore
from holdfast.ha.job_manager_store.execution_plan_watcher import NamesWatcher
from holdfast.ha.services import options
from holdfast.ha.services.checkpoint_recovery import registers_of_files
from holdfast.ha.services.cluster_services import ClusterHaServices, new_lock_identity
from holdfast.ha.services.cluster_storage import ClusterStorage
from holdfast.ha.services.ha_services import ClientHighAvailabilityServices, do_all
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.file_system.scheme import join
from holdfast.storage.register.file_register import FileRegister

_TYPE: Final = "filesystem"


def lease_timing(configuration: Configuration) -> LeaseTiming:
    """How leases are held.

    Raises:
        ConfigurationError: Two could lead at once with these times.
    """
    timing = LeaseTiming(
        lease_duration=configuration.get(options.FILE_SYSTEM_LEASE_DURATION) / 1000,
        renew_deadline=configuration.get(options.FILE_SYSTEM_RENEW_DEADLINE) / 1000,
        retry_period=configuration.get(options.FILE_SYSTEM_RETRY_PERIOD) / 1000,
    )
    if timing.renew_deadline == timing.lease_duration:
        # One thread renews and revokes; while it waits for the file system the leader does not hear of its deadline.
        raise ConfigurationError(
            f"Option {options.FILE_SYSTEM_RENEW_DEADLINE.key!r}: {timing.renew_deadline} s must be shorter than the "
            f"{timing.lease_duration} s of {options.FILE_SYSTEM_LEASE_DURATION.key!r}, so that a leader stops in time."
        )
    return timing


class FileSystemHaServices(ClusterHaServices):
    """High availability over a shared directory.

    Args:
        config: The configuration.
        io_executor: Where clean-up that blocks is done.

    Raises:
        ConfigurationError: An option is missing or wrong, or the directory belongs to another cluster.
        StorageError: The directory cannot be written.
        CorruptFileError or FormatVersionError: What is in the directory cannot be read.
    """

    def __init__(self, config: Configuration, io_executor: Executor) -> None:
        storage = ClusterStorage(config)
        self._timing = lease_timing(config)
        storage.open(_TYPE)
        self._lock_identity = new_lock_identity()
        self._lease_file = LeaseFile(storage.fs, join(storage.path, "leader"))
        self._lease_file.read()  # damage, or a newer version, is an error now and not only while campaigning
        self._plan_directory = join(storage.path, "execution-plans")
        drivers = FileSystemLeaderElectionDriverFactory(self._lease_file, self._lock_identity, self._timing)
        super().__init__(config, drivers, io_executor, storage)

    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        """Make a service that follows the leader of this name."""
        return _retrieval(self._lease_file, leader_name, self._timing)

    def register_for(self, job_id: JobID) -> FileRegister:
        """The register in the job's directory."""
        return registers_of_files(self.configuration)(job_id)

    def create_execution_plan_store(self) -> DefaultExecutionPlanStore:
        """Make a store of submitted plans that only the leader changes."""
        entries = FileEntryMapBackend(self._storage.fs, self._plan_directory)
        watcher = NamesWatcher(lambda wake: sorted(entries.load().entries), self._timing.retry_period)
        store = FileSystemStateHandleStore(
            self._storage.fs,
            self._plan_directory,
            self._storage.execution_plan_storage(),
            lock_identity=self._lock_identity,
            leadership=self._lease_file,
        )
        return DefaultExecutionPlanStore(store, watcher)

    def internal_close(self) -> None:
        """Nothing to close."""

    def remove_pointers(self) -> None:
        """Delete pointers and lease."""
        entries = FileEntryMapBackend(self._storage.fs, self._plan_directory)
        do_all((entries.remove, self._lease_file.remove), f"Could not delete the pointers in {self._storage.path!r}")

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        """Nothing to delete: the register belongs to the job's directory, and goes with it."""


class FileSystemClientHaServices(ClientHighAvailabilityServices):
    """What a client of a cluster over a shared directory needs; it only reads there."""

    def __init__(self, configuration: Configuration) -> None:
        storage = ClusterStorage(configuration)
        self._timing = lease_timing(configuration)
        self._lease_file = LeaseFile(storage.fs, join(storage.path, "leader"))

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the REST endpoint."""
        return _retrieval(self._lease_file, FileSystemHaServices.REST_SERVER, self._timing)

    def close(self) -> None:
        """Nothing to close."""


def _retrieval(lease_file: LeaseFile, leader_name: str, timing: LeaseTiming) -> LeaderRetrievalService:
    return DefaultLeaderRetrievalService(
        partial(FileSystemLeaderRetrievalDriver, lease_file, leader_name, timing.retry_period)
    )
