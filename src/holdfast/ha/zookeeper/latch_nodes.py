"""The nodes of the leader latch: who waits in which order, and who leads.

Each candidate has one ephemeral node ``<guid>-latch-<sequence number>`` that holds its lock identity; the lowest
number leads. A lower number never comes later, so a node that was the lowest once is the leader's for as long as it
exists: a transaction that checks this one node is fenced.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from kazoo.exceptions import NoNodeError

from holdfast.errors import FencedError
from holdfast.ha.zookeeper.connection import ZooKeeperConnection

_NODE: Final = re.compile(r"([0-9a-f]{32})-latch-([0-9]{10,})")


def latch_prefix(guid: str) -> str:
    """The name of a candidate's node, without the number that the server gives it."""
    return f"{guid}-latch-"


def sequence_number(name: str) -> int:
    """The number that the server gave a node; a name of somebody else's sorts last."""
    match = _NODE.fullmatch(name)
    return int(match[2]) if match else 2**63


class LatchNodes:
    """Reads the latch of one cluster."""

    def __init__(self, connection: ZooKeeperConnection, path: str) -> None:
        self._connection = connection
        self.path: Final = path
        self._known: tuple[str, str] | None = None

    def names(self) -> list[str]:
        """The candidates' nodes, the leader's first.

        Raises:
            StorageError: ZooKeeper does not answer.
        """
        try:
            children = self._connection.read(lambda: self._connection.client.get_children_async(self.path))
        except NoNodeError:
            return []
        return sorted((name for name in children if _NODE.fullmatch(name)), key=sequence_number)

    def leader(self) -> tuple[str, str] | None:
        """Path of the leader's node and its lock identity, None if nobody leads."""
        self._connection.sync(self.path)
        while names := self.names():
            path = f"{self.path}/{names[0]}"
            try:
                identity, _ = self._connection.read(partial(self._connection.client.get_async, path))
            except NoNodeError:
                continue  # it has just gone: look again
            return path, identity.decode()
        return None

    def require_leader(self, lock_identity: str) -> str:
        """The path of the leader's node, if it is this identity's; a transaction that checks it is fenced.

        Raises:
            FencedError: This identity does not lead.
            StorageError: ZooKeeper does not answer.
        """
        if self._known is not None and self._known[1] == lock_identity:
            return self._known[0]
        found = self.leader()
        if found is None or found[1] != lock_identity:
            raise fenced(lock_identity)
        self._known = found
        return found[0]

    def check_leader(self, lock_identity: str) -> None:
        """Ask ZooKeeper whether this identity leads now.

        Raises:
            FencedError: It does not.
        """
        path = self.require_leader(lock_identity)
        if self._connection.read(lambda: self._connection.client.exists_async(path)) is None:
            self.forget()
            self.require_leader(lock_identity)

    def forget(self) -> None:
        """Look again next time, because the node that was the leader's is gone."""
        self._known = None


def fenced(lock_identity: str) -> FencedError:
    """The error of a process that writes without leading."""
    return FencedError(
        f"{lock_identity!r} does not lead any more, so it may not change anything. This process stops; whoever leads "
        "goes on."
    )
