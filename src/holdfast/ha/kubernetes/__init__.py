"""High availability on Kubernetes: the lease, the addresses, the plans and each job's register are in ConfigMaps.

The names of this package are loaded when they are first used, so that its options are known also where the
Kubernetes client is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.storage.state_handle import RetrievableStateHandle, RetrievableStateStorageHelper, StringResourceVersion

if TYPE_CHECKING:
    from holdfast.ha.kubernetes.client import FlinkKubeClient, KubeClient
    from holdfast.ha.kubernetes.config_map import LEADER_ANNOTATION, KubernetesConfigMap
    from holdfast.ha.kubernetes.document import KubernetesRegister
    from holdfast.ha.kubernetes.leader_election import (
        KubernetesLeaderElectionDriver,
        KubernetesLeaderElectionDriverFactory,
        KubernetesLeaderRetrievalDriver,
    )
    from holdfast.ha.kubernetes.services import KubernetesClientHaServices, KubernetesLeaderElectionHaServices
    from holdfast.ha.kubernetes.state_handle_store import KubernetesStateHandleStore

_MODULES = {
    "LEADER_ANNOTATION": "config_map",
    "FlinkKubeClient": "client",
    "KubeClient": "client",
    "KubernetesClientHaServices": "services",
    "KubernetesConfigMap": "config_map",
    "KubernetesLeaderElectionDriver": "leader_election",
    "KubernetesLeaderElectionDriverFactory": "leader_election",
    "KubernetesLeaderElectionHaServices": "services",
    "KubernetesLeaderRetrievalDriver": "leader_election",
    "KubernetesRegister": "document",
    "KubernetesStateHandleStore": "state_handle_store",
}

__all__ = [
    "LEADER_ANNOTATION",
    "FlinkKubeClient",
    "KubeClient",
    "KubernetesClientHaServices",
    "KubernetesConfigMap",
    "KubernetesLeaderElectionDriver",
    "KubernetesLeaderElectionDriverFactory",
    "KubernetesLeaderElectionHaServices",
    "KubernetesLeaderRetrievalDriver",
    "KubernetesRegister",
    "KubernetesStateHandleStore",
    "RetrievableStateHandle",
    "RetrievableStateStorageHelper",
    "StringResourceVersion",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        raise ConfigurationError(
            f"High availability on Kubernetes needs the package {error.name!r}: pip install 'holdfast[kubernetes]'."
        ) from error
