"""The proxy of queries, as its users and the job master see it.

::

    client --> proxy --(location, cached)--> server of the key group
                 |
                 +-- location unknown or wrong --> location oracle of the leading job master
"""

from __future__ import annotations

import asyncio
import json
import ssl as tls_module
import threading
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.ha.leader_election import LeaderRetrievalListener
from holdfast.kernel.ids import JobID, JobVertexID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.parsing import PARSE_ERRORS, parse_strict_json
from holdfast.kernel.secret import get_logger
from holdfast.queryable.wire.connection import ClientConnection, connect
from holdfast.queryable.wire.errors import (
    BadRequestError,
    ProtocolError,
    QueryConnectionError,
    QueryError,
    QueryTimeoutError,
    UnknownLocationError,
)
from holdfast.queryable.wire.frame import Frame, FrameType, to_header
from holdfast.queryable.wire.location import (
    Address,
    KvStateID,
    KvStateLocation,
    KvStateLocationOracle,
    checked_key_groups,
)


class KvStateServer(ABC):
    """Something that listens for queries."""

    @abstractmethod
    def start(self) -> None:
        """Listen on the first free port of the configured range.

        Raises:
            StateError: It was started before.
            ConfigurationError: All ports are occupied.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop listening, end all connections, release everything; once more is fine."""

    @abstractmethod
    def get_server_address(self) -> Address:
        """Returns host and port.

        Raises:
            StateError: It has not been started.
        """


class KvStateClientProxy(KvStateServer):
    """Where clients connect to: forwards each request to the server that holds the key's group."""

    @abstractmethod
    def update_kv_state_location_oracle(
        self, job_id: JobID, kv_state_location_oracle: KvStateLocationOracle | None
    ) -> None:
        """Tells who knows the locations of a job from now on, because another job master leads.

        May be called from another thread than `get_kv_state_location_oracle`.

        Args:
            job_id: The job.
            kv_state_location_oracle: None if there is nobody any more.
        """

    @abstractmethod
    def get_kv_state_location_oracle(self, job_id: JobID) -> KvStateLocationOracle | None:
        """Returns who knows the locations of a job, None if there is nobody."""


