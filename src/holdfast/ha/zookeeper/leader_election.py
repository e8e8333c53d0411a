"""Leader election in ZooKeeper: a latch for the process, and nodes in which its components publish.

Each candidate has one ephemeral node ``<guid>-latch-<sequence number>`` with its lock identity; the lowest number
leads. A lower number never comes later, so a node that was the lowest once is the leader's for as long as it exists: a
transaction that checks this one node is fenced.

::

    <path>/latch                           the leader latch
    <path>/<component>/connection_info     ephemeral; data: "<session id>,<address>"
"""

from __future__ import annotations

import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import KazooState

from holdfast.errors import ConflictError, FencedError, HoldfastError, PossibleInconsistentStateError, StorageError
from holdfast.ha.leader_election import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
    LeaderRetrievalDriver,
    LeaderRetrievalEventHandler,
)
from holdfast.ha.zookeeper.connection import NoAnswerError, TransactionRefusedError, ZooKeeperConnection, storage_error
from holdfast.kernel.secret import get_logger

logger = get_logger(__name__)

_NODE: Final = re.compile(r"([0-9a-f]{32})-latch-([0-9]{10,})")
LATCH: Final = "latch"
_INFORMATION: Final = "connection_info"
_ATTEMPTS: Final = 20
Watch = Callable[[Any], None]
_RETRY_SECONDS: Final = 0.5
Task = Callable[[], None]


def latch_prefix(guid: str) -> str:
    """Return the name of a candidate's node, without the number that the server appends."""
    return f"{guid}-latch-"


def sequence_number(name: str) -> int:
    """Return the number that the server gave a node; names of other forms sort last."""
    match = _NODE.fullmatch(name)
    return int(match[2]) if match else 2**63


class LatchNodes:
    """Reads the latch of one cluster. All methods block."""

    def __init__(self, connection: ZooKeeperConnection, path: str) -> None:
        self._connection = connection
        self.path: Final = path
        self._known: tuple[str, str] | None = None

    def names(self) -> list[str]:
        """Return the candidates' nodes, the leader's first.

        Raises:
            StorageError: ZooKeeper does not answer.
        """
        try:
            children = self._connection.read(lambda: self._connection.client.get_children_async(self.path))
        except NoNodeError:
            return []
        return sorted((name for name in children if _NODE.fullmatch(name)), key=sequence_number)

    def leader(self) -> tuple[str, str] | None:
        """Return the path of the leader's node and its lock identity, None if there is no leader."""
        self._connection.sync(self.path)
        while names := self.names():
            path = f"{self.path}/{names[0]}"
            try:
                identity, _ = self._connection.read(partial(self._connection.client.get_async, path))
            except NoNodeError:
                continue  # it was just deleted: read again
            return path, identity.decode()
        return None

    def require_leader(self, lock_identity: str) -> str:
        """Return the path of this identity's leading node; a transaction that checks it is fenced.

        Raises:
            FencedError: This identity does not lead.
            StorageError: ZooKeeper does not answer.
        """
        if self._known is not None and self._known[1] == lock_identity:
            return self._known[0]
        found = self.leader()
        if found is None or found[1] != lock_identity:
            raise fenced_error(lock_identity)
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
        """Read the latch again next time, because the leader's node is gone."""
        self._known = None


def fenced_error(lock_identity: str) -> FencedError:
    return FencedError(
        f"{lock_identity!r} does not lead any more, so it may not change anything. This process stops; the leader "
        "continues."
    )


@dataclass(frozen=True)
class List:
    """List the candidates, and pass them to `LatchMachine.listed`.

    Attributes:
        period: The period of unbroken connection for which the list is requested.
    """

    period: int


@dataclass(frozen=True)
class Create:
    """Create an ephemeral, sequential node with this prefix, then list."""

    prefix: str


@dataclass(frozen=True)
class Delete:
    """Delete a superfluous node of this candidate."""

    name: str


@dataclass(frozen=True)
class WatchNode:
    """List when a node is deleted; at once if it is gone already."""

    name: str


@dataclass(frozen=True)
class GrantLeadership:
    session_id: uuid.UUID


@dataclass(frozen=True)
class RevokeLeadership:
    """Notify the process that it does not lead any more."""


Instruction = List | Create | Delete | WatchNode | GrantLeadership | RevokeLeadership


