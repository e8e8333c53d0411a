"""High availability over ZooKeeper; the only package that imports kazoo."""

from __future__ import annotations

from holdfast.ha.zookeeper.connection import ZooKeeperConnection
from holdfast.ha.zookeeper.document import ZooKeeperRegister
from holdfast.ha.zookeeper.leader_election import (
    ZooKeeperLeaderElectionDriver,
    ZooKeeperLeaderElectionDriverFactory,
    ZooKeeperLeaderRetrievalDriver,
)
from holdfast.ha.zookeeper.services import ZooKeeperClientHaServices, ZooKeeperLeaderElectionHaServices
from holdfast.ha.zookeeper.state_handle_store import ZooKeeperStateHandleStore
from holdfast.storage.state_handle import IntegerResourceVersion

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
