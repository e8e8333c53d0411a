"""The blocking client for queryable state."""

from __future__ import annotations

import os
import socket
import ssl as tls_module
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa

from holdfast.queryable.client.client_core import (
    ClientCore,
    ClientRequest,
    Conversation,
    ServerCall,
    check_address,
    present_as,
    scan_batch,
    scan_head,
)
from holdfast.queryable.client.result import ManyResult, Origin, ScanHead, StateResult
from holdfast.queryable.wire.connection import CONNECT_TIMEOUT, ClientSession, client_context, raise_failure
from holdfast.queryable.wire.errors import BadRequestError, QueryConnectionError, QueryError, QueryTimeoutError
from holdfast.queryable.wire.frame import Frame, FrameType
from holdfast.queryable.wire.location import Address

_CHUNK: Final = 256 * 1024
P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")


def _blocking(
    query: Callable[Concatenate[ClientCore, P], Q], run: Callable[[QueryableStateClient, Q], T]
) -> Callable[Concatenate[QueryableStateClient, P], T]:
    """Make a method of the client from a query of the core and the method that sends it and waits."""

    def method(self: QueryableStateClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self, query(self._core, *args, **kwargs))

    return present_as(query, run, method)


class QueryableStateClient:
    """A client of one query server, which forwards requests for state that it does not serve itself.

    All methods but `close` and `shutdown` block until the answer is there, at most five seconds longer than `deadline`.
    Thread-safe: each thread in a call has its own connection. A connection is opened by the first request, and again
    after it was lost. A forked child opens its own; a scan that its parent started fails there. All errors are
    `HoldfastError`s. Any method may raise, besides the errors it names:

    - `QueryConnectionError`: the server cannot be reached, or the connection was lost twice,
    - `UnauthorizedError`: the token is missing or wrong,
    - `LimitExceededError`: a message is too long, or there are too many keys, requests or connections,
    - `ServerFailureError`: the server failed, for example on a damaged file.

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
        self._core = ClientCore()
        self._idle: list[BlockingConnection] = []
        self._reset_connections()

    def _get(self, request: ClientRequest) -> StateResult[Any]:
        return request.one(*self._converse(self._core.request_state(request)))

    def _get_many(self, request: ClientRequest) -> ManyResult:
        return request.many(*self._converse(self._core.request_state(request)))

    def _scan(self, call: ServerCall) -> Scan:
        connection = self._connect()
        return Scan(connection, connection.stream(call.kind, call.header, call.timeout))

    def _hold(self, call: ServerCall) -> Origin:
        with self._scan(call) as scan:
            for _ in scan:  # there are no rows; at the end all servers have answered
                pass
            return scan.origin

    def _converse(self, conversation: Conversation[T]) -> T:
        try:
            call = next(conversation)
            while True:
                try:
                    answer = self._call(call)
                except QueryError as error:
                    call = conversation.throw(error)
                else:
                    call = conversation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    get_kv_state = _blocking(ClientCore.get_kv_state, _get)
    get_many = _blocking(ClientCore.get_many, _get_many)
    scan = _blocking(ClientCore.scan, _scan)
    hold = _blocking(ClientCore.hold, _hold)
    describe = _blocking(ClientCore.describe, _converse)
    states = _blocking(ClientCore.states, _converse)
    jobs = _blocking(ClientCore.jobs, _converse)

    def close(self) -> None:
        """Close all idle connections; the next request opens another. Open scans keep theirs."""
        self._leave_parents_connections()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def shutdown(self) -> None:
        """Close the client, as `close` does."""
        self.close()

    def __enter__(self) -> QueryableStateClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _reset_connections(self) -> None:
        self._lock = threading.Lock()
        self._idle = []
        self._process = os.getpid()

    def _leave_parents_connections(self) -> None:
        """In a forked child: leave connections and lock to the parent, whose threads may have been using them."""
        if self._process != os.getpid():
            inherited = self._idle
            self._reset_connections()
            for connection in inherited:
                connection.close()

    def _call(self, call: ServerCall) -> Frame:
        if call.is_repeated:
            self.close()  # connections as old as the lost one are lost as well
        self._leave_parents_connections()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connect()
        try:
            answer = connection.request(call.kind, call.header, call.body, call.timeout)
        except BadRequestError:
            self._release(connection)
            raise
        except BaseException:
            connection.close()  # a late answer would be taken for that of the next request
            raise
        self._release(connection)
        return answer

    def _release(self, connection: BlockingConnection) -> None:
        with self._lock:
            self._idle.append(connection)

    def _connect(self) -> BlockingConnection:
        return BlockingConnection(self._address, self._token, self._ssl)


class Scan:
    """The Arrow batches of a scan: iterate over them once, which blocks for each batch, or close it. Not thread-safe.

    Attributes:
        head: The checkpoint of the rows, the state's description and the columns.
    """

    def __init__(self, connection: BlockingConnection, frames: Iterator[Frame]) -> None:
        self._connection = connection
        self._frames = frames
        try:
            self.head: ScanHead = scan_head(next(frames))
        except BaseException:
            connection.close()
            raise

    @property
    def origin(self) -> Origin:
        """The checkpoint that all rows were read from."""
        return self.head.origin

    @property
    def schema(self) -> pa.Schema:
        """The columns: key, namespace and map key where the state has them, value."""
        return self.head.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for frame in self._frames:
                yield scan_batch(frame, self.head)
        finally:
            self.close()

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def to_table(self) -> pa.Table:
        """Return all rows; blocks until the last one has arrived.

        Raises:
            QueryError: As for `QueryableStateClient.scan`.
        """
        return pa.Table.from_batches(self, schema=self.schema)

    def close(self) -> None:
        """Stop the scan and close its connection."""
        self._connection.close()


class BlockingConnection:
    """A connection that has one request in flight at a time.

    Raises:
        QueryConnectionError: No server listens or answers in time, or TLS is used by one side only.
        UnauthorizedError: The token is missing or wrong.
    """

    def __init__(self, address: Address, token: str | None, ssl: tls_module.SSLContext | None) -> None:
        self._session = ClientSession(address)
        self._arrived: deque[Frame] = deque()
        try:
            plain = socket.create_connection(address, CONNECT_TIMEOUT)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if ssl is None else ssl.wrap_socket(plain, server_hostname=address[0])
        except (OSError, ValueError) as error:  # an invalid host name is a ValueError
            raise self._session.unreachable(error) from error
        try:
            self._send(self._session.greeting(token))
            self._session.accept_greeting(self.receive(CONNECT_TIMEOUT))
        except QueryTimeoutError as error:
            self.close()
            raise self._session.greeting_unanswered(CONNECT_TIMEOUT) from error
        except BaseException:
            self.close()
            raise

    def request(self, kind: FrameType, header: bytes, body: Sequence[Any], timeout: float) -> Frame:
        self._session.check_own_process()
        self._send(self._session.request(kind, header, body)[1])
        return raise_failure(self.receive(timeout))

    def stream(self, kind: FrameType, header: bytes, timeout: float) -> Iterator[Frame]:
        self._session.check_own_process()
        self._send(self._session.request(kind, header)[1])
        while (frame := raise_failure(self.receive(timeout))).type != FrameType.END:
            yield frame

    def receive(self, timeout: float) -> Frame:
        self._session.check_own_process()
        try:
            self._socket.settimeout(timeout)
            while not self._arrived:
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise QueryConnectionError("The server closed the connection.")
                self._arrived.extend(self._session.feed(data))
            return self._arrived.popleft()
        except TimeoutError:
            raise QueryTimeoutError(f"No answer within {timeout} seconds.") from None
        except OSError as error:
            raise QueryConnectionError(f"The connection was lost: {error}.") from error

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise QueryConnectionError(f"The connection was lost: {error}.") from error