class LatchMachine:
    """The state machine of a candidate at the leader latch: events in, instructions out.

    ::

        [no node] --create--> [waiting] --lowest number--> [leader]
            ^                     |                           |
            |                     | connection suspended: keeps its place, and does not lead
            '---- session lost ---'---------------------------'

    A create whose answer got lost may have made a node, so each candidate marks its nodes with a random guid and looks
    for it in the list before it creates another; of two it keeps the lower. Each candidate watches only the node right
    before its own, so that the end of a leader wakes one candidate.

    After ZooKeeper's leader election recipe, with the protection of Curator's LeaderLatch.

    Attributes:
        node: Name of its node, None if it has none as far as it knows.
        leads: Whether it leads as far as it knows.
    """

    def __init__(self, guid: str, *, tolerates_suspension: bool = False) -> None:
        self._guid = guid
        self._tolerates_suspension = tolerates_suspension
        self.node: str | None = None
        self.leads = False
        self._is_suspended = True
        self._period = 0

    @property
    def period(self) -> int:
        """Counts the periods of unbroken connection."""
        return self._period

    def owns(self, name: str) -> bool:
        return name.startswith(latch_prefix(self._guid))

    def connected(self) -> list[Instruction]:
        """The client is connected, for the first time or again, with the same session or another."""
        self._is_suspended = False
        self._period += 1
        return [List(self._period)]

    def suspended(self) -> list[Instruction]:
        """The connection is lost; the session may still be alive."""
        self._is_suspended = True
        return [] if self._tolerates_suspension else self._revoke()

    def lost(self) -> list[Instruction]:
        """The session has ended, or may have ended after so long a silence; its nodes are gone, or soon will be."""
        self._is_suspended = True
        self.node = None
        return self._revoke()

    def listed(self, period: int, names: Sequence[str], session_id: uuid.UUID) -> list[Instruction]:
        """Process the list of the candidates' nodes.

        Args:
            period: The period of the `List`.
            names: Their names, lowest first.
            session_id: A new random id, in case this candidate leads now.
        """
        if self._is_suspended or period != self._period:
            return []  # an old answer: the session may have ended since, and the next connection lists again
        own = [name for name in names if self.owns(name)]
        if not own:
            self.node = None
            return [*self._revoke(), Create(latch_prefix(self._guid))]
        self.node = own[0]
        instructions: list[Instruction] = [Delete(name) for name in own[1:]]
        before = [name for name in names if sequence_number(name) < sequence_number(self.node)]
        if before:
            instructions += [*self._revoke(), WatchNode(before[-1])]
        elif not self.leads:
            self.leads = True
            instructions.append(GrantLeadership(session_id))
        return instructions

    def _revoke(self) -> list[Instruction]:
        if not self.leads:
            return []
        self.leads = False
        return [RevokeLeadership()]


