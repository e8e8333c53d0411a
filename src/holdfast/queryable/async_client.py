"""Asking for state from asyncio."""

from __future__ import annotations

import asyncio
import ssl as tls_module
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.connection import ClientConnection, connect
from holdfast.queryable.consistency import DEFAULT_DEADLINE, NEWEST, Consistency
from holdfast.queryable.description import StateDescription
from holdfast.queryable.errors import BadRequestError, QueryConnectionError
from holdfast.queryable.frame import Frame, FrameType
from holdfast.queryable.gathering import Gathering
from holdfast.queryable.question import (
    WHOLE_MAP,
    Question,
    check_address,
    describe_request,
    described,
    encoded_namespace,
    job_id_of,
    origin_of,
)
from holdfast.queryable.request import ScanRequest, checked_deadline
from holdfast.queryable.result import ManyResult, Origin, ScanHead, StateResult
from holdfast.queryable.scan import Condition, scan_schema
from holdfast.queryable.tls import client_context
from holdfast.state.descriptor import StateDescriptor

_PATIENCE = 5.0  # seconds beyond the deadline


class AsyncQueryableStateClient:
    """Asks one server, which forwards what it does not hold; many requests may be in flight on its one connection.

    Belongs to one event loop, which nothing here blocks. Gets that are made in the same turn of it travel together.
    Opens its connection with the first request, and again after it was lost. The methods have the arguments, answers
    and errors of those of `QueryableStateClient`.

    Args:
        host: Of any query server of the job.
        port: The same.
        tls: True for TLS with the system's authorities, a file with certificates, or a context; None for none.
        token: Bearer token, if the server wants one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: tls_module.SSLContext | str | bool | None = None,
        token: str | None = None,
    ) -> None:
        self._address = check_address(host, port)
        self._ssl = client_context(tls)
        self._token = token
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._known: dict[tuple[JobID, str], StateDescription] = {}
        self._gathering = Gathering(self._ask)

    async def get_kv_state(
        self,
        job_id: JobID | str,
        name: str,
        key: Any,
        *,
        map_key: Any = WHOLE_MAP,
        namespace: Any = None,
        namespace_serializer: Any = None,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
        key_type: Any = None,
        descriptor: StateDescriptor[Any] | None = None,
    ) -> StateResult[Any]:
        """Return the state of a key; see `QueryableStateClient.get_kv_state`."""
        entries = None if map_key is WHOLE_MAP else (map_key,)
        spaced = encoded_namespace(namespace, namespace_serializer)
        job = job_id_of(job_id)
        question = Question(job, name, (key,), entries, spaced, consistency, deadline, key_type, descriptor)
        what = self._known.get((job, name))
        if what is not None and entries is None and descriptor is None and key_type is None:
            question.check_key(what)
            return await self._gathering.get(question)
        return question.one(*await self._ask(question))

    async def get_many(
        self,
        job_id: JobID | str,
        name: str,
        keys: Sequence[Any],
        *,
        map_keys: Sequence[Any] | None = None,
        namespace: Any = None,
        namespace_serializer: Any = None,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
        key_type: Any = None,
        descriptor: StateDescriptor[Any] | None = None,
    ) -> ManyResult:
        """Return the state of several keys, from one checkpoint; see `QueryableStateClient.get_many`."""
        spaced = encoded_namespace(namespace, namespace_serializer)
        job = job_id_of(job_id)
        question = Question(job, name, keys, map_keys, spaced, consistency, deadline, key_type, descriptor)
        return question.many(*await self._ask(question))

    async def scan(
        self,
        job_id: JobID | str,
        name: str,
        *,
        key_groups: KeyGroupRange | None = None,
        where: Sequence[Condition] = (),
        batch_rows: int = ScanRequest.batch_rows,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
    ) -> tuple[ScanHead, AsyncBatches]:
        """Return what a scan is about, and its batches, to be taken once; see `QueryableStateClient.scan`.

        The scan has a connection of its own, which ends with the last batch, or with `aclose()` of the batches.
        """
        job, deadline = str(job_id_of(job_id)), checked_deadline(deadline)
        header = ScanRequest(job, name, consistency, deadline, key_groups, tuple(where), batch_rows).header()
        connection = await self._connect()
        frames = connection.stream(FrameType.SCAN, header, timeout=deadline + _PATIENCE)
        try:
            head = scan_head(await anext(frames))
        except BaseException:
            connection.close()
            raise
        return head, AsyncBatches(connection, frames, head)

    async def hold(
        self,
        job_id: JobID | str,
        name: str,
        seconds: float,
        *,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
    ) -> Origin:
        """Choose a checkpoint that can be read for some time; see `QueryableStateClient.hold`."""
        deadline = checked_deadline(deadline)
        header = ScanRequest(str(job_id_of(job_id)), name, consistency, deadline, hold=seconds).header()
        connection = await self._connect()
        try:
            parts = connection.stream(FrameType.SCAN, header, timeout=deadline + _PATIENCE)
            frames = [frame async for frame in parts]
        finally:
            connection.close()
        return origin_of(frames[0])

    async def describe(self, job_id: JobID | str, name: str) -> StateDescription:
        """Return what a state is: its kind and its types."""
        return described(await self._request(*describe_request(job_id_of(job_id), name)))[0]

    async def states(self, job_id: JobID | str) -> list[StateDescription]:
        """Return the queryable states of a job that the server holds."""
        return described(await self._request(*describe_request(job_id_of(job_id), None)))

    async def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the server holds, each with its newest checkpoint and its states."""
        return list((await self._request(FrameType.JOBS, b"{}")).fields()["jobs"])

    async def close(self) -> None:
        """Close the connection; the next request opens another. Scans have their own."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
                connecting.result().close()
            connecting.cancel()

    async def shutdown(self) -> None:
        """Close the connection."""
        await self.close()

    async def __aenter__(self) -> AsyncQueryableStateClient:
        """Return the client."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close it."""
        await self.close()

    async def _ask(self, question: Question) -> tuple[Frame, StateDescription]:
        known = (question.job_id, question.state)
        what = self._known.get(known) or await self._describe(question)
        timeout = question.deadline + _PATIENCE
        header, body = question.encode(what)
        try:
            answer = await self._request(FrameType.GET, header, *body, timeout=timeout)
            if question.is_about(answer, what):
                return answer, what
        except BadRequestError:
            # The job may have been started again with another key type.
            if (await self._describe(question)).fingerprint == what.fingerprint:
                raise
        what = await self._describe(question)
        header, body = question.encode(what)
        return await self._request(FrameType.GET, header, *body, timeout=timeout), what

    async def _describe(self, question: Question) -> StateDescription:
        what = described(await self._request(*describe_request(question.job_id, question.state)))[0]
        self._known[question.job_id, question.state] = what
        return what

    async def _request(self, kind: FrameType, header: bytes, *body: Any, timeout: float = 15.0) -> Frame:
        try:
            connection = await self._connection()
            return await connection.request(kind, header, *body, timeout=timeout)
        except QueryConnectionError:
            connection = await self._connection()
            return await connection.request(kind, header, *body, timeout=timeout)

    async def _connection(self) -> ClientConnection:
        task = self._connecting
        if task is not None and task.done():
            if not task.cancelled() and task.exception() is None and task.result().is_open:
                return task.result()
            task = None
        if task is None:
            task = self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return await asyncio.shield(task)

    async def _connect(self) -> ClientConnection:
        return await connect(self._address, token=self._token, ssl=self._ssl)


def scan_head(frame: Frame) -> ScanHead:
    """Return what the first part of a scan says."""
    what = StateDescription.from_json(frame.fields().get("description") or {})
    return ScanHead(origin_of(frame), what, scan_schema(what))


class AsyncBatches:
    """The batches of a scan; iterate over it once, or close it.

    Args:
        connection: That of the scan.
        frames: What comes on it.
        head: What the scan is about.
    """

    def __init__(self, connection: ClientConnection, frames: AsyncGenerator[Frame], head: ScanHead) -> None:
        self._connection = connection
        self._frames = frames
        self._schema = head.schema

    def __aiter__(self) -> AsyncBatches:
        """Return itself."""
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next batch once it has arrived.

        Raises:
            QueryError: As for `QueryableStateClient.scan`.
        """
        try:
            frame = await anext(self._frames)
        except BaseException:
            self._connection.close()
            raise
        return pa.ipc.read_record_batch(pa.py_buffer(frame.body), self._schema)

    async def aclose(self) -> None:
        """End the scan, whether anything was read or not."""
        await self._frames.aclose()
        self._connection.close()