class LocationOracles:
    """Who knows the locations of each job. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._oracles: dict[str, KvStateLocationOracle] = {}

    def update(self, job_id: JobID, oracle: KvStateLocationOracle | None) -> None:
        """Set the oracle of a job; None removes it."""
        with self._lock:
            if oracle is None:
                self._oracles.pop(str(job_id), None)
            else:
                self._oracles[str(job_id)] = oracle

    def get(self, job_id: JobID | str) -> KvStateLocationOracle | None:
        """Return the oracle of a job."""
        with self._lock:
            return self._oracles.get(str(job_id))


class LocationCache:
    """Locations by job and state; belongs to one event loop.

    A cached location is used until an update is forced, or it could not be found out. While nobody can be asked, as the
    job master is dead or hangs, the last one that was known is used: of the servers in it others may answer.
    """

    def __init__(self, oracles: LocationOracles) -> None:
        self._oracles = oracles
        self._known: dict[tuple[str, str], asyncio.Future[KvStateLocation]] = {}
        self._last: dict[tuple[str, str], KvStateLocation] = {}

    def forget(self, job: str) -> None:
        """Ask again for the locations of a job: another one leads, or the leader knows of more servers than before."""
        for entry in [entry for entry in self._known if entry[0] == job]:
            del self._known[entry]

    def drop(self, job: str) -> None:
        """Forget all about a job, also what was known last."""
        self.forget(job)
        for entry in [entry for entry in self._last if entry[0] == job]:
            del self._last[entry]

    async def locate(self, job: str, name: str, *, force: bool = False) -> KvStateLocation:
        """Return where a state is.

        Raises:
            UnknownLocationError: Nobody knows about the job.
            UnknownJobError, UnknownKvStateLocationError: What the oracle says.
            QueryConnectionError, QueryTimeoutError: It cannot be asked, and no location has been known before.
        """
        entry = (job, name)
        found = self._known.get(entry)
        if force or found is None or found.cancelled() or (found.done() and found.exception() is not None):
            found = self._known[entry] = self._ask(job, name)
        try:
            location = self._last[entry] = await asyncio.shield(found)
            return location
        except QueryError as error:
            # What failed is asked for again; and who asks for many names must not fill the memory with failures.
            if self._known.get(entry) is found:
                del self._known[entry]
            last = self._last.get(entry) if isinstance(error, QueryConnectionError | QueryTimeoutError) else None
            if last is None:
                self._last.pop(entry, None)
                raise
            self._known.setdefault(entry, _done(last))  # asked again when it was wrong
            return last

    def _ask(self, job: str, name: str) -> asyncio.Future[KvStateLocation]:
        oracle = self._oracles.get(job)
        if oracle is None:
            failed: asyncio.Future[KvStateLocation] = asyncio.get_running_loop().create_future()
            failed.set_exception(location_unknown(job, name))
            return failed
        return asyncio.wrap_future(oracle.request_kv_state_location(JobID(job), name))


def _done(location: KvStateLocation) -> asyncio.Future[KvStateLocation]:
    answer: asyncio.Future[KvStateLocation] = asyncio.get_running_loop().create_future()
    answer.set_result(location)
    return answer


def location_unknown(job: str, state: str) -> UnknownLocationError:
    """Make the error for a state of which nobody can say where it is."""
    return UnknownLocationError(
        f"Could not retrieve location of state={state} of job={job}. Potential reasons are: i) the state is not ready, "
        "or ii) the job does not exist."
    )


# What one server holds: its registrations, under ids that a proxy names in its requests.

_MOST_RANGES: Final = 128


@dataclass(frozen=True)
class Registration:
    """A state of which a server holds a range of key groups."""

    job_id: JobID
    job_vertex_id: JobVertexID
    num_key_groups: int
    key_groups: KeyGroupRange
    registration_name: str
    kv_state_id: KvStateID

    def to_json(self) -> list[Any]:
        """Return it as it is told to a leader, who knows of which job it is."""
        held = self.key_groups
        return [
            *(str(self.job_vertex_id), self.num_key_groups, held.start, held.end),
            *(self.registration_name, str(self.kv_state_id)),
        ]


def parse_registrations(job_id: JobID, body: bytes) -> list[Registration]:
    """Read what another server holds of a job, as a list of what `to_json` returns.

    Raises:
        ProtocolError: It is no such list, or has more ranges of one state than anybody needs: each is looked at for
            each key group of a request.
    """
    try:
        told = parse_strict_json(body)
        if type(told) is not list:
            raise TypeError(f"{told!r:.80} is no list")
        found = [_registration(job_id, *one) for one in told]
    except (*PARSE_ERRORS, ConfigurationError) as error:
        raise ProtocolError(f"Not what a server holds of a job: {error!r:.300}") from error
    for name, ranges in Counter(held.registration_name for held in found).items():
        if ranges > _MOST_RANGES:
            raise ProtocolError(f"{ranges} ranges of state {name!r:.80}; a server registers up to {_MOST_RANGES}.")
    return found


def _registration(job_id: JobID, vertex: Any, groups: Any, start: Any, end: Any, name: Any, state: Any) -> Registration:
    if type(groups) is not int:
        raise TypeError(f"no number of key groups: {groups!r:.40}")
    if not all(type(text) is str for text in (vertex, name, state)):
        raise TypeError(f"no texts: {vertex!r:.40}, {name!r:.40}, {state!r:.40}")
    return Registration(job_id, JobVertexID(vertex), groups, checked_key_groups(start, end), name, KvStateID(state))


class KvStateRegistryListener(ABC):
    """Hears of the registrations of one job; a failure is its own concern."""

    @abstractmethod
    def notify_kv_state_registered(self, registration: Registration) -> None:
        """A range is held from now on."""

    @abstractmethod
    def notify_kv_state_unregistered(self, registration: Registration) -> None:
        """A range is held no more."""


class KvStateRegistry:
    """The registrations of a server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[KvStateID, Registration] = {}
        self._ids: dict[tuple[JobID, JobVertexID, int, KeyGroupRange, str], KvStateID] = {}
        self._listeners: dict[JobID, KvStateRegistryListener] = {}

    def register_listener(self, job_id: JobID, listener: KvStateRegistryListener) -> None:
        """Tell somebody of the job's registrations from now on, those that are there already first."""
        with self._lock:
            self._listeners[job_id] = listener
            for registration in self.registrations(job_id):
                listener.notify_kv_state_registered(registration)

    def unregister_listener(self, job_id: JobID) -> None:
        """Tell nobody of the job's registrations any more."""
        with self._lock:
            self._listeners.pop(job_id, None)

    def register_kv_state(
        self,
        job_id: JobID,
        job_vertex_id: JobVertexID,
        num_key_groups: int,
        key_group_range: KeyGroupRange,
        registration_name: str,
    ) -> KvStateID:
        """Register a range; the same one again keeps its id."""
        with self._lock:
            what = (job_id, job_vertex_id, num_key_groups, key_group_range, registration_name)
            known = self._ids.get(what)
            if known is not None:
                return known
            new = Registration(*what, KvStateID())
            self._held[new.kv_state_id] = new
            self._ids[what] = new.kv_state_id
            listener = self._listeners.get(job_id)
            if listener is not None:
                listener.notify_kv_state_registered(new)
            return new.kv_state_id

    def unregister_kv_state(self, kv_state_id: KvStateID) -> None:
        """Drop a registration; an unknown one is fine."""
        with self._lock:
            known = self._held.pop(kv_state_id, None)
            if known is None:
                return
            del self._ids[
                known.job_id, known.job_vertex_id, known.num_key_groups, known.key_groups, known.registration_name
            ]
            listener = self._listeners.get(known.job_id)
            if listener is not None:
                listener.notify_kv_state_unregistered(known)

    def get_kv_state(self, kv_state_id: KvStateID) -> Registration | None:
        """Returns a registration, None if it is not held."""
        return self._held.get(kv_state_id)

    def registrations(self, job_id: JobID) -> list[Registration]:
        """Returns all of a job."""
        with self._lock:
            return [held for held in self._held.values() if held.job_id == job_id]


