"""Services without elections: one process, whose addresses are configured."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from typing import Final

from holdfast.checkpoint.config.options import CHECKPOINTS_DIRECTORY
from holdfast.ha.election.leader_election import LeaderContender, LeaderElection
from holdfast.ha.election.leader_retrieval import LeaderRetrievalService, StandaloneLeaderRetrievalService
from holdfast.ha.job_manager_store.blob_store import BlobStore, VoidBlobStore
from holdfast.ha.job_manager_store.execution_plan_store import ExecutionPlanStore, StandaloneExecutionPlanStore
from holdfast.ha.job_manager_store.job_result_store import EmbeddedJobResultStore, JobResultStore
from holdfast.ha.services.checkpoint_recovery import (
    CheckpointRecoveryFactory,
    StandaloneCheckpointRecoveryFactory,
    recovery_from_registers,
    registers_of_files,
)
from holdfast.ha.services.ha_services import ClientHighAvailabilityServices, HighAvailabilityServices
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID

_UNKNOWN: Final = "UNKNOWN"


class StandaloneLeaderElection(LeaderElection):
    """Grants leadership to whoever asks, at once."""

    def __init__(self, session_id: uuid.UUID) -> None:
        self._session_id = session_id
        self._contender: LeaderContender | None = None

    def start_leader_election(self, contender: LeaderContender) -> None:
        """Grant leadership before this returns."""
        if self._contender is not None:
            raise RuntimeError("There is already a contender registered; close the leader election first.")
        self._contender = contender
        contender.grant_leadership(self._session_id)

    def confirm_leadership_async(self, leader_session_id: uuid.UUID, leader_address: str) -> Future[None]:
        """Nothing is published: addresses are configured."""
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def has_leadership_async(self, leader_session_id: uuid.UUID) -> Future[bool]:
        """Whether the election has started and this is its session."""
        future: Future[bool] = Future()
        future.set_result(self._contender is not None and leader_session_id == self._session_id)
        return future

    def close(self) -> None:
        """Revoke leadership."""
        contender, self._contender = self._contender, None
        if contender is not None:
            contender.revoke_leadership()


class StandaloneClientHaServices(ClientHighAvailabilityServices):
    """What a client of a cluster without elections needs.

    Args:
        cluster_rest_endpoint_address: Where the REST endpoint is.
    """

    def __init__(self, cluster_rest_endpoint_address: str) -> None:
        self._address = cluster_rest_endpoint_address

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        """Get a retriever that answers the configured address."""
        return StandaloneLeaderRetrievalService(self._address, HighAvailabilityServices.DEFAULT_LEADER_ID)

    def close(self) -> None:
        """Nothing to close."""


class StandaloneHaServices(HighAvailabilityServices):
    """High availability of type none.

    Nothing is kept but the checkpoints. Those have a fenced register in their directory all the same, so that two
    drivers on one directory cannot both write.

    Args:
        resource_manager_address: Where the resource manager is.
        dispatcher_address: Where the dispatcher is.
        cluster_rest_endpoint_address: Where the REST endpoint is.
        configuration: Names the directory of checkpoints; without one they are kept in memory.
    """

    def __init__(
        self,
        resource_manager_address: str = _UNKNOWN,
        dispatcher_address: str = _UNKNOWN,
        cluster_rest_endpoint_address: str = _UNKNOWN,
        configuration: Configuration | None = None,
    ) -> None:
        self._resource_manager_address = resource_manager_address
        self._dispatcher_address = dispatcher_address
        self._rest_address = cluster_rest_endpoint_address
        self._configuration = configuration or Configuration()
        self._job_result_store = EmbeddedJobResultStore()
        self._is_closed = False

    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        """Get a retriever that answers the configured address."""
        return self._retriever(self._resource_manager_address)

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        """Get a retriever that answers the configured address."""
        return self._retriever(self._dispatcher_address)

    def get_job_manager_leader_retriever(
        self, job_id: JobID, default_job_manager_address: str | None = None
    ) -> LeaderRetrievalService:
        """Get a retriever that answers the default address, or ``UNKNOWN``."""
        return self._retriever(default_job_manager_address or _UNKNOWN)

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        """Get a retriever that answers the configured address."""
        return self._retriever(self._rest_address)

    def get_resource_manager_leader_election(self) -> LeaderElection:
        """Get an election that is won at once."""
        return self._election()

    def get_dispatcher_leader_election(self) -> LeaderElection:
        """Get an election that is won at once."""
        return self._election()

    def get_job_manager_leader_election(self, job_id: JobID) -> LeaderElection:
        """Get an election that is won at once."""
        return self._election()

    def get_cluster_rest_endpoint_leader_election(self) -> LeaderElection:
        """Get an election that is won at once."""
        return self._election()

    def get_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Make a factory over the registers in the jobs' directories, or over memory."""
        self._require_open()
        if self._configuration.get(CHECKPOINTS_DIRECTORY) is None:
            return StandaloneCheckpointRecoveryFactory()
        return recovery_from_registers(self._configuration, registers_of_files(self._configuration))

    def get_execution_plan_store(self) -> ExecutionPlanStore:
        """Make a store that keeps nothing."""
        self._require_open()
        return StandaloneExecutionPlanStore()

    def get_job_result_store(self) -> JobResultStore:
        """Get a store in memory."""
        self._require_open()
        return self._job_result_store

    def create_blob_store(self) -> BlobStore:
        """Get a store that keeps nothing."""
        self._require_open()
        return VoidBlobStore()

    def close(self) -> None:
        """End the services."""
        self._is_closed = True

    def cleanup_all_data(self) -> None:
        """There is nothing to delete."""

    def _election(self) -> LeaderElection:
        self._require_open()
        return StandaloneLeaderElection(self.DEFAULT_LEADER_ID)

    def _retriever(self, address: str) -> LeaderRetrievalService:
        self._require_open()
        return StandaloneLeaderRetrievalService(address, self.DEFAULT_LEADER_ID)

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("The high availability services are shut down.")
