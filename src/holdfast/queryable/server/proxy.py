"""The parts of a query proxy: locations, registrations, connections to other servers and to the leader.

`Router` in `routing.py` forwards the requests::

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

logger = get_logger(__name__)

_MAX_RANGES: Final = 128
PING_SECONDS: Final = 1.0
"""The interval of pings between servers."""
_CONNECT_SECONDS: Final = 3.0  # short: the client of the request waits meanwhile
_SUSPECTED_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.2
_ANSWER_SECONDS: Final = 10.0


class KvStateClientProxy(ABC):
    """The server that clients connect to: it forwards each request to the server that serves the key's group.

    `StateServer` implements it. All methods are thread-safe.
    """

    @abstractmethod
    def start(self) -> None:
        """Listen on the first free port of the configured range. Blocks until the server listens.

        Raises:
            StateError: The server was started before.
            ConfigurationError: All ports are occupied.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop listening, close all connections, release all resources. Blocks; calling it again has no effect."""

    @abstractmethod
    def get_server_address(self) -> Address:
        """Return the host and port under which others reach the server.

        Raises:
            StateError: The server was not started.
        """

    @abstractmethod
    def update_kv_state_location_oracle(
        self, job_id: JobID, kv_state_location_oracle: KvStateLocationOracle | None
    ) -> None:
        """Set the oracle that knows the locations of a job, when another job master leads. Does not block.

        Args:
            job_id: The job.
            kv_state_location_oracle: The new oracle; None if there is none any more.
        """

    @abstractmethod
    def get_kv_state_location_oracle(self, job_id: JobID) -> KvStateLocationOracle | None:
        """Return the oracle that knows the locations of a job, None if there is none."""


KvStateServer = KvStateClientProxy
"""Flink's interface above the proxy; a server here is always a proxy as well."""


