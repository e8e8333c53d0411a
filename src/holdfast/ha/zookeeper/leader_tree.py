"""The nodes under which leaders publish where they are.

::

    <path>/latch                           the leader latch
    <path>/<component>/connection_info     ephemeral; data: "<session id>,<address>"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from holdfast.errors import ConflictError
from holdfast.ha.election.leader_information import LeaderInformation, LeaderInformationRegister
from holdfast.ha.zookeeper.connection import TransactionRefusedError, ZooKeeperConnection, storage_error

LATCH: Final = "latch"
_INFORMATION: Final = "connection_info"
_ATTEMPTS: Final = 20
Watch = Callable[[Any], None]


class LeaderTree:
    """Reads and writes what leaders publish."""

    def __init__(self, connection: ZooKeeperConnection, path: str) -> None:
        self._connection = connection
        self._client = connection.client
        self.path: Final = path

    @property
    def latch_path(self) -> str:
        """The node of the latch."""
        return f"{self.path}/{LATCH}"

    def read(self, component_id: str, watch: Watch | None = None) -> LeaderInformation:
        """What is published for one component.

        Args:
            component_id: The component.
            watch: Called once at the next change, by a thread that must not be blocked.
        """
        path = self._information_path(component_id)
        while True:
            try:
                data, _ = self._connection.read(lambda: self._client.get_async(path, watch))
                return LeaderInformation.decode(data.decode("utf-8", "replace"))
            except NoNodeError:
                if watch is None or self._connection.read(lambda: self._client.exists_async(path, watch)) is None:
                    return LeaderInformation.empty()

    def read_all(self, watch: Watch | None = None) -> LeaderInformationRegister:
        """What is published for all components; the watch is called at the next change of any."""
        try:
            names = self._connection.read(lambda: self._client.get_children_async(self.path, watch))
        except NoNodeError:
            return LeaderInformationRegister.empty()
        return LeaderInformationRegister({name: self.read(name, watch) for name in names if name != LATCH})

    def publish(self, component_id: str, information: LeaderInformation, latch_node: str) -> None:
        """Publish for as long as this session lives, if the latch node still exists; otherwise do nothing.

        Raises:
            StorageError: ZooKeeper does not answer, or refused.
            PossibleInconsistentStateError: It is not known whether it is published.
        """
        self._connection.ensure_path(f"{self.path}/{component_id}")
        for _ in range(_ATTEMPTS):
            try:
                self._publish_once(component_id, information, latch_node)
                return
            except TransactionRefusedError as error:
                if error.index == 0:
                    return  # not the leader any more
                if not isinstance(error.reason, NoNodeError | NodeExistsError | BadVersionError):
                    raise storage_error(error, "publish", self._information_path(component_id)) from error
        raise ConflictError(f"Others keep writing {self._information_path(component_id)!r}; it was not published.")

    def withdraw(self, component_id: str, latch_node: str) -> None:
        """Delete what is published for a component, if the latch node still exists; otherwise do nothing."""
        try:
            self._write(latch_node, component_id, lambda t: t.delete(self._information_path(component_id)))
            # The node above it is kept while it is in use by another.
            self._write(latch_node, component_id, lambda t: t.delete(f"{self.path}/{component_id}"))
        except TransactionRefusedError as error:
            if error.index > 0 and not isinstance(error.reason, NoNodeError | NotEmptyError):
                raise storage_error(error, "withdraw", self._information_path(component_id)) from error

    def _publish_once(self, component_id: str, information: LeaderInformation, latch_node: str) -> None:
        path = self._information_path(component_id)
        data = information.encode().encode()
        stat = self._connection.read(lambda: self._client.exists_async(path))

        def fill(transaction: TransactionRequest) -> None:
            if stat is not None and stat.ephemeralOwner == self._connection.session_id:
                transaction.set_data(path, data, stat.version)
                return
            if stat is not None:
                transaction.delete(path, stat.version)
            transaction.create(path, data, ephemeral=True)

        self._write(latch_node, component_id, fill)

    def _write(self, latch_node: str, component_id: str, fill: Callable[[TransactionRequest], None]) -> None:
        def fill_fenced(transaction: TransactionRequest) -> None:
            transaction.check(latch_node, -1)
            fill(transaction)

        # Whoever publishes looks again after a refusal, so nothing needs to be told about a lost answer.
        self._connection.write(fill_fenced, landed=lambda: False, what=f"publish the leader of {component_id!r}")

    def _information_path(self, component_id: str) -> str:
        return f"{self.path}/{component_id}/{_INFORMATION}"
