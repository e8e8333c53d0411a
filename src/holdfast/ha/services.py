"""The high-availability services of a process, and the choice of their type."""

from __future__ import annotations

import importlib
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Any, ClassVar, Final, TypeVar

from holdfast.checkpoint.options import CHECKPOINTS_DIRECTORY
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.ha import options
from holdfast.ha.blob_store import BlobStore, BlobStoreService, VoidBlobStore
from holdfast.ha.checkpoint_recovery import (
    CheckpointRecoveryFactory,
    StandaloneCheckpointRecoveryFactory,
    recovery_from_registers,
    registers_of_files,
)
from holdfast.ha.election_service import LeaderElectionService
from holdfast.ha.execution_plan_store import ExecutionPlanStore, StandaloneExecutionPlanStore
from holdfast.ha.job_result_store import EmbeddedJobResultStore, JobResultStore
from holdfast.ha.leader_election import (
    LeaderContender,
    LeaderElection,
    LeaderElectionDriverFactory,
    LeaderRetrievalService,
    StandaloneLeaderRetrievalService,
)
from holdfast.ha.options import ha_type
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.register import RemovableRegister

_UNKNOWN: Final = "UNKNOWN"
T = TypeVar("T")
# Imported when they are chosen, so that a cluster of one type needs no client of another.
_SERVICES: Final = {
    "embedded": ("holdfast.ha.embedded", "EmbeddedHaServices"),
    "filesystem": ("holdfast.ha.shared_directory", "FileSystemHaServices"),
    "zookeeper": ("holdfast.ha.zookeeper.services", "ZooKeeperLeaderElectionHaServices"),
    "kubernetes": ("holdfast.ha.kubernetes.services", "KubernetesLeaderElectionHaServices"),
}
_CLIENT_SERVICES: Final = {
    "filesystem": ("holdfast.ha.shared_directory", "FileSystemClientHaServices"),
    "zookeeper": ("holdfast.ha.zookeeper.services", "ZooKeeperClientHaServices"),
    "kubernetes": ("holdfast.ha.kubernetes.services", "KubernetesClientHaServices"),
}
_EXTRAS: Final = {"kazoo": "zookeeper", "lightkube": "kubernetes"}


class GloballyCleanableResource(ABC):
    """A resource of a job that outlives its process, and must be removed when the job is globally terminal."""

    @abstractmethod
    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Remove everything of a job; thread-safe, and may be repeated.

        Args:
            job_id: The job.
            executor: Runs the removal.
        """


class ClientHighAvailabilityServices(ABC):
    """The services that a client of a cluster needs."""

    @abstractmethod
    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        """Return the leader retriever of the cluster's REST endpoint."""

    @abstractmethod
    def close(self) -> None:
        """Close connections; the data stay."""


class HighAvailabilityServices(ClientHighAvailabilityServices, GloballyCleanableResource):
    """Leader election and retrieval, and the stores that outlive a process."""

    DEFAULT_LEADER_ID: Final = uuid.UUID(int=0)
    DEFAULT_JOB_ID: Final = JobID("0" * 32)

    @abstractmethod
    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        """Return the leader retriever of the resource manager."""

    @abstractmethod
    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        """Return the leader retriever of the dispatcher."""

    @abstractmethod
    def get_job_manager_leader_retriever(
        self, job_id: JobID, default_job_manager_address: str | None = None
    ) -> LeaderRetrievalService:
        """Return the leader retriever of the job master of a job.

        Args:
            job_id: The job.
            default_job_manager_address: The answer of services without elections.
        """

    def get_web_monitor_leader_retriever(self) -> LeaderRetrievalService:
        """Return the leader retriever of the REST endpoint, under its old name."""
        return self.get_cluster_rest_endpoint_leader_retriever()

    @abstractmethod
    def get_resource_manager_leader_election(self) -> LeaderElection:
        """Return the leader election of the resource manager."""

    @abstractmethod
    def get_dispatcher_leader_election(self) -> LeaderElection:
        """Return the leader election of the dispatcher."""

    @abstractmethod
    def get_job_manager_leader_election(self, job_id: JobID) -> LeaderElection:
        """Return the leader election of the job master of a job."""

    @abstractmethod
    def get_cluster_rest_endpoint_leader_election(self) -> LeaderElection:
        """Return the leader election of the cluster's REST endpoint."""

    def get_web_monitor_leader_election(self) -> LeaderElection:
        """Return the leader election of the REST endpoint, under its old name."""
        return self.get_cluster_rest_endpoint_leader_election()

    @abstractmethod
    def get_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Return a new checkpoint recovery factory."""

    @abstractmethod
    def get_execution_plan_store(self) -> ExecutionPlanStore:
        """Return a new store of submitted execution plans."""

    @abstractmethod
    def get_job_result_store(self) -> JobResultStore:
        """Return the store of the results of finished jobs; always the same one."""

    @abstractmethod
    def create_blob_store(self) -> BlobStore:
        """Return the store of blobs."""

    @abstractmethod
    def cleanup_all_data(self) -> None:
        """Delete all data of the services; no job of the cluster can be recovered afterwards. Blocks."""

    def close_with_optional_clean(self, cleanup_data: bool) -> None:
        """Close the services in any case, after deleting everything if asked to. Blocks.

        Raises:
            StorageError: The message has all errors.
        """
        actions = (self.cleanup_all_data, self.close) if cleanup_data else (self.close,)
        do_all(actions, f"Could not properly close the {type(self).__name__}")

    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Remove everything of a job; these services keep nothing of one."""
        future: Future[None] = Future()
        future.set_result(None)
        return future


