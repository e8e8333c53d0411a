"""The query server: answers from completed checkpoints, and forwards requests for state that it does not serve.

It runs in the process of the job, beside executors, or as a process of its own. It has one thread with an event loop,
and one thread for each job that it follows. A request passes through these classes::

    ServerConnection -> QueryService -+-> LocalStates -> CheckpointView       served here
    (server_connection.py)            |   (routing.py)   (queryable/replica)
                                      +-> Router -> PeerConnections           served by another server
                                          (routing.py)   (proxy.py)
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from typing import Any, Final, Self, TypeVar

from holdfast.errors import ConfigurationError, StateError
from holdfast.ha.leader_election import LeaderRetrievalService
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange, range_of
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.checkpoint_view import CheckpointView, Share
from holdfast.queryable.replica.follower import CheckpointFollower
from holdfast.queryable.server.proxy import (
    PING_SECONDS,
    KvStateClientProxy,
    KvStateRegistryListener,
    LeaderListener,
    LeaderRegistration,
    LocationCache,
    LocationOracles,
    PeerConnections,
    Registration,
    RemoteLocationOracle,
    parse_registrations,
)
from holdfast.queryable.server.routing import LocalStates, Router
from holdfast.queryable.server.server_connection import Acceptor, ServerConnection, ServerSettings, ports_from
from holdfast.queryable.wire.connection import client_context, server_context
from holdfast.queryable.wire.errors import (
    BadRequestError,
    ProtocolError,
    UnauthorizedError,
    UnknownJobError,
)
from holdfast.queryable.wire.frame import Frame, FrameType, Limits, MemoryBudget, encode, to_header
from holdfast.queryable.wire.location import Address, KvStateLocationOracle, KvStateLocationRegistry, checked_address
from holdfast.queryable.wire.request import Consistency, GetRequest, ScanRequest, parse_deadline, parse_text
from holdfast.runtime.job.options import (
    QUERY_ADVERTISED_HOST,
    QUERY_GREETING_TIMEOUT,
    QUERY_HOST,
    QUERY_IDLE_TIMEOUT,
    QUERY_MAX_CONNECTIONS,
    QUERY_MAX_CONNECTIONS_OF_ADDRESS,
    QUERY_MAX_IN_FLIGHT,
    QUERY_MAX_KEYS,
    QUERY_MAX_MESSAGE,
    QUERY_MAX_STRANGERS,
    QUERY_MAX_WAITING,
    QUERY_POLL_INTERVAL,
    QUERY_PORTS,
    QUERY_SERVER_TOKEN,
    QUERY_TLS_AUTHORITY,
    QUERY_TLS_CERTIFICATE,
    QUERY_TLS_KEY,
    QUERY_TOKEN,
)
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.master.job_master import JobMaster, JobObserver
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import FencedRegister

logger = get_logger(__name__)

QUERY_COUNTS: Final[Counter[str]] = Counter()
"""Requests to the servers of this process by type; those that failed at once also count as `refused`.

