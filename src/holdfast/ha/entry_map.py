"""A state handle store whose pointers are one versioned document, for backends without transactions over several keys.

Deleting has three steps, each of which a crash may cut off::

    [present] --mark--> [marked: hidden] --discard the state--> [marked, no state] --remove the pointer--> [absent]

A later removal, or a later add of the same name, finishes what was begun. There are no locks: with a lock identity only
the leader writes. A leader first raises the map's term, then reads, so that no write that a deposed leader has on its
way can come after what it read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    CorruptFileError,
    FencedError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.ha.leader_election import Leadership
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.storage.state_handle import (
    IntegerResourceVersion,
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
    StateHandleStore,
    decode_pointer,
    encode_pointer,
)
from holdfast.storage.versioned_document import WINDOW, BodyVersion, DocumentFormat, VersionedDocument, body_format

logger = get_logger(__name__)

T = TypeVar("T")
POINTER_LIMIT: Final = 1024
_MARK: Final = "marked_for_deletion"
_ATTEMPTS: Final = 100


def encode_marked(name: str, handle: RetrievableStateHandle[T], *, is_marked: bool) -> bytes:
    """Return the pointer to a state as bytes.

    Raises:
        StorageError: It is too large for a coordination store.
    """
    content = encode_pointer(handle, **{_MARK: is_marked})
    if len(content) > POINTER_LIMIT:
        raise StorageError(
            f"The pointer of {name!r} has {len(content)} bytes, more than {POINTER_LIMIT}: choose a shorter "
            "high-availability.storageDir."
        )
    return content


def decode_marked(
    content: bytes, where: str, storage: RetrievableStateStorageHelper[T]
) -> tuple[RetrievableStateHandle[T], bool]:
    """Return the handle of a pointer and whether it is marked for deletion.

    Raises:
        CorruptFileError: It cannot be read.
        FormatVersionError: It was written by a newer version.
    """
    handle, marks = decode_pointer(content, where, storage)
    return handle, marks.get(_MARK, False)


@dataclass(frozen=True)
class Entry:
    """One pointer.

    Attributes:
        content: The pointer as text.
        version: The version of the map that wrote it.
    """

    content: str
    version: int


@dataclass(frozen=True)
class EntryMap:
    """One version of all pointers of a store. Changes are made on copies, which `successor` makes the next version.

    Attributes:
        number: Counts the writes; 0 if it was never written.
        term: The highest term of a leader that wrote, 0 if no leader has. A write of a deposed leader is refused by the
            same comparison that makes it atomic.
        entries: The pointers by name.
        history: Nonces of this version and of up to 63 before it, newest first.
    """

    number: int = 0
    term: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    history: tuple[str, ...] = field(default=(), repr=False)

    @property
    def nonce(self) -> str:
        return self.history[0] if self.history else ""

    def with_entry(self, name: str, content: str) -> EntryMap:
        return replace(self, entries={**self.entries, name: Entry(content, self.number + 1)})

    def without(self, *names: str) -> EntryMap:
        return replace(self, entries={name: entry for name, entry in self.entries.items() if name not in names})

    def successor(self, term: int = 0) -> EntryMap:
        """Return the next version with these entries, which only leaders of this term and later ones may change."""
        history = (new_nonce(), *self.history[: WINDOW - 1])
        return replace(self, number=self.number + 1, term=max(term, self.term), history=history)


def _encode(version: EntryMap) -> bytes:
    return _BODY.encode(BodyVersion(version.number, version, version.history))


def _decode(data: bytes, where: str, number: int) -> EntryMap:
    version = _BODY.decode(data, where, number)
    return replace(version.body, number=number, history=version.history)


def _to_json(current: EntryMap) -> dict[str, Any]:
    entries = {name: {"content": entry.content, "version": entry.version} for name, entry in current.entries.items()}
    return {"term": current.term, "entries": entries}


def _from_json(body: Mapping[str, Any]) -> EntryMap:
    entries = {
        str(name): Entry(str(entry["content"]), int(entry["version"])) for name, entry in body["entries"].items()
    }
    return EntryMap(term=int(body["term"]), entries=entries)


EMPTY: Final = EntryMap()
_BODY: Final = body_format("state-handle-store", 1, EMPTY, _to_json, _from_json)
ENTRY_MAP_FORMAT: Final = DocumentFormat("state-handle-store", EMPTY, _encode, _decode)


Change = Callable[[EntryMap], EntryMap]


class EntryMapStateHandleStore(StateHandleStore[T, IntegerResourceVersion]):
    """Pointers in one versioned document, state in storage. Blocks.

    Args:
        document: The pointers; stores that are to see each other share its place.
        storage: Where the states are.
        lock_identity: The process that must lead for a change to be allowed; None skips the check.
        leadership: The current leadership; needed with a lock identity.
    """

    def __init__(
        self,
        document: VersionedDocument[EntryMap],
        storage: RetrievableStateStorageHelper[T],
        *,
        lock_identity: str | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        if lock_identity is not None and leadership is None:
            raise ValueError(f"Lock identity {lock_identity!r} cannot be checked without a leadership.")
        self._document = document
        self._storage = storage
        self._lock_identity = lock_identity
        self._leadership = leadership

    def add_and_lock(self, name: str, state: T) -> RetrievableStateHandle[T]:
        base = self._load_for_change()
        if self._is_present(base, name):
            raise AlreadyExistError(f"There is an entry {name!r} in {self} already.")
        if self._decode(base, name) is not None:
            self.release_and_try_remove(name)
        handle, content = self._store(name, state)

        def add(current: EntryMap) -> EntryMap:
            if self._is_present(current, name) or self._decode(current, name) is not None:
                raise AlreadyExistError(f"An entry {name!r} was added to {self} meanwhile.")
            return current.with_entry(name, content)

        self._change_or_discard(add, handle)
        return handle

    def replace(self, name: str, expected_version: IntegerResourceVersion, state: T) -> None:
        self._find_for_replace(self._load_for_change(), name, expected_version)
        handle, content = self._store(name, state)
        old: list[RetrievableStateHandle[T]] = []

        def swap(current: EntryMap) -> EntryMap:
            old[:] = self._find_for_replace(current, name, expected_version)
            return current.with_entry(name, content)

        self._change_or_discard(swap, handle)
        for replaced in old:
            replaced.discard_state()

    def exists(self, name: str) -> IntegerResourceVersion:
        current = self._load_for_read()
        if not self._is_present(current, name):
            return IntegerResourceVersion.not_existing()
        return IntegerResourceVersion.value_of(current.entries[name].version)

    def get_and_lock(self, name: str) -> RetrievableStateHandle[T]:
        current = self._load_for_read()
        found = self._decode_strictly(current, name) if name in current.entries else None
        if found is None or found[1]:
            raise NotExistError(f"There is no entry {name!r} in {self}.")
        return found[0]

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[T], str]]:
        current = self._load_for_read()
        found = ((self._decode(current, name), name) for name in current.entries)
        return [
            (handle_and_mark[0], name) for handle_and_mark, name in found if handle_and_mark and not handle_and_mark[1]
        ]

    def get_all_handles(self) -> list[str]:
        current = self._load_for_read()
        return [name for name in current.entries if self._is_present(current, name)]

    def release_and_try_remove(self, name: str) -> bool:
        marked: list[tuple[RetrievableStateHandle[T], str]] = []

        def mark(current: EntryMap) -> EntryMap:
            marked.clear()
            if name not in current.entries:
                return current
            found = self._decode(current, name)
            if found is None:
                logger.warning("Removing entry %r of %s: it cannot be read, so nothing can recover it.", name, self)
                return current.without(name)
            handle, is_marked = found
            content = (
                current.entries[name].content if is_marked else encode_marked(name, handle, is_marked=True).decode()
            )
            marked.append((handle, content))
            return current if is_marked else current.with_entry(name, content)

        self._change(mark)
        for handle, content in marked:
            handle.discard_state()
            self._change(partial(_without, name=name, content=content))
        return True

    def clear_entries(self) -> None:
        self._change(lambda current: current.without(*current.entries))

    def release(self, name: str) -> None: ...

    def release_all(self) -> None: ...

    # Reading.

    def _load_for_read(self) -> EntryMap:
        """Read the map; the leader raises its term first."""
        if self._lock_identity is None or self._leadership is None:
            return self._document.read()
        term = self._leadership.term_of(self._lock_identity)
        for _ in range(_ATTEMPTS):
            current = self._document.read()
            if term is None or current.term >= term:
                return current
            try:
                self._document.replace(current, current.successor(term))
            except ConflictError:
                continue
        raise ConflictError(f"Could not read {self} in {_ATTEMPTS} attempts, because others kept writing. Try again.")

    def _decode_strictly(self, current: EntryMap, name: str) -> tuple[RetrievableStateHandle[T], bool]:
        return decode_marked(current.entries[name].content.encode(), f"{self}/{name}", self._storage)

    def _decode(self, current: EntryMap, name: str) -> tuple[RetrievableStateHandle[T], bool] | None:
        """Return handle and deletion mark of an entry; None if there is none, or if it is damaged."""
        if name not in current.entries:
            return None
        try:
            return self._decode_strictly(current, name)
        except CorruptFileError as error:
            logger.warning("Skipping an entry that cannot be read: %s", error)
            return None

    def _is_present(self, current: EntryMap, name: str) -> bool:
        found = self._decode(current, name)
        return found is not None and not found[1]

    def _find_for_replace(
        self, current: EntryMap, name: str, expected: IntegerResourceVersion
    ) -> list[RetrievableStateHandle[T]]:
        found = self._decode(current, name)
        if found is not None and found[1]:
            found = None
        if found is None:
            raise NotExistError(f"There is no entry {name!r} in {self} to replace.")
        version = current.entries[name].version
        if version != expected.value:
            raise ConflictError(
                f"Entry {name!r} in {self} has version {version}, not {expected.value}: it was replaced. Read it "
                "again before you replace it."
            )
        return [found[0]]

    # Changing.

    def _load_for_change(self) -> EntryMap:
        if self._lock_identity is not None and self._leadership is not None:
            self._leadership.require_term_of(self._lock_identity)
        return self._document.read()

    def _change(self, change: Change) -> None:
        """Apply a change to the newest version, atomically, if this process leads.

        Raises:
            FencedError: Another process leads; nothing happened.
            PossibleInconsistentStateError: It is not known whether the last attempt happened.
            StorageError: It did not happen.
        """
        for _ in range(_ATTEMPTS):
            term = 0
            if self._lock_identity is not None and self._leadership is not None:
                term = self._leadership.require_term_of(self._lock_identity)
            current = self._document.read()
            if self._lock_identity is not None and current.term > term:
                raise FencedError(
                    f"{self} was taken over by the leader of term {current.term}, and {self._lock_identity!r} has term "
                    f"{term}. Nothing was changed; this process stops."
                )
            new = change(current)
            if new is current:
                return
            try:
                self._document.replace(current, new.successor(term))
                return
            except ConflictError:
                continue
        raise ConflictError(f"Could not change {self} in {_ATTEMPTS} attempts, because others kept writing. Try again.")

    def _store(self, name: str, state: T) -> tuple[RetrievableStateHandle[T], str]:
        handle = self._storage.store(state)
        try:
            return handle, encode_marked(name, handle, is_marked=False).decode()
        except HoldfastError:
            handle.discard_state()
            raise

    def _change_or_discard(self, change: Change, handle: RetrievableStateHandle[T]) -> None:
        """Write the pointer to a new state; discard the state if the pointer was certainly not written."""
        try:
            self._change(change)
        except PossibleInconsistentStateError:
            raise
        except HoldfastError as error:
            try:
                handle.discard_state()
            except HoldfastError as second:
                error.add_note(f"Its state could not be discarded either: {second}")
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._document})"


def _without(current: EntryMap, name: str, content: str) -> EntryMap:
    """Remove an entry if it is unchanged: another process may have finished the removal and added the name again."""
    entry = current.entries.get(name)
    return current.without(name) if entry is not None and entry.content == content else current
