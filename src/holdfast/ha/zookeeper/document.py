"""A versioned document in a ZooKeeper node.

::

    <path>                  data: the name of the incarnation; never changed
    <path>/<incarnation>    data: the newest version of the document

A version is written by one conditional change of one node, and read after a ``sync``. A document that was removed and
is made anew gets another incarnation, so that a request that was on its way all the time finds no node, instead of one
whose version happens to be the same.

Both nodes are made and removed in one transaction. A tool that deletes them one by one, such as ``deleteall``, and dies
in between leaves a name without its node: that is a document that was removed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from holdfast.errors import ConflictError, CorruptFileError
from holdfast.ha.zookeeper.connection import TransactionRefusedError, ZooKeeperConnection, storage_error
from holdfast.kernel.ids import new_nonce
from holdfast.storage.register import REGISTER_FORMAT, RemovableRegister
from holdfast.storage.versioned_document import WINDOW, DocumentFormat, DocumentRemovedError, RemovableDocument, V


class ZooKeeperDocument(RemovableDocument[V]):
    """A document in a node, which the first write makes.

    Args:
        connection: The connection of this process.
        path: The node.
        document_format: How versions are written.
    """

    def __init__(self, connection: ZooKeeperConnection, path: str, document_format: DocumentFormat[V]) -> None:
        super().__init__(document_format)
        self._connection = connection
        self._client = connection.client
        self.path: Final = path
        # Nonce of the version that was seen last, its node, and the version that ZooKeeper counts for it. Saves a
        # read a write; replaced as a whole, so threads need no lock.
        self._seen: tuple[str, str, int] | None = None

    def read(self) -> V:
        self._connection.sync(self.path)
        without_node: int | None = None
        while True:
            try:
                node, created = self._node()
            except NoNodeError:
                return self.format.never_written
            try:
                data, stat = self._connection.read(partial(self._client.get_async, node))
            except NoNodeError:
                if created == without_node:
                    # Half of it was deleted, by a process that is not about to delete the other half.
                    return self.format.never_written
                without_node = created
                continue  # removed in between
            version = self.format.decode(data, node, stat.version + 1)
            self._seen = (version.nonce, node, stat.version)
            return version

    def remove(self, base: V) -> None:
        seen = self._seen if base.number else None
        if base.number and (seen is None or seen[0] != base.nonce):
            raise ConflictError(f"{self} was read by another thread meanwhile.")

        def fill(transaction: TransactionRequest) -> None:
            if seen is not None:
                transaction.delete(seen[1], seen[2])
            transaction.delete(self.path)

        try:
            self._connection.write(fill, is_committed=self._is_gone, what=f"remove {self}")
        except TransactionRefusedError as error:
            if isinstance(error.reason, NoNodeError) and seen is None:
                return  # there was nothing
            if isinstance(error.reason, BadVersionError | NoNodeError | NotEmptyError):
                raise ConflictError(f"{self} was written meanwhile.") from error
            raise storage_error(error, "remove", self.path) from error

    def _write_next(self, base: V, new: V) -> None:
        if not base.number:
            self._create(new)
            return
        seen = self._seen
        if seen is None or seen[0] != base.nonce:
            newest = self.read()
            seen = self._seen
            ahead = newest.number - base.number
            if 0 <= ahead < WINDOW and base.nonce not in newest.history:
                raise self._removed()
            if newest.nonce != base.nonce or seen is None or seen[0] != base.nonce:
                raise ConflictError(f"{self} is at version {newest.number} already.")
        _, node, version = seen

        def fill(transaction: TransactionRequest) -> None:
            transaction.set_data(node, self.format.encode(new), version)

        self._commit(fill)
        self._seen = (new.nonce, node, version + 1)

    def _create(self, new: V) -> None:
        parent = self.path.rpartition("/")[0]
        self._connection.ensure_path(parent)
        incarnation = new_nonce()
        node = f"{self.path}/{incarnation}"
        left = self._connection.read(lambda: self._client.exists_async(self.path))

        def fill(transaction: TransactionRequest) -> None:
            if left is None:
                transaction.create(self.path, incarnation.encode())
            else:
                transaction.set_data(self.path, incarnation.encode(), left.version)
            transaction.create(node, self.format.encode(new))

        if left is not None and left.numChildren:
            raise ConflictError(f"{self} was written meanwhile.")
        try:
            self._commit(fill)
        except DocumentRemovedError as error:
            raise ConflictError(f"{self} was removed meanwhile.") from error
        self._seen = (new.nonce, node, 0)

    def _commit(self, fill: Callable[[TransactionRequest], None]) -> None:
        try:
            # A repetition that is refused may follow one that was committed: `find_outcome` compares nonces.
            self._connection.write(fill, is_committed=lambda: False, what=f"write {self}")
        except TransactionRefusedError as error:
            if isinstance(error.reason, NoNodeError):
                raise self._removed() from error
            if isinstance(error.reason, BadVersionError | NodeExistsError):
                raise ConflictError(f"{self} was written meanwhile.") from error
            raise storage_error(error, "write", self.path) from error

    def _is_gone(self) -> bool:
        self._connection.sync(self.path)
        return self._connection.read(lambda: self._client.exists_async(self.path)) is None

    def _removed(self) -> DocumentRemovedError:
        return DocumentRemovedError(
            f"{self} was removed since this process wrote it, and perhaps made anew. This process stops and changes "
            "nothing."
        )

    def _node(self) -> tuple[str, int]:
        """Return the newest version's node, and when its name was made; raises NoNodeError if there is none."""
        name, stat = self._connection.read(lambda: self._client.get_async(self.path))
        try:
            incarnation: str = name.decode("ascii")
        except ValueError as error:
            raise CorruptFileError(self.path, 0, "it does not name an incarnation.") from error
        return f"{self.path}/{incarnation}", stat.mzxid

    def __str__(self) -> str:
        return f"the {self.format.name} in ZooKeeper node {self.path!r}"


class ZooKeeperRegister(RemovableRegister):
    """The fenced register of a job in a node, which the first write makes.

    Args:
        connection: The connection of this process.
        path: The node.
    """

    def __init__(self, connection: ZooKeeperConnection, path: str) -> None:
        super().__init__(ZooKeeperDocument(connection, path, REGISTER_FORMAT))