Written by the thread of the event loop only; read by any thread.
"""
_JOB: Final = re.compile(r"[0-9a-f]{32}")
MAX_MISSED_PINGS: Final = 5
"""Pings that a registered server may miss in a row before it counts as lost."""
REFUSED: Final = "refused"
_KINDS: Final = {int(kind): kind.name.lower() for kind in FrameType}
Answer = bytes | Awaitable[bytes] | AsyncIterator[bytes]
T = TypeVar("T")
_START_SECONDS: Final = 30.0


class QueryService:
    """Answers each type of request; belongs to one event loop.

    Args:
        local: The states that this server serves.
        router: Forwards requests for other states.
        locations: Locations of other states.
        limits: Limits for clients.

    Attributes:
        registries: The location registries of the jobs that this process leads, by job id.
    """

    def __init__(self, local: LocalStates, router: Router, locations: LocationCache, limits: Limits) -> None:
        self._local = local
        self._router = router
        self._locations = locations
        self._limits = limits
        self._connections: set[ServerConnection] = set()
        self._registered: dict[ServerConnection, tuple[str, Address]] = {}
        self.registries: dict[str, KvStateLocationRegistry] = {}

    def opened(self, connection: ServerConnection) -> None:
        self._connections.add(connection)

    def closed(self, connection: ServerConnection) -> None:
        """Forget a connection and the registrations that were made on it.

        Other connections that have registered the same address are closed, so that their servers register again: this
        one had replaced their registrations.
        """
        self._connections.discard(connection)
        lost = self._registered.get(connection)
        if lost is None:
            return
        same = [other for other, registered in self._registered.items() if registered == lost]
        del self._registered[connection]
        job, address = lost
        if same[-1] is connection and job in self.registries:
            self.registries[job].notify_server_lost(address)
            for other in same[:-1]:
                other.close()

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close()

    def notify(self, job: str, checkpoint_id: int) -> None:
        """Notify the servers that have registered here of a completed checkpoint."""
        frame = encode(FrameType.NOTIFICATION, 0, to_header({"job": job, "checkpoint_id": checkpoint_id}))
        for connection, (of, _) in list(self._registered.items()):
            if of == job:
                connection.send(frame)

    def drop_job(self, job: str) -> None:
        """Forget a job: its location registry, locations and high-water mark."""
        self.registries.pop(job, None)
        self._locations.drop(job)
        self._router.high_water_marks.forget(job)

    def answer(self, frame: Frame, connection: ServerConnection) -> Answer:
        """Return the answer to a request, or an awaitable or iterator of frames.

        Raises:
            QueryError: The request fails.
        """
        QUERY_COUNTS[_KINDS.get(frame.type, "other")] += 1
        try:
            return self._answer(frame, connection)
        except Exception:
            QUERY_COUNTS[REFUSED] += 1
            raise

    def _answer(self, frame: Frame, connection: ServerConnection) -> Answer:
        kind = frame.type
        if kind == FrameType.GET:
            return self._get(frame, connection)
        if kind == FrameType.SCAN:
            return self._scan(frame)
        if kind == FrameType.DESCRIBE:
            return self._describe(frame)
        if kind == FrameType.LOCATE:
            return self._locate(frame)
        if kind == FrameType.JOBS:
            jobs = [_job(follower.replica.newest) for follower in list(self._local.followers.values())]
            return _result(frame, {"jobs": [job for job in jobs if job is not None]})
        if kind == FrameType.REGISTER:
            return self._register(frame, connection)
        if kind == FrameType.PING:
            return _result(frame, {})
        raise ProtocolError(f"A message of type {kind} is not a request.")

    def _get(self, frame: Frame, connection: ServerConnection) -> Answer:
        request = GetRequest.parse(frame)
        self._limits.check_keys(request.count)
        if request.kv_state_id is None:  # from a client; another proxy names the registration that it has chosen
            if not self._local.serves_all(request.job, request.state):
                _checked_job(request.job)
                return self._router.get(request, frame)
            # Earlier requests may have been answered by a server that was ahead of this one.
            raised = self._router.high_water_marks.at_least_shown(request)
            view = self._local.current_view(raised)
            if view is None and raised is not request:
                return self._router.get(request, frame)  # waits, and detects that the job has started from scratch
            request = raised
        else:
            view = self._local.current_view(request)
        if view is None:
            return self._get_later(request, frame, connection)
        return self._local.get(request, bytes(frame.body), view, frame.request)

    async def _get_later(self, request: GetRequest, frame: Frame, connection: ServerConnection) -> bytes:
        view = await self._local.view(request)
        await connection.wait_for_room(frame)  # many requests may have waited for the same checkpoint
        return self._local.get(request, bytes(frame.body), view, frame.request)

    def _scan(self, frame: Frame) -> Answer:
        request = ScanRequest.parse(frame)
        _checked_job(request.job)
        if request.is_local:
            return self._local.scan(request, frame.request)
        if self._local.serves_all(request.job, request.state):
            raised = self._router.high_water_marks.at_least_shown(request)
            if raised is request or self._local.current_view(raised) is not None:
                return self._local.scan(raised, frame.request)
        return self._router.scan(request, frame.request)

    def _describe(self, frame: Frame) -> Answer:
        fields = frame.fields()
        job = _checked_job(parse_text(fields, "job"))
        follower = self._local.followers.get(job)
        newest = follower.replica.newest if follower is not None else None
        if "state" not in fields:
            if newest is None:
                raise UnknownJobError(f"Could not find job ({job}), or it has no checkpoint yet.")
            states = [state.description.to_json() for state in newest.states.values()]
            return _result(frame, newest.identity | {"states": states})
        name = parse_text(fields, "state")
        if newest is not None and (fields.get("local") is True or name in newest.states):
            description = self._local.state(newest, name).description
            return _result(frame, newest.identity | {"states": [description.to_json()]})
        request = GetRequest(job, name, 1, Consistency.from_json(fields.get("consistency")), parse_deadline(fields))
        return self._describe_later(request, frame)

    async def _describe_later(self, request: GetRequest, frame: Frame) -> bytes:
        description = await self._router.describe(request)
        return _result(frame, {"states": [description.to_json()]})

    def _locate(self, frame: Frame) -> bytes:
        fields = frame.fields()
        job = parse_text(fields, "job")
        found = self._leader_of(job).request_kv_state_location(JobID(_checked_job(job)), parse_text(fields, "state"))
        return _result(frame, {"location": found.result().to_json()})

    def _register(self, frame: Frame, connection: ServerConnection) -> bytes:
        if not connection.is_server:
            raise UnauthorizedError("The bearer token is that of clients. Servers register with the token of servers.")
        fields = frame.fields()
        job = parse_text(fields, "job")
        registry = self._leader_of(job)
        try:
            address = checked_address(*fields["address"])
            registrations = parse_registrations(JobID(job), bytes(frame.body))
            if self._registered.get(connection, (job, address)) != (job, address):
                # The registrations of a first server would stay when the connection ends.
                raise BadRequestError("A connection registers one server for one job; this one has registered another.")
            registry.notify_server_lost(address)
            self._registered.pop(connection, None)
            self._registered[connection] = (job, address)  # the last one to register comes last
            connection.peer_watchdog.watch(PING_SECONDS, MAX_MISSED_PINGS)
            for one in registrations:
                registry.notify_kv_state_registered(
                    one.job_vertex_id, one.num_key_groups, one.key_groups, one.registration_name, one.kv_state_id,
                    address,
                )  # fmt: skip
        except (LookupError, TypeError, ValueError, ProtocolError, StateError) as error:
            raise BadRequestError(f"The registration of a server is malformed: {error!r:.400}") from error
        return _result(frame, {})

    def _leader_of(self, job: str) -> KvStateLocationRegistry:
        found = self.registries.get(job)
        if found is None:
            raise UnknownJobError(f"Could not find job ({job}). This process does not lead it.")
        return found


def _checked_job(job: str) -> str:
    if not _JOB.fullmatch(job):
        raise BadRequestError(f"A job id has 32 lower-case hexadecimal digits; this is {job!r:.80}.")
    return job


def _result(frame: Frame, fields: dict[str, Any]) -> bytes:
    return encode(FrameType.RESULT, frame.request, to_header(fields))


def _job(view: CheckpointView | None) -> dict[str, Any] | None:
    if view is None:
        return None
    return view.identity | {"job_id": view.job_id, "job_name": view.job_name, "states": sorted(view.states)}


def all_key_groups(max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """Return the share of a server that serves all key groups."""
    return (KeyGroupRange(0, max_parallelism - 1),)


def share_of(index: int, count: int) -> Share:
    """Return the share of one of several servers, numbered from 0, that serve all key groups together.

    If a state has fewer key groups than there are servers, the first servers serve one key group each.
    """
    if not 0 <= index < count:
        raise ConfigurationError(f"There is no server {index} of {count}; servers are numbered from 0.")

    def share(max_parallelism: int) -> tuple[KeyGroupRange, ...]:
        parts = min(count, max_parallelism)
        return (range_of(index, max_parallelism, parts),) if index < parts else ()

    return share


class _LocationForwarder(KvStateRegistryListener):
    """Forwards registrations to the location registry of a job that this process leads."""

    def __init__(self, registry: KvStateLocationRegistry, address: Address) -> None:
        self._registry = registry
        self._address = address

    def notify_kv_state_registered(self, registration: Registration) -> None:
        self._registry.notify_kv_state_registered(
            registration.job_vertex_id,
            registration.num_key_groups,
            registration.key_groups,
            registration.registration_name,
            registration.kv_state_id,
            self._address,
        )

    def notify_kv_state_unregistered(self, registration: Registration) -> None:
        self._registry.notify_kv_state_unregistered(
            registration.job_vertex_id, registration.key_groups, registration.registration_name, self._address
        )


class StateServer(KvStateClientProxy):
    """A query server: it answers from the states it serves and forwards all other requests.

    Thread-safe: methods may be called from any thread but that of its event loop. `start`, `shutdown`, `serve_job` and
    `drop_job` block until they are done; all other methods return at once. As a context manager it starts and shuts
    down.

    Args:
        settings: Address, tokens, TLS and limits; None for the defaults, a free port on 127.0.0.1.
    """

    def __init__(self, settings: ServerSettings | None = None) -> None:
        self._settings = settings or ServerSettings()
        self._oracles = LocationOracles()
        self._local = LocalStates(self._settings.limits)
        self._budget = MemoryBudget(self._settings.limits.budget_bytes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="holdfast-query-server", daemon=True)
        self._address: Address | None = None
        self._acceptor: Acceptor | None = None
        self._service: QueryService
        self._peers: PeerConnections
        self._locations = LocationCache(self._oracles)
        self._state = "new"
        self._retrievals: dict[str, LeaderRetrievalService] = {}
        self._registrations: dict[str, LeaderRegistration] = {}

    def start(self) -> None:
        if self._state != "new":
            raise StateError("The query server was started before. Make a new StateServer.")
        self._state = "started"
        self._thread.start()
        try:
            self._call(self._listen())
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        if self._state != "started":
            self._state = "ended"
            return
        self._state = "ended"
        for retrieval in self._retrievals.values():
            retrieval.stop()
        for follower in self._local.followers.values():
            follower.stop()
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def get_server_address(self) -> Address:
        if self._address is None:
            raise StateError("The query server was not started. Call start() first.")
        return self._address

    def __enter__(self) -> Self:
        if self._state == "new":
            self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def update_kv_state_location_oracle(
        self, job_id: JobID, kv_state_location_oracle: KvStateLocationOracle | None
    ) -> None:
        self._oracles.update(job_id, kv_state_location_oracle)
        if kv_state_location_oracle is not None and self._state == "started":
            self._loop.call_soon_threadsafe(self._locations.forget, str(job_id))

    def get_kv_state_location_oracle(self, job_id: JobID) -> KvStateLocationOracle | None:
        return self._oracles.get(job_id)

    def serve_job(
        self,
        directory: JobDirectory,
        register: FencedRegister,
        *,
        share: Share = all_key_groups,
        leader: LeaderRetrievalService | Address | None = None,
    ) -> CheckpointFollower:
        """Serve the queryable states of a job and follow its checkpoints. Blocks until the first checkpoint is loaded.

        Args:
            directory: The job's directory.
            register: The job's register.
            share: The key groups to serve, given how many there are.
            leader: Address or leader retrieval of the query server in the leading job master's process, with which this
                server registers. None if this server keeps the locations of the job itself: in the job master's
                process, and if it is the only server.

        Returns:
            The follower. Call its `notify` when a checkpoint has completed.
        """
        job = str(directory.job_id)
        follower = CheckpointFollower(directory, register, share, poll=self._settings.poll, on_change=self._on_change)
        self._local.followers[job] = follower
        try:
            if leader is None:
                self._call(self._lead(directory.job_id))
            elif isinstance(leader, tuple):
                self._call(self._follow_leader(directory.job_id, leader))
            else:
                self._retrievals[job] = leader
                job_id = directory.job_id
                leader.start(LeaderListener(lambda address: self._post(self._follow_leader(job_id, address))))
        except BaseException:
            self.drop_job(directory.job_id)
            raise
        follower.start()
        return follower

    def drop_job(self, job_id: JobID) -> None:
        """Stop serving a job and unregister from its leader; an unknown job is ignored. Blocks.

        Requests that wait for a checkpoint of the job fail with `UnknownJobError`.
        """
        job = str(job_id)
        follower = self._local.followers.pop(job, None)
        if follower is None:
            return
        retrieval = self._retrievals.pop(job, None)
        if retrieval is not None:
            retrieval.stop()
        follower.stop()
        for registration in self._local.registry.registrations(job_id):
            self._local.registry.unregister_kv_state(registration.kv_state_id)
        self._local.registry.unregister_listener(job_id)
        if self._state == "started":
            self._call(self._forget(job_id))
        follower.replica.wake_all()

    def jobs(self) -> Iterable[str]:
        """Return the ids of the served jobs."""
        return list(self._local.followers)

    def follower(self, job_id: JobID) -> CheckpointFollower:
        """Return the follower of a job.

        Raises:
            UnknownJobError: The job is not served.
        """
        return self._local.follower(str(job_id))

    # In other threads.

    def _on_change(self, follower: CheckpointFollower) -> None:
        """Register the states of a follower that has published; called in its thread."""
        if self._local.followers.get(follower.job_id) is not follower:
            return  # the job was dropped meanwhile
        self._local.register(follower)
        newest = follower.replica.newest
        if newest is not None and self._state == "started":
            self._loop.call_soon_threadsafe(self._service.notify, follower.job_id, newest.checkpoint_id)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_SECONDS)

    def _post(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._state == "started":
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        else:
            coroutine.close()

    # In the event loop.

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _listen(self) -> None:
        settings = self._settings
        self._peers = PeerConnections(settings.peer_token, settings.peer_tls)
        router = Router(self._local, self._locations, self._peers)
        self._service = QueryService(self._local, router, self._locations, settings.limits)
        limits = settings.limits
        quota: ConnectionQuota[ServerConnection] = ConnectionQuota(
            limits.connections, limits.per_address, limits.unauthenticated
        )
        acceptor = Acceptor(
            lambda: ServerConnection(self._service, limits, settings.tokens, self._budget, quota),
            quota,
            limits,
            settings.tls,
        )
        failure: OSError | None = None
        for port in settings.ports:
            try:
                self._address = (settings.public_host, await acceptor.listen(settings.host, port))
                self._acceptor = acceptor
                break
            except OSError as error:
                failure = error
        else:
            raise ConfigurationError(
                f"Unable to start the query server at {settings.host!r}. All ports in provided range are occupied: "
                f"{list(settings.ports)}. Set queryable-state.proxy.ports. ({failure})"
            )

    async def _close(self) -> None:
        for registration in self._registrations.values():
            registration.close()
        if self._acceptor is not None:
            await self._acceptor.close()
            self._service.close()
            await self._peers.close()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _lead(self, job_id: JobID) -> None:
        registry = KvStateLocationRegistry(job_id)
        self._service.registries[str(job_id)] = registry
        self._local.registry.register_listener(job_id, _LocationForwarder(registry, self.get_server_address()))
        self.update_kv_state_location_oracle(job_id, registry)

    async def _forget(self, job_id: JobID) -> None:
        registration = self._registrations.pop(str(job_id), None)
        if registration is not None:
            registration.close()
        self.update_kv_state_location_oracle(job_id, None)
        self._service.drop_job(str(job_id))

    async def _follow_leader(self, job_id: JobID, leader: Address | None) -> None:
        """Register with the leader's query server. None: nobody leads, and the known locations stay in use."""
        before = self._registrations.pop(str(job_id), None)
        if before is not None:
            before.close()
        follower = self._local.followers.get(str(job_id))
        if follower is None or leader is None or leader == self.get_server_address():
            return
        self.update_kv_state_location_oracle(job_id, RemoteLocationOracle(leader, self._peers, self._loop))
        registration = LeaderRegistration(
            job_id,
            leader,
            self.get_server_address(),
            self._local.registry,
            self._peers,
            lambda frame: follower.notify(),
            # A location from before the registration would forward all requests although they can be answered here.
            lambda: self._locations.forget(str(job_id)),
        )
        self._registrations[str(job_id)] = registration
        self._local.registry.register_listener(job_id, registration)


