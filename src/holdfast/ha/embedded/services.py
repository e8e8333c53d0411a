"""Services for several contenders of one process."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Executor
from functools import partial
from typing import Any

from holdfast.ha.election.leader_retrieval import DefaultLeaderRetrievalService, LeaderRetrievalService
from holdfast.ha.embedded.election import (
    EmbeddedElection,
    EmbeddedLeaderElectionDriverFactory,
    EmbeddedLeaderRetrievalDriver,
)
from holdfast.ha.embedded.store import EmbeddedStateHandleStore, MemoryEntryMapBackend
from holdfast.ha.job_manager_store.blob_store import VoidBlobStore
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.ha.job_manager_store.execution_plan_store import DefaultExecutionPlanStore
from holdfast.ha.job_manager_store.job_result_store import EmbeddedJobResultStore
from holdfast.ha.services.cluster_services import RegisterHaServices, new_lock_identity
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.handle.state_handle import RetrievableStateHandle, RetrievableStateStorageHelper
from holdfast.storage.register.embedded_register import EmbeddedRegister


class EmbeddedCluster:
    """What the services of one process share: an election, plans, results, registers. All of it is memory."""

    def __init__(self) -> None:
        self.election = EmbeddedElection()
        self.plans = MemoryEntryMapBackend()
        self.plan_states = _MemoryStorage()
        self.job_results = EmbeddedJobResultStore()
        self._registers: dict[JobID, EmbeddedRegister] = {}
        self._lock = threading.Lock()

    def register_for(self, job_id: JobID) -> EmbeddedRegister:
        """The register of a job."""
        with self._lock:
            return self._registers.setdefault(job_id, EmbeddedRegister())

    def remove_all(self) -> None:
        """Forget plans and registers."""
        with self._lock:
            self._registers.clear()
        self.plans.clear()
        self.plan_states.clear()


class EmbeddedHaServices(RegisterHaServices):
    """One contender of an embedded cluster; each has services of its own.

    Args:
        config: The configuration.
        io_executor: Where clean-up that blocks is done.
        cluster: What the contenders share; a cluster of its own by default.
    """

    def __init__(self, config: Configuration, io_executor: Executor, cluster: EmbeddedCluster | None = None) -> None:
        self._cluster = cluster or EmbeddedCluster()
        self._lock_identity = new_lock_identity()
        super().__init__(
            config,
            EmbeddedLeaderElectionDriverFactory(self._cluster.election, self._lock_identity),
            io_executor,
            VoidBlobStore(),
            self._cluster.job_results,
        )

    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        """Make a service that follows the leader of this name."""
        return DefaultLeaderRetrievalService(
            partial(EmbeddedLeaderRetrievalDriver, self._cluster.election, leader_name)
        )

    def register_for(self, job_id: JobID) -> EmbeddedRegister:
        """The register of a job in the cluster's memory."""
        return self._cluster.register_for(job_id)

    def create_execution_plan_store(self) -> DefaultExecutionPlanStore:
        """Make a store over the cluster's plans."""
        return DefaultExecutionPlanStore(
            EmbeddedStateHandleStore(
                self._cluster.plans,
                self._cluster.plan_states,
                lock_identity=self._lock_identity,
                leadership=self._cluster.election,
            )
        )

    def internal_close(self) -> None:
        """Nothing to close."""

    def internal_cleanup(self) -> None:
        """Forget everything."""
        self._cluster.remove_all()

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        """Forget what the job's register says, unless it names checkpoints that are kept for the user."""
        self.remove_register(self.register_for(job_id), job_id)


class _MemoryHandle(RetrievableStateHandle[ExecutionPlan]):
    def __init__(self, states: dict[str, ExecutionPlan], name: str) -> None:
        self._states = states
        self._name = name

    def retrieve_state(self) -> ExecutionPlan:
        return self._states[self._name]

    def discard_state(self) -> None:
        self._states.pop(self._name, None)

    def get_state_size(self) -> int:
        return 0

    def to_pointer(self) -> dict[str, Any]:
        return {"name": self._name}


class _MemoryStorage(RetrievableStateStorageHelper[ExecutionPlan]):
    def __init__(self) -> None:
        self._states: dict[str, ExecutionPlan] = {}

    def store(self, state: ExecutionPlan) -> RetrievableStateHandle[ExecutionPlan]:
        name = uuid.uuid4().hex
        self._states[name] = state
        return _MemoryHandle(self._states, name)

    def restore_handle(self, pointer: dict[str, Any]) -> RetrievableStateHandle[ExecutionPlan]:
        return _MemoryHandle(self._states, str(pointer["name"]))

    def clear(self) -> None:
        self._states.clear()