def do_all(actions: Iterable[Callable[[], object]], what: str) -> None:
    """Run all actions, past errors.

    Args:
        actions: The actions.
        what: The failed action, for the error if one of them raises; without a full stop.

    Raises:
        StorageError: The message has all errors; the first one is the cause.
    """
    errors: list[Exception] = []
    for action in actions:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised below, after the other actions
            errors.append(error)
    if errors:
        raise StorageError(f"{what}: " + " Also: ".join(str(error) for error in errors)) from errors[0]


class AbstractHaServices(HighAvailabilityServices):
    """Leader election and stores for one process; the components of a process win or lose together.

    Subclasses connect to a backend: they make its stores and retrievals, and remove its data.

    Args:
        config: The configuration.
        driver_factory: Makes the driver that campaigns for the process.
        io_executor: Runs clean-up that blocks.
        blob_store_service: The blobs.
        job_result_store: The results of finished jobs.

    Attributes:
        configuration: The configuration.
        io_executor: Runs clean-up that blocks.
        logger: The logger of the subclass.
    """

    RESOURCE_MANAGER: ClassVar[str] = "resource_manager"
    REST_SERVER: ClassVar[str] = "rest_server"

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
        return self.create_leader_retrieval_service(self.get_leader_path_for_resource_manager())

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        return self.create_leader_retrieval_service(self.get_leader_path_for_dispatcher())

    def get_job_manager_leader_retriever(
        self, job_id: JobID, default_job_manager_address: str | None = None
    ) -> LeaderRetrievalService:
        return self.create_leader_retrieval_service(self.get_leader_path_for_job_manager(job_id))

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        return self.create_leader_retrieval_service(self.get_leader_path_for_rest_server())

    # Election.

    def get_resource_manager_leader_election(self) -> LeaderElection:
        return self._election_service.create_leader_election(self.get_leader_path_for_resource_manager())

    def get_dispatcher_leader_election(self) -> LeaderElection:
        return self._election_service.create_leader_election(self.get_leader_path_for_dispatcher())

    def get_job_manager_leader_election(self, job_id: JobID) -> LeaderElection:
        return self._election_service.create_leader_election(self.get_leader_path_for_job_manager(job_id))

    def get_cluster_rest_endpoint_leader_election(self) -> LeaderElection:
        return self._election_service.create_leader_election(self.get_leader_path_for_rest_server())

    # Stores.

    def get_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        return self.create_checkpoint_recovery_factory()

    def get_execution_plan_store(self) -> ExecutionPlanStore:
        return self.create_execution_plan_store()

    def get_job_result_store(self) -> JobResultStore:
        return self._job_result_store

    def create_blob_store(self) -> BlobStore:
        return self._blob_store_service

    # Closing and clean-up.

    def close(self) -> None:
        """Close blob store, leader election and backend, and keep all data.

        Raises:
            StorageError: All were tried; the message has all errors.
        """
        actions = (self._blob_store_service.close, self._election_service.close, self.internal_close)
        do_all(actions, f"Could not properly close the {type(self).__name__}")

    def cleanup_all_data(self) -> None:
        """Delete pointers, then blobs: a pointer to nothing is worse than a file without a pointer.

        Raises:
            StorageError: It failed; if the pointers could not be deleted, the blobs are kept.
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

    # The backend.

    @abstractmethod
    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        """Return a service that follows the leader of this name."""

    @abstractmethod
    def create_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Return a checkpoint recovery factory for one term."""

    @abstractmethod
    def create_execution_plan_store(self) -> ExecutionPlanStore:
        """Return a store of submitted plans."""

    @abstractmethod
    def internal_close(self) -> None:
        """Close the connection to the backend."""

    @abstractmethod
    def internal_cleanup(self) -> None:
        """Delete all of the cluster's data in the backend; may be repeated after an error."""

    @abstractmethod
    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        """Delete a job's data in the backend; thread-safe, and fine if there are none."""

    # Names of the components; a backend may have others.

    def get_leader_path_for_resource_manager(self) -> str:
        """Return the name of the resource manager in the backend."""
        return self.RESOURCE_MANAGER

    def get_leader_path_for_dispatcher(self) -> str:
        """Return the name of the dispatcher in the backend."""
        return "dispatcher"

    def get_leader_path_for_job_manager(self, job_id: JobID) -> str:
        """Return the name of a job's job master in the backend."""
        return f"job-{job_id}"

    def get_leader_path_for_rest_server(self) -> str:
        """Return the name of the REST endpoint in the backend."""
        return self.REST_SERVER

    def _remove_register(self, register: RemovableRegister, job_id: JobID) -> None:
        """Remove the register of a job that is over, unless it names checkpoints that are kept for the user.

        The next job of that id would otherwise not know that their files are still needed.
        """
        if not register.remove():
            self.logger.info("The register of job %s is kept: it names retained checkpoints, or is led anew.", job_id)