KvStateClientProxyImpl = StateServer
"""Flink's name."""


class EmbeddedQueryServer(JobObserver):
    """Runs a query server in the process of a job: it serves all queryable states and keeps their locations."""

    def __init__(self) -> None:
        self._server: StateServer | None = None

    def check(self, configuration: Configuration) -> None:
        settings_from(configuration)

    def started(self, master: JobMaster) -> None:
        job = master.job
        server = StateServer(settings_from(job.configuration))
        server.start()
        self._server = server
        follower = server.serve_job(job.directory, job.register)
        if job.leadership is not None:
            job.leadership.address = "{}:{}".format(*server.get_server_address())

        def completed(record: EpochProgress) -> None:
            if record.checkpoint_id is not None:
                follower.notify()

        master.progress.listen(completed)
        logger.info("queryable state of job %r is served at %s:%d", job.name, *server.get_server_address())

    def ended(self) -> None:
        if self._server is not None:
            self._server.shutdown()


def settings_from(configuration: Configuration) -> ServerSettings:
    """Read the settings of a server from a configuration.

    Raises:
        ConfigurationError: An option is invalid.
    """
    limits = Limits(
        message_bytes=configuration.get(QUERY_MAX_MESSAGE),
        keys=configuration.get(QUERY_MAX_KEYS),
        in_flight=configuration.get(QUERY_MAX_IN_FLIGHT),
        connections=configuration.get(QUERY_MAX_CONNECTIONS),
        per_address=configuration.get(QUERY_MAX_CONNECTIONS_OF_ADDRESS),
        unauthenticated=configuration.get(QUERY_MAX_STRANGERS),
        greeting_seconds=configuration.get(QUERY_GREETING_TIMEOUT) / 1000,
        idle_seconds=configuration.get(QUERY_IDLE_TIMEOUT) / 1000,
        all_bytes=configuration.get(QUERY_MAX_WAITING),
    )
    if limits.budget_bytes < limits.message_bytes:
        raise ConfigurationError(
            f"{QUERY_MAX_WAITING.key} ({limits.budget_bytes} bytes) is smaller than one message of "
            f"{QUERY_MAX_MESSAGE.key} ({limits.message_bytes} bytes)."
        )
    _check_bounds(limits)
    tls = server_context(configuration.get(QUERY_TLS_CERTIFICATE), configuration.get(QUERY_TLS_KEY))
    authority = configuration.get(QUERY_TLS_AUTHORITY)
    return ServerSettings(
        host=configuration.get(QUERY_HOST),
        ports=ports_from(configuration, QUERY_PORTS),
        token=configuration.get(QUERY_TOKEN),
        server_token=configuration.get(QUERY_SERVER_TOKEN),
        tls=tls,
        peer_tls=client_context(authority or True) if tls is not None else None,
        limits=limits,
        poll=configuration.get(QUERY_POLL_INTERVAL) / 1000,
        advertised=configuration.get(QUERY_ADVERTISED_HOST) or "",
    )


def _check_bounds(limits: Limits) -> None:
    options = {
        QUERY_MAX_CONNECTIONS: limits.connections,
        QUERY_MAX_CONNECTIONS_OF_ADDRESS: limits.per_address,
        QUERY_MAX_STRANGERS: limits.unauthenticated,
        QUERY_GREETING_TIMEOUT: limits.greeting_seconds,
        QUERY_IDLE_TIMEOUT: limits.idle_seconds,
    }
    for option, value in options.items():
        if value <= 0:
            raise ConfigurationError(f"{option.key} must be more than 0.")
