"""A query server: a read replica of the checkpoints of jobs, with a proxy in it.

It runs in the process of the job, beside executors, or alone. All of it happens in one thread with an event loop, and
one thread for each job that it follows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Self, TypeVar

from holdfast.errors import ConfigurationError, StateError
from holdfast.ha.election.leader_retrieval import LeaderRetrievalService
from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange, range_of
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.checkpoint_view import Share
from holdfast.queryable.replica.follower import CheckpointFollower
from holdfast.queryable.server.acceptor import Acceptor
from holdfast.queryable.server.leader import LeaderListener, LeaderRegistration, RemoteLocationOracle
from holdfast.queryable.server.local import LocalStates
from holdfast.queryable.server.peers import Peers
from holdfast.queryable.server.proxy import KvStateClientProxy, LocationCache, Oracles
from holdfast.queryable.server.registry import KvStateRegistryListener, Registration
from holdfast.queryable.server.routing import Router
from holdfast.queryable.server.server_connection import ServerConnection
from holdfast.queryable.server.server_settings import ServerSettings
from holdfast.queryable.server.service import QueryService
from holdfast.queryable.wire.limits import MemoryBudget
from holdfast.queryable.wire.location import Address, KvStateLocationOracle, KvStateLocationRegistry
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.register.fenced_register import FencedRegister

_log = get_logger(__name__)
T = TypeVar("T")
_START_SECONDS: Final = 30.0


def whole(max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """The share of a server that holds everything."""
    return (KeyGroupRange(0, max_parallelism - 1),)


def part_of(index: int, count: int) -> Share:
    """Return the share of one of several servers, numbered from 0, that hold everything between them.

    Of a state with fewer key groups than there are servers the first ones hold a group each.
    """
    if not 0 <= index < count:
        raise ConfigurationError(f"There is no part {index} of {count}; they are numbered from 0.")

    def held(max_parallelism: int) -> tuple[KeyGroupRange, ...]:
        parts = min(count, max_parallelism)
        return (range_of(index, max_parallelism, parts),) if index < parts else ()

    return held


class _Told(KvStateRegistryListener):
    """Passes registrations on to the location registry of a job that this process leads."""

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


class KvStateClientProxyImpl(KvStateClientProxy):
    """A server that answers from what it holds and forwards the rest.

    Its methods may be called from any thread but its own event loop's. `start`, `shutdown` and `serve_job` block until
    it listens, has ended, or has looked at the job once; everything else returns at once.

    Args:
        settings: How it listens.
    """

    def __init__(self, settings: ServerSettings | None = None) -> None:
        self._settings = settings or ServerSettings()
        self._oracles = Oracles()
        self._local = LocalStates(self._settings.limits)
        self._budget = MemoryBudget(self._settings.limits.budget_bytes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="holdfast-query-server", daemon=True)
        self._address: Address | None = None
        self._acceptor: Acceptor | None = None
        self._service: QueryService
        self._peers: Peers
        self._locations = LocationCache(self._oracles)
        self._state = "new"
        self._retrievals: dict[str, LeaderRetrievalService] = {}
        self._registrations: dict[str, LeaderRegistration] = {}

    # The life of the server.

    def start(self) -> None:
        """Listen on the first free port of the configured ones.

        Raises:
            StateError: It was started before.
            ConfigurationError: All ports are occupied.
        """
        if self._state != "new":
            raise StateError("A query server can be started once only.")
        self._state = "started"
        self._thread.start()
        try:
            self._call(self._listen())
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """Stop listening, end all connections, release everything."""
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
        """Returns the host under which others reach it, and the port."""
        if self._address is None:
            raise StateError("The query server has not been started.")
        return self._address

    def __enter__(self) -> Self:
        """Start, unless that was done."""
        if self._state == "new":
            self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Shut down."""
        self.shutdown()

    # Oracles.

    def update_kv_state_location_oracle(
        self, job_id: JobID, kv_state_location_oracle: KvStateLocationOracle | None
    ) -> None:
        """Tells who knows the locations of a job from now on, and is asked for them anew. Thread-safe."""
        self._oracles.update(job_id, kv_state_location_oracle)
        if kv_state_location_oracle is not None and self._state == "started":
            self._loop.call_soon_threadsafe(self._locations.forget, str(job_id))

    def get_kv_state_location_oracle(self, job_id: JobID) -> KvStateLocationOracle | None:
        """Returns who knows the locations of a job. Thread-safe."""
        return self._oracles.get(job_id)

    # Jobs.

    def serve_job(
        self,
        directory: JobDirectory,
        register: FencedRegister,
        *,
        share: Share = whole,
        leader: LeaderRetrievalService | Address | None = None,
    ) -> CheckpointFollower:
        """Hold the queryable states of a job and follow its checkpoints.

        Args:
            directory: The job's directory.
            register: The job's register.
            share: Which key groups to hold.
            leader: How to find the query server of the leading job master, with which this server registers; None if it
                keeps the locations of the job itself: in the process of the job master, and alone.

        Returns:
            The follower; its `notify` may be called when a checkpoint has completed.
        """
        job = str(directory.job_id)
        follower = CheckpointFollower(directory, register, share, poll=self._settings.poll, on_change=self._changed)
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
        """Hold nothing of a job any more, and forget what was known of it; blocks.

        The leader is told. Who waits for a checkpoint of it hears that there is no such job.
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
        """Returns the jobs that are held."""
        return list(self._local.followers)

    def follower(self, job_id: JobID) -> CheckpointFollower:
        """Returns who follows a job.

        Raises:
            UnknownJobError: It is not held.
        """
        return self._local.follower(str(job_id))

    # In other threads.

    def _changed(self, follower: CheckpointFollower) -> None:
        """A follower has published; called in its thread."""
        if self._local.followers.get(follower.job_id) is not follower:
            return  # dropped meanwhile
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
        self._peers = Peers(settings.shown_token, settings.peer_tls)
        router = Router(self._local, self._locations, self._peers)
        self._service = QueryService(self._local, router, self._locations, settings.limits)
        limits = settings.limits
        quota: ConnectionQuota[ServerConnection] = ConnectionQuota(
            limits.connections, limits.of_one_address, limits.strangers
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
                self._address = (settings.shown_host, await acceptor.listen(settings.host, port))
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
        self._local.registry.register_listener(job_id, _Told(registry, self.get_server_address()))
        self.update_kv_state_location_oracle(job_id, registry)

    async def _forget(self, job_id: JobID) -> None:
        registration = self._registrations.pop(str(job_id), None)
        if registration is not None:
            registration.close()
        self.update_kv_state_location_oracle(job_id, None)
        self._service.drop_job(str(job_id))

    async def _follow_leader(self, job_id: JobID, leader: Address | None) -> None:
        """The leading job master's query server is there now; None: nobody leads, locations stay as they are known."""
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
            # A location from before would send all requests elsewhere for what is held here.
            lambda: self._locations.forget(str(job_id)),
        )
        self._registrations[str(job_id)] = registration
        self._local.registry.register_listener(job_id, registration)


class StateServer(KvStateClientProxyImpl):
    """A query server under the name by which people know it."""
