"""A user-defined state backend, loaded by its class path: it reads everything at once and caches nothing."""

from collections.abc import Mapping
from typing import Any

from holdfast.kernel.configuration import Configuration
from holdfast.state import AbstractKeyedStateBackend, StateBackend, StateBackendFactory
from holdfast.state.hashmap.backend import HashMapKeyedStateBackend


class PlainKeyedStateBackend(HashMapKeyedStateBackend):
    """Loads a state as a whole when it is asked for, and nothing survives the task."""

    def get_partitioned_state(self, namespace: Any, namespace_serializer: Any, state_descriptor: Any) -> Any:
        known = state_descriptor.name in self._handles
        handle = super().get_partitioned_state(namespace, namespace_serializer, state_descriptor)
        if not known:
            self._load_everything(state_descriptor.name)
        return handle

    def commit_cache(self) -> None:
        self.dispose()


class PlainStateBackend(StateBackend):
    def create_keyed_state_backend(self, env: Any, job_id: Any, *rest: Any, **more: Any) -> AbstractKeyedStateBackend:
        return PlainKeyedStateBackend(env, job_id, *rest, **more)


class PlainStateBackendFactory(StateBackendFactory[PlainStateBackend]):
    def create_from_config(self, config: Configuration) -> PlainStateBackend:
        return PlainStateBackend()


class FailingFactory(StateBackendFactory[PlainStateBackend]):
    def create_from_config(self, config: Configuration) -> PlainStateBackend:
        raise ValueError("no such option")


class OddFactory(StateBackendFactory[Any]):
    def create_from_config(self, config: Configuration) -> Any:
        return Mapping
