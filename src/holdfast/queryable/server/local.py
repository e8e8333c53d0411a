"""Answering from what this server holds."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.kernel.ids import JobID, JobVertexID
from holdfast.kernel.key_group import key_group_of, key_groups_of
from holdfast.queryable.replica.checkpoint_view import CheckpointView
from holdfast.queryable.replica.follower import CheckpointFollower
from holdfast.queryable.replica.layer import comparable
from holdfast.queryable.replica.scan import RunningScan
from holdfast.queryable.replica.state_view import SCALARS, StateView
from holdfast.queryable.server.proxy import not_ready
from holdfast.queryable.server.registry import KvStateRegistry
from holdfast.queryable.wire.consistency import ConsistencyKind
from holdfast.queryable.wire.errors import (
    BadRequestError,
    QueryTimeoutError,
    ServerFailureError,
    UnknownJobError,
    UnknownKvStateIdError,
    WrongStateKindError,
)
from holdfast.queryable.wire.frame import FrameType, encode, to_header
from holdfast.queryable.wire.limits import Limits
from holdfast.queryable.wire.location import KvStateID, unknown_state
from holdfast.queryable.wire.request import GetRequest, ScanRequest
from holdfast.queryable.wire.wire_column import ColumnReader
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.run.lower_bound import Hashes

_OFFSETS: Final = struct.Struct("<ii")
_AT_ONCE: Final = 1024  # keys of a request that are looked for together


class LocalStates:
    """The jobs that a server follows, and answers from them.

    Args:
        limits: Largest answers.
    """

    def __init__(self, limits: Limits) -> None:
        self.followers: dict[str, CheckpointFollower] = {}
        self.registry = KvStateRegistry()
        self.limits = limits

    def follower(self, job: str) -> CheckpointFollower:
        """Return who follows a job.

        Raises:
            UnknownJobError: It is not held here.
        """
        found = self.followers.get(job)
        if found is None:
            raise UnknownJobError(f"Could not find job ({job}). This server follows: {sorted(self.followers)}.")
        return found

    def holds_all(self, job: str, name: str) -> bool:
        """Whether all key groups of a state are held here, so that nobody else need be asked for anything."""
        follower = self.followers.get(job)
        newest = follower.replica.newest if follower is not None else None
        state = newest.states.get(name) if newest is not None else None
        return state is not None and state.is_whole

    def view_now(self, request: GetRequest | ScanRequest) -> CheckpointView | None:
        """Return the checkpoint to answer from, None if it has to be waited for.

        Raises:
            UnknownJobError, UnknownLocationError, CheckpointNotAvailableError: There is none.
        """
        replica = self.follower(request.job).replica
        view = replica.view(request.consistency, waits=request.waits)
        if view is None and request.consistency.kind is ConsistencyKind.NEWEST:
            raise not_ready(request.job, request.state)
        return view

    async def view(self, request: GetRequest | ScanRequest) -> CheckpointView:
        """Wait for the checkpoint to answer from.

        Raises:
            QueryTimeoutError: It did not complete before the deadline.
        """
        replica = self.follower(request.job).replica
        loop = asyncio.get_running_loop()
        ends = loop.time() + request.deadline
        while True:
            view = self.view_now(request)
            if view is not None:
                return view
            reached = asyncio.Event()
            waiting = replica.when(request.consistency.checkpoint_id, partial(_set_soon, loop, reached))
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
        """Return a state of a checkpoint.

        Raises:
            UnknownKvStateLocationError: There is none of this name.
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
            BadRequestError: It does not fit the state.
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
        if description.namespaced != (request.namespace is not None):
            has = "has namespaces: give one" if description.namespaced else "has no namespaces: give none"
            raise BadRequestError(f"State {request.state!r} {has}.")
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
        """The values of some keys, in steps: an answer that is too long is given up before all of it was made."""
        found, size = [], 0
        for at in range(0, len(hashes), _AT_ONCE):
            entries = None if map_keys is None else map_keys.slice(at, _AT_ONCE)
            part = state.find_many(hashes[at : at + _AT_ONCE], keys.slice(at, _AT_ONCE), namespace, entries)
            size += part.nbytes
            self.limits.check_answer(size)
            found.append(part)
        return found[0] if len(found) == 1 else pa.concat_arrays(found)

    def _find_one(self, body: bytes, state: StateView) -> pa.Array | None:
        """The value of the only key of a body in its simplest form; None if it has to be read another way."""
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
        return state.nothing if found is None else found

    def _check_registration(self, kv_state_id: str) -> None:
        if self.registry.get_kv_state(KvStateID(kv_state_id)) is None:
            raise UnknownKvStateIdError(f"No registered state with ID {kv_state_id}.")

    def _check_groups(self, state: StateView, hashes: Any) -> None:
        """A key of another server's group is not unknown: it is not known here."""
        maximum = state.description.max_parallelism
        if state.is_whole:
            return
        groups = (
            {key_group_of(int(hashes[0]), maximum)}
            if len(hashes) == 1
            else set(np.unique(key_groups_of(hashes, maximum)).tolist())
        )
        for group in groups:
            if not any(held.contains(group) for held in state.key_groups):
                raise UnknownKvStateIdError(f"Key group {group} of state {state.description.name!r} is not held here.")

    async def scan(self, request: ScanRequest, number: int) -> AsyncIterator[bytes]:
        """Yield the frames of a scan: batches, then the end. The files are read beside the event loop."""
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
        """Register what the newest checkpoint of a job has, and drop what it has not."""
        job_id = JobID(follower.job_id)
        newest = follower.replica.newest
        held = {
            (JobVertexID(state.description.operator_id), state.description.max_parallelism, key_groups, name)
            for name, state in (newest.states.items() if newest is not None else ())
            for key_groups in state.key_groups
        }
        # First, as a name may have gone over to another operator.
        for known in self.registry.registrations(job_id):
            if (known.job_vertex_id, known.num_key_groups, known.key_groups, known.registration_name) not in held:
                self.registry.unregister_kv_state(known.kv_state_id)
        for registration in held:
            self.registry.register_kv_state(job_id, *registration)


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of an event loop from another thread."""
    with suppress(RuntimeError):  # the loop has ended, and with it whoever waits
        loop.call_soon_threadsafe(event.set)
