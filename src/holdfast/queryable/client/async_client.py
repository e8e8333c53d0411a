"""The asyncio client for queryable state."""

from __future__ import annotations

import asyncio
import ssl as tls_module
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from itertools import repeat
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa

from holdfast.errors import OutputTypeError
from holdfast.queryable.client.client_core import (
    ClientCore,
    ClientRequest,
    Conversation,
    ServerCall,
    check_address,
    origin_of,
    present_as,
    scan_batch,
    scan_head,
)
from holdfast.queryable.client.result import ManyResult, Origin, ScanHead, StateResult
from holdfast.queryable.wire.connection import ClientConnection, client_context, connect
from holdfast.queryable.wire.errors import LimitExceededError, QueryError, UnknownKvStateKeyGroupLocationError
from holdfast.queryable.wire.frame import Frame
from holdfast.queryable.wire.request import StateDescription

_MAX_BATCHED: Final = 256
P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")
_Ask = Callable[[ClientRequest], Awaitable[tuple[Frame, StateDescription]]]
_Waiting = list[tuple[Any, "asyncio.Future[StateResult[Any]]"]]


def _awaited(
    query: Callable[Concatenate[ClientCore, P], Q], run: Callable[[AsyncQueryableStateClient, Q], Awaitable[T]]
) -> Callable[Concatenate[AsyncQueryableStateClient, P], Coroutine[Any, Any, T]]:
    """Make a method of the client from a query of the core and the coroutine that sends it and waits."""

    async def method(self: AsyncQueryableStateClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run(self, query(self._core, *args, **kwargs))

    return present_as(query, run, method)


class AsyncQueryableStateClient:
    """The asyncio client of one query server; many requests may be in flight on its one connection.

    The methods are coroutines with the arguments, results and errors of those of `QueryableStateClient`; only `scan`
    returns a `ScanHead` and the batches, to iterate over once with `async for`. The client belongs to one event loop
    and never blocks it. Gets that are made in the same turn of the loop are sent as one request. The connection is
    opened by the first request, and again after it was lost.

    Args:
        host: Host of any query server of the job.
        port: Its port.
        tls: True for TLS with the system's certificate authorities, a file with certificates, or a context; None for no
            TLS.
        token: Bearer token, if the server requires one.

    Raises:
        ConfigurationError: Host or port is invalid, or the certificates cannot be read.
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
        self._batcher = RequestBatcher(lambda request: self._converse(self._core.request_state(request)))

    async def _get(self, request: ClientRequest) -> StateResult[Any]:
        description = self._core.known(request)
        if description is not None and request.is_plain:
            request.check_key(description)
            return await self._batcher.get(request)
        return request.one(*await self._converse(self._core.request_state(request)))

    async def _get_many(self, request: ClientRequest) -> ManyResult:
        return request.many(*await self._converse(self._core.request_state(request)))

    async def _scan(self, call: ServerCall) -> tuple[ScanHead, AsyncBatches]:
        connection = await self._connect()
        frames = connection.stream(call.kind, call.header, timeout=call.timeout)
        try:
            head = scan_head(await anext(frames))
        except BaseException:
            connection.close()
            raise
        return head, AsyncBatches(connection, frames, head)

    async def _hold(self, call: ServerCall) -> Origin:
        head, batches = await self._scan(call)
        async for _ in batches:  # there are no rows; at the end all servers have answered
            pass
        return head.origin

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

    get_kv_state = _awaited(ClientCore.get_kv_state, _get)
    get_many = _awaited(ClientCore.get_many, _get_many)
    scan = _awaited(ClientCore.scan, _scan)
    hold = _awaited(ClientCore.hold, _hold)
    describe = _awaited(ClientCore.describe, _converse)
    states = _awaited(ClientCore.states, _converse)
    jobs = _awaited(ClientCore.jobs, _converse)

    async def close(self) -> None:
        """Close the connection; the next request opens another. Open scans keep theirs."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
                connecting.result().close()
            connecting.cancel()

    async def shutdown(self) -> None:
        """Close the client, as `close` does."""
        await self.close()

    async def __aenter__(self) -> AsyncQueryableStateClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _call(self, call: ServerCall) -> Frame:
        connection = await self._connection()
        return await connection.request(call.kind, call.header, *call.body, timeout=call.timeout)

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
    """The Arrow batches of a scan: iterate over them once, or close them with `aclose`."""

    def __init__(self, connection: ClientConnection, frames: AsyncGenerator[Frame], head: ScanHead) -> None:
        self._connection = connection
        self._frames = frames
        self._head = head

    def __aiter__(self) -> AsyncBatches:
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
        """Stop the scan and close its connection, also if no batch was read."""
        await self._frames.aclose()
        self._connection.close()


class RequestBatcher:
    """Sends the gets of one state that are made in the same turn of the event loop as one request.

    A message costs as much as twenty keys in it. No get waits for later ones, and each has its own result or error.

    Args:
        ask: Requests the state of several keys from the server.
    """

    def __init__(self, ask: _Ask) -> None:
        self._ask = ask
        self._waiting: dict[tuple[Any, ...], _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, request: ClientRequest) -> asyncio.Future[StateResult[Any]]:
        """Return the future state of the only key of a request, which is plain and has a valid key."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StateResult[Any]] = loop.create_future()
        group = (
            request.job_id,
            request.state,
            request.consistency,
            request.deadline,
            request.namespace,
        )
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = []
            loop.call_soon(self._send, group)
        waiting.append((request.keys[0], answer))
        if len(waiting) >= _MAX_BATCHED:
            self._send(group)
        return answer

    def _send(self, group: tuple[Any, ...]) -> None:
        waiting = self._waiting.pop(group, None)
        if waiting:
            task = asyncio.get_running_loop().create_task(self._answer(group, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, group: tuple[Any, ...], waiting: _Waiting) -> None:
        job_id, state, consistency, deadline, namespace = group
        keys = [key for key, _ in waiting]
        request = ClientRequest(job_id, state, keys, None, namespace, consistency, deadline)
        try:
            answer, what = await self._ask(request)
            origin = origin_of(answer)
            values, exists = request.values(answer, what)
        except (LimitExceededError, UnknownKvStateKeyGroupLocationError, OutputTypeError) as error:
            if len(waiting) == 1:
                _fail(waiting, error)
                return
            # One key fails the whole request: it exceeds the limit, no server serves its group, or Python has no such
            # value. The other keys can be answered alone.
            await asyncio.gather(*(self._answer(group, [one]) for one in waiting))
            return
        except Exception as error:  # noqa: BLE001 - each caller that waits gets it
            _fail(waiting, error)
            return
        except BaseException:
            for _, future in waiting:
                future.cancel()
            raise
        for (key, future), value, found in zip(waiting, values, exists or repeat(True), strict=False):
            if future.done():
                continue
            if not found:
                future.set_exception(request.missing(key, origin))
            else:
                future.set_result(StateResult(value, origin, what))


def _fail(waiting: _Waiting, error: Exception) -> None:
    for _, future in waiting:
        if not future.done():
            future.set_exception(_copy_of(error))


def _copy_of(error: Exception) -> Exception:
    """Each waiter raises its own copy of a `QueryError`; other errors have other constructors and are shared."""
    if not isinstance(error, QueryError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
