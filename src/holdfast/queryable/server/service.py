"""What a server answers to each kind of request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

from holdfast.errors import StateError
from holdfast.kernel.ids import JobID
from holdfast.queryable.replica.checkpoint_view import CheckpointView
from holdfast.queryable.server.local import LocalStates
from holdfast.queryable.server.peers import PING_SECONDS
from holdfast.queryable.server.proxy import LocationCache
from holdfast.queryable.server.registry import registrations_from
from holdfast.queryable.server.routing import Router
from holdfast.queryable.server.server_connection import ServerConnection
from holdfast.queryable.wire.errors import (
    BadRequestError,
    ProtocolError,
    UnauthorizedError,
    UnknownJobError,
)
from holdfast.queryable.wire.frame import Frame, FrameType, encode, to_header
from holdfast.queryable.wire.limits import Limits
from holdfast.queryable.wire.location import Address, KvStateLocationRegistry, address_from
from holdfast.queryable.wire.request import GetRequest, ScanRequest, text

QUERIES: Final[Counter[str]] = Counter()
"""What the servers of this process were asked for, by kind, and how many requests were refused at once, as `refused`.

Changed by the thread of the event loop alone; read by any.
"""
_JOB: Final = re.compile(r"[0-9a-f]{32}")
MOST_SILENCES: Final = 5
"""A server that has registered is lost after so many times the interval of pings without any."""
REFUSED: Final = "refused"
_KINDS: Final = {int(kind): kind.name.lower() for kind in FrameType}
Answer = bytes | Awaitable[bytes] | AsyncIterator[bytes]


class QueryService:
    """Answers requests; belongs to one event loop.

    Args:
        local: What is held here.
        router: How to reach the rest.
        locations: Where the rest is.
        limits: What clients may do.
    """

    def __init__(self, local: LocalStates, router: Router, locations: LocationCache, limits: Limits) -> None:
        self._local = local
        self._router = router
        self._locations = locations
        self._limits = limits
        self._connections: set[ServerConnection] = set()
        self._registered: dict[ServerConnection, tuple[str, Address]] = {}
        self.registries: dict[str, KvStateLocationRegistry] = {}
        """The location registries of the jobs that this process leads."""

    def opened(self, connection: ServerConnection) -> None:
        """Remember a connection."""
        self._connections.add(connection)

    def closed(self, connection: ServerConnection) -> None:
        """Forget a connection, and what the server at its other end holds.

        Whoever has registered the same address before is to register again: what he told was replaced.
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
        """End all connections."""
        for connection in list(self._connections):
            connection.close()

    def notify(self, job: str, checkpoint_id: int) -> None:
        """Tell the servers that have registered here that a checkpoint has completed."""
        frame = encode(FrameType.NOTIFICATION, 0, to_header({"job": job, "checkpoint_id": checkpoint_id}))
        for connection, (of, _) in list(self._registered.items()):
            if of == job:
                connection.send(frame)

    def drop_job(self, job: str) -> None:
        """Forget a job: nobody leads it here any more, and what was shown of it does not count."""
        self.registries.pop(job, None)
        self._locations.drop(job)
        self._router.high_water.forget(job)

    def answer(self, frame: Frame, connection: ServerConnection) -> Answer:
        """Return the answer to a request, or what will give it.

        Raises:
            QueryError: The request fails.
        """
        QUERIES[_KINDS.get(frame.type, "other")] += 1
        try:
            return self._answered(frame, connection)
        except Exception:
            QUERIES[REFUSED] += 1
            raise

    def _answered(self, frame: Frame, connection: ServerConnection) -> Answer:
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
        raise ProtocolError(f"A message of type {kind} is no request.")

    def _get(self, frame: Frame, connection: ServerConnection) -> Answer:
        request = GetRequest.parse(frame)
        self._limits.check_keys(request.count)
        if request.kv_state_id is None:
            if not self._local.holds_all(request.job, request.state):
                _checked_job(request.job)
                return self._router.get(request, frame)
            # Another server may have been asked before this one held everything, and have been ahead.
            raised = self._router.high_water.not_before(request)
            view = self._local.view_now(raised)
            if view is None and raised is not request:
                return self._router.get(request, frame)  # waits, and finds out whether the job has begun anew
            request = raised
        else:
            view = self._local.view_now(request)
        if view is None:
            return self._get_later(request, frame, connection)
        return self._local.get(request, bytes(frame.body), view, frame.request)

    async def _get_later(self, request: GetRequest, frame: Frame, connection: ServerConnection) -> bytes:
        view = await self._local.view(request)
        await connection.until_answerable(frame)  # many may have waited for the same checkpoint
        return self._local.get(request, bytes(frame.body), view, frame.request)

    def _scan(self, frame: Frame) -> Answer:
        request = ScanRequest.parse(frame)
        _checked_job(request.job)
        if request.is_local:
            return self._local.scan(request, frame.request)
        if self._local.holds_all(request.job, request.state):
            raised = self._router.high_water.not_before(request)
            if raised is request or self._local.view_now(raised) is not None:
                return self._local.scan(raised, frame.request)
        return self._router.scan(request, frame.request)

    def _describe(self, frame: Frame) -> Answer:
        fields = frame.fields()
        job = _checked_job(text(fields, "job"))
        follower = self._local.followers.get(job)
        newest = follower.replica.newest if follower is not None else None
        if "state" not in fields:
            if newest is None:
                raise UnknownJobError(f"Could not find job ({job}), or it has no checkpoint yet.")
            states = [state.description.to_json() for state in newest.states.values()]
            return _result(frame, newest.identity | {"states": states})
        name = text(fields, "state")
        if newest is not None and (fields.get("local") is True or name in newest.states):
            description = self._local.state(newest, name).description
            return _result(frame, newest.identity | {"states": [description.to_json()]})
        return self._describe_elsewhere(job, name, frame)

    async def _describe_elsewhere(self, job: str, name: str, frame: Frame) -> bytes:
        description = await self._router.describe(job, name)
        return _result(frame, {"states": [description.to_json()]})

    def _locate(self, frame: Frame) -> bytes:
        fields = frame.fields()
        job = text(fields, "job")
        found = self._leader_of(job).request_kv_state_location(JobID(_checked_job(job)), text(fields, "state"))
        return _result(frame, {"location": found.result().to_json()})

    def _register(self, frame: Frame, connection: ServerConnection) -> bytes:
        if not connection.is_server:
            raise UnauthorizedError("The bearer token is that of readers. Servers register with the one of servers.")
        fields = frame.fields()
        job = text(fields, "job")
        registry = self._leader_of(job)
        try:
            address = address_from(*fields["address"])
            told = registrations_from(JobID(job), bytes(frame.body))
            if self._registered.get(connection, (job, address)) != (job, address):
                # What the first one holds would remain when the connection ends.
                raise BadRequestError("A connection registers one server, and for one job.")
            registry.notify_server_lost(address)
            self._registered.pop(connection, None)
            self._registered[connection] = (job, address)  # who has registered last stands last
            connection.signs_of_life.watch(PING_SECONDS, MOST_SILENCES)
            for held in told:
                registry.notify_kv_state_registered(
                    held.job_vertex_id, held.num_key_groups, held.key_groups, held.registration_name, held.kv_state_id,
                    address,
                )  # fmt: skip
        except (LookupError, TypeError, ValueError, ProtocolError, StateError) as error:
            raise BadRequestError(f"The registration of a server cannot be taken: {error!r:.400}") from error
        return _result(frame, {})

    def _leader_of(self, job: str) -> KvStateLocationRegistry:
        found = self.registries.get(job)
        if found is None:
            raise UnknownJobError(f"Could not find job ({job}). No job master for it is here.")
        return found


def _checked_job(job: str) -> str:
    if not _JOB.fullmatch(job):
        raise BadRequestError(f"A job is named by 32 lower-case hexadecimal digits, not by {job!r:.80}.")
    return job


def _result(frame: Frame, fields: dict[str, Any]) -> bytes:
    return encode(FrameType.RESULT, frame.request, to_header(fields))


def _job(view: CheckpointView | None) -> dict[str, Any] | None:
    if view is None:
        return None
    return view.identity | {"job_id": view.job_id, "job_name": view.job_name, "states": sorted(view.states)}