class LocationOracles:
    """The location oracle of each job. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._oracles: dict[str, KvStateLocationOracle] = {}

    def update(self, job_id: JobID, oracle: KvStateLocationOracle | None) -> None:
        with self._lock:
            if oracle is None:
                self._oracles.pop(str(job_id), None)
            else:
                self._oracles[str(job_id)] = oracle

    def get(self, job_id: JobID | str) -> KvStateLocationOracle | None:
        with self._lock:
            return self._oracles.get(str(job_id))


class LocationCache:
    """Cached locations by job and state; belongs to one event loop.

    A location is used until an update is forced. While the job master is dead or hangs, the last known location is
    used: other servers in it may still answer.
    """

    def __init__(self, oracles: LocationOracles) -> None:
        self._oracles = oracles
        self._known: dict[tuple[str, str], asyncio.Future[KvStateLocation]] = {}
        self._last: dict[tuple[str, str], KvStateLocation] = {}

    def forget(self, job: str) -> None:
        """Request the locations of a job again: another job master leads, or more servers have registered with it."""
        for entry in [entry for entry in self._known if entry[0] == job]:
            del self._known[entry]

    def drop(self, job: str) -> None:
        """Forget a job completely, also its last known locations."""
        self.forget(job)
        for entry in [entry for entry in self._last if entry[0] == job]:
            del self._last[entry]

    async def locate(self, job: str, name: str, *, force: bool = False) -> KvStateLocation:
        """Return the location of a state.

        Raises:
            UnknownLocationError: The job has no oracle.
            UnknownJobError, UnknownKvStateLocationError: The oracle does not know the job or the state.
            QueryConnectionError, QueryTimeoutError: The oracle cannot be reached, and no location was known before.
        """
        entry = (job, name)
        found = self._known.get(entry)
        if force or found is None or found.cancelled() or (found.done() and found.exception() is not None):
            found = self._known[entry] = self._request(job, name)
        try:
            location = self._last[entry] = await asyncio.shield(found)
            return location
        except QueryError as error:
            # Failures are not cached: they are retried, and queries for many names must not fill the memory.
            if self._known.get(entry) is found:
                del self._known[entry]
            last = self._last.get(entry) if isinstance(error, QueryConnectionError | QueryTimeoutError) else None
            if last is None:
                self._last.pop(entry, None)
                raise
            self._known.setdefault(entry, _done(last))  # a caller that finds it wrong forces an update
            return last

    def _request(self, job: str, name: str) -> asyncio.Future[KvStateLocation]:
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
    return UnknownLocationError(
        f"Could not retrieve location of state={state} of job={job}. Potential reasons are: i) the state is not ready, "
        "or ii) the job does not exist."
    )


# Registrations: what a server serves, under ids that proxies send in their requests.


@dataclass(frozen=True)
class Registration:
    """A range of key groups of one state that a server serves."""

    job_id: JobID
    job_vertex_id: JobVertexID
    num_key_groups: int
    key_groups: KeyGroupRange
    registration_name: str
    kv_state_id: KvStateID

    def to_json(self) -> list[Any]:
        """Return the JSON that is sent to the leader, without the job, which the request names."""
        return [
            *(str(self.job_vertex_id), self.num_key_groups, self.key_groups.start, self.key_groups.end),
            *(self.registration_name, str(self.kv_state_id)),
        ]


def parse_registrations(job_id: JobID, body: bytes) -> list[Registration]:
    """Parse the registrations of another server for a job, a list of what `Registration.to_json` returns.

    Raises:
        ProtocolError: The body is malformed, or has too many ranges of one state: every range is compared with every
            key group of a request.
    """
    try:
        entries = parse_strict_json(body)
        if type(entries) is not list:
            raise TypeError(f"{entries!r:.80} is not a list")
        found = [_registration(job_id, entry) for entry in entries]
    except (*PARSE_ERRORS, ConfigurationError) as error:
        raise ProtocolError(f"Malformed registrations of a server: {error!r:.300}") from error
    for name, ranges in Counter(one.registration_name for one in found).items():
        if ranges > _MAX_RANGES:
            raise ProtocolError(f"{ranges} ranges of state {name!r:.80}; a server registers up to {_MAX_RANGES}.")
    return found


def _registration(job_id: JobID, entry: Any) -> Registration:
    vertex, groups, start, end, name, state = entry
    if type(groups) is not int:
        raise TypeError(f"not a number of key groups: {groups!r:.40}")
    if not all(type(text) is str for text in (vertex, name, state)):
        raise TypeError(f"not strings: {vertex!r:.40}, {name!r:.40}, {state!r:.40}")
    return Registration(job_id, JobVertexID(vertex), groups, checked_key_groups(start, end), name, KvStateID(state))


class KvStateRegistryListener(ABC):
    """Receives the registrations of one job. It must handle its own failures."""

    @abstractmethod
    def notify_kv_state_registered(self, registration: Registration) -> None:
        """Called when a range is served from now on."""

    @abstractmethod
    def notify_kv_state_unregistered(self, registration: Registration) -> None:
        """Called when a range is no longer served."""


class KvStateRegistry:
    """The registrations of a server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._registrations: dict[KvStateID, Registration] = {}
        self._ids: dict[tuple[JobID, JobVertexID, int, KeyGroupRange, str], KvStateID] = {}
        self._listeners: dict[JobID, KvStateRegistryListener] = {}

    def register_listener(self, job_id: JobID, listener: KvStateRegistryListener) -> None:
        """Notify a listener of the registrations of a job: first of the existing ones, then of every change."""
        with self._lock:
            self._listeners[job_id] = listener
            for registration in self.registrations(job_id):
                listener.notify_kv_state_registered(registration)

    def unregister_listener(self, job_id: JobID) -> None:
        """Remove the listener of a job."""
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
        """Register a range and return its id; registering the same range again returns the same id."""
        with self._lock:
            what = (job_id, job_vertex_id, num_key_groups, key_group_range, registration_name)
            known = self._ids.get(what)
            if known is not None:
                return known
            new = Registration(*what, KvStateID())
            self._registrations[new.kv_state_id] = new
            self._ids[what] = new.kv_state_id
            listener = self._listeners.get(job_id)
            if listener is not None:
                listener.notify_kv_state_registered(new)
            return new.kv_state_id

    def unregister_kv_state(self, kv_state_id: KvStateID) -> None:
        """Remove a registration; an unknown id is ignored."""
        with self._lock:
            known = self._registrations.pop(kv_state_id, None)
            if known is None:
                return
            del self._ids[
                known.job_id, known.job_vertex_id, known.num_key_groups, known.key_groups, known.registration_name
            ]
            listener = self._listeners.get(known.job_id)
            if listener is not None:
                listener.notify_kv_state_unregistered(known)

    def get_kv_state(self, kv_state_id: KvStateID) -> Registration | None:
        """Return the registration of an id, None if there is none."""
        return self._registrations.get(kv_state_id)

    def registrations(self, job_id: JobID) -> list[Registration]:
        """Return all registrations of a job."""
        with self._lock:
            return [one for one in self._registrations.values() if one.job_id == job_id]


# Connections to other servers and to the leader.


