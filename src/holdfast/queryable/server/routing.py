"""Routing of requests: answers from local states, forwarding to the servers of key groups, and merging of answers."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.kernel.ids import JobID, JobVertexID
from holdfast.kernel.key_group import KeyGroupRange, key_group_of, key_groups_of
from holdfast.queryable.replica.checkpoint_view import SCALARS, CheckpointView, RunningScan, StateView
from holdfast.queryable.replica.follower import CheckpointFollower
from holdfast.queryable.replica.layer import comparable
from holdfast.queryable.server.proxy import KvStateRegistry, LocationCache, PeerConnections, location_unknown
from holdfast.queryable.wire.errors import (
    RETRYABLE,
    BadRequestError,
    CheckpointNotAvailableError,
    QueryConnectionError,
    QueryTimeoutError,
    ServerFailureError,
    UnknownJobError,
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    WrongStateKindError,
)
from holdfast.queryable.wire.frame import Frame, FrameType, Limits, encode, to_header
from holdfast.queryable.wire.location import Address, KvStateID, KvStateLocation, Placement, unknown_state
from holdfast.queryable.wire.request import (
    VALUE,
    ColumnReader,
    ConsistencyKind,
    GetRequest,
    ScanRequest,
    StateDescription,
    answer_batch,
    at_least,
    encode_column,
    exactly,
)
from holdfast.state.descriptor import StateKind
from holdfast.state.probe import Hashes, Positions

_OFFSETS: Final = struct.Struct("<ii")
_LOOKUP_KEYS: Final = 1024
_TYPE: Final = 8
"""Position of the type in an encoded frame; see `holdfast.queryable.wire.frame`."""
R = TypeVar("R", GetRequest, ScanRequest)
_PAUSE_SECONDS = 0.01  # between two attempts of several servers to agree on a checkpoint
_SCAN_SECONDS = 300.0  # for which servers hold the checkpoint of a scan across several servers
_PATIENCE = 5.0  # seconds beyond the client's deadline for the answer of another server
_Part = TypeVar("_Part")
_Answer = TypeVar("_Answer")


class LocalStates:
    """Answers requests from the jobs that this server follows.

    Args:
        limits: Limits for answers.

    Attributes:
        followers: The followers of the served jobs, by job id.
        registry: The registrations of this server.
    """

    def __init__(self, limits: Limits) -> None:
        self.followers: dict[str, CheckpointFollower] = {}
        self.registry = KvStateRegistry()
        self.limits = limits

    def follower(self, job: str) -> CheckpointFollower:
        """Return the follower of a job.

        Raises:
            UnknownJobError: The job is not served.
        """
        found = self.followers.get(job)
        if found is None:
            raise UnknownJobError(f"Could not find job ({job}). This server follows: {sorted(self.followers)}.")
        return found

    def serves_all(self, job: str, name: str) -> bool:
        """Return whether this server serves all key groups of a state."""
        follower = self.followers.get(job)
        newest = follower.replica.newest if follower is not None else None
        state = newest.states.get(name) if newest is not None else None
        return state is not None and state.is_whole

    def current_view(self, request: GetRequest | ScanRequest) -> CheckpointView | None:
        """Return the checkpoint to answer from, None if the request has to wait for it.

        Raises:
            UnknownJobError, UnknownLocationError, CheckpointNotAvailableError: There is no such checkpoint.
        """
        replica = self.follower(request.job).replica
        view = replica.view(request.consistency, waits=request.waits)
        if view is None and request.consistency.kind is ConsistencyKind.NEWEST:
            raise location_unknown(request.job, request.state)
        return view

    async def view(self, request: GetRequest | ScanRequest) -> CheckpointView:
        """Wait for the checkpoint to answer from and return it.

        Raises:
            QueryTimeoutError: It did not complete before the deadline.
        """
        replica = self.follower(request.job).replica
        loop = asyncio.get_running_loop()
        ends = loop.time() + request.deadline
        while True:
            view = self.current_view(request)
            if view is not None:
                return view
            reached = asyncio.Event()
            waiting = replica.wake_at(request.consistency.checkpoint_id, partial(_set_soon, loop, reached))
            if waiting is None:
                continue
            try:
                async with asyncio.timeout_at(ends):
                    await reached.wait()
            except TimeoutError:
                newest = replica.newest
                raise QueryTimeoutError(
                    f"Checkpoint {request.consistency.checkpoint_id} of job {request.job} did not complete within "
                    f"{request.deadline} seconds; the newest is {newest.checkpoint_id if newest else 'none'}."
                ) from None
            finally:
                replica.cancel(waiting)

    def state(self, view: CheckpointView, name: str) -> StateView:
        """Return a state of a checkpoint by name.

        Raises:
            UnknownKvStateLocationError: There is no such state.
            ServerFailureError: Its files are damaged.
        """
        found = view.states.get(name)
        if found is None:
            raise unknown_state(name, view.states)
        if found.damage is not None:
            where = f"State {name!r} of checkpoint {view.checkpoint_id}"
            raise ServerFailureError(f"{where} cannot be read: {found.damage}")
        return found

    def get(self, request: GetRequest, body: bytes, view: CheckpointView, number: int) -> bytes:
        """Return the answer to a request for values.

        Raises:
            BadRequestError: The request does not fit the state.
        """
        state = self.state(view, request.state)
        column = self._find(request, body, state)
        content = pa.RecordBatch.from_arrays([column], schema=state.description.arrow_schema).serialize()
        self.limits.check_answer(content.size)
        return encode(FrameType.RESULT, number, view.answer_headers[request.state], content)

    def _find(self, request: GetRequest, body: bytes, state: StateView) -> pa.Array:
        description = state.description
        if request.kv_state_id is not None:
            self._check_registration(request.kv_state_id)
        description.check_namespace(request.namespace)
        if (
            request.count == 1
            and description.kind in SCALARS
            and request.namespace is None
            and not request.has_map_keys
        ):
            found = self._find_one(body, state)
            if found is not None:
                return found
        reader = ColumnReader(body)
        hashes = reader.numbers(request.count, np.uint64)
        keys = comparable(reader.column(description.key_codec.storage_type, request.count))
        map_keys = None
        if request.has_map_keys:
            if description.kind is not StateKind.MAP:
                raise WrongStateKindError(f"State {request.state!r} is {description.kind.value} state, not map state.")
            map_keys = comparable(reader.column(description.map_key_codec.storage_type, request.count))
        reader.end()
        self._check_groups(state, hashes)
        return self._find_many(state, hashes, keys, request.namespace, map_keys)

    def _find_many(
        self, state: StateView, hashes: Hashes, keys: pa.Array, namespace: bytes | None, map_keys: pa.Array | None
    ) -> pa.Array:
        """Find values in steps, so that an answer that is too long fails before all of it is in memory."""
        found, size = [], 0
        for at in range(0, len(hashes), _LOOKUP_KEYS):
            entries = None if map_keys is None else map_keys.slice(at, _LOOKUP_KEYS)
            part = state.find_many(hashes[at : at + _LOOKUP_KEYS], keys.slice(at, _LOOKUP_KEYS), namespace, entries)
            size += part.nbytes
            self.limits.check_answer(size)
            found.append(part)
        return found[0] if len(found) == 1 else pa.concat_arrays(found)

    def _find_one(self, body: bytes, state: StateView) -> pa.Array | None:
        """Find the value of a single key without decoding the body; None if the general way is needed."""
        kind = state.description.key_codec.storage_type
        key_hash = int.from_bytes(body[:8], "little")
        if pa.types.is_boolean(kind) or not state.is_whole:
            return None
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            key = body[16:]
            if body[8:16] != _OFFSETS.pack(0, len(key)):
                return None
        else:
            key = body[8:]
            if len(key) != kind.bit_width // 8:
                return None
        found = state.find_one(key_hash, key)
        return state.missing_value if found is None else found

    def _check_registration(self, kv_state_id: str) -> None:
        if self.registry.get_kv_state(KvStateID(kv_state_id)) is None:
            raise UnknownKvStateIdError(f"No registered state with ID {kv_state_id}.")

    def _check_groups(self, state: StateView, hashes: Any) -> None:
        """Check that this server serves all key groups: keys of other groups must not count as missing."""
        maximum = state.description.max_parallelism
        if state.is_whole:
            return
        groups = (
            {key_group_of(int(hashes[0]), maximum)}
            if len(hashes) == 1
            else set(np.unique(key_groups_of(hashes, maximum)).tolist())
        )
        for group in groups:
            if not any(served.contains(group) for served in state.key_groups):
                raise UnknownKvStateIdError(
                    f"Key group {group} of state {state.description.name!r} is not served here."
                )

    async def scan(self, request: ScanRequest, number: int) -> AsyncIterator[bytes]:
        """Yield the frames of a scan: head, batches, end. Rows are read in other threads than the event loop's."""
        view = await self.view(request)
        state = self.state(view, request.state)
        if request.hold:
            self.follower(request.job).replica.hold(view.checkpoint_id, request.hold)
        scan = RunningScan(state, request, self.limits.message_bytes)
        loop = asyncio.get_running_loop()
        yield encode(FrameType.BATCH, number, to_header(view.identity | {"description": state.description.to_json()}))
        while not request.hold and (parts := await loop.run_in_executor(None, scan.next)) is not None:
            for part in parts:
                yield encode(FrameType.BATCH, number, b"{}", part)
        yield encode(FrameType.END, number, to_header(view.identity))

    def register(self, follower: CheckpointFollower) -> None:
        """Register the states of a job's newest checkpoint, and unregister all others of the job."""
        job_id = JobID(follower.job_id)
        newest = follower.replica.newest
        served = {
            (JobVertexID(state.description.operator_id), state.description.max_parallelism, key_groups, name)
            for name, state in (newest.states.items() if newest is not None else ())
            for key_groups in state.key_groups
        }
        # Unregister first: a name may have moved to another operator.
        for known in self.registry.registrations(job_id):
            if (known.job_vertex_id, known.num_key_groups, known.key_groups, known.registration_name) not in served:
                self.registry.unregister_kv_state(known.kv_state_id)
        for registration in served:
            self.registry.register_kv_state(job_id, *registration)


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended, and with it the waiting request
        loop.call_soon_threadsafe(event.set)