def new_lock_identity() -> str:
    """Return a random name under which a process campaigns and writes; no two processes have the same."""
    return str(uuid.uuid4())


class StandaloneLeaderElection(LeaderElection):
    """Grants leadership to its contender, at once."""

    def __init__(self, session_id: uuid.UUID) -> None:
        self._session_id = session_id
        self._contender: LeaderContender | None = None

    def start_leader_election(self, contender: LeaderContender) -> None:
        if self._contender is not None:
            raise RuntimeError("There is already a contender registered; close the leader election first.")
        self._contender = contender
        contender.grant_leadership(self._session_id)

    def confirm_leadership_async(self, leader_session_id: uuid.UUID, leader_address: str) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def has_leadership_async(self, leader_session_id: uuid.UUID) -> Future[bool]:
        future: Future[bool] = Future()
        future.set_result(self._contender is not None and leader_session_id == self._session_id)
        return future

    def close(self) -> None:
        contender, self._contender = self._contender, None
        if contender is not None:
            contender.revoke_leadership()


class StandaloneClientHaServices(ClientHighAvailabilityServices):
    """The services of a client of a cluster without elections.

    Args:
        cluster_rest_endpoint_address: The address of the REST endpoint.
    """

    def __init__(self, cluster_rest_endpoint_address: str) -> None:
        self._address = cluster_rest_endpoint_address

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        return StandaloneLeaderRetrievalService(self._address, HighAvailabilityServices.DEFAULT_LEADER_ID)

    def close(self) -> None: ...


class StandaloneHaServices(HighAvailabilityServices):
    """High availability of type none.

    Only the checkpoints are kept. Those have a fenced register in their directory all the same, so that two drivers on
    one directory cannot both write.

    Args:
        resource_manager_address: The address of the resource manager.
        dispatcher_address: The address of the dispatcher.
        cluster_rest_endpoint_address: The address of the REST endpoint.
        configuration: Has the directory of checkpoints; without one they are kept in memory.
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
        return self._retriever(self._resource_manager_address)

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        return self._retriever(self._dispatcher_address)

    def get_job_manager_leader_retriever(
        self, job_id: JobID, default_job_manager_address: str | None = None
    ) -> LeaderRetrievalService:
        return self._retriever(default_job_manager_address or _UNKNOWN)

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        return self._retriever(self._rest_address)

    def get_resource_manager_leader_election(self) -> LeaderElection:
        return self._election()

    def get_dispatcher_leader_election(self) -> LeaderElection:
        return self._election()

    def get_job_manager_leader_election(self, job_id: JobID) -> LeaderElection:
        return self._election()

    def get_cluster_rest_endpoint_leader_election(self) -> LeaderElection:
        return self._election()

    def get_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        self._require_open()
        if self._configuration.get(CHECKPOINTS_DIRECTORY) is None:
            return StandaloneCheckpointRecoveryFactory()
        return recovery_from_registers(self._configuration, registers_of_files(self._configuration))

    def get_execution_plan_store(self) -> ExecutionPlanStore:
        self._require_open()
        return StandaloneExecutionPlanStore()

    def get_job_result_store(self) -> JobResultStore:
        self._require_open()
        return self._job_result_store

    def create_blob_store(self) -> BlobStore:
        self._require_open()
        return VoidBlobStore()

    def close(self) -> None:
        self._is_closed = True

    def cleanup_all_data(self) -> None: ...

    def _election(self) -> LeaderElection:
        self._require_open()
        return StandaloneLeaderElection(self.DEFAULT_LEADER_ID)

    def _retriever(self, address: str) -> LeaderRetrievalService:
        self._require_open()
        return StandaloneLeaderRetrievalService(address, self.DEFAULT_LEADER_ID)

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("The high availability services are shut down.")


class HighAvailabilityServicesFactory(ABC):
    """Makes services of a user's own type; ``high-availability.type`` is the class path of the factory."""

    @abstractmethod
    def create_ha_services(self, configuration: Configuration, executor: Executor) -> HighAvailabilityServices:
        """Return the services of a process.

        Args:
            configuration: The configuration.
            executor: Runs clean-up that blocks.
        """

    def create_client_ha_services(self, configuration: Configuration) -> ClientHighAvailabilityServices:
        """Return the services of a client.

        Raises:
            ConfigurationError: The factory makes none.
        """
        raise ConfigurationError(f"{type(self).__name__} makes no services for clients.")


