"""High availability within one process, for tests and mini clusters: everything is in memory."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from holdfast.ha.blob_store import VoidBlobStore
from holdfast.ha.checkpoint_recovery import RegisterCheckpointRecoveryFactory, recovery_from_registers
from holdfast.ha.entry_map import ENTRY_MAP_FORMAT, EntryMapStateHandleStore
from holdfast.ha.execution_plan_store import DefaultExecutionPlanStore, ExecutionPlan
from holdfast.ha.job_result_store import EmbeddedJobResultStore
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
from holdfast.ha.services import AbstractHaServices, new_lock_identity
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.register import EmbeddedRegister
from holdfast.storage.state_handle import RetrievableStateHandle, RetrievableStateStorageHelper
from holdfast.storage.versioned_document import MemoryDocument

T = TypeVar("T")


class EmbeddedElection(Leadership):
    """An election in memory among the drivers and retrievals that share the object.

    The driver that joined first leads until it leaves.
    """

    def __init__(self) -> None:
        # Re-entrant: a listener may answer a notification by writing its own information back.
        self._lock = threading.RLock()
        self._candidates: list[EmbeddedLeaderElectionDriver] = []
        self._register = LeaderInformationRegister.empty()
        self._followers: list[tuple[str, LeaderRetrievalEventHandler]] = []
        self._term = 0

    @property
    def register(self) -> LeaderInformationRegister:
        with self._lock:
            return self._register

    def term_of(self, lock_identity: str) -> int | None:
        with self._lock:
            leads = bool(self._candidates) and self._candidates[0].lock_identity == lock_identity
            return self._term if leads else None

    def join(self, driver: EmbeddedLeaderElectionDriver) -> None:
        """Add a driver; it leads at once if there is no leader."""
        with self._lock:
            self._candidates.append(driver)
            if len(self._candidates) == 1:
                self._elect()

    def leave(self, driver: EmbeddedLeaderElectionDriver) -> None:
        """Remove a driver; the next one leads if it was the leader."""
        with self._lock:
            if driver not in self._candidates:
                return
            led = self.leads(driver)
            self._candidates.remove(driver)
            if led:
                self._replace(LeaderInformationRegister.empty())
                if self._candidates:
                    self._elect()

    def leads(self, driver: EmbeddedLeaderElectionDriver) -> bool:
        with self._lock:
            return bool(self._candidates) and self._candidates[0] is driver

    def publish(self, driver: EmbeddedLeaderElectionDriver, component_id: str, information: LeaderInformation) -> None:
        with self._lock:
            if self.leads(driver):
                self.write(component_id, information)

    def write(self, component_id: str, information: LeaderInformation) -> None:
        """Publish without a check of leadership; for tests of a leader's reaction to it."""
        with self._lock:
            self._replace(self._register.merge(component_id, information))

    def follow(self, component_id: str, handler: LeaderRetrievalEventHandler) -> Callable[[], None]:
        """Notify a handler about one component, now and at every change; return the function that ends it."""
        follower = (component_id, handler)
        with self._lock:
            self._followers.append(follower)
            handler.notify_leader_address(self._register.for_component_id_or_empty(component_id))

        def stop() -> None:
            with self._lock:
                if follower in self._followers:
                    self._followers.remove(follower)

        return stop

    def _elect(self) -> None:
        self._term += 1
        self._candidates[0].listener.on_grant_leadership(uuid.uuid4())

    def _replace(self, register: LeaderInformationRegister) -> None:
        self._register = register
        for component_id, handler in list(self._followers):
            handler.notify_leader_address(register.for_component_id_or_empty(component_id))
        if self._candidates:
            self._candidates[0].listener.on_leader_information_register_change(self._register)


class EmbeddedLeaderElectionDriver(LeaderElectionDriver):
    def __init__(self, election: EmbeddedElection, lock_identity: str, listener: LeaderElectionListener) -> None:
        self._election = election
        self.lock_identity = lock_identity
        self.listener = listener

    def has_leadership(self) -> bool:
        return self._election.leads(self)

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        self._election.publish(self, component_id, leader_information)

    def delete_leader_information(self, component_id: str) -> None:
        self._election.publish(self, component_id, LeaderInformation.empty())

    def close(self) -> None:
        self._election.leave(self)


class EmbeddedLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the drivers of one contender's services."""

    def __init__(self, election: EmbeddedElection, lock_identity: str) -> None:
        self._election = election
        self._lock_identity = lock_identity

    def create(self, leader_election_listener: LeaderElectionListener) -> EmbeddedLeaderElectionDriver:
        driver = EmbeddedLeaderElectionDriver(self._election, self._lock_identity, leader_election_listener)
        self._election.join(driver)
        return driver


class EmbeddedLeaderRetrievalDriver(LeaderRetrievalDriver):
    def __init__(self, election: EmbeddedElection, component_id: str, handler: LeaderRetrievalEventHandler) -> None:
        self._stop = election.follow(component_id, handler)

    def close(self) -> None:
        self._stop()


class EmbeddedStateHandleStore(EntryMapStateHandleStore[T]):
    """Pointers in memory, state in storage.

    Args:
        document: The pointers; stores that are to see each other share it.
        storage: Where the states are.
        lock_identity: The process that must lead for a change to be allowed; None skips the check.
        leadership: The current leadership; needed with a lock identity.
    """


class EmbeddedCluster:
    """The election, plans, results and registers that the services of one process share."""

    def __init__(self) -> None:
        self.election = EmbeddedElection()
        self.plans = MemoryDocument(ENTRY_MAP_FORMAT)
        self.plan_states = _MemoryStorage()
        self.job_results = EmbeddedJobResultStore()
        self._registers: dict[JobID, EmbeddedRegister] = {}
        self._lock = threading.Lock()

    def register_for(self, job_id: JobID) -> EmbeddedRegister:
        with self._lock:
            return self._registers.setdefault(job_id, EmbeddedRegister())

    def remove_all(self) -> None:
        with self._lock:
            self._registers.clear()
        EntryMapStateHandleStore(self.plans, self.plan_states).clear_entries()
        self.plan_states.clear()


class EmbeddedHaServices(AbstractHaServices):
    """The services of one contender of an embedded cluster.

    Args:
        config: The configuration.
        io_executor: Runs clean-up that blocks.
        cluster: The state that contenders share; by default that of a new cluster.
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
        return DefaultLeaderRetrievalService(
            partial(EmbeddedLeaderRetrievalDriver, self._cluster.election, leader_name)
        )

    def create_checkpoint_recovery_factory(self) -> RegisterCheckpointRecoveryFactory:
        return recovery_from_registers(self.configuration, self.register_for)

    def register_for(self, job_id: JobID) -> EmbeddedRegister:
        return self._cluster.register_for(job_id)

    def create_execution_plan_store(self) -> DefaultExecutionPlanStore:
        return DefaultExecutionPlanStore(
            EmbeddedStateHandleStore(
                self._cluster.plans,
                self._cluster.plan_states,
                lock_identity=self._lock_identity,
                leadership=self._cluster.election,
            )
        )

    def internal_close(self) -> None: ...

    def internal_cleanup(self) -> None:
        self._cluster.remove_all()

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        self._remove_register(self.register_for(job_id), job_id)


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