class HighWaterMarks:
    """The newest checkpoint of each job that was returned to clients; belongs to one event loop.

    Servers see a completed checkpoint at different times. A proxy that forwards one request to a fast server and the
    next to a slow one would show its clients time that runs backwards, so it requests at least what it has returned
    already.
    """

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, str, int]] = {}

    def of(self, job: str) -> int:
        """Return the newest returned checkpoint of a job, 0 if there is none."""
        shown = self._shown.get(job)
        return shown[0] if shown is not None else 0

    def at_least_shown(self, request: R) -> R:
        """Turn a request for the newest checkpoint into one for at least the high-water mark."""
        shown = self.of(request.job)
        if not shown or request.consistency.kind is not ConsistencyKind.NEWEST:
            return request
        return replace(request, consistency=at_least(shown))

    def record(self, job: str, origin: dict[str, Any]) -> None:
        """Raise the mark to the checkpoint of an answer, given the fields of its header."""
        checkpoint_id, lineage = origin.get("checkpoint_id"), origin.get("lineage")
        if isinstance(checkpoint_id, int) and isinstance(lineage, str) and checkpoint_id > self.of(job):
            self._shown[job] = (checkpoint_id, lineage, origin.get("completed_at", 0))

    def forget(self, job: str) -> None:
        self._shown.pop(job, None)

    def reset_if_restarted(self, job: str, newest: dict[str, Any]) -> bool:
        """Reset the mark of a job whose checkpoint ids start at 1 again, as its directory was removed.

        Args:
            job: The job.
            newest: The header's fields of an answer from its newest checkpoint.

        Returns:
            Whether the job has restarted like this. If not, a server is late, perhaps it has not even seen a restore.
        """
        shown = self._shown.get(job)
        if shown is None or newest.get("lineage") == shown[1] or newest.get("completed_at", 0) < shown[2]:
            return False
        del self._shown[job]
        return True


