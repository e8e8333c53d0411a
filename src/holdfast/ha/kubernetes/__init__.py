"""High availability on Kubernetes: the lease, the addresses, the plans and each job's register are in ConfigMaps."""

from holdfast.ha.kubernetes.client import FlinkKubeClient, KubeClient
from holdfast.ha.kubernetes.config_map import LEADER_ANNOTATION, KubernetesConfigMap
from holdfast.ha.kubernetes.leader_election import (
    KubernetesLeaderElectionDriver,
    KubernetesLeaderElectionDriverFactory,
)
from holdfast.ha.kubernetes.leader_retrieval import KubernetesLeaderRetrievalDriver
from holdfast.ha.kubernetes.lease_machine import LeaseTimes
from holdfast.ha.kubernetes.register import KubernetesRegister
from holdfast.ha.kubernetes.state_handle_store import KubernetesStateHandleStore
from holdfast.storage.handle import RetrievableStateHandle, RetrievableStateStorageHelper
from holdfast.storage.state_handle_store import StringResourceVersion

__all__ = [
    "LEADER_ANNOTATION",
    "FlinkKubeClient",
    "KubeClient",
    "KubernetesConfigMap",
    "KubernetesLeaderElectionDriver",
    "KubernetesLeaderElectionDriverFactory",
    "KubernetesLeaderRetrievalDriver",
    "KubernetesRegister",
    "KubernetesStateHandleStore",
    "LeaseTimes",
    "RetrievableStateHandle",
    "RetrievableStateStorageHelper",
    "StringResourceVersion",
]
