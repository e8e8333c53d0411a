"""Services over ZooKeeper.

::

    <path.root>/<cluster id>
        /cluster                        which cluster this is
        /leader/latch                   who leads
        /leader/<component>/connection_info
        /execution-plans/<job id>       pointers to submitted plans
        /jobs/<job id>/register         the job's fenced register

State goes to ``high-availability.storageDir``; see ``holdfast.ha.cluster_storage``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError

from holdfast.errors import ConfigurationError
from holdfast.ha import options
from holdfast.ha.checkpoint_recovery import RegisterCheckpointRecoveryFactory, recovery_from_registers
from holdfast.ha.cluster_storage import ClusterStorage, cluster_path
from holdfast.ha.execution_plan_store import DefaultExecutionPlanStore, NamesWatcher
from holdfast.ha.leader_election import DefaultLeaderRetrievalService, LeaderRetrievalService
from holdfast.ha.services import AbstractHaServices, ClientHighAvailabilityServices, new_lock_identity
from holdfast.ha.zookeeper.connection import ZooKeeperConnection
from holdfast.ha.zookeeper.document import ZooKeeperRegister
from holdfast.ha.zookeeper.leader_election import (
    LatchNodes,
    LeaderTree,
    ZooKeeperLeaderElectionDriverFactory,
    ZooKeeperLeaderRetrievalDriver,
)
from holdfast.ha.zookeeper.state_handle_store import ZooKeeperStateHandleStore
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID

_TYPE: Final = "zookeeper"


def namespace_of(configuration: Configuration) -> str:
    """Return the node of the configured cluster.

    Raises:
        ConfigurationError: The root or the cluster id cannot be nodes.
    """
    root = configuration.get(options.HA_ZOOKEEPER_ROOT)
    parts = [part for part in root.split("/") if part]
    if parts[:1] == ["zookeeper"] or "." in parts or ".." in parts:
        raise ConfigurationError(f"Option {options.HA_ZOOKEEPER_ROOT.key!r}: {root!r} cannot be the node of a cluster.")
    cluster = cluster_path(configuration.get(options.HA_CLUSTER_ID))
    plans = configuration.get(options.HA_ZOOKEEPER_EXECUTION_PLANS_PATH).strip("/").partition("/")[0]
    if plans in ("jobs", "leader", "cluster") or plans in cluster.split("/")[1:]:
        raise ConfigurationError(
            f"Option {options.HA_ZOOKEEPER_EXECUTION_PLANS_PATH.key!r}: {plans!r} is used for other data of the "
            "cluster, or could be another cluster. Choose another node."
        )
    namespace = "/" + "/".join([*parts, cluster])
    if namespace.startswith("/zookeeper/") or namespace == "/zookeeper":
        raise ConfigurationError(f"The node {namespace!r} is reserved by ZooKeeper; choose another cluster id.")
    return namespace


class ZooKeeperLeaderElectionHaServices(AbstractHaServices):
    """High availability over ZooKeeper. Blocks until it is connected.

    Args:
        config: The configuration.
        io_executor: Runs clean-up that blocks.
        connection: A started connection of this process; it is closed with the services. The configured one by default.

    Raises:
        ConfigurationError: An option is missing or wrong, or the cluster id is taken by another cluster.
        StorageError: ZooKeeper does not answer, or the storage directory cannot be written.
    """

    def __init__(
        self, config: Configuration, io_executor: Executor, connection: ZooKeeperConnection | None = None
    ) -> None:
        self._namespace = namespace_of(config)
        storage = ClusterStorage(config)
        self._connection = connection or ZooKeeperConnection.from_configuration(config)
        if connection is None:
            self._connection.start()
        try:
            storage.open(_TYPE, self._put_if_absent)
        except BaseException:
            self._connection.close()
            raise
        self._client = self._connection.client
        self._tolerates_suspension = config.get(options.ZOOKEEPER_TOLERATE_SUSPENDED_CONNECTIONS)
        self._tree = LeaderTree(self._connection, f"{self._namespace}/leader")
        self._lock_identity = new_lock_identity()
        drivers = ZooKeeperLeaderElectionDriverFactory(
            self._connection, self._tree, self._lock_identity, self._tolerates_suspension
        )
        self._storage = storage
        super().__init__(config, drivers, io_executor, storage.blob_store(), storage.job_result_store(io_executor))

    def create_leader_retrieval_service(self, leader_name: str) -> LeaderRetrievalService:
        return _retrieval(self._connection, self._tree, leader_name, self._tolerates_suspension)

    def create_checkpoint_recovery_factory(self) -> RegisterCheckpointRecoveryFactory:
        return recovery_from_registers(self.configuration, self.register_for)

    def register_for(self, job_id: JobID) -> ZooKeeperRegister:
        return ZooKeeperRegister(self._connection, f"{self._job_path(job_id)}/register")

    def create_execution_plan_store(self) -> DefaultExecutionPlanStore:
        path = self._namespace + _absolute(self.configuration.get(options.HA_ZOOKEEPER_EXECUTION_PLANS_PATH))
        self._connection.ensure_path(path)
        store = ZooKeeperStateHandleStore(
            self._connection,
            path,
            self._storage.execution_plan_storage(),
            lock_identity=self._lock_identity,
            latch=LatchNodes(self._connection, self._tree.latch_path),
        )
        connection = self._connection.without_retries()

        def names(wake: Callable[[], None]) -> list[str]:
            def changed(event: Any) -> None:
                wake()

            found: list[str] = connection.read(lambda: connection.client.get_children_async(path, changed))
            return found

        return DefaultExecutionPlanStore(store, NamesWatcher(names, None))

    def internal_close(self) -> None:
        self._connection.close()

    def internal_cleanup(self) -> None:
        self._storage.clean_up(self._remove_pointers)

    def _remove_pointers(self) -> None:
        """Delete the cluster's nodes, and those above them that are empty."""
        # By name, because the node of a cluster "a/b" is below that of a cluster "a".
        plans = self.configuration.get(options.HA_ZOOKEEPER_EXECUTION_PLANS_PATH)
        for child in (plans, "jobs", "leader", "cluster"):
            self._delete_tree(self._namespace + _absolute(child))
        path = self._namespace
        while path and self._delete_empty(path):
            path = path.rpartition("/")[0]

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        self._remove_register(self.register_for(job_id), job_id)
        self._delete_empty(self._job_path(job_id))

    def _job_path(self, job_id: JobID) -> str:
        return f"{self._namespace}/jobs/{job_id}"

    def _delete_empty(self, path: str) -> bool:
        """Delete a node without children; return whether it is gone."""
        try:
            self._connection.read(partial(self._client.delete_async, path))
        except NoNodeError:
            pass
        except NotEmptyError:
            return False
        return True

    def _delete_tree(self, path: str) -> None:
        """Delete a node and everything below it; again if a child was added meanwhile."""
        while True:
            try:
                for child in self._connection.read(partial(self._connection.client.get_children_async, path)):
                    self._delete_tree(f"{path}/{child}")
                self._connection.read(partial(self._connection.client.delete_async, path))
                return
            except NoNodeError:
                return
            except NotEmptyError:
                continue

    def _put_if_absent(self, document: bytes) -> bytes:
        client, path = self._connection.client, f"{self._namespace}/cluster"
        self._connection.ensure_path(self._namespace)
        # It exists if another process was first, or an earlier attempt of this one.
        with suppress(NodeExistsError):
            self._connection.read(lambda: client.create_async(path, document))
        self._connection.sync(path)
        found: bytes = self._connection.read(lambda: client.get_async(path))[0]
        return found


class ZooKeeperClientHaServices(ClientHighAvailabilityServices):
    """The services of a client of a cluster over ZooKeeper. Blocks until it is connected."""

    def __init__(self, configuration: Configuration) -> None:
        self._connection = ZooKeeperConnection.from_configuration(configuration)
        self._tree = LeaderTree(self._connection, f"{namespace_of(configuration)}/leader")
        self._tolerates_suspension = configuration.get(options.ZOOKEEPER_TOLERATE_SUSPENDED_CONNECTIONS)
        self._connection.start()

    def get_cluster_rest_endpoint_leader_retriever(self) -> LeaderRetrievalService:
        rest_server = ZooKeeperLeaderElectionHaServices.REST_SERVER
        return _retrieval(self._connection, self._tree, rest_server, self._tolerates_suspension)

    def close(self) -> None:
        self._connection.close()


def _retrieval(
    connection: ZooKeeperConnection, tree: LeaderTree, leader_name: str, tolerates_suspension: bool
) -> LeaderRetrievalService:
    return DefaultLeaderRetrievalService(
        partial(ZooKeeperLeaderRetrievalDriver, connection, tree, leader_name, tolerates_suspension)
    )


def _absolute(path: str) -> str:
    return "/" + path.strip("/")