# The connections of a server to others: those to which it forwards requests, and the leader.

PING_SECONDS: Final = 1.0
"""Between two signs of life of servers that have a connection."""
_CONNECT_SECONDS: Final = 3.0  # for a connection to another server; its client waits meanwhile
_SUSPECTED_SECONDS: Final = 10.0


class PeerConnections:
    """Connections to other servers; belongs to one event loop.

    There is one to each server, and another while all requests that may be in flight on it are: they are of many
    clients. A server that gives no sign of life counts as lost, and is asked last for a while.
    """

    def __init__(self, token: str | None, ssl: tls_module.SSLContext | None) -> None:
        self._token = token
        self._ssl = ssl
        self._open: dict[Address, list[asyncio.Task[ClientConnection]]] = {}
        self._suspected: dict[Address, float] = {}

    async def to(self, address: Address) -> ClientConnection:
        """Return a connection.

        Raises:
            QueryConnectionError: There is none.
        """
        self._forget_lost_ones()
        for task in list(self._open.get(address, ())):
            connection = await asyncio.shield(task)
            if connection.has_room and connection.is_open:
                return connection
        while True:
            # Others may have waited for the same one, and have filled it.
            task = asyncio.get_running_loop().create_task(self.fresh(address))
            self._open.setdefault(address, []).append(task)
            connection = await asyncio.shield(task)
            if connection.has_room:
                return connection

    def _forget_lost_ones(self) -> None:
        """Servers come and go, each with an address of its own."""
        for address, known in list(self._open.items()):
            known[:] = [task for task in known if not task.done() or _is_usable(task)]
            if not known:
                del self._open[address]

    async def fresh(self, address: Address, on_notification: Callable[[Frame], None] | None = None) -> ClientConnection:
        """Return a new connection, for a stream or for notifications; it ends when the server is silent.

        Raises:
            QueryConnectionError: There is none.
        """
        try:
            connection = await connect(
                address, token=self._token, ssl=self._ssl, on_notification=on_notification, timeout=_CONNECT_SECONDS
            )
        except QueryConnectionError:
            self.suspect(address)
            raise
        self._suspected.pop(address, None)
        connection.keep_alive(PING_SECONDS)
        return connection

    def suspect(self, address: Address) -> None:
        """A server has not answered: it is asked after others, for a while or until there is a connection again."""
        now = asyncio.get_running_loop().time()
        self._suspected = {known: until for known, until in self._suspected.items() if until > now}
        self._suspected[address] = now + _SUSPECTED_SECONDS

    def is_suspected(self, address: Address) -> bool:
        """Whether others are asked first."""
        until = self._suspected.get(address)
        return until is not None and until > asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Close all of them."""
        for task in [task for tasks in self._open.values() for task in tasks]:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            task.cancel()
        self._open.clear()


def _is_usable(task: asyncio.Task[ClientConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open


# A server and the leading job master: asking it for locations, and telling it what the server holds.
#
# The leader's address is `host:port` of the query server in its process. A registration lives as long as the connection
# over which it was made, so a server that dies is forgotten at once; one that hangs, as soon as it gives no sign of
# life.

_log = get_logger(__name__)
RETRY_SECONDS: Final = 0.2
_ANSWER_SECONDS: Final = 10.0


class RemoteLocationOracle(KvStateLocationOracle):
    """Asks the leading job master over the network.

    Args:
        address: Of the query server in its process.
        peers: Connections of this process.
        loop: The event loop that they belong to.
    """

    def __init__(self, address: Address, peers: PeerConnections, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self._peers = peers
        self._loop = loop

    def request_kv_state_location(self, job_id: JobID, registration_name: str) -> Future[KvStateLocation]:
        """Ask; the future fails with the leader's error, or with one of the connection."""
        return asyncio.run_coroutine_threadsafe(self._ask(job_id, registration_name), self._loop)

    async def _ask(self, job_id: JobID, name: str) -> KvStateLocation:
        peer = await self._peers.to(self.address)
        header = to_header({"job": str(job_id), "state": name})
        answer = await peer.request(FrameType.LOCATE, header, timeout=_ANSWER_SECONDS)
        return KvStateLocation.from_json(answer.fields().get("location") or {})