def create_high_availability_services(
    configuration: Configuration,
    executor: Executor,
    *,
    resource_manager_address: str = _UNKNOWN,
    dispatcher_address: str = _UNKNOWN,
    rest_address: str = _UNKNOWN,
) -> HighAvailabilityServices:
    """Return the services of a process. Blocks until they are connected.

    Args:
        configuration: The options ``high-availability.*`` and those of the backend.
        executor: Runs clean-up that blocks.
        resource_manager_address: The answer of the type none.
        dispatcher_address: The answer of the type none.
        rest_address: The answer of the type none.

    Raises:
        ConfigurationError: An option is missing or wrong, a package is not installed, or the cluster id is taken.
        StorageError: The backend does not answer, or the storage directory cannot be written.
    """
    use_s3_options(configuration)
    chosen = ha_type(configuration)
    if chosen == "none":
        return StandaloneHaServices(resource_manager_address, dispatcher_address, rest_address, configuration)
    if chosen in _SERVICES:
        services: HighAvailabilityServices = _load(*_SERVICES[chosen])(configuration, executor)
        return services
    factory = _custom_factory(chosen)
    return _wrap_errors(chosen, lambda: factory.create_ha_services(configuration, executor))


def create_client_high_availability_services(
    configuration: Configuration, *, rest_address: str = _UNKNOWN
) -> ClientHighAvailabilityServices:
    """Return the services of a client of a cluster. Blocks until they are connected.

    Args:
        configuration: The options ``high-availability.*`` and those of the backend.
        rest_address: The answer of the type none.

    Raises:
        ConfigurationError: An option is missing or wrong, or clients cannot reach services of this type.
        StorageError: The backend does not answer.
    """
    use_s3_options(configuration)
    chosen = ha_type(configuration)
    if chosen == "none":
        return StandaloneClientHaServices(rest_address)
    if chosen == "embedded":
        raise ConfigurationError(
            f"With {options.HA_TYPE.key!r} 'embedded' everything is in one process, which no client can reach."
        )
    if chosen in _CLIENT_SERVICES:
        services: ClientHighAvailabilityServices = _load(*_CLIENT_SERVICES[chosen])(configuration)
        return services
    factory = _custom_factory(chosen)
    return _wrap_errors(chosen, lambda: factory.create_client_ha_services(configuration))


def _custom_factory(class_path: str) -> HighAvailabilityServicesFactory:
    module, _, name = class_path.rpartition(".")
    try:
        if not module:
            raise ConfigurationError(f"It is not one of {['none', *_SERVICES]} and not a class path.")
        factory = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, HoldfastError) as error:
        raise ConfigurationError(
            f"Option {options.HA_TYPE.key!r}: no HighAvailabilityServicesFactory can be made of {class_path!r}. {error}"
        ) from error
    if not isinstance(factory, HighAvailabilityServicesFactory):
        raise ConfigurationError(
            f"Option {options.HA_TYPE.key!r}: {class_path!r} is not a HighAvailabilityServicesFactory."
        )
    return factory


def _wrap_errors(class_path: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except Exception as error:
        raise ConfigurationError(
            f"Could not create the ha services from the instantiated HighAvailabilityServicesFactory {class_path}: "
            f"{error}"
        ) from error


def _load(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ConfigurationError(
            f"High availability of this type needs the package {error.name!r}: pip install 'holdfast[{extra}]'."
        ) from error
