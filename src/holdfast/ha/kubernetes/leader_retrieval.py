"""The Kubernetes driver of leader retrieval: reads a component's entry in the cluster's ConfigMap."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.ha.election.leader_retrieval import (
    LeaderRetrievalDriver,
    LeaderRetrievalDriverFactory,
    LeaderRetrievalEventHandler,
)
from holdfast.ha.kubernetes.config_map import KubernetesConfigMap
from holdfast.ha.kubernetes.leader_election import leader_information_of
from holdfast.ha.kubernetes.watch import ConfigMapHandler, ConfigMapWatcher


class KubernetesLeaderRetrievalDriver(LeaderRetrievalDriver, ConfigMapHandler):
    """Tells about every change of one component's leader; a deleted ConfigMap is the electing side's affair."""

    def __init__(
        self, watcher: ConfigMapWatcher, component_id: str, event_handler: LeaderRetrievalEventHandler
    ) -> None:
        self._component_id = component_id
        self._event_handler = event_handler
        self._told = False
        self._subscription = watcher.subscribe(self)

    def on_config_map(self, config_map: KubernetesConfigMap | None) -> None:
        """Tell the leader that the ConfigMap names; at first only if it names one."""
        if config_map is None:
            return
        information = leader_information_of(config_map).for_component_id_or_empty(self._component_id)
        if information.is_empty and not self._told:
            return
        self._told = True
        self._event_handler.notify_leader_address(information)

    def on_watch_error(self, error: HoldfastError) -> None:
        """Pass the error on."""
        self._event_handler.notify_error(error)

    def close(self) -> None:
        """Stop following."""
        self._subscription.close()


def retrieval_driver_factory(watcher: ConfigMapWatcher, component_id: str) -> LeaderRetrievalDriverFactory:
    """Makes drivers that follow one component."""
    return lambda event_handler: KubernetesLeaderRetrievalDriver(watcher, component_id, event_handler)
