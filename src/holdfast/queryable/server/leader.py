"""A server and the leading job master: asking it for locations, and telling it what the server holds.

The leader's address is `host:port` of the query server in its process. A registration lives as long as the connection
over which it was made, so a server that dies is forgotten at once; one that hangs, as soon as it gives no sign of life.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from holdfast.ha.election.leader_retrieval import LeaderRetrievalListener
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.queryable.server.peers import Peers
from holdfast.queryable.server.registry import KvStateRegistry, KvStateRegistryListener, Registration
from holdfast.queryable.wire.connection import ClientConnection
from holdfast.queryable.wire.errors import BadRequestError, QueryError
from holdfast.queryable.wire.frame import Frame, FrameType, to_header
from holdfast.queryable.wire.location import Address, KvStateLocation, KvStateLocationOracle

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

    def __init__(self, address: Address, peers: Peers, loop: asyncio.AbstractEventLoop) -> None:
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
        peers: Peers,
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
