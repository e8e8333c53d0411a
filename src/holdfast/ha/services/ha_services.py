"""What high availability offers to the components of a process."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Final

from holdfast.errors import StorageError
from holdfast.ha.election.leader_election import LeaderElection
from holdfast.ha.election.leader_retrieval import LeaderRetrievalService
from holdfast.ha.job_manager_store.blob_store import BlobStore
from holdfast.ha.job_manager_store.execution_plan_store import ExecutionPlanStore
from holdfast.ha.job_manager_store.job_result_store import JobResultStore
from holdfast.ha.services.checkpoint_recovery import CheckpointRecoveryFactory
from holdfast.kernel.ids import JobID


class GloballyCleanableResource(ABC):
    """Something of a job that remains when its process ends, and must go when the job is over for good."""

    @abstractmethod
    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Remove everything of a job; thread-safe, and may be repeated.

        Args:
            job_id: The job.
            executor: Where the work is done.
        """


class ClientHighAvailabilityServices(ABC):
    """What a client of a cluster needs."""

    @abstractmethod
    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the cluster's REST endpoint."""

    @abstractmethod
    def close(self) -> None:
        """Release what the services hold."""


class HighAvailabilityServices(ClientHighAvailabilityServices, GloballyCleanableResource):
    """Leader election and retrieval, and the stores that outlive a process."""

    DEFAULT_LEADER_ID: Final = uuid.UUID(int=0)
    DEFAULT_JOB_ID: Final = JobID("0" * 32)

    @abstractmethod
    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the resource manager."""

    @abstractmethod
    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the dispatcher."""

    @abstractmethod
    def get_job_manager_leader_retriever(
        self, job_id: JobID, default_job_manager_address: str | None = None
    ) -> LeaderRetrievalService:
        """Get the leader retriever of the job master of a job.

        Args:
            job_id: The job.
            default_job_manager_address: What services without elections answer.
        """

    def get_web_monitor_leader_retriever(self) -> LeaderRetrievalService:
        """Get the leader retriever of the REST endpoint, under its old name."""
        return self.get_cluster_rest_endpoint_leader_retriever()

    @abstractmethod
    def get_resource_manager_leader_election(self) -> LeaderElection:
        """Get the leader election of the resource manager."""

    @abstractmethod
    def get_dispatcher_leader_election(self) -> LeaderElection:
        """Get the leader election of the dispatcher."""

    @abstractmethod
    def get_job_manager_leader_election(self, job_id: JobID) -> LeaderElection:
        """Get the leader election of the job master of a job."""

    @abstractmethod
    def get_cluster_rest_endpoint_leader_election(self) -> LeaderElection:
        """Get the leader election of the cluster's REST endpoint."""

    def get_web_monitor_leader_election(self) -> LeaderElection:
        """Get the leader election of the REST endpoint, under its old name."""
        return self.get_cluster_rest_endpoint_leader_election()

    @abstractmethod
    def get_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Make a checkpoint recovery factory; a new one at each call."""

    @abstractmethod
    def get_execution_plan_store(self) -> ExecutionPlanStore:
        """Make a store of submitted execution plans; a new one at each call."""

    @abstractmethod
    def get_job_result_store(self) -> JobResultStore:
        """Get the store of the results of finished jobs; always the same one."""

    @abstractmethod
    def create_blob_store(self) -> BlobStore:
        """Get the store of blobs."""

    @abstractmethod
    def cleanup_all_data(self) -> None:
        """Delete everything that these services keep; no job of the cluster can be recovered afterwards."""

    def close_with_optional_clean(self, cleanup_data: bool) -> None:
        """Close the services in any case, after deleting everything if asked to.

        Raises:
            StorageError: Something went wrong; the message names everything that did.
        """
        actions = (self.cleanup_all_data, self.close) if cleanup_data else (self.close,)
        do_all(actions, f"Could not properly close the {type(self).__name__}")

    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Remove everything of a job; here nothing remains of one."""
        future: Future[None] = Future()
        future.set_result(None)
        return future


def do_all(actions: Iterable[Callable[[], object]], what: str) -> None:
    """Do one thing after the other, past errors.

    Args:
        actions: What is to be done.
        what: What could not be done if anything went wrong, without a full stop.

    Raises:
        StorageError: Something went wrong; the message names everything that did, and the first is the cause.
    """
    errors: list[Exception] = []
    for action in actions:
        try:
            action()
        except Exception as error:
            errors.append(error)
    if errors:
        raise StorageError(f"{what}: " + " Also: ".join(str(error) for error in errors)) from errors[0]
