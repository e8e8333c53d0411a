"""Test tools for programs, backends and sinks of Holdfast: a harness, contract suites, and servers.

Each name is imported when it is first used, so that a test of a function does not need kazoo or moto.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.kernel.clock import ManualClock
    from holdfast.testing.epoch_runner import EpochProgram
    from holdfast.testing.kubernetes.api_server import KubernetesApiServer
    from holdfast.testing.leader_election_contract import LeaderElectionContract
    from holdfast.testing.operator_harness import HarnessSnapshot, OperatorHarness
    from holdfast.testing.server.kafka import KafkaCluster, KafkaServer
    from holdfast.testing.server.s3_server import S3Server
    from holdfast.testing.server.tcp_proxy import TcpProxy
    from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
    from holdfast.testing.sink_contract import SinkBackend, SinkContract
    from holdfast.testing.state_contract.state_backend_contract import StateBackendContract
    from holdfast.testing.state_handle_store_contract import StateHandleStoreContract

_MODULES = {
    "EpochProgram": "holdfast.testing.epoch_runner",
    "HarnessSnapshot": "holdfast.testing.operator_harness",
    "KafkaCluster": "holdfast.testing.server.kafka",
    "KafkaServer": "holdfast.testing.server.kafka",
    "KubernetesApiServer": "holdfast.testing.kubernetes.api_server",
    "LeaderElectionContract": "holdfast.testing.leader_election_contract",
    "ManualClock": "holdfast.kernel.clock",
    "OperatorHarness": "holdfast.testing.operator_harness",
    "S3Server": "holdfast.testing.server.s3_server",
    "SinkBackend": "holdfast.testing.sink_contract",
    "SinkContract": "holdfast.testing.sink_contract",
    "StateBackendContract": "holdfast.testing.state_contract.state_backend_contract",
    "StateHandleStoreContract": "holdfast.testing.state_handle_store_contract",
    "TcpProxy": "holdfast.testing.server.tcp_proxy",
    "ZooKeeperEnsemble": "holdfast.testing.server.zookeeper",
    "ZooKeeperServer": "holdfast.testing.server.zookeeper",
}

__all__ = [
    "EpochProgram",
    "HarnessSnapshot",
    "KafkaCluster",
    "KafkaServer",
    "KubernetesApiServer",
    "LeaderElectionContract",
    "ManualClock",
    "OperatorHarness",
    "S3Server",
    "SinkBackend",
    "SinkContract",
    "StateBackendContract",
    "StateHandleStoreContract",
    "TcpProxy",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
