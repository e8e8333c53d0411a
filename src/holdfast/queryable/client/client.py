"""Asking for state, blocking."""

from __future__ import annotations

import os
import socket
import ssl as tls_module
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.client.client_core import (
    WHOLE_MAP,
    ClientCore,
    ClientRequest,
    Conversation,
    ServerCall,
    check_address,
    scan_batch,
    scan_head,
    scan_request,
)
from holdfast.queryable.client.result import ManyResult, Origin, ScanHead, StateResult
from holdfast.queryable.replica.checkpoint_view import Condition
from holdfast.queryable.wire.connection import CONNECT_TIMEOUT, ClientSession, client_context, raise_failure
from holdfast.queryable.wire.description import StateDescription
from holdfast.queryable.wire.errors import BadRequestError, QueryConnectionError, QueryError, QueryTimeoutError
from holdfast.queryable.wire.frame import Frame, FrameType
from holdfast.queryable.wire.location import Address
from holdfast.queryable.wire.request import DEFAULT_DEADLINE, NEWEST, Consistency, ScanRequest
from holdfast.state.descriptor import StateDescriptor

# A connection to a query server for clients that block.

_CHUNK: Final = 256 * 1024


class BlockingConnection:
    """A connection with one request at a time.

    Raises:
        QueryConnectionError: Nobody listens there or answers in time, or the TLS of both sides does not fit.
        UnauthorizedError: The token is missing or wrong.
    """

    def __init__(self, address: Address, token: str | None, ssl: tls_module.SSLContext | None) -> None:
        self._session = ClientSession(address)
        self._arrived: deque[Frame] = deque()
        try:
            plain = socket.create_connection(address, CONNECT_TIMEOUT)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if ssl is None else ssl.wrap_socket(plain, server_hostname=address[0])
        except (OSError, ValueError) as error:  # a name that no host can have is a ValueError
            raise self._session.unreachable(error) from error
        try:
            self._send(self._session.greeting(token))
            self._session.greeted(self.receive(CONNECT_TIMEOUT))
        except QueryTimeoutError as error:
            self.close()
            raise self._session.silent(CONNECT_TIMEOUT) from error
        except BaseException:
            self.close()
            raise

    def request(self, kind: FrameType, header: bytes, body: Sequence[Any], timeout: float) -> Frame:
        """Send a request and wait for its answer."""
        self._session.check_ours()
        self._send(self._session.request(kind, header, body)[1])
        return raise_failure(self.receive(timeout))

    def stream(self, kind: FrameType, header: bytes, timeout: float) -> Iterator[Frame]:
        """Send a request and yield the parts of its answer."""
        self._session.check_ours()
        self._send(self._session.request(kind, header)[1])
        while (frame := raise_failure(self.receive(timeout))).type != FrameType.END:
            yield frame

    def receive(self, timeout: float) -> Frame:
        """Wait for the next frame."""
        self._session.check_ours()
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
        """Close it."""
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise QueryConnectionError(f"The connection was lost: {error}.") from error


T = TypeVar("T")


class Scan:
    """The batches of a scan; iterate over it once, or close it. For one thread.

    Attributes:
        head: Where the rows are from and which columns they have.
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
        """Where all rows are from."""
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
        """Return the scan."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End it."""
        self.close()

    def to_table(self) -> pa.Table:
        """Return all rows; blocks until they are there.

        Raises:
            QueryError: As for `QueryableStateClient.scan`.
        """
        return pa.Table.from_batches(self, schema=self.schema)

    def close(self) -> None:
        """End the scan."""
        self._connection.close()