@dataclass(frozen=True)
class RequestPart:
    """The positions of a request's keys that one server serves."""

    placement: Placement
    positions: Positions


class Router:
    """Routes requests to the servers of their key groups, this server among them.

    Args:
        local: The states that this server serves.
        locations: Locations of other states.
        peers: Connections to other servers.
    """

    def __init__(self, local: LocalStates, locations: LocationCache, peers: PeerConnections) -> None:
        self._local = local
        self._locations = locations
        self._peers = peers
        self.high_water_marks = HighWaterMarks()

    async def get(self, request: GetRequest, frame: Frame) -> bytes:
        """Return the answer to a request for values, from no checkpoint before the high-water mark."""
        raised = self.high_water_marks.at_least_shown(request)
        try:
            return await self._get_with_retry(raised, frame)
        except QueryTimeoutError:
            if raised is request:
                raise
            newest = await self._get_with_retry(request, frame, is_recorded=False)
            if not self.high_water_marks.reset_if_restarted(request.job, _decode(newest).fields()):
                raise
            return newest

    async def _get_with_retry(self, request: GetRequest, frame: Frame, *, is_recorded: bool = True) -> bytes:
        """Retry once with a new location after an error where that may help."""
        if self._waits_here(request):
            await self._wait_for_checkpoint(request)
        avoided: set[Address] = set()
        try:
            answer = await self._get(request, frame, avoided, force=False)
        except RETRYABLE:
            answer = await self._get(request, frame, avoided, force=True)
        if is_recorded:
            self.high_water_marks.record(request.job, _decode(answer).fields())
        return answer

    async def _wait_for_checkpoint(self, request: GetRequest | ScanRequest) -> None:
        """Wait for the checkpoint of `at_least`, and until other servers have registered the state.

        Servers register a state after they have loaded its first checkpoint. If there was an answer before, a key group
        that nobody serves is one whose server is gone, and does not delay the others.

        Raises:
            QueryTimeoutError: The checkpoint did not complete before the deadline.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + request.deadline
        view = await self._local.view(replace(request, waits=True))
        is_repeated = False
        while self._is_new_to_clients(request) and request.state in view.states and loop.time() < ends:
            with suppress(UnknownKvStateLocationError):
                location = await self._locations.locate(request.job, request.state, force=is_repeated)
                is_whole = location.get_num_registered_key_groups() == location.num_key_groups
                if is_whole or self.high_water_marks.of(request.job):
                    return
            is_repeated = True
            await asyncio.sleep(_PAUSE_SECONDS)

    def _waits_here(self, request: GetRequest | ScanRequest) -> bool:
        return request.consistency.kind is ConsistencyKind.AT_LEAST and request.job in self._local.followers

    def _is_new_to_clients(self, request: GetRequest | ScanRequest) -> bool:
        """Return whether no answer was from the requested checkpoint or a later one."""
        return request.consistency.checkpoint_id > self.high_water_marks.of(request.job)

    async def _get(self, request: GetRequest, frame: Frame, avoided: set[Address], *, force: bool) -> bytes:
        location = await self._locations.locate(request.job, request.state, force=force)
        hashes = ColumnReader(frame.body).numbers(request.count, np.uint64)
        parts = self._partition(location, hashes, avoided)
        if len(parts) == 1:
            return await self._get_from(request, frame, parts[0].placement, avoided)
        return await _retry_until_agreed(
            request, parts, lambda order: self._get_from_several(request, frame, order, avoided)
        )

    async def _get_from_several(
        self, request: GetRequest, frame: Frame, parts: Sequence[RequestPart], avoided: set[Address]
    ) -> bytes:
        """Get all values from one checkpoint: the first server chooses it, the others wait until they have it."""
        description = await self.describe(request)
        pieces = [_subrequest(request, frame, part, description) for part in parts]
        first = _decode(await self._get_from(*pieces[0], parts[0].placement, avoided))
        chosen = exactly(first.fields()["checkpoint_id"])
        rest = [
            self._get_from(replace(piece, consistency=chosen, waits=True), cut, part.placement, avoided)
            for (piece, cut), part in zip(pieces[1:], parts[1:], strict=True)
        ]
        answers = [first, *map(_decode, await asyncio.gather(*rest))]
        columns = [_column(answer, description) for answer in answers]
        back = np.empty(request.count, np.int64)
        back[np.concatenate([part.positions for part in parts])] = np.arange(request.count)
        column = pa.concat_arrays(columns).take(pa.array(back))
        content = pa.RecordBatch.from_arrays([column], names=[VALUE]).serialize()
        self._local.limits.check_answer(content.size)
        return encode(FrameType.RESULT, frame.request, first.header, content)

    def _partition(self, location: KvStateLocation, hashes: Any, avoided: set[Address]) -> list[RequestPart]:
        groups = key_groups_of(hashes, location.num_key_groups)
        choice: dict[Placement, list[int]] = {}
        for group in np.unique(groups).tolist():
            choice.setdefault(self.choose(location, group, avoided), []).append(group)
        return [RequestPart(placed, np.flatnonzero(np.isin(groups, chosen))) for placed, chosen in choice.items()]

    def choose(self, location: KvStateLocation, group: int, avoided: set[Address]) -> Placement:
        """Choose the server for a key group: this one if possible, else one that has not failed recently.

        Raises:
            UnknownKvStateKeyGroupLocationError: No server serves the key group.
        """
        placements = location.placements_of(group)
        if not placements:
            raise UnknownKvStateKeyGroupLocationError(
                f"No server serves key group {group} of state {location.registration_name!r} of job {location.job_id} "
                "at the moment. Try again, or start a server for it."
            )
        for placed in placements:
            if self._local.registry.get_kv_state(placed.kv_state_id) is not None:
                return placed
        others = [placed for placed in placements if placed.address not in avoided] or placements
        others = [placed for placed in others if not self._peers.is_suspected(placed.address)] or others
        # The same replica for all its key groups, so that a request goes to few servers.
        spread = random.Random(len(avoided))  # noqa: S311 - spreads requests
        return spread.choice(sorted(others, key=lambda placed: placed.address))

    async def _get_from(self, request: GetRequest, frame: Frame, placement: Placement, avoided: set[Address]) -> bytes:
        if self._local.registry.get_kv_state(placement.kv_state_id) is not None:
            view = await self._local.view(request)
            return self._local.get(request, bytes(frame.body), view, frame.request)
        asked = replace(request, kv_state_id=str(placement.kv_state_id))
        try:
            peer = await self._peers.connection_to(placement.address)
            answer = await peer.request(FrameType.GET, asked.header(), frame.body, timeout=request.deadline + _PATIENCE)
        except RETRYABLE as error:
            avoided.add(placement.address)
            if isinstance(error, QueryConnectionError):
                self._peers.suspect(placement.address)
            raise
        return encode(FrameType.RESULT, frame.request, answer.header, answer.body)

    async def describe(self, request: GetRequest) -> StateDescription:
        """Return the description of a state, from this server or another, after the checkpoint of `at_least`.

        Raises:
            QueryTimeoutError: The checkpoint did not complete before the deadline.
        """
        if self._waits_here(request):
            await self._local.view(request)
        job, name = request.job, request.state
        follower = self._local.followers.get(job)
        newest = follower.replica.newest if follower is not None else None
        if newest is not None and name in newest.states:
            return newest.states[name].description
        location = await self._locations.locate(job, name)
        avoided: set[Address] = set()
        for attempt in range(2):
            placed = self.choose(location, location.placements[0].key_groups.start, avoided)
            try:
                peer = await self._peers.connection_to(placed.address)
                header = to_header({"job": job, "state": name, "local": True})
                answer = await peer.request(FrameType.DESCRIBE, header, timeout=_PATIENCE)
                return StateDescription.from_json(_first(answer.fields().get("states")))
            except RETRYABLE:
                if attempt:
                    raise
                avoided.add(placed.address)
                location = await self._locations.locate(job, name, force=True)
        raise AssertionError("unreachable")

    async def scan(self, request: ScanRequest, number: int) -> AsyncIterator[bytes]:
        """Yield the frames of a scan, from no checkpoint before the high-water mark."""
        raised = self.high_water_marks.at_least_shown(request)
        begun = False
        try:
            async with aclosing(self._scan(raised, number)) as frames:
                async for frame in frames:
                    begun = True
                    yield frame
        except QueryTimeoutError:
            if begun or raised is request:
                raise
            async with aclosing(self._scan(request, number)) as frames:
                async for frame in frames:
                    if not begun and not self.high_water_marks.reset_if_restarted(request.job, _decode(frame).fields()):
                        raise
                    begun = True
                    yield frame

    async def _scan(self, request: ScanRequest, number: int) -> AsyncGenerator[bytes]:
        """Yield the frames of a scan, server after server, all from one checkpoint."""
        if self._waits_here(request) and self._is_new_to_clients(request):
            await self._wait_for_checkpoint(request)
        location = await self._locations.locate(request.job, request.state)
        asked = request.key_groups or KeyGroupRange(0, location.num_key_groups - 1)
        if asked.end >= location.num_key_groups:
            raise BadRequestError(f"There are {location.num_key_groups} key groups; {asked.end} is not one of them.")
        part = replace(request, is_local=True)
        with suppress(*RETRYABLE):  # a lost server is detected and replaced below
            part = await self._hold_on_all(part, location, asked, number)
        avoided: set[Address] = set()
        begun, start, is_retried = False, asked.start, False
        while True:
            is_fresh = True  # no rows of this server were yielded
            try:
                placed, key_groups = self._next_range(location, KeyGroupRange(start, asked.end), avoided)
                part = replace(part, key_groups=key_groups)
                async with aclosing(self._scan_one(part, placed, number)) as frames:
                    async for frame, origin in frames:
                        is_head = bool(origin) and frame[_TYPE] != FrameType.END
                        if is_head:
                            self.high_water_marks.record(request.job, origin)
                            part = replace(part, consistency=exactly(origin["checkpoint_id"]), waits=True)
                        is_last = frame[_TYPE] == FrameType.END
                        if (is_head and begun) or (is_last and key_groups.end != asked.end):
                            continue
                        begun, is_fresh = True, is_fresh and is_head
                        yield frame
            except RETRYABLE as error:
                if is_retried or not is_fresh:
                    raise
                is_retried = True
                if isinstance(error, QueryConnectionError):
                    avoided.add(placed.address)
                    self._peers.suspect(placed.address)
                location = await self._locations.locate(request.job, request.state, force=True)
                continue
            if key_groups.end == asked.end:
                return
            start = key_groups.end + 1

    async def _hold_on_all(
        self, request: ScanRequest, location: KvStateLocation, asked: KeyGroupRange, number: int
    ) -> ScanRequest:
        """Let the first server choose the checkpoint and all hold it until the scan has ended.

        Raises:
            CheckpointNotAvailableError: One server was too far ahead of another until the deadline.
        """
        parts, start = [], asked.start
        while start <= asked.end:
            placed, key_groups = self._next_range(location, KeyGroupRange(start, asked.end), set())
            parts.append((placed, key_groups))
            start = key_groups.end + 1
        if len(parts) == 1:
            return request

        async def hold(order: Sequence[tuple[Placement, KeyGroupRange]]) -> ScanRequest:
            part = replace(request, hold=request.hold or _SCAN_SECONDS)
            for placed, key_groups in order:
                async with aclosing(self._scan_one(replace(part, key_groups=key_groups), placed, number)) as frames:
                    async for _, origin in frames:
                        if origin:
                            part = replace(part, consistency=exactly(origin["checkpoint_id"]), waits=True)
            return replace(part, hold=request.hold)

        return await _retry_until_agreed(request, parts, hold)

    def _next_range(
        self, location: KvStateLocation, asked: KeyGroupRange, avoided: set[Address]
    ) -> tuple[Placement, KeyGroupRange]:
        """Choose the server of the first key group, and the range of key groups that it can be asked for."""
        placed = self.choose(location, asked.start, avoided)
        end = asked.start
        while end < asked.end and self.choose(location, end + 1, avoided) == placed:
            end += 1
        return placed, KeyGroupRange(asked.start, end)

    async def _scan_one(
        self, request: ScanRequest, placed: Placement, number: int
    ) -> AsyncGenerator[tuple[bytes, dict[str, Any]]]:
        """Yield the frames of one server, each with its header's fields if it is the head or the end."""
        if self._local.registry.get_kv_state(placed.kv_state_id) is not None:
            async for data in self._local.scan(request, number):
                yield data, _origin_of(_decode(data))
            return
        peer = await self._peers.open_connection(placed.address)
        try:
            async with aclosing(peer.stream(FrameType.SCAN, request.header())) as frames:
                async for frame in frames:
                    yield encode(FrameType.BATCH, number, frame.header, frame.body), _origin_of(frame)
            yield encode(FrameType.END, number, b"{}"), {}
        finally:
            peer.close()