class LeaderTree:
    """Reads and writes the published information of leaders. All methods block."""

    def __init__(self, connection: ZooKeeperConnection, path: str) -> None:
        self._connection = connection
        self._client = connection.client
        self.path: Final = path

    @property
    def latch_path(self) -> str:
        return f"{self.path}/{LATCH}"

    def read(self, component_id: str, watch: Watch | None = None) -> LeaderInformation:
        """Return the published information of one component.

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
        """Return the published information of all components; the watch is called at the next change of any."""
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
        """Delete the published information of a component, if the latch node still exists; otherwise do nothing."""
        try:
            self._write(latch_node, component_id, lambda t: t.delete(self._information_path(component_id)))
            # The node above it is kept while another process uses it.
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

        # The caller reads again after a refusal, so a lost answer needs no check.
        self._connection.write(fill_fenced, is_committed=lambda: False, what=f"publish the leader of {component_id!r}")

    def _information_path(self, component_id: str) -> str:
        return f"{self.path}/{component_id}/{_INFORMATION}"


class ZooKeeperLeaderElectionDriver(LeaderElectionDriver):
    """Campaigns at the latch in a thread of its own.

    Every request is sent by the campaigning thread or by the caller, once, and only while connected: what fails is done
    again when the connection is back, so that a revocation never waits behind a request without an answer.

    Args:
        connection: The connection of this process.
        tree: The published information.
        lock_identity: The name of this process, by which stores recognise the leader.
        tolerates_suspension: Whether it keeps leading while the connection is lost and the session may be alive.
        listener: Is notified of grants, revocations and changes.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        tree: LeaderTree,
        lock_identity: str,
        tolerates_suspension: bool,
        listener: LeaderElectionListener,
    ) -> None:
        self._connection = connection.without_retries()
        self._client = connection.client
        self._tree = LeaderTree(self._connection, tree.path)
        self._nodes = LatchNodes(self._connection, tree.latch_path)
        self._identity = lock_identity
        self._listener = listener
        self._machine = LatchMachine(uuid.uuid4().hex, tolerates_suspension=tolerates_suspension)
        self._lock = threading.Lock()  # guards the machine, and orders the calls of the listener
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
            logger.warning("Could not find out who leads: %s", error)
            return False
        return exists and self._machine.leads

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        if leader_information.is_empty:
            self._if_leading(lambda node: self._tree.withdraw(component_id, node))
        else:
            self._if_leading(lambda node: self._tree.publish(component_id, leader_information, node))

    def delete_leader_information(self, component_id: str) -> None:
        self._if_leading(lambda node: self._tree.withdraw(component_id, node))

    def close(self) -> None:
        """Leave the latch; ZooKeeper notifies the next candidate."""
        with self._lock:
            self._is_closed = True
        self._client.remove_listener(self._note_state)
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if not self._leave():
            # The session may stay alive, and with it a node that leads without a process.
            threading.Thread(target=self._leave_later, name="leave-latch", daemon=True).start()

    def _leave(self) -> bool:
        """Delete the own nodes; answers come in order, so the list also has a node that was created just before."""
        try:
            for name in self._nodes.names():
                if self._machine.owns(name):
                    self._delete(name)
        except HoldfastError as error:
            logger.warning("Could not leave the leader latch yet: %s", error)
            return False
        return True

    def _leave_later(self) -> None:
        while not self._connection.is_closed:
            time.sleep(_RETRY_SECONDS)
            if self._connection.is_connected and self._leave():
                return

    # In kazoo's threads. A lost connection is reported at once, however long the campaigning thread waits.

    def _note_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._put(self._connected)
        elif state == KazooState.SUSPENDED:
            self._suspended_at = time.monotonic()
            self._notify(self._machine.suspended)
            self._put(_nothing)  # wakes the campaigning thread, which measures the time
        else:
            self._notify(self._machine.lost)

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

    def _notify(self, event: Callable[[], Sequence[Instruction]]) -> Sequence[Instruction]:
        """Pass an event to the machine, notify the listener in the same order, and return the other instructions."""
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

    # In the campaigning thread.

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
                # If the connection was lost, its return lists again; this is for requests that fail while connected.
                logger.warning("The campaign for leadership is interrupted: %s", error)
                self._put_later(self._list)
            except HoldfastError as error:
                self._listener.on_error(error)
            except Exception as error:
                logger.exception("The campaign for leadership failed.")
                self._listener.on_error(error)

    def _remaining_session(self) -> float | None:
        """Return the seconds after which a suspended session counts as lost, None if it is not suspended."""
        suspended_at = self._suspended_at
        if suspended_at is None:
            return None
        return max(0.0, suspended_at + self._connection.session_timeout - time.monotonic())

    def _expire(self) -> None:
        self._suspended_at = None
        self._notify(self._machine.lost)

    def _connected(self) -> None:
        if self._connection.is_connected:
            self._suspended_at = None
            self._execute(self._machine.connected)
            self._report_information()

    def _list(self) -> None:
        self._list_in(self._machine.period)

    def _list_in(self, period: int) -> None:
        if self._connection.is_connected:
            names = self._nodes.names()
            self._execute(lambda: self._machine.listed(period, names, uuid.uuid4()))

    def _execute(self, event: Callable[[], Sequence[Instruction]]) -> None:
        for instruction in self._notify(event):
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
        # Sent once: a repetition could make a second node. The list afterwards shows whether it was made.
        try:
            self._connection.call(
                lambda: self._client.create_async(path, self._identity.encode(), ephemeral=True, sequence=True)
            )
        except NoNodeError:
            logger.warning("The node of the leader latch was deleted; it is made again.")
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
        """Report the published information, and watch its next change; only while leading."""
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
            # The published information is compared soon; without a connection, when it is back.
            logger.warning("The leader information is not up to date: %s", error)
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
        return ZooKeeperLeaderElectionDriver(
            self._connection, self._tree, self._identity, self._tolerates_suspension, leader_election_listener
        )


class ZooKeeperLeaderRetrievalDriver(LeaderRetrievalDriver):
    """Watches the node of one component in a thread of its own.

    Args:
        connection: The connection of this process.
        tree: The published information.
        component_id: The component.
        tolerates_suspension: Whether a leader stays known while the connection is lost and the session may be alive.
        handler: Is notified of the leader.
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
        self._tree = LeaderTree(connection.without_retries(), tree.path)
        self._component_id = component_id
        self._tolerates_suspension = tolerates_suspension
        self._handler = handler
        self._states: queue.Queue[str | None] = queue.Queue()
        self._stop_event = threading.Event()
        connection.client.add_listener(self._states.put)
        self._states.put(KazooState.CONNECTED if connection.is_connected else KazooState.SUSPENDED)
        self._thread = threading.Thread(target=self._follow, name=f"leader-of-{component_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop_event.set()
        self._connection.client.remove_listener(self._states.put)
        self._states.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _follow(self) -> None:
        lost_at: float | None = None
        while not self._stop_event.is_set():
            try:
                timeout = None if lost_at is None else max(0.0, lost_at - time.monotonic())
                state = self._states.get(timeout=timeout)
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
            logger.warning("Could not read the leader of %r: %s", self._component_id, error)
            if self._connection.is_connected and not self._stop_event.wait(_RETRY_SECONDS):
                self._states.put(KazooState.CONNECTED)
        except HoldfastError as error:
            self._handler.notify_error(error)

    def _changed(self, event: Any) -> None:
        if self._connection.is_connected:
            self._states.put(KazooState.CONNECTED)
