"""What the services of embedded, filesystem, zookeeper and kubernetes have in common beside elections."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from concurrent.futures import Executor
from typing import ClassVar

from holdfast.ha.election.leader_election import LeaderElectionDriverFactory
from holdfast.ha.services.abstract_services import AbstractHaServices
from holdfast.ha.services.checkpoint_recovery import RegisterCheckpointRecoveryFactory, recovery_from_registers
from holdfast.ha.services.cluster_storage import ClusterStorage
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.register.fenced_register import FencedRegister, RemovableRegister


class RegisterHaServices(AbstractHaServices):
    """Services that keep a fenced register for each job. They name the components, and say whose register remains."""

    RESOURCE_MANAGER: ClassVar[str] = "resource_manager"
    REST_SERVER: ClassVar[str] = "rest_server"

    @abstractmethod
    def register_for(self, job_id: JobID) -> FencedRegister:
        """The register of a job; nothing is written."""

    def create_checkpoint_recovery_factory(self) -> RegisterCheckpointRecoveryFactory:
        """Make a factory over the jobs' registers."""
        return recovery_from_registers(self.configuration, self.register_for)

    def remove_register(self, register: RemovableRegister, job_id: JobID) -> None:
        """Remove the register of a job that is over, unless it names checkpoints that are kept for the user.

        Whoever ran a job of that id next would otherwise not know that their files are still needed.
        """
        if not register.remove():
            self.logger.info("The register of job %s is kept: it names retained checkpoints, or is led anew.", job_id)

    def get_leader_path_for_resource_manager(self) -> str:
        """The name of the resource manager."""
        return self.RESOURCE_MANAGER

    def get_leader_path_for_dispatcher(self) -> str:
        """The name of the dispatcher."""
        return "dispatcher"

    def get_leader_path_for_job_manager(self, job_id: JobID) -> str:
        """The name of a job's job master."""
        return f"job-{job_id}"

    def get_leader_path_for_rest_server(self) -> str:
        """The name of the REST endpoint."""
        return self.REST_SERVER


class ClusterHaServices(RegisterHaServices):
    """Services of a process whose cluster has a storage directory: pointers in the backend, what they name in files.

    Args:
        config: The configuration.
        driver_factory: Makes the driver that campaigns for the process.
        io_executor: Where clean-up that blocks is done.
        storage: The files of the cluster, opened.
    """

    def __init__(
        self,
        config: Configuration,
        driver_factory: LeaderElectionDriverFactory,
        io_executor: Executor,
        storage: ClusterStorage,
    ) -> None:
        self._storage = storage
        results = storage.job_result_store(io_executor)
        super().__init__(config, driver_factory, io_executor, storage.blob_store(), results)

    @abstractmethod
    def remove_pointers(self) -> None:
        """Delete all of the cluster's data in the backend; may be repeated."""

    def internal_cleanup(self) -> None:
        """Delete the pointers, then the states behind them; each job's register that belongs to the job stays."""
        self._storage.forget()
        self.remove_pointers()
        self._storage.remove_states()


def new_lock_identity() -> str:
    """Draw the name under which a process campaigns and writes; no two processes have the same."""
    return str(uuid.uuid4())
