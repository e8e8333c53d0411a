"""High availability over ZooKeeper; the only package that imports kazoo."""

from __future__ import annotations

from holdfast.ha.zookeeper.connection import ZooKeeperConnection
from holdfast.ha.zookeeper.election import ZooKeeperLeaderElectionDriver, ZooKeeperLeaderElectionDriverFactory
from holdfast.ha.zookeeper.register import ZooKeeperRegister
from holdfast.ha.zookeeper.retrieval import ZooKeeperLeaderRetrievalDriver
from holdfast.ha.zookeeper.services import ZooKeeperClientHaServices, ZooKeeperLeaderElectionHaServices
from holdfast.ha.zookeeper.store import ZooKeeperStateHandleStore
from holdfast.storage.handle.state_handle_store import IntegerResourceVersion

__all__ = [
    "IntegerResourceVersion",
    "ZooKeeperClientHaServices",
    "ZooKeeperConnection",
    "ZooKeeperLeaderElectionDriver",
    "ZooKeeperLeaderElectionDriverFactory",
    "ZooKeeperLeaderElectionHaServices",
    "ZooKeeperLeaderRetrievalDriver",
    "ZooKeeperRegister",
    "ZooKeeperStateHandleStore",
]
