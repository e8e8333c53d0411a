"""The state handle store in ZooKeeper nodes.

::

    <namespace>/<name>                 persistent; data: the pointer
    <namespace>/<name>/locks           persistent; without it the entry is marked for deletion
    <namespace>/<name>/locks/<uuid>    ephemeral; one a store instance that uses the entry

An entry is removed in three steps: delete ``locks`` (which ZooKeeper refuses while a lock is there), discard the state,
delete the node. Every change is one transaction that begins with a check of the leader's latch node, so that a deposed
leader's change is refused by ZooKeeper itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import ZnodeStat

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    CorruptFileError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
)
from holdfast.ha.entry_map import decode_marked, encode_marked
from holdfast.ha.zookeeper.connection import TransactionRefusedError, ZooKeeperConnection, storage_error
from holdfast.ha.zookeeper.leader_election import LatchNodes, fenced_error
from holdfast.kernel.secret import get_logger
from holdfast.storage.state_handle import (
    IntegerResourceVersion,
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
    StateHandleStore,
)

logger = get_logger(__name__)
T = TypeVar("T")
Fill = Callable[[TransactionRequest], None]
_ATTEMPTS: Final = 100


class ZooKeeperStateHandleStore(StateHandleStore[T, IntegerResourceVersion]):
    """Pointers in the children of one node, state in storage. All methods block.

    Args:
        connection: The connection of this process; its session holds the locks.
        namespace: The node; it is made when first needed.
        storage: The storage of the states.
        lock_identity: The process that must lead for a change to be allowed; None skips the check.
        latch: The current leadership; needed with a lock identity.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        namespace: str,
        storage: RetrievableStateStorageHelper[T],
        *,
        lock_identity: str | None = None,
        latch: LatchNodes | None = None,
    ) -> None:
        if lock_identity is not None and latch is None:
            raise ValueError(f"Lock identity {lock_identity!r} cannot be checked without a latch.")
        self._connection = connection
        self._client = connection.client
        self.namespace: Final = namespace
        self._storage = storage
        self._lock_identity = lock_identity
        self._latch = latch
        self._lock_name = str(uuid.uuid4())
        self._ensured = False

    def add_and_lock(self, name: str, state: T) -> RetrievableStateHandle[T]:
        self._check_leadership()
        self._ensure_namespace()
        stat = self._stat(name)
        if stat is not None and stat.numChildren > 0:
            raise AlreadyExistError(f"ZooKeeper node {self._path(name)!r} exists already.")
        if stat is not None and not self.release_and_try_remove(name):
            raise ConflictError(
                f"ZooKeeper node {self._path(name)!r} is marked for deletion, and another process has locked it."
            )
        handle = self._storage.store(state)
        try:
            self._add(name, encode_marked(name, handle, is_marked=False))
        except PossibleInconsistentStateError:
            raise
        except HoldfastError as error:
            _discard(handle, error)
            raise
        return handle

    def replace(self, name: str, expected_version: IntegerResourceVersion, state: T) -> None:
        """Store the new state, swap the node's data, discard the old state.

        Raises:
            RuntimeError: This instance holds no lock on the entry.
        """
        self._check_leadership()
        stat = self._stat(name)
        if stat is None or stat.numChildren == 0:
            raise self._not_existing(name)
        if not self._exists(self._lock_path(name)):
            raise RuntimeError(
                f"ZooKeeper node {self._path(name)!r} must be locked by this store before it is replaced."
            )
        old = self._find(name)
        handle = self._storage.store(state)
        try:
            self._swap(name, expected_version, encode_marked(name, handle, is_marked=False))
        except PossibleInconsistentStateError:
            raise
        except HoldfastError as error:
            _discard(handle, error)
            raise
        if old is not None:
            old.discard_state()

    def exists(self, name: str) -> IntegerResourceVersion:
        self._connection.sync(self.namespace)
        stat = self._stat(name)
        if stat is None or stat.numChildren == 0:
            return IntegerResourceVersion.not_existing()
        return IntegerResourceVersion.value_of(stat.version)

    def get_and_lock(self, name: str) -> RetrievableStateHandle[T]:
        """Lock the entry, then read it; the lock is released if the entry cannot be read."""
        self._connection.sync(self.namespace)
        try:
            self._connection.read(lambda: self._client.create_async(self._lock_path(name), b"", ephemeral=True))
        except NodeExistsError:
            pass  # locked before by this instance
        except NoNodeError as error:
            raise self._not_existing(name) from error
        try:
            return self._read(name)[0]
        except NoNodeError as error:
            raise self._not_existing(name) from error
        except HoldfastError:
            self.release(name)
            raise

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[T], str]]:
        """Lock and read all entries; repeats until no entry was added or removed meanwhile."""
        self._connection.sync(self.namespace)
        for _ in range(_ATTEMPTS):
            before, names = self._children()
            found = []
            for name in names:
                try:
                    found.append((self.get_and_lock(name), name))
                except NotExistError:
                    continue
                except CorruptFileError as error:
                    logger.warning("Skipping an entry that cannot be read: %s", error)
            if self._children()[0] == before:
                return found
        raise ConflictError(f"Entries of {self.namespace!r} came and went in {_ATTEMPTS} attempts to read them all.")

    def get_all_handles(self) -> list[str]:
        """Return the names of all entries, also of those marked for deletion."""
        self._connection.sync(self.namespace)
        return self._children()[1]

    def release_and_try_remove(self, name: str) -> bool:
        """Release the own lock, mark the entry, discard its state, delete its node."""
        self._check_leadership()
        handle = self._find(name)
        self._change(f"release entry {name!r}", lambda t: t.delete(self._lock_path(name)), ignore=(NoNodeError,))
        try:
            self._change(f"mark entry {name!r}", lambda t: t.delete(self._locks_path(name)), ignore=(NoNodeError,))
        except NotEmptyError:
            return False
        if handle is not None:
            handle.discard_state()
        # Not empty: another process has finished this removal and added the name again.
        with suppress(NotEmptyError):
            self._change(f"remove entry {name!r}", lambda t: t.delete(self._path(name)), ignore=(NoNodeError,))
        return True

    def clear_entries(self) -> None:
        self._check_leadership()
        for name in self._children()[1]:
            for _ in range(_ATTEMPTS):
                if self._clear(name):
                    break

    def release(self, name: str) -> None:
        try:
            self._connection.read(lambda: self._client.delete_async(self._lock_path(name)))
        except NoNodeError:
            return

    def release_all(self) -> None:
        errors: list[HoldfastError] = []
        for name in self._children()[1]:
            try:
                self.release(name)
            except HoldfastError as error:
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"Also: {other}")
            raise errors[0]

    # Nodes.

    def _path(self, name: str) -> str:
        return f"{self.namespace}/{name}"

    def _locks_path(self, name: str) -> str:
        return f"{self.namespace}/{name}/locks"

    def _lock_path(self, name: str) -> str:
        return f"{self.namespace}/{name}/locks/{self._lock_name}"

    def _ensure_namespace(self) -> None:
        if not self._ensured:
            self._connection.ensure_path(self.namespace)
            self._ensured = True

    def _stat(self, name: str) -> ZnodeStat | None:
        stat: ZnodeStat | None = self._connection.read(lambda: self._client.exists_async(self._path(name)))
        return stat

    def _exists(self, path: str) -> bool:
        return self._connection.read(lambda: self._client.exists_async(path)) is not None

    def _children(self) -> tuple[int, list[str]]:
        """Return a number that changes whenever an entry is added or removed, and the names."""
        try:
            names, stat = self._connection.read(
                lambda: self._client.get_children_async(self.namespace, include_data=True)
            )
        except NoNodeError:
            return -1, []
        return int(stat.cversion), sorted(names)

    def _data(self, name: str) -> bytes:
        content: bytes = self._connection.read(lambda: self._client.get_async(self._path(name)))[0]
        return content

    def _read(self, name: str) -> tuple[RetrievableStateHandle[T], bool]:
        return decode_marked(self._data(name), self._path(name), self._storage)

    def _find(self, name: str) -> RetrievableStateHandle[T] | None:
        """Return the handle of an entry without locking it; None if it is absent or damaged."""
        try:
            return self._read(name)[0]
        except NoNodeError:
            return None
        except CorruptFileError as error:
            logger.warning("An entry cannot be read, so the state behind it cannot be discarded: %s", error)
            return None

    def _not_existing(self, name: str) -> NotExistError:
        return NotExistError(f"There is no entry {self._path(name)!r} in ZooKeeper, or it is being deleted.")

    # Changes.

    def _check_leadership(self) -> None:
        """Fail before anything is stored if this process does not lead; the transactions decide."""
        if self._lock_identity is not None and self._latch is not None:
            self._latch.check_leader(self._lock_identity)

    def _latch_node(self) -> str | None:
        """Return the latch node to check in every transaction, None without a lock identity."""
        if self._lock_identity is None or self._latch is None:
            return None
        return self._latch.require_leader(self._lock_identity)

    def _transact(self, what: str, fill: Fill, is_committed: Callable[[], bool]) -> None:
        """Commit a transaction that is refused unless this process leads.

        Raises:
            FencedError: It does not lead; nothing happened.
            TransactionRefusedError: With the index among the operations of ``fill``.
        """
        for attempt in (1, 2):
            latch_node = self._latch_node()

            def fill_fenced(transaction: TransactionRequest, latch_node: str | None = latch_node) -> None:
                if latch_node is not None:
                    transaction.check(latch_node, -1)
                fill(transaction)

            try:
                self._connection.write(fill_fenced, is_committed=is_committed, what=what)
                return
            except TransactionRefusedError as error:
                if latch_node is None:
                    raise
                if error.index > 0:
                    raise TransactionRefusedError(error.index - 1, error.reason) from error
                assert self._latch is not None and self._lock_identity is not None
                self._latch.forget()  # this process may have been elected anew, with another node
                if attempt == 2:
                    raise fenced_error(self._lock_identity) from error

    def _change(self, what: str, fill: Fill, *, ignore: tuple[type[Exception], ...]) -> None:
        """Commit a change that may be repeated; raise the reason of a refusal unless it is ignored."""
        try:
            self._transact(what, fill, lambda: False)
        except TransactionRefusedError as error:
            if isinstance(error.reason, ignore):
                return
            if isinstance(error.reason, NotEmptyError):
                raise error.reason from error
            raise storage_error(error, what, self.namespace) from error

    def _add(self, name: str, content: bytes) -> None:
        def fill(transaction: TransactionRequest) -> None:
            transaction.create(self._path(name), content)
            transaction.create(self._locks_path(name), b"")
            transaction.create(self._lock_path(name), b"", ephemeral=True)

        try:
            self._transact(f"add entry {name!r}", fill, lambda: self._holds(name, content))
        except TransactionRefusedError as error:
            if isinstance(error.reason, NodeExistsError):
                raise AlreadyExistError(f"ZooKeeper node {self._path(name)!r} was added meanwhile.") from error
            raise storage_error(error, "add", self._path(name)) from error

    def _swap(self, name: str, expected_version: IntegerResourceVersion, content: bytes) -> None:
        def fill(transaction: TransactionRequest) -> None:
            transaction.set_data(self._path(name), content, expected_version.value)

        try:
            self._transact(f"replace entry {name!r}", fill, lambda: self._holds(name, content))
        except TransactionRefusedError as error:
            if isinstance(error.reason, NoNodeError):
                raise self._not_existing(name) from error
            if isinstance(error.reason, BadVersionError):
                raise ConflictError(
                    f"ZooKeeper node {self._path(name)!r} does not have version {expected_version.value} any more: it "
                    "was replaced. Read it again before you replace it."
                ) from error
            raise storage_error(error, "replace", self._path(name)) from error

    def _clear(self, name: str) -> bool:
        """Delete a node with its locks; return False if a lock was added or removed meanwhile."""
        try:
            locks = self._connection.read(lambda: self._client.get_children_async(self._locks_path(name)))
        except NoNodeError:
            locks = None

        def fill(transaction: TransactionRequest) -> None:
            for lock in locks or ():
                transaction.delete(f"{self._locks_path(name)}/{lock}")
            if locks is not None:
                transaction.delete(self._locks_path(name))
            transaction.delete(self._path(name))

        try:
            self._change(f"clear entry {name!r}", fill, ignore=(NoNodeError,))
        except NotEmptyError:
            return False
        return self._stat(name) is None

    def _holds(self, name: str, content: bytes) -> bool:
        self._connection.sync(self.namespace)
        try:
            return self._data(name) == content
        except NoNodeError:
            return False

    def __repr__(self) -> str:
        return f"ZooKeeperStateHandleStore({self.namespace!r})"


def _discard(handle: RetrievableStateHandle[T], error: HoldfastError) -> None:
    try:
        handle.discard_state()
    except HoldfastError as second:
        error.add_note(f"Its state could not be discarded either: {second}")
