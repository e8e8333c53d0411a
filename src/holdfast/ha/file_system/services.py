"""Services for processes that share a directory.

::

    <storageDir>/<cluster id>/leader/            the lease: who leads, and where its components are
    <storageDir>/<cluster id>/execution-plans/   pointers to submitted plans
    <checkpoints>/<job id>/register/             the job's fenced register

See ``holdfast.ha.cluster_storage`` for the rest.
"""

from __future__ import annotations

import uuid
from concurrent.futures import Executor
from functools import partial
from typing import Final

from holdfast.ha import options
from holdfast.ha.abstract_services import AbstractHaServices, process_name
from holdfast.ha.checkpoint_recovery import (
    CheckpointRecoveryFactory,
    RegisterCheckpointRecoveryFactory,
    job_directories,
)
from holdfast.ha.cluster_storage import ClusterStorage
from holdfast.ha.execution_plan_store import DefaultExecutionPlanStore
from holdfast.ha.execution_plan_watcher import NamesWatcher
from holdfast.ha.file_system.election import FileSystemLeaderElectionDriverFactory
from holdfast.ha.file_system.lease_file import LeaseFile
from holdfast.ha.file_system.retrieval import FileSystemLeaderRetrievalDriver
from holdfast.ha.file_system.store import FileEntryMapBackend, FileSystemStateHandleStore
from holdfast.ha.leader_retrieval import DefaultLeaderRetrievalService, LeaderRetrievalService
from holdfast.ha.lease import LeaseTiming
from holdfast.ha.services import ClientHighAvailabilityServices, raise_all
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.file_register import FileRegister
from holdfast.storage.file_system import join
from holdfast.storage.register import FencedRegister

_TYPE: Final = "filesystem"
_REST_SERVER: Final = "rest_server"


def lease_timing(configuration: Configuration) -> LeaseTiming:
    """How leases are held.

    Raises:
        ConfigurationError: Two could lead at once with these times.
    """
    return LeaseTiming(
        lease_duration=configuration.get(options.FILE_SYSTEM_LEASE_DURATION) / 1000,
        renew_deadline=configuration.get(options.FILE_SYSTEM_RENEW_DEADLINE) / 1000,
        retry_period=configuration.get(options.FILE_SYSTEM_RETRY_PERIOD) / 1000,
    )


class FileSystemHaServices(AbstractHaServices):
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
        self._storage = ClusterStorage(config)
        self._timing = lease_timing(config)
        self._storage.open(_TYPE)
        self._lock_identity = str(uuid.uuid4())
        self._lease_file = LeaseFile(self._storage.fs, join(self._storage.path, "leader"))
        self._lease_file.read()  # damage, or a newer version, is an error now and not only while campaigning
        self._plan_directory = join(self._storage.path, "execution-plans")
        super().__init__(
            config,
            FileSystemLeaderElectionDriverFactory(self._lease_file, self._lock_identity, self._timing),
            io_executor,
            self._storage.blob_store(),
            self._storage.job_result_store(io_executor),
        )

    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        """Make a service that follows the leader of this name."""
        return _retrieval(self._lease_file, leader_name, self._timing)

    def create_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Make a factory over the registers in the jobs' directories."""
        directory_for = job_directories(self.configuration)

        def register_for(job_id: JobID) -> FencedRegister:
            directory = directory_for(job_id)
            return FileRegister(directory.fs, directory.register_dir)

        return RegisterCheckpointRecoveryFactory(register_for, directory_for, process_name())

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

    def internal_cleanup(self) -> None:
        """Delete pointers and lease, then the states behind the pointers."""
        entries = FileEntryMapBackend(self._storage.fs, self._plan_directory)
        errors: list[Exception] = []
        for action in (self._storage.forget, entries.remove, self._lease_file.remove):
            try:
                action()
            except Exception as error:
                errors.append(error)
        raise_all(errors, f"Could not delete the pointers in {self._storage.path!r}")
        self._storage.remove_states()

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        """Nothing to delete: the register belongs to the job's directory, and goes with it."""

    def get_leader_path_for_resource_manager(self) -> str:
        """The name of the resource manager."""
        return "resource_manager"

    def get_leader_path_for_dispatcher(self) -> str:
        """The name of the dispatcher."""
        return "dispatcher"

    def get_leader_path_for_job_manager(self, job_id: JobID) -> str:
        """The name of a job's job master."""
        return f"job-{job_id}"

    def get_leader_path_for_rest_server(self) -> str:
        """The name of the REST endpoint."""
        return _REST_SERVER


class FileSystemClientHaServices(ClientHighAvailabilityServices):
    """What a client of a cluster over a shared directory needs; it only reads there."""

    def __init__(self, configuration: Configuration) -> None:
        storage = ClusterStorage(configuration)
        self._timing = lease_timing(configuration)
        self._lease_file = LeaseFile(storage.fs, join(storage.path, "leader"))

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the REST endpoint."""
        return _retrieval(self._lease_file, _REST_SERVER, self._timing)

    def close(self) -> None:
        """Nothing to close."""


def _retrieval(lease_file: LeaseFile, leader_name: str, timing: LeaseTiming) -> LeaderRetrievalService:
    return DefaultLeaderRetrievalService(
        partial(FileSystemLeaderRetrievalDriver, lease_file, leader_name, timing.retry_period)
    )