class PeerConnections:
    """Connections to other servers; belongs to one event loop.

    There is one connection to each server, and another one while the first has as many requests in flight as the server
    allows. A server that does not answer pings counts as lost, and is tried last for a while.
    """

    def __init__(self, token: str | None, ssl: tls_module.SSLContext | None) -> None:
        self._token = token
        self._ssl = ssl
        self._open: dict[Address, list[asyncio.Task[ClientConnection]]] = {}
        self._suspected: dict[Address, float] = {}

    async def connection_to(self, address: Address) -> ClientConnection:
        """Return a connection that has room for a request.

        Raises:
            QueryConnectionError: The server cannot be reached.
        """
        self._forget_lost()
        for task in list(self._open.get(address, ())):
            connection = await asyncio.shield(task)
            if connection.has_room and connection.is_open:
                return connection
        while True:
            # Loop: other requests may have waited for the same connection and filled it.
            task = asyncio.get_running_loop().create_task(self.open_connection(address))
            self._open.setdefault(address, []).append(task)
            connection = await asyncio.shield(task)
            if connection.has_room:
                return connection

    def _forget_lost(self) -> None:
        for address, known in list(self._open.items()):
            known[:] = [task for task in known if not task.done() or _is_usable(task)]
            if not known:
                del self._open[address]

    async def open_connection(
        self, address: Address, on_notification: Callable[[Frame], None] | None = None
    ) -> ClientConnection:
        """Return a new connection, for a stream or for notifications; it is closed when the server stops answering.

        Raises:
            QueryConnectionError: The server cannot be reached.
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
        """Try this server last, for a while or until it can be connected to again: it has not answered."""
        now = asyncio.get_running_loop().time()
        self._suspected = {known: until for known, until in self._suspected.items() if until > now}
        self._suspected[address] = now + _SUSPECTED_SECONDS

    def is_suspected(self, address: Address) -> bool:
        until = self._suspected.get(address)
        return until is not None and until > asyncio.get_running_loop().time()

    async def close(self) -> None:
        for task in [task for tasks in self._open.values() for task in tasks]:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            task.cancel()
        self._open.clear()


def _is_usable(task: asyncio.Task[ClientConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open


# The connection to the leading job master: requests for locations, and registration.
#
# The leader's address is `host:port` of the query server in its process. A registration lives as long as the connection
# on which it was made, so a server that dies is forgotten at once, and one that hangs after it has missed some pings.


class RemoteLocationOracle(KvStateLocationOracle):
    """Requests locations from the leading job master over the network.

    Args:
        address: Address of the query server in its process.
        peers: Connections of this process.
        loop: The event loop that they belong to.
    """

    def __init__(self, address: Address, peers: PeerConnections, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self._peers = peers
        self._loop = loop

    def request_kv_state_location(self, job_id: JobID, registration_name: str) -> Future[KvStateLocation]:
        """Request a location; the future fails with the leader's error or a connection error."""
        return asyncio.run_coroutine_threadsafe(self._request(job_id, registration_name), self._loop)

    async def _request(self, job_id: JobID, name: str) -> KvStateLocation:
        peer = await self._peers.connection_to(self.address)
        header = to_header({"job": str(job_id), "state": name})
        answer = await peer.request(FrameType.LOCATE, header, timeout=_ANSWER_SECONDS)
        return KvStateLocation.from_json(answer.fields().get("location") or {})


class LeaderRegistration(KvStateRegistryListener):
    """Registers what a server serves of one job with the leader, and keeps it up to date; runs in the event loop.

    Args:
        job_id: The job.
        leader: Address of the query server in the leader's process.
        own: The address under which others reach this server.
        registry: The registrations of this server.
        peers: Opens the connection.
        on_notification: Called when the leader notifies of a completed checkpoint.
        on_registered: Called when the leader has accepted the registrations.
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
        self._last_error = ""
        self._task = self._loop.create_task(self._run())

    def notify_kv_state_registered(self, registration: Registration) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def notify_kv_state_unregistered(self, registration: Registration) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def close(self) -> None:
        """Stop; the leader forgets the server with the connection."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._peers.open_connection(self._leader, self._on_notification)
                try:
                    await self._register_and_update(connection)
                finally:
                    connection.close()
            except QueryError as error:
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    logger.warning("Not registered with %s:%d for job %s: %s", *self._leader, self._job_id, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _register_and_update(self, connection: ClientConnection) -> None:
        while connection.is_open:
            self._changed.clear()
            states = [one.to_json() for one in self._registry.registrations(self._job_id)]
            header = to_header({"job": str(self._job_id), "address": list(self._own)})
            body = json.dumps(states).encode()
            await connection.request(FrameType.REGISTER, header, body, timeout=_ANSWER_SECONDS)
            self._last_error = ""
            self._on_registered()
            connection.closed.add_done_callback(lambda _: self._changed.set())
            await self._changed.wait()


class LeaderListener(LeaderRetrievalListener):
    """Passes the address of a job's leader on, None for an address that cannot be parsed."""

    def __init__(self, on_leader: Callable[[Address | None], None]) -> None:
        self._on_leader = on_leader

    def notify_leader_address(self, leader_address: str | None, leader_session_id: uuid.UUID | None) -> None:
        address = None
        with suppress(BadRequestError):
            address = parse_address(leader_address) if leader_address else None
        self._on_leader(address)

    def handle_error(self, error: BaseException) -> None:
        logger.error("Leader retrieval failed; the last known leader is used.", exc_info=error)


def parse_address(text: str) -> Address:
    """Parse `host:port`.

    Raises:
        BadRequestError: The text has another form.
    """
    host, colon, port = text.removeprefix("holdfast://").rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadRequestError(f"{text!r} is not an address; write host:port.")
    return host.strip("[]") or "127.0.0.1", int(port)