class LeaderRegistration(KvStateRegistryListener):
    """Keeps the leader informed of what a server holds of one job; runs in the server's event loop.

    Args:
        job_id: The job.
        leader: Of the query server in the leader's process.
        own: The address under which others reach this server.
        registry: What this server holds.
        peers: Makes the connection.
        on_notification: Called when the leader says that a checkpoint has completed.
        on_registered: Called when the leader knows what is held here.
    """

    def __init__(
        self,
        job_id: JobID,
        leader: Address,
        own: Address,
        registry: KvStateRegistry,
        peers: PeerConnections,
        on_notification: Callable[[Frame], None],
        on_registered: Callable[[], None],
    ) -> None:
        self._job_id = job_id
        self._leader = leader
        self._own = own
        self._registry = registry
        self._peers = peers
        self._on_notification = on_notification
        self._on_registered = on_registered
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._told = ""
        self._task = self._loop.create_task(self._run())

    def notify_kv_state_registered(self, registration: Registration) -> None:
        """Tell the leader soon."""
        self._loop.call_soon_threadsafe(self._changed.set)

    def notify_kv_state_unregistered(self, registration: Registration) -> None:
        """Tell the leader soon."""
        self._loop.call_soon_threadsafe(self._changed.set)

    def close(self) -> None:
        """Tell nobody any more; the leader forgets the server."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._peers.fresh(self._leader, self._on_notification)
                try:
                    await self._keep_informed(connection)
                finally:
                    connection.close()
            except QueryError as error:
                if str(error) != self._told:
                    self._told = str(error)
                    _log.warning("Not registered with %s:%d for job %s: %s", *self._leader, self._job_id, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep_informed(self, connection: ClientConnection) -> None:
        while connection.is_open:
            self._changed.clear()
            states = [held.to_json() for held in self._registry.registrations(self._job_id)]
            header = to_header({"job": str(self._job_id), "address": list(self._own)})
            body = json.dumps(states).encode()
            await connection.request(FrameType.REGISTER, header, body, timeout=_ANSWER_SECONDS)
            self._told = ""
            self._on_registered()
            await self._change_or_end(connection)

    async def _change_or_end(self, connection: ClientConnection) -> None:
        connection.closed.add_done_callback(lambda _: self._changed.set())
        await self._changed.wait()


class LeaderListener(LeaderRetrievalListener):
    """Hears who leads a job, and passes the address on."""

    def __init__(self, on_leader: Callable[[Address | None], None]) -> None:
        self._on_leader = on_leader

    def notify_leader_address(self, leader_address: str | None, leader_session_id: uuid.UUID | None) -> None:
        """The leader is now this one."""
        address = None
        with suppress(BadRequestError):
            address = parse_address(leader_address) if leader_address else None
        self._on_leader(address)

    def handle_error(self, error: BaseException) -> None:
        """The last known leader is asked further on."""
        _log.error("The leader can no longer be followed; the last known one is asked.", exc_info=error)


def parse_address(text: str) -> Address:
    """Return host and port of `host:port`.

    Raises:
        BadRequestError: It is no such text.
    """
    host, colon, port = text.removeprefix("holdfast://").rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadRequestError(f"{text!r} is no address; write host:port.")
    return host.strip("[]") or "127.0.0.1", int(port)
