"""The interface of stores that keep small pointers to large state.

The state goes to storage first, then a pointer to it, a few hundred bytes, into a coordination store (ZooKeeper nodes,
a Kubernetes ConfigMap, files, memory). Three rules hold in every implementation:

- Persist before you point; delete the pointer before, or marked before, the state.
- When it is not known whether a pointer was written, nothing is discarded: `PossibleInconsistentStateError`.
- Without leadership every mutator raises `FencedError`.

Deleting has three steps: mark the pointer (readers no longer see it), discard the state, remove the pointer. A crash
between two of them leaves a marked entry, which every reader hides and every deleter, or an add of the same name,
finishes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from holdfast.storage.handle.state_handle import RetrievableStateHandle


class ResourceVersion(ABC):
    """The version of an entry, as an optimistic lock."""

    @abstractmethod
    def is_existing(self) -> bool:
        """Whether the entry exists (and is not marked for deletion)."""


@dataclass(frozen=True, slots=True)
class IntegerResourceVersion(ResourceVersion):
    """A version that counts, as in ZooKeeper; -1 means that the entry does not exist."""

    value: int

    @classmethod
    def not_existing(cls) -> Self:
        """Return the version of what does not exist."""
        return cls(-1)

    @classmethod
    def value_of(cls, value: int) -> Self:
        """Return the version with a number of 0 or more."""
        if value < 0:
            raise ValueError(f"The version of an existing entry is 0 or more, not {value!r}.")
        return cls(value)

    def get_value(self) -> int:
        """Return the number."""
        return self.value

    def is_existing(self) -> bool:
        """Whether the entry exists."""
        return self.value != -1


@dataclass(frozen=True, slots=True)
class StringResourceVersion(ResourceVersion):
    """An opaque version, as in Kubernetes; ``"-1"`` means that the entry does not exist."""

    value: str

    @classmethod
    def not_existing(cls) -> Self:
        """Return the version of what does not exist."""
        return cls("-1")

    @classmethod
    def value_of(cls, value: str) -> Self:
        """Return the version with a text that a store gave."""
        if value == "-1":
            raise ValueError("The version '-1' is kept for what does not exist; use not_existing().")
        return cls(value)

    def get_value(self) -> str:
        """Return the text."""
        return self.value

    def is_existing(self) -> bool:
        """Whether the entry exists."""
        return self.value != "-1"


T = TypeVar("T")
V = TypeVar("V", bound=ResourceVersion)


class StateHandleStore(ABC, Generic[T, V]):
    """Named pointers to state. All methods block; names sort as their numbers do if they are zero-padded."""

    @abstractmethod
    def add_and_lock(self, name: str, state: T) -> RetrievableStateHandle[T]:
        """Store new state, then its pointer, and lock it for this store instance.

        Raises:
            AlreadyExistError: The name exists and is not marked for deletion.
            PossibleInconsistentStateError: It is not known whether the pointer was written; nothing was discarded.
            FencedError: Without leadership; the new state was discarded.
        """

    @abstractmethod
    def replace(self, name: str, expected_version: V, state: T) -> None:
        """Store new state, swap the pointer, then discard the old state.

        Raises:
            NotExistError: There is no such entry; the new state was discarded.
            ConflictError: The entry has another version, in stores that compare it; the new state was discarded.
            PossibleInconsistentStateError: It is not known whether the pointer was swapped; nothing was discarded.
            FencedError: Without leadership; the new state was discarded.
        """

    @abstractmethod
    def exists(self, name: str) -> V:
        """Return the version of an entry; cleans up nothing."""

    @abstractmethod
    def get_and_lock(self, name: str) -> RetrievableStateHandle[T]:
        """Return the handle of an entry and lock it.

        Raises:
            NotExistError: There is no such entry, or it is marked for deletion.
            CorruptFileError: The pointer cannot be read.
        """

    @abstractmethod
    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[T], str]]:
        """Return handle and name of all entries and lock them; skips, and logs, pointers that cannot be read.

        The order is not defined: sort by name.
        """

    @abstractmethod
    def get_all_handles(self) -> list[str]:
        """Return the names of the entries; may contain those marked for deletion."""

    @abstractmethod
    def release_and_try_remove(self, name: str) -> bool:
        """Give up the own lock and, if nobody else has one, delete pointer and state in three steps.

        If discarding the state fails, the error is raised, the entry stays marked, and the call can be repeated.

        Returns:
            Whether the entry is gone, or never was; False if somebody else holds a lock on it.

        Raises:
            FencedError: Without leadership; the own lock may be held still, until it is released.
        """

    @abstractmethod
    def clear_entries(self) -> None:
        """Remove all pointers; the state they point to is kept.

        Raises:
            FencedError: Without leadership.
        """

    @abstractmethod
    def release(self, name: str) -> None:
        """Give up the own lock on an entry; nothing happens where there is none."""

    @abstractmethod
    def release_all(self) -> None:
        """Give up all own locks; tries each, then raises what went wrong."""
