"""What services over a coordination store have in common."""

from __future__ import annotations

import logging
from abc import abstractmethod
from concurrent.futures import Executor, Future
from typing import Final

from holdfast.errors import StorageError
from holdfast.ha.election.election_service import LeaderElectionService
from holdfast.ha.election.leader_election import LeaderElection, LeaderElectionDriverFactory
from holdfast.ha.election.leader_retrieval import LeaderRetrievalService
from holdfast.ha.job_manager_store.blob_store import BlobStore, BlobStoreService
from holdfast.ha.job_manager_store.execution_plan_store import ExecutionPlanStore
from holdfast.ha.job_manager_store.job_result_store import JobResultStore
from holdfast.ha.services.checkpoint_recovery import CheckpointRecoveryFactory
from holdfast.ha.services.ha_services import HighAvailabilityServices, do_all
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger


class AbstractHaServices(HighAvailabilityServices):
    """Leader election and stores for one process; the components of a process win or lose together.

    Subclasses name the components as their backend does, and say how their own data are removed.

    Args:
        config: The configuration.
        driver_factory: Makes the driver that campaigns for the process.
        io_executor: Where clean-up that blocks is done.
        blob_store_service: The blobs.
        job_result_store: The results of finished jobs.

    Attributes:
        configuration: The configuration.
        io_executor: Where clean-up that blocks is done.
        logger: The logger of the subclass.
    """

    configuration: Final[Configuration]
    io_executor: Final[Executor]
    logger: Final[logging.Logger]

    def __init__(
        self,
        config: Configuration,
        driver_factory: LeaderElectionDriverFactory,
        io_executor: Executor,
        blob_store_service: BlobStoreService,
        job_result_store: JobResultStore,
    ) -> None:
        self.configuration = config
        self.io_executor = io_executor
        self.logger = get_logger(type(self).__module__)
        self._blob_store_service = blob_store_service
        self._job_result_store = job_result_store
        self._election_service = LeaderElectionService(driver_factory)

    # Retrieval.

    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the resource manager."""
        return self.create_leader_retrieval_service(self.get_leader_path_for_resource_manager())

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the dispatcher."""
        return self.create_leader_retrieval_service(self.get_leader_path_for_dispatcher())

    def get_job_manager_leader_retriever(
        self, job_id: JobID, default_job_manager_address: str | None = None
    ) -> LeaderRetrievalService:
        """Get the leader retriever of a job's job master; the default address is not needed here."""
        return self.create_leader_retrieval_service(self.get_leader_path_for_job_manager(job_id))

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the REST endpoint."""
        return self.create_leader_retrieval_service(self.get_leader_path_for_rest_server())

    # Election.

    def get_resource_manager_leader_election(self) -> LeaderElection:
        """Get the leader election of the resource manager."""
        return self._election_service.create_leader_election(self.get_leader_path_for_resource_manager())

    def get_dispatcher_leader_election(self) -> LeaderElection:
        """Get the leader election of the dispatcher."""
        return self._election_service.create_leader_election(self.get_leader_path_for_dispatcher())

    def get_job_manager_leader_election(self, job_id: JobID) -> LeaderElection:
        """Get the leader election of a job's job master."""
        return self._election_service.create_leader_election(self.get_leader_path_for_job_manager(job_id))

    def get_cluster_rest_endpoint_leader_election(self) -> LeaderElection:
        """Get the leader election of the REST endpoint."""
        return self._election_service.create_leader_election(self.get_leader_path_for_rest_server())

    # Stores.

    def get_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Make a checkpoint recovery factory."""
        return self.create_checkpoint_recovery_factory()

    def get_execution_plan_store(self) -> ExecutionPlanStore:
        """Make a store of submitted plans."""
        return self.create_execution_plan_store()

    def get_job_result_store(self) -> JobResultStore:
        """Get the store of the results of finished jobs."""
        return self._job_result_store

    def create_blob_store(self) -> BlobStore:
        """Get the store of blobs."""
        return self._blob_store_service

    # The end.

    def close(self) -> None:
        """Close blob store, leader election and backend, and keep all data.

        Raises:
            StorageError: Something went wrong; everything was tried, and the message names all that failed.
        """
        actions = (self._blob_store_service.close, self._election_service.close, self.internal_close)
        do_all(actions, f"Could not properly close the {type(self).__name__}")

    def cleanup_all_data(self) -> None:
        """Delete pointers, then blobs: a pointer to nothing is worse than a file without a pointer.

        Raises:
            StorageError: Something went wrong; if it was the pointers, the blobs are kept.
        """
        self.logger.info("Deleting all data of %s.", type(self).__name__)
        what = "Could not properly clean up all data of high availability service"
        try:
            self.internal_cleanup()
        except Exception as error:
            self.logger.warning("Cannot delete HA blobs because we failed to delete the pointers in the HA store.")
            raise StorageError(f"{what}, the blobs are kept as well: {error}") from error
        try:
            self._blob_store_service.cleanup_all_data()
        except Exception as error:
            raise StorageError(f"{what}: {error}") from error

    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Delete the job's data in the backend; may be repeated."""
        return executor.submit(self.internal_cleanup_job_data, job_id)

    # What the backend is asked for.

    @abstractmethod
    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        """Make a service that follows the leader of this name."""

    @abstractmethod
    def create_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Make a checkpoint recovery factory for one term."""

    @abstractmethod
    def create_execution_plan_store(self) -> ExecutionPlanStore:
        """Make a store of submitted plans."""

    @abstractmethod
    def internal_close(self) -> None:
        """Close the connection to the backend."""

    @abstractmethod
    def internal_cleanup(self) -> None:
        """Delete all of the cluster's data in the backend; may be repeated after an error."""

    @abstractmethod
    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        """Delete a job's data in the backend; thread-safe, and nothing happens if there are none."""

    @abstractmethod
    def get_leader_path_for_resource_manager(self) -> str:
        """The name of the resource manager in the backend."""

    @abstractmethod
    def get_leader_path_for_dispatcher(self) -> str:
        """The name of the dispatcher in the backend."""

    @abstractmethod
    def get_leader_path_for_job_manager(self, job_id: JobID) -> str:
        """The name of a job's job master in the backend."""

    @abstractmethod
    def get_leader_path_for_rest_server(self) -> str:
        """The name of the REST endpoint in the backend."""