class QueryableStateClient:
    """Asks one server, which forwards what it does not hold.

    Every method but `close` and `shutdown` blocks until the answer is there, at most `deadline` and five seconds more.
    Thread-safe: each thread in a call has its own connection. A connection is made with the first request, and again
    after it was lost. A forked child makes its own; a scan that its parent began is refused there. All errors are
    `HoldfastError`s; besides those that a method names any of them may raise

    - `QueryConnectionError`: the server cannot be reached, or the connection was lost twice,
    - `UnauthorizedError`: the token is missing or wrong,
    - `LimitExceededError`: a message is too long, or there are too many keys, requests or connections,
    - `ServerFailureError`: the server failed, as with a damaged file.

    Args:
        host: Of any query server of the job.
        port: The same.
        tls: True for TLS with the system's authorities, a file with certificates, or a context; None for none.
        token: Bearer token, if the server wants one.

    Raises:
        ConfigurationError: Host and port are none, or the certificates cannot be read.
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
        self._begin()

    def get_kv_state(
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
        """Return the state of a key.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            key: The key, of the type of the state's keys.
            map_key: For map state: return this entry's value and not the whole map.
            namespace: For state with namespaces: bytes, or a namespace whose serializer is given as well.
            namespace_serializer: Turns the namespace into bytes.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits, at most 600.
            key_type: The type that the caller takes the keys to have; refused before anything is sent if it differs.
            descriptor: The descriptor that the caller takes the state to have; with that of aggregating state the
                result of the function is returned instead of the accumulator.

        Raises:
            UnknownKeyOrNamespaceError: There is no state for the key; a default value is never returned.
            WrongKeyTypeError: The key is of another type; nothing was sent.
            WrongStateKindError: The state is of another kind than a map key or the descriptor says.
            BadRequestError: The deadline is no number, or the state has namespaces and none was given, or none has.
            ConfigurationError: The namespace is no bytes and has no serializer.
            UnknownJobError, UnknownLocationError, UnknownKvStateLocationError: There is no such job or state.
            UnknownKvStateKeyGroupLocationError: No server holds the key's group at the moment.
            QueryTimeoutError: The checkpoint did not complete before the deadline.
            CheckpointNotAvailableError: The checkpoint is not retained.
            QueryConnectionError: The server cannot be reached.
        """
        entries = None if map_key is WHOLE_MAP else (map_key,)
        more = (consistency, deadline, key_type, descriptor)
        client_request = ClientRequest.of(job_id, name, (key,), entries, namespace, namespace_serializer, *more)
        return client_request.one(*self._converse(self._core.ask(client_request)))

    def get_many(
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
        """Return the state of several keys, all from one checkpoint; None for those without.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            keys: The keys, one or more; a key may come twice.
            map_keys: For map state: one for each key, to return the entries' values and not whole maps.
            namespace: Of all of them; see `get_kv_state`, as for the other arguments and errors.
            namespace_serializer: Turns the namespace into bytes.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits.
            key_type: The type that the caller takes the keys to have.
            descriptor: The descriptor that the caller takes the state to have.

        Raises:
            QueryError: As for `get_kv_state`, but for `UnknownKeyOrNamespaceError`.
        """
        more = (consistency, deadline, key_type, descriptor)
        client_request = ClientRequest.of(job_id, name, keys, map_keys, namespace, namespace_serializer, *more)
        return client_request.many(*self._converse(self._core.ask(client_request)))

    def scan(
        self,
        job_id: JobID | str,
        name: str,
        *,
        key_groups: KeyGroupRange | None = None,
        where: Sequence[Condition] = (),
        batch_rows: int = ScanRequest.batch_rows,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
    ) -> Scan:
        """Return all rows of a state, of one checkpoint, as Arrow batches that are read as they are taken.

        Blocks until the first answer is there, which says where the rows are from; iterating blocks for each batch. The
        scan has a connection of its own, which ends with the last batch or when the scan is closed.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            key_groups: Only these key groups.
            where: Only rows that meet all of these: (column, operator, value), where a column is `key`, `value`,
                `map_key` or a field such as `value.total`, and an operator one of == != < <= > >=. A text may stand
                for a date, a time or a decimal.
            batch_rows: About how many rows a batch has, 1 to 1,000,000.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits.

        Raises:
            BadRequestError: There are no such key groups, or a condition does not fit the columns.
            UnknownJobError, UnknownLocationError, UnknownKvStateLocationError: There is no such job or state.
            UnknownKvStateKeyGroupLocationError: No server holds some key group at the moment.
            QueryTimeoutError: The checkpoint did not complete before the deadline, or a batch did not come in time.
            CheckpointNotAvailableError: The checkpoint is not retained.
            QueryConnectionError: A server was lost, also between two batches; begin again.
        """
        call = scan_request(
            job_id, name, consistency, deadline, key_groups=key_groups, where=where, batch_rows=batch_rows
        )
        return self._scan(call)

    def hold(
        self,
        job_id: JobID | str,
        name: str,
        seconds: float,
        *,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
    ) -> Origin:
        """Choose a checkpoint that can be read with `exactly` for some time, though the job completes many others.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            seconds: How long, at most 3600; the servers that hold the state now keep it open so long.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits.

        Returns:
            The checkpoint that was chosen.

        Raises:
            LimitExceededError: The server holds too many already.
            QueryError: As for `scan`.
        """
        with self._scan(scan_request(job_id, name, consistency, deadline, hold=seconds)) as scan:
            for _ in scan:  # there are no rows; at its end all servers have answered
                pass
            return scan.origin

    def describe(self, job_id: JobID | str, name: str) -> StateDescription:
        """Return what a state is: its kind and its types.

        Raises:
            UnknownJobError, UnknownLocationError, UnknownKvStateLocationError: There is no such job or state.
        """
        return self._converse(self._core.describe(job_id, name))

    def states(self, job_id: JobID | str) -> list[StateDescription]:
        """Return the queryable states of a job that the server holds.

        Raises:
            UnknownJobError: It holds none, or the job has no checkpoint yet.
        """
        return self._converse(self._core.states(job_id))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the server holds and that have a checkpoint.

        Returns:
            For each a dict with `job_id`, `job_name`, `states` (names), and of its newest checkpoint `checkpoint_id`,
            `epoch`, `lineage` and `completed_at` (milliseconds since 1970).
        """
        return self._converse(self._core.jobs())

    def close(self) -> None:
        """Close all connections; the next request opens another."""
        self._begin_in_child()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def shutdown(self) -> None:
        """Close all connections."""
        self.close()

    def __enter__(self) -> QueryableStateClient:
        """Return the client."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def _begin(self) -> None:
        """Have no connections yet, in this process."""
        self._lock = threading.Lock()
        self._idle = []
        self._process = os.getpid()

    def _begin_in_child(self) -> None:
        """Leave connections and lock to the parent, whose threads may have been using them, if this is a fork."""
        if self._process != os.getpid():
            inherited = self._idle
            self._begin()
            for connection in inherited:
                connection.close()

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

    def _call(self, call: ServerCall) -> Frame:
        """Send a request by a connection that nobody else uses meanwhile."""
        if call.is_repeated:
            self.close()  # those of the same age as the one that was lost are gone as well
        self._begin_in_child()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connect()
        try:
            answer = connection.request(call.kind, call.header, call.body, call.timeout)
        except BadRequestError:
            self._give_back(connection)
            raise
        except BaseException:
            connection.close()  # an answer that comes late would be taken for the next one's
            raise
        self._give_back(connection)
        return answer

    def _scan(self, call: ServerCall) -> Scan:
        connection = self._connect()
        return Scan(connection, connection.stream(call.kind, call.header, call.timeout))

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            self._idle.append(connection)

    def _connect(self) -> BlockingConnection:
        return BlockingConnection(self._address, self._token, self._ssl)
