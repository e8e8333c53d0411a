"""The fenced register of a job in ZooKeeper.

::

    <path>                  data: the name of the incarnation; never changed
    <path>/<incarnation>    data: the newest version of the register

A version is written by one conditional change of one node, and read after a ``sync``. A job whose data were removed
and that is submitted again gets another incarnation, so that a request that was under way all the time finds no node,
instead of one whose version happens to be the same.

Both nodes are made and removed in one transaction. Who deletes them one by one, as ``deleteall`` does, and dies in
between leaves a name without its node: that is a register that was removed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from holdfast.errors import ConflictError, CorruptFileError, FencedError
from holdfast.ha.zookeeper.connection import TransactionRefusedError, ZooKeeperConnection, storage_error
from holdfast.kernel.ids import new_nonce
from holdfast.storage.register import GENESIS, WINDOW, RegisterRecord, RemovableRegister


class ZooKeeperRegister(RemovableRegister):
    """A register in a node, which the first write makes.

    Args:
        connection: The connection of this process.
        path: The node.
    """

    def __init__(self, connection: ZooKeeperConnection, path: str) -> None:
        self._connection = connection
        self._client = connection.client
        self.path: Final = path
        # Nonce of the version that was seen last, its node, and the version that ZooKeeper counts for it. Saves a
        # read a write; replaced as a whole, so threads need no lock.
        self._seen: tuple[str, str, int] | None = None

    def _load(self) -> RegisterRecord:
        self._connection.sync(self.path)
        without_node: int | None = None
        while True:
            try:
                node, created = self._node()
            except NoNodeError:
                return GENESIS
            try:
                data, stat = self._connection.read(partial(self._client.get_async, node))
            except NoNodeError:
                if created == without_node:
                    return GENESIS  # half of it was deleted, and by nobody who is about to delete the other half
                without_node = created
                continue  # removed in between
            record = RegisterRecord.decode(data, node)
            self._seen = (record.nonce, node, stat.version)
            return record

    def _swap(self, base: RegisterRecord, new: RegisterRecord) -> None:
        if base == GENESIS:
            self._create(new)
            return
        seen = self._seen
        if seen is None or seen[0] != base.nonce:
            newest = self._load()
            seen = self._seen
            ahead = newest.state.version - base.state.version
            if 0 <= ahead < WINDOW and base.nonce not in newest.history:
                raise self._removed()
            if newest.nonce != base.nonce or seen is None or seen[0] != base.nonce:
                raise ConflictError(f"The register {self.path!r} is at version {newest.state.version} already.")
        _, node, version = seen

        def fill(transaction: TransactionRequest) -> None:
            transaction.set_data(node, new.encode(), version)

        self._commit_transaction(fill)
        self._seen = (new.nonce, node, version + 1)

    def _create(self, new: RegisterRecord) -> None:
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
            transaction.create(node, new.encode())

        if left is not None and left.numChildren:
            raise ConflictError(f"The register {self.path!r} was written meanwhile.")
        try:
            self._commit_transaction(fill)
        except FencedError as error:
            raise ConflictError(f"The register {self.path!r} was removed meanwhile.") from error
        self._seen = (new.nonce, node, 0)

    def _remove(self, base: RegisterRecord) -> None:
        seen = self._seen if base != GENESIS else None
        if base != GENESIS and (seen is None or seen[0] != base.nonce):
            raise ConflictError(f"The register {self.path!r} was read by somebody else meanwhile.")

        def fill(transaction: TransactionRequest) -> None:
            if seen is not None:
                transaction.delete(seen[1], seen[2])
            transaction.delete(self.path)

        try:
            self._connection.write(fill, landed=self._is_gone, what=f"remove the register {self.path!r}")
        except TransactionRefusedError as error:
            if isinstance(error.reason, NoNodeError) and seen is None:
                return  # there was nothing
            if isinstance(error.reason, BadVersionError | NoNodeError | NotEmptyError):
                raise ConflictError(f"The register {self.path!r} was written meanwhile.") from error
            raise storage_error(error, "remove", self.path) from error

    def _is_gone(self) -> bool:
        self._connection.sync(self.path)
        return self._connection.read(lambda: self._client.exists_async(self.path)) is None

    def _commit_transaction(self, fill: Callable[[TransactionRequest], None]) -> None:
        try:
            # A repetition that is refused may have been preceded by one that was not: the caller compares nonces.
            self._connection.write(fill, landed=lambda: False, what=f"write the register {self.path!r}")
        except TransactionRefusedError as error:
            if isinstance(error.reason, NoNodeError):
                raise self._removed() from error
            if isinstance(error.reason, BadVersionError | NodeExistsError):
                raise ConflictError(f"The register {self.path!r} was written meanwhile.") from error
            raise storage_error(error, "write", self.path) from error

    def _removed(self) -> FencedError:
        return FencedError(
            f"The register {self.path!r} was removed since this leader wrote it, and perhaps made anew. This leader "
            "stops and changes nothing."
        )

    def _node(self) -> tuple[str, int]:
        """The node of the newest version, and when its name was made; raises kazoo's NoNodeError if there is none."""
        name, stat = self._connection.read(lambda: self._client.get_async(self.path))
        try:
            incarnation: str = name.decode("ascii")
        except ValueError as error:
            raise CorruptFileError(self.path, 0, "it does not name an incarnation.") from error
        return f"{self.path}/{incarnation}", stat.mzxid

    def __repr__(self) -> str:
        return f"ZooKeeperRegister({self.path!r})"
