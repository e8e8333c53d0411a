"""A store of keyed state whose states are all found in one way, whatever their kind."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from holdfast.state.declaration.api import KeyedStateStore


class DescribedStates(KeyedStateStore):
    """Gives out handles by their descriptors alone."""

    @abstractmethod
    def _state(self, descriptor: Any) -> Any:
        """Return the handle of the state that a descriptor describes."""

    def get_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_list_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_map_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_reducing_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_aggregating_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_folding_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)
