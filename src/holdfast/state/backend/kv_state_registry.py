"""Where a task says which of its states can be queried."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.kernel.key_group import KeyGroupRange


class TaskKvStateRegistry(ABC):
    """Told which queryable states a task has."""

    @abstractmethod
    def register_kv_state(self, key_group_range: KeyGroupRange, registration_name: str, state_name: str) -> None:
        """A state can be queried under a name, for these key groups."""

    @abstractmethod
    def unregister_all(self) -> None:
        """The task has ended."""
