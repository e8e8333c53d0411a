"""Asking for state from asyncio."""

from __future__ import annotations

import asyncio
import ssl as tls_module
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.client.client_core import (
    WHOLE_MAP,
    ClientCore,
    ClientRequest,
    Conversation,
    RequestBatcher,
    ServerCall,
    check_address,
    scan_batch,
    scan_head,
    scan_request,
)
from holdfast.queryable.client.result import ManyResult, Origin, ScanHead, StateResult
from holdfast.queryable.replica.checkpoint_view import Condition
from holdfast.queryable.wire.connection import ClientConnection, client_context, connect
from holdfast.queryable.wire.description import StateDescription
from holdfast.queryable.wire.errors import QueryError
from holdfast.queryable.wire.frame import Frame
from holdfast.queryable.wire.request import DEFAULT_DEADLINE, NEWEST, Consistency, ScanRequest
from holdfast.state.descriptor import StateDescriptor

T = TypeVar("T")


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
        self._core = ClientCore()
        self._batcher = RequestBatcher(lambda client_request: self._converse(self._core.ask(client_request)))

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
        more = (consistency, deadline, key_type, descriptor)
        client_request = ClientRequest.of(job_id, name, (key,), entries, namespace, namespace_serializer, *more)
        what = self._core.known(client_request)
        if what is not None and entries is None and descriptor is None and key_type is None:
            client_request.check_key(what)
            return await self._batcher.get(client_request)
        return client_request.one(*await self._converse(self._core.ask(client_request)))

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
        more = (consistency, deadline, key_type, descriptor)
        client_request = ClientRequest.of(job_id, name, keys, map_keys, namespace, namespace_serializer, *more)
        return client_request.many(*await self._converse(self._core.ask(client_request)))

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
        call = scan_request(
            job_id, name, consistency, deadline, key_groups=key_groups, where=where, batch_rows=batch_rows
        )
        return await self._scan(call)

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
        head, batches = await self._scan(scan_request(job_id, name, consistency, deadline, hold=seconds))
        async for _ in batches:  # there are no rows; at its end all servers have answered
            pass
        return head.origin

    async def describe(self, job_id: JobID | str, name: str) -> StateDescription:
        """Return what a state is: its kind and its types."""
        return await self._converse(self._core.describe(job_id, name))

    async def states(self, job_id: JobID | str) -> list[StateDescription]:
        """Return the queryable states of a job that the server holds."""
        return await self._converse(self._core.states(job_id))

    async def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the server holds, each with its newest checkpoint and its states."""
        return await self._converse(self._core.jobs())

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

    async def _converse(self, conversation: Conversation[T]) -> T:
        try:
            call = next(conversation)
            while True:
                try:
                    answer = await self._call(call)
                except QueryError as error:
                    call = conversation.throw(error)
                else:
                    call = conversation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _call(self, call: ServerCall) -> Frame:
        connection = await self._connection()
        return await connection.request(call.kind, call.header, *call.body, timeout=call.timeout)

    async def _scan(self, call: ServerCall) -> tuple[ScanHead, AsyncBatches]:
        connection = await self._connect()
        frames = connection.stream(call.kind, call.header, timeout=call.timeout)
        try:
            head = scan_head(await anext(frames))
        except BaseException:
            connection.close()
            raise
        return head, AsyncBatches(connection, frames, head)

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
        self._head = head

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
        return scan_batch(frame, self._head)

    async def aclose(self) -> None:
        """End the scan, whether anything was read or not."""
        await self._frames.aclose()
        self._connection.close()
