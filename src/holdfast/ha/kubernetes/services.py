"""Services over ConfigMaps.

::

    <cluster id>-cluster-config-map     annotation: the lease; entries: which cluster this is, the leaders' addresses,
                                        pointers to submitted plans
    <cluster id>-<job id>-config-map    the job's fenced register

State goes to ``high-availability.storageDir``; see ``holdfast.ha.cluster_storage``. The ConfigMaps have no owner, so
they outlive every deployment.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Final

from holdfast.errors import AlreadyExistError, PossibleInconsistentStateError, StorageError
from holdfast.ha import options
from holdfast.ha.checkpoint_recovery import RegisterCheckpointRecoveryFactory, recovery_from_registers
from holdfast.ha.cluster_storage import ClusterStorage
from holdfast.ha.execution_plan_store import DefaultExecutionPlanStore
from holdfast.ha.kubernetes.client import KubeClient, check_access
from holdfast.ha.kubernetes.config_map import KubernetesConfigMap
from holdfast.ha.kubernetes.document import KubernetesRegister
from holdfast.ha.kubernetes.leader_election import KubernetesLeaderElectionDriverFactory, retrieval_driver_factory
from holdfast.ha.kubernetes.state_handle_store import KubernetesStateHandleStore
from holdfast.ha.kubernetes.watch import ConfigMapWatcher
from holdfast.ha.leader_election import DefaultLeaderRetrievalService, LeaderRetrievalService
from holdfast.ha.lease import LeaseTiming
from holdfast.ha.options import (
    CLUSTER_ID,
    LEASE_DURATION,
    RENEW_DEADLINE,
    RETRY_PERIOD,
    check_cluster_id,
    cluster_config_map_name,
    config_map_labels,
    job_config_map_name,
)
from holdfast.ha.services import AbstractHaServices, ClientHighAvailabilityServices, do_all, new_lock_identity
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID

_TYPE: Final = "kubernetes"
_CLUSTER_KEY: Final = "cluster"
_PLAN_PREFIX: Final = "executionPlan-"
_CREATE_TRIES: Final = 20
_LONGEST_WATCH: Final = 30.0


class KubernetesLeaderElectionHaServices(AbstractHaServices):
    """High availability over ConfigMaps. Blocks until the API server has answered.

    Args:
        config: The configuration.
        io_executor: Runs clean-up that blocks.
        client: The ConfigMaps; closed with the services. The configured one by default.

    Raises:
        ConfigurationError: An option is missing or wrong, rights are missing, or the cluster id is taken by another
            cluster.
        StorageError: The API server does not answer, or the storage directory cannot be written.
        FormatVersionError: The cluster was made by a newer version.
    """

    RESOURCE_MANAGER = "resourcemanager"
    REST_SERVER = "restserver"

    def __init__(self, config: Configuration, io_executor: Executor, client: KubeClient | None = None) -> None:
        self._cluster_id = check_cluster_id(config.get(CLUSTER_ID))
        self._name = cluster_config_map_name(self._cluster_id)
        timing = LeaseTiming.of(config, LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD)
        # Without `high-availability.cluster-id` the files use the name of the ConfigMaps as well.
        named = config.get(options.HA_CLUSTER_ID) if config.contains(options.HA_CLUSTER_ID) else self._cluster_id
        storage = ClusterStorage(config, named)
        # Two requests must fit into the time that a leader has for renewing its lease.
        self._client = client or KubeClient.from_configuration(config, request_seconds=timing.renew_deadline / 2)
        self._labels = config_map_labels(self._cluster_id)
        try:
            check_access(self._client, self._name)
            storage.open(_TYPE, self._put_if_absent)
        except BaseException:
            self._client.close()
            raise
        self._lock_identity = new_lock_identity()
        watch_seconds = min(_LONGEST_WATCH, 2 * timing.lease_duration)
        self._watcher = ConfigMapWatcher(self._client.connection, self._name, watch_seconds=watch_seconds)
        drivers = KubernetesLeaderElectionDriverFactory(
            self._client, self._watcher, self._template, self._lock_identity, timing
        )
        self._storage = storage
        super().__init__(config, drivers, io_executor, storage.blob_store(), storage.job_result_store(io_executor))

    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        return DefaultLeaderRetrievalService(retrieval_driver_factory(self._watcher, leader_name))

    def create_checkpoint_recovery_factory(self) -> RegisterCheckpointRecoveryFactory:
        return recovery_from_registers(self.configuration, self.register_for)

    def register_for(self, job_id: JobID) -> KubernetesRegister:
        template = KubernetesConfigMap(job_config_map_name(self._cluster_id, job_id), labels=self._labels)
        return KubernetesRegister(self._client, template)

    def create_execution_plan_store(self) -> DefaultExecutionPlanStore:
        store = KubernetesStateHandleStore(
            self._client,
            self._name,
            self._storage.execution_plan_storage(),
            lambda key: key.startswith(_PLAN_PREFIX),
            self._lock_identity,
        )
        return DefaultExecutionPlanStore(
            store,
            name_of=lambda job_id: f"{_PLAN_PREFIX}{job_id}",
            job_id_of=lambda name: JobID.from_hex(name.removeprefix(_PLAN_PREFIX)),
        )

    def internal_close(self) -> None:
        what = f"Could not leave the Kubernetes API server {self._client.connection.server!r}"
        do_all((self._watcher.close, self._client.close), what)

    def internal_cleanup(self) -> None:
        self._storage.clean_up(self._remove_pointers)

    def _remove_pointers(self) -> None:
        """Delete the ConfigMap of the cluster; that of a job is deleted with the job."""
        self._watcher.close()
        self._client.delete_config_map(self._name)

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        self._remove_register(self.register_for(job_id), job_id)

    def _put_if_absent(self, document: bytes) -> bytes:
        """Return the cluster's document in its ConfigMap; write this one, and the ConfigMap, if there is none."""
        text = document.decode()
        for _ in range(_CREATE_TRIES):
            current = self._client.get_config_map(self._name)
            if current is None:
                template = KubernetesConfigMap(self._name, {_CLUSTER_KEY: text}, labels=self._labels)
                try:
                    self._client.create_config_map(template)
                except (AlreadyExistError, PossibleInconsistentStateError):
                    continue  # another process was first, or this request was
            elif _CLUSTER_KEY in current.data:
                # A ConfigMap that is created again must be for the same cluster.
                self._template = KubernetesConfigMap(
                    self._name, {_CLUSTER_KEY: current.data[_CLUSTER_KEY]}, labels=self._labels
                )
                return current.data[_CLUSTER_KEY].encode()
            else:
                self._client.check_and_update_config_map(
                    self._name, lambda map: None if _CLUSTER_KEY in map.data else map.with_entries({_CLUSTER_KEY: text})
                )
        raise StorageError(
            f"ConfigMap {self._name!r} in namespace {self._client.namespace!r} could not be created in {_CREATE_TRIES} "
            "tries: it is deleted again and again, or the API server does not answer."
        )


class KubernetesClientHaServices(ClientHighAvailabilityServices):
    """The services of a client of a cluster over ConfigMaps; they list and watch one of them.

    Raises:
        ConfigurationError: An option is missing or wrong, or rights are missing.
        StorageError: The API server does not answer.
    """

    def __init__(self, configuration: Configuration) -> None:
        name = cluster_config_map_name(check_cluster_id(configuration.get(CLUSTER_ID)))
        self._client = KubeClient.from_configuration(configuration)
        try:
            check_access(self._client, name, verbs=("list", "watch"))
        except BaseException:
            self._client.close()
            raise
        self._watcher = ConfigMapWatcher(self._client.connection, name)

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        rest_server = KubernetesLeaderElectionHaServices.REST_SERVER
        return DefaultLeaderRetrievalService(retrieval_driver_factory(self._watcher, rest_server))

    def close(self) -> None:
        self._watcher.close()
        self._client.close()
