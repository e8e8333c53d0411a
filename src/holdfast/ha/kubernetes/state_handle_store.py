"""A state handle store in a ConfigMap, which others may share: only the keys that pass a filter belong to it.

Every change is one transaction that reads the ConfigMap, checks in it that this process leads, and writes under the
version that was read. A new leader changes that version, so no write that a deposed leader has on its way can come
after that. Deleting has three steps; a crash may happen between any two::

    [present] --mark--> [marked: hidden] --discard the state--> [marked, no state] --remove the key--> [absent]

A later removal, add or replacement of the same key finishes what was begun. There are no locks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.errors import (
    AlreadyExistError,
    CorruptFileError,
    FencedError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
)
from holdfast.ha.entry_map import decode_marked, encode_marked
from holdfast.ha.kubernetes.client import KubeClient
from holdfast.ha.kubernetes.config_map import KubernetesConfigMap
from holdfast.kernel.secret import get_logger
from holdfast.storage.state_handle import (
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
    StateHandleStore,
    StringResourceVersion,
)

logger = get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class _Found(Generic[T]):
    handle: RetrievableStateHandle[T]
    marked: bool


class KubernetesStateHandleStore(StateHandleStore[T, StringResourceVersion]):
    """Pointers in a ConfigMap, state in storage. All methods block.

    Args:
        kube_client: The ConfigMaps.
        config_map_name: The ConfigMap; it must exist.
        storage: The storage of the states.
        config_map_key_filter: Returns whether a key belongs to this store.
        lock_identity: The process that must hold the ConfigMap's lease for a change; None skips the check.
    """

    def __init__(
        self,
        kube_client: KubeClient,
        config_map_name: str,
        storage: RetrievableStateStorageHelper[T],
        config_map_key_filter: Callable[[str], bool],
        lock_identity: str | None = None,
    ) -> None:
        self._client = kube_client
        self._name = config_map_name
        self._storage = storage
        self._filter = config_map_key_filter
        self._lock_identity = lock_identity

    def add_and_lock(self, name: str, state: T) -> RetrievableStateHandle[T]:
        """Store the state, then its pointer; a half-deleted entry of this name is removed before."""
        found = self._find_for_change(name)
        if found is not None and not found.marked:
            raise self._already_exists_error(name)
        if found is not None:
            self.release_and_try_remove(name)
        handle, content = self._store(name, state)

        def add(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            if current.data.get(name) == content:
                return None  # an earlier try of this transaction, whose answer got lost
            self._require_leadership(current)
            if self._find(current, name, "add") is not None:
                raise self._already_exists_error(name)
            return current.with_entries({name: content})

        self._update_or_discard(add, handle)
        return handle

    def replace(self, name: str, expected_version: StringResourceVersion, state: T) -> None:
        """Store the new state, swap the pointer, discard the old state.

        The version is not compared: it is that of the whole ConfigMap, which changes with every renewal of the lease.
        Instead, the same transaction checks that the entry exists and that this process leads.
        """
        self._require_replaceable(name, self._find_for_change(name))
        handle, content = self._store(name, state)
        replaced: list[RetrievableStateHandle[T]] = []

        def swap(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            if current.data.get(name) == content:
                return None  # an earlier try of this transaction, which also knows what it replaced
            self._require_leadership(current)
            if name not in current.data:
                raise self._no_entry_error(name)
            found = self._find(current, name, "replace")
            if found is not None and found.marked:
                raise self._no_entry_error(name)
            replaced[:] = [found.handle] if found is not None else []
            return current.with_entries({name: content})

        self._update_or_discard(swap, handle)
        for old in replaced:
            old.discard_state()

    def exists(self, name: str) -> StringResourceVersion:
        """Return the version of the whole ConfigMap if the entry exists."""
        current = self._read()
        found = self._find(current, name)
        if found is None or found.marked:
            return StringResourceVersion.not_existing()
        return StringResourceVersion.value_of(str(current.resource_version))

    def get_and_lock(self, name: str) -> RetrievableStateHandle[T]:
        current = self._read()
        if name not in current.data:
            raise self._no_entry_error(name)
        found = self._decode(current, name)
        if found.marked:
            raise self._no_entry_error(name)
        return found.handle

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[T], str]]:
        """Return handle and name of all entries that can be read; none if there is no ConfigMap."""
        current = self._client.get_config_map(self._name)
        if current is None:
            return []
        found = [(self._find(current, name), name) for name in current.data if self._filter(name)]
        return [(entry.handle, name) for entry, name in found if entry is not None and not entry.marked]

    def get_all_handles(self) -> list[str]:
        current = self._read()
        names = [name for name in current.data if self._filter(name)]
        found = [(self._find(current, name), name) for name in names]
        return [name for entry, name in found if entry is not None and not entry.marked]

    def release_and_try_remove(self, name: str) -> bool:
        """Mark the entry, discard its state, remove its key; always True, because there are no locks."""
        marked: list[tuple[RetrievableStateHandle[T], str]] = []

        def mark(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            marked.clear()
            self._require_leadership(current)
            if name not in current.data:
                return None
            found = self._find(current, name, "remove")
            if found is None:
                return current.without(name)
            content = current.data[name] if found.marked else self._encode(name, found.handle, marked=True)
            marked.append((found.handle, content))
            return None if found.marked else current.with_entries({name: content})

        self._client.check_and_update_config_map(self._name, mark)
        for handle, content in marked:
            handle.discard_state()
            self._remove_marked(name, content)
        return True

    def _remove_marked(self, name: str, content: str) -> None:
        def remove(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            if current.data.get(name) != content:
                return None  # another process finished the removal, and may have added the name again
            self._require_leadership(current)
            return current.without(name)

        self._client.check_and_update_config_map(self._name, remove)

    def clear_entries(self) -> None:
        def clear(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            self._require_leadership(current)
            names = [name for name in current.data if self._filter(name)]
            return current.without(*names) if names else None

        self._client.check_and_update_config_map(self._name, clear)

    def release(self, name: str) -> None: ...

    def release_all(self) -> None: ...

    # Reading.

    def _read(self) -> KubernetesConfigMap:
        current = self._client.get_config_map(self._name)
        if current is None:
            raise self._client.missing(self._name)
        return current

    def _decode(self, current: KubernetesConfigMap, name: str) -> _Found[T]:
        return _Found(*decode_marked(current.data[name].encode(), f"{self._name}/{name}", self._storage))

    def _find(self, current: KubernetesConfigMap, name: str, purpose: str = "") -> _Found[T] | None:
        """Return an entry; None if there is none, or if its pointer is damaged, so that it cannot be recovered."""
        if name not in current.data:
            return None
        try:
            return self._decode(current, name)
        except CorruptFileError as error:
            if purpose:
                logger.warning("Removing the entry %r as it cannot be recovered (to %s it): %s", name, purpose, error)
            else:
                logger.warning("Skipping an entry that cannot be read: %s", error)
            return None

    # Changing.

    def _require_leadership(self, current: KubernetesConfigMap) -> None:
        if self._lock_identity is not None and not current.is_led_by(self._lock_identity):
            raise FencedError(
                f"{self._lock_identity!r} does not hold the lease of ConfigMap {self._name!r} any more, so it may not "
                "change anything. This process stops; the leader continues."
            )

    def _find_for_change(self, name: str) -> _Found[T] | None:
        """Return the entry before anything is stored; the transaction checks it again."""
        current = self._read()
        self._require_leadership(current)
        return self._find(current, name)

    def _require_replaceable(self, name: str, found: _Found[T] | None) -> None:
        if found is None or not found.marked:
            return
        error = self._no_entry_error(name)
        try:
            self.release_and_try_remove(name)
        except HoldfastError as second:
            error.add_note(f"Its half-finished removal could not be finished either: {second}")
        raise error

    def _store(self, name: str, state: T) -> tuple[RetrievableStateHandle[T], str]:
        handle = self._storage.store(state)
        try:
            return handle, self._encode(name, handle, marked=False)
        except HoldfastError as error:
            self._discard(handle, error)
            raise

    @staticmethod
    def _encode(name: str, handle: RetrievableStateHandle[T], *, marked: bool) -> str:
        return encode_marked(name, handle, is_marked=marked).decode()

    def _update_or_discard(
        self, change: Callable[[KubernetesConfigMap], KubernetesConfigMap | None], handle: RetrievableStateHandle[T]
    ) -> None:
        """Write the pointer to a new state; discard the state if the pointer was certainly not written."""
        try:
            self._client.check_and_update_config_map(self._name, change)
        except PossibleInconsistentStateError:
            raise
        except HoldfastError as error:
            self._discard(handle, error)
            raise

    @staticmethod
    def _discard(handle: RetrievableStateHandle[T], error: HoldfastError) -> None:
        try:
            handle.discard_state()
        except HoldfastError as second:
            error.add_note(f"Its state could not be discarded either: {second}")

    def _already_exists_error(self, name: str) -> AlreadyExistError:
        return AlreadyExistError(f"{name!r} already exists in ConfigMap {self._name!r}.")

    def _no_entry_error(self, name: str) -> NotExistError:
        return NotExistError(f"There is no entry {name!r} in ConfigMap {self._name!r}.")

    def __repr__(self) -> str:
        return f"KubernetesStateHandleStore({self._name!r})"
