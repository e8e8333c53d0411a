"""Test tools that ship with Holdfast; they may import anything, and nothing imports them.

Each name is imported when it is first used, so that a test of a function does not need kazoo, and so on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.kernel.clock import ManualClock
    from holdfast.testing.contract.leader_election_contract import LeaderElectionContract
    from holdfast.testing.contract.sink_contract import SinkContract
    from holdfast.testing.contract.state_backend_contract import StateBackendContract
    from holdfast.testing.contract.state_handle_store_contract import StateHandleStoreContract
    from holdfast.testing.epoch.epoch_program import EpochProgram
    from holdfast.testing.harness.harness_output import HarnessSnapshot
    from holdfast.testing.harness.operator_harness import OperatorHarness
    from holdfast.testing.kubernetes.api_server import KubernetesApiServer
    from holdfast.testing.server.kafka import KafkaCluster, KafkaServer
    from holdfast.testing.server.s3_server import S3Server
    from holdfast.testing.server.tcp_proxy import TcpProxy
    from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
    from holdfast.testing.sink_contract.sink_backend import SinkBackend

_MODULES = {
    "EpochProgram": "holdfast.testing.epoch.epoch_program",
    "HarnessSnapshot": "holdfast.testing.harness.harness_output",
    "KafkaCluster": "holdfast.testing.server.kafka",
    "KafkaServer": "holdfast.testing.server.kafka",
    "KubernetesApiServer": "holdfast.testing.kubernetes.api_server",
    "LeaderElectionContract": "holdfast.testing.contract.leader_election_contract",
    "ManualClock": "holdfast.kernel.clock",
    "OperatorHarness": "holdfast.testing.harness.operator_harness",
    "S3Server": "holdfast.testing.server.s3_server",
    "SinkBackend": "holdfast.testing.sink_contract.sink_backend",
    "SinkContract": "holdfast.testing.contract.sink_contract",
    "StateBackendContract": "holdfast.testing.contract.state_backend_contract",
    "StateHandleStoreContract": "holdfast.testing.contract.state_handle_store_contract",
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
    """Import a tool when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
