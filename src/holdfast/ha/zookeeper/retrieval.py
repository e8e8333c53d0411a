"""Following a leader in ZooKeeper."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Final

from kazoo.protocol.states import KazooState

from holdfast.errors import HoldfastError, StorageError
from holdfast.ha.election.leader_information import LeaderInformation
from holdfast.ha.election.leader_retrieval import LeaderRetrievalDriver, LeaderRetrievalEventHandler
from holdfast.ha.zookeeper.connection import ZooKeeperConnection
from holdfast.ha.zookeeper.leader_tree import LeaderTree
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)
_RETRY_SECONDS: Final = 0.5


class ZooKeeperLeaderRetrievalDriver(LeaderRetrievalDriver):
    """Watches the node of one component in a thread of its own.

    Args:
        connection: The connection of this process.
        tree: Where leaders publish.
        component_id: The component.
        tolerates_suspension: Whether a leader stays known while the connection is lost and the session may live.
        handler: Hears of the leader.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        tree: LeaderTree,
        component_id: str,
        tolerates_suspension: bool,
        handler: LeaderRetrievalEventHandler,
    ) -> None:
        self._connection = connection
        self._tree = LeaderTree(connection.hasty(), tree.path)
        self._component_id = component_id
        self._tolerates_suspension = tolerates_suspension
        self._handler = handler
        self._states: queue.Queue[str | None] = queue.Queue()
        self._stops = threading.Event()
        connection.client.add_listener(self._states.put)
        self._states.put(KazooState.CONNECTED if connection.is_connected else KazooState.SUSPENDED)
        self._thread = threading.Thread(target=self._follow, name=f"leader-of-{component_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stops.set()
        self._connection.client.remove_listener(self._states.put)
        self._states.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _follow(self) -> None:
        lost_at: float | None = None
        while not self._stops.is_set():
            try:
                patience = None if lost_at is None else max(0.0, lost_at - time.monotonic())
                state = self._states.get(timeout=patience)
            except queue.Empty:
                state = KazooState.LOST
            lost_at = None
            if state == KazooState.CONNECTED:
                self._report()
            elif state == KazooState.SUSPENDED and self._tolerates_suspension:
                lost_at = time.monotonic() + self._connection.session_timeout
            elif state is not None:
                self._handler.notify_leader_address(LeaderInformation.empty())

    def _report(self) -> None:
        try:
            self._handler.notify_leader_address(self._tree.read(self._component_id, self._changed))
        except StorageError as error:
            _log.warning("Could not read the leader of %r: %s", self._component_id, error)
            if self._connection.is_connected and not self._stops.wait(_RETRY_SECONDS):
                self._states.put(KazooState.CONNECTED)
        except HoldfastError as error:
            self._handler.notify_error(error)

    def _changed(self, event: Any) -> None:
        if self._connection.is_connected:
            self._states.put(KazooState.CONNECTED)