async def _retry_until_agreed(
    request: GetRequest | ScanRequest, parts: Sequence[_Part], ask: Callable[[Sequence[_Part]], Awaitable[_Answer]]
) -> _Answer:
    """Send a request to several servers until all have the checkpoint that the first one chooses.

    A server may be so far ahead that it has dropped the checkpoint that another one chose. Then the next server
    chooses.

    Raises:
        CheckpointNotAvailableError: The request names the checkpoint, or the deadline is over.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + request.deadline
    while True:
        try:
            return await ask(parts)
        except CheckpointNotAvailableError:
            if request.consistency.kind is ConsistencyKind.EXACTLY or loop.time() >= ends:
                raise
        parts = [*parts[1:], parts[0]]
        await asyncio.sleep(_PAUSE_SECONDS)


def _first(states: Any) -> Any:
    """Return the only description in an answer; an empty object if there is none, which the caller rejects."""
    return states[0] if isinstance(states, list) and states else {}


def _origin_of(frame: Frame) -> dict[str, Any]:
    """Return the header's fields of the head or the end of a scan; other frames have none."""
    return frame.fields() if len(frame.header) > 2 else {}


def _decode(data: bytes) -> Frame:
    """Decode a frame that this process has encoded, without checks."""
    kind, number, length = data[_TYPE], int.from_bytes(data[9:17], "big"), int.from_bytes(data[17:21], "big")
    return Frame(kind, number, data[21 : 21 + length], data[21 + length :])


def _subrequest(
    request: GetRequest, frame: Frame, part: RequestPart, what: StateDescription
) -> tuple[GetRequest, Frame]:
    reader = ColumnReader(frame.body)
    rows = pa.array(part.positions)
    body: list[Any] = [reader.numbers(request.count, np.uint64)[part.positions]]
    body += encode_column(reader.column(what.key_codec.storage_type, request.count).take(rows))
    if request.has_map_keys:
        body += encode_column(reader.column(what.map_key_codec.storage_type, request.count).take(rows))
    reader.end()
    return replace(request, count=len(part.positions)), frame._replace(body=b"".join(body))


def _column(answer: Frame, what: StateDescription) -> pa.Array:
    return answer_batch(answer.body, what.arrow_schema).column(0)
