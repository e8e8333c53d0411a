"""Leader election in ZooKeeper: a latch for the process, and nodes in which its components publish."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KazooState

from holdfast.errors import HoldfastError, PossibleInconsistentStateError, StorageError
from holdfast.ha.election.leader_election import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
)
from holdfast.ha.election.leader_information import LeaderInformation
from holdfast.ha.zookeeper.connection import NoAnswerError, ZooKeeperConnection
from holdfast.ha.zookeeper.latch_machine import (
    Create,
    Delete,
    GrantLeadership,
    Instruction,
    LatchMachine,
    List,
    RevokeLeadership,
    WatchNode,
)
from holdfast.ha.zookeeper.latch_nodes import LatchNodes
from holdfast.ha.zookeeper.leader_tree import LeaderTree
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)
_RETRY_SECONDS: Final = 0.5
Task = Callable[[], None]


class ZooKeeperLeaderElectionDriver(LeaderElectionDriver):
    """Campaigns at the latch in a thread of its own.

    Every request is sent by the campaigning thread or by whoever calls, once, and only while connected: what fails is
    done again when the connection is back, so that nobody waits for a revocation behind a request without an answer.

    Args:
        connection: The connection of this process.
        tree: Where leaders publish.
        lock_identity: The name of this process, by which stores recognise the leader.
        tolerates_suspension: Whether it leads on while the connection is lost and the session may live.
        listener: Hears of grants, revocations and changes.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        tree: LeaderTree,
        lock_identity: str,
        tolerates_suspension: bool,
        listener: LeaderElectionListener,
    ) -> None:
        self._connection = connection.hasty()
        self._client = connection.client
        self._tree = LeaderTree(self._connection, tree.path)
        self._nodes = LatchNodes(self._connection, tree.latch_path)
        self._identity = lock_identity
        self._listener = listener
        self._machine = LatchMachine(uuid.uuid4().hex, tolerates_suspension=tolerates_suspension)
        self._lock = threading.Lock()  # guards the machine, and orders what the listener hears
        self._suspended_at: float | None = None
        self._tasks: queue.Queue[Task | None] = queue.Queue()
        self._is_closed = False
        self._client.add_listener(self._note_state)
        if connection.is_connected:
            self._put(self._connected)
        self._thread = threading.Thread(target=self._campaign, name=f"latch-{lock_identity[:8]}", daemon=True)
        self._thread.start()

    def has_leadership(self) -> bool:
        """Ask ZooKeeper whether the leading node still exists."""
        node = self._leading_node()
        if node is None:
            return False
        try:
            self._connection.sync(node)
            exists = self._connection.read(lambda: self._client.exists_async(node)) is not None
        except HoldfastError as error:
            _log.warning("Cannot tell who leads: %s", error)
            return False
        return exists and self._machine.leads

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Publish if this process leads."""
        if leader_information.is_empty:
            self._if_leading(lambda node: self._tree.withdraw(component_id, node))
        else:
            self._if_leading(lambda node: self._tree.publish(component_id, leader_information, node))

    def delete_leader_information(self, component_id: str) -> None:
        """Withdraw if this process leads."""
        self._if_leading(lambda node: self._tree.withdraw(component_id, node))

    def close(self) -> None:
        """Leave the line; the next candidate is told by ZooKeeper."""
        with self._lock:
            self._is_closed = True
        self._client.remove_listener(self._note_state)
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if not self._leave():
            # The session may live on, and with it a node that leads without anybody behind it.
            threading.Thread(target=self._leave_later, name="leave-latch", daemon=True).start()

    def _leave(self) -> bool:
        """Delete the own nodes; requests are answered in order, so a list shows also what was created just before."""
        try:
            for name in self._nodes.names():
                if self._machine.owns(name):
                    self._delete(name)
        except HoldfastError as error:
            _log.warning("Could not leave the leader latch yet: %s", error)
            return False
        return True

    def _leave_later(self) -> None:
        while not self._connection.is_closed:
            time.sleep(_RETRY_SECONDS)
            if self._connection.is_connected and self._leave():
                return

    # What kazoo's threads do. Losing the connection is told at once, however long the campaigning thread waits.

    def _note_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._put(self._connected)
        elif state == KazooState.SUSPENDED:
            self._suspended_at = time.monotonic()
            self._tell(self._machine.suspended)
            self._put(_nothing)  # wakes the campaigning thread, which measures for how long
        else:
            self._tell(self._machine.lost)

    def _latch_changed(self, event: Any) -> None:
        self._put(self._list)

    def _information_changed(self, event: Any) -> None:
        self._put(self._report_information)

    def _put(self, task: Task) -> None:
        if not self._is_closed:
            self._tasks.put(task)

    def _put_later(self, task: Task) -> None:
        timer = threading.Timer(_RETRY_SECONDS, partial(self._put, task))
        timer.daemon = True
        timer.start()

    def _tell(self, event: Callable[[], Sequence[Instruction]]) -> Sequence[Instruction]:
        """Let the machine take an event, tell the listener in the same order, and return what else is to be done."""
        with self._lock:
            if self._is_closed:
                return ()
            instructions = event()
            for instruction in instructions:
                if isinstance(instruction, GrantLeadership):
                    self._listener.on_grant_leadership(instruction.session_id)
                elif isinstance(instruction, RevokeLeadership):
                    self._listener.on_revoke_leadership()
        return instructions

    # What the campaigning thread does.

    def _campaign(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=self._remaining_session())
            except queue.Empty:
                task = self._expire
            if task is None or self._is_closed:
                return
            try:
                task()
            except (StorageError, NoAnswerError) as error:
                # With the connection gone, its return lists again; this is for requests that fail all the same.
                _log.warning("The campaign for leadership is interrupted: %s", error)
                self._put_later(self._list)
            except HoldfastError as error:
                self._listener.on_error(error)
            except Exception as error:
                _log.exception("The campaign for leadership failed.")
                self._listener.on_error(error)

    def _remaining_session(self) -> float | None:
        """Seconds after which a suspended session counts as lost, None if there is none."""
        suspended_at = self._suspended_at
        if suspended_at is None:
            return None
        return max(0.0, suspended_at + self._connection.session_timeout - time.monotonic())

    def _expire(self) -> None:
        self._suspended_at = None
        self._tell(self._machine.lost)

    def _connected(self) -> None:
        if self._connection.is_connected:
            self._suspended_at = None
            self._carry_out(self._machine.connected)
            self._report_information()

    def _list(self) -> None:
        self._list_in(self._machine.period)

    def _list_in(self, period: int) -> None:
        if self._connection.is_connected:
            names = self._nodes.names()
            self._carry_out(lambda: self._machine.listed(period, names, uuid.uuid4()))

    def _carry_out(self, event: Callable[[], Sequence[Instruction]]) -> None:
        for instruction in self._tell(event):
            match instruction:
                case List(period):
                    self._list_in(period)
                case Create(prefix):
                    self._create(prefix)
                case Delete(name):
                    self._delete(name)
                case WatchNode(name):
                    self._watch(name)
                case GrantLeadership():
                    self._report_information()

    def _create(self, prefix: str) -> None:
        path = f"{self._tree.latch_path}/{prefix}"
        self._connection.ensure_path(self._tree.latch_path)
        # Sent once: a repetition could make a second node. The list afterwards finds out what became of it.
        try:
            self._connection.call(
                lambda: self._client.create_async(path, self._identity.encode(), ephemeral=True, sequence=True)
            )
        except NoNodeError:
            _log.warning("The node of the leader latch was deleted; it is made again.")
        self._put(self._list)

    def _delete(self, name: str) -> None:
        try:
            self._connection.read(lambda: self._client.delete_async(f"{self._tree.latch_path}/{name}"))
        except NoNodeError:
            return

    def _watch(self, name: str) -> None:
        path = f"{self._tree.latch_path}/{name}"
        if self._connection.read(lambda: self._client.exists_async(path, self._latch_changed)) is None:
            self._put(self._list)

    def _report_information(self) -> None:
        """Tell what is published now, and hear of the next change; only of interest while leading."""
        if self._machine.leads and self._connection.is_connected:
            register = self._tree.read_all(self._information_changed)
            self._listener.on_leader_information_register_change(register)

    def _if_leading(self, action: Callable[[str], None]) -> None:
        node = self._leading_node()
        if node is None:
            return
        try:
            action(node)
        except (StorageError, PossibleInconsistentStateError) as error:
            # Soon what is published is compared with what should be; without a connection when it is back.
            _log.warning("The leader information is not up to date: %s", error)
            self._put_later(self._report_information)

    def _leading_node(self) -> str | None:
        node = self._machine.node
        return f"{self._tree.latch_path}/{node}" if self._machine.leads and node is not None else None


def _nothing() -> None:
    return None


class ZooKeeperLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the drivers of one process."""

    def __init__(
        self, connection: ZooKeeperConnection, tree: LeaderTree, lock_identity: str, tolerates_suspension: bool
    ) -> None:
        self._connection = connection
        self._tree = tree
        self._identity = lock_identity
        self._tolerates_suspension = tolerates_suspension

    def create(self, leader_election_listener: LeaderElectionListener) -> ZooKeeperLeaderElectionDriver:
        """Make a driver and let it stand in line."""
        return ZooKeeperLeaderElectionDriver(
            self._connection, self._tree, self._identity, self._tolerates_suspension, leader_election_listener
        )
