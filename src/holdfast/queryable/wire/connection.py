"""A client's connection to a server: many requests in flight, each answered under its number."""

from __future__ import annotations

import asyncio
import ssl as tls_module
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from holdfast.queryable.wire.client_session import CONNECT_TIMEOUT, GREETING, ClientSession, raise_failure
from holdfast.queryable.wire.errors import QueryConnectionError, QueryError, QueryTimeoutError
from holdfast.queryable.wire.frame import Frame, FrameType, encode
from holdfast.queryable.wire.location import Address

_WATCH_SECONDS: Final = 0.1
_PINGS_UNANSWERED: Final = 3
"""After so many, and as many times the interval between them, the other side counts as lost."""
_UNREAD_PARTS: Final = 2
"""Parts of a stream that may wait for a slow reader; then nothing more is read from the connection."""


class _Stream:
    """The parts of one streamed answer that have arrived and are not read yet."""

    def __init__(self) -> None:
        self.parts: deque[Frame] = deque()
        self.arrived = asyncio.Event()
        self.failure: QueryError | None = None


class ClientConnection(asyncio.Protocol):
    """A connection; made by `connect`. Not thread-safe: it belongs to its event loop.

    Args:
        session: What is said on it.
        on_notification: Called with each notification of the server.
    """

    def __init__(self, session: ClientSession, on_notification: Callable[[Frame], None] | None = None) -> None:
        self._session = session
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._streams: dict[int, _Stream] = {}
        self._transport: asyncio.Transport | None = None
        self._on_notification = on_notification or (lambda frame: None)
        self._loop = asyncio.get_running_loop()
        self._ends: dict[int, float] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._failure: QueryError | None = None
        self._unsent: list[bytes] = []
        self._has_heard = True
        self._is_paused = False
        self._silences = 0
        self._pulse: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._failure is None and self._session.is_ours

    @property
    def has_room(self) -> bool:
        """Whether another request can be sent without too many being in flight."""
        most = self._session.most_in_flight
        return most is None or len(self._pending) < most

    async def greet(self, token: str | None, timeout: float) -> None:
        """Introduce oneself; nothing else may be sent before.

        Raises:
            QueryConnectionError: Nobody answers in time.
            UnauthorizedError: The token is missing or wrong.
        """
        hello = self._pending[GREETING] = self._loop.create_future()
        self._write(self._session.greeting(token))
        try:
            self._session.greeted(await asyncio.wait_for(hello, timeout))
        except TimeoutError:
            self.close()
            raise self._session.silent(timeout) from None
        except QueryError:
            self.close()
            raise

    async def request(self, kind: FrameType, header: bytes, *body: Any, timeout: float | None = None) -> Frame:
        """Send a request and wait for its answer.

        Raises:
            QueryError: The request failed, the connection ended, or the time passed.
        """
        number, answer = self.send(kind, header, *body)
        if timeout is not None:
            self._ends[number] = self._loop.time() + timeout
            if self._watch is None:
                self._watch = self._loop.call_later(_WATCH_SECONDS, self._end_late_ones)
        try:
            return raise_failure(await answer)
        finally:
            self._pending.pop(number, None)
            self._ends.pop(number, None)

    def send(self, kind: FrameType, header: bytes, *body: Any) -> tuple[int, asyncio.Future[Frame]]:
        """Send a request; returns its number and the future of its answer, which may be a failure's frame."""
        self._require_open()
        number, data = self._session.request(kind, header, body)
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._pending[number] = answer
        self._write(data)
        return number, answer

    async def stream(
        self, kind: FrameType, header: bytes, *body: Any, timeout: float | None = None
    ) -> AsyncGenerator[Frame]:
        """Send a request and yield the parts of its answer, read only as fast as they are taken.

        Use a connection of its own for a stream: a reader that pauses holds up everything else on it.

        Raises:
            QueryError: The request failed, the connection ended, or a part did not arrive in time.
        """
        self._require_open()
        number, data = self._session.request(kind, header, body)
        stream = self._streams[number] = _Stream()
        self._write(data)
        try:
            while True:
                while not stream.parts:
                    if stream.failure is not None:
                        raise stream.failure
                    stream.arrived.clear()
                    try:
                        async with asyncio.timeout(timeout):
                            await stream.arrived.wait()
                    except TimeoutError:
                        raise QueryTimeoutError(f"No answer within {timeout} seconds.") from None
                frame = stream.parts.popleft()
                if len(stream.parts) < _UNREAD_PARTS and self._transport is not None and self.is_open:
                    self._is_paused = False
                    self._transport.resume_reading()
                if raise_failure(frame).type == FrameType.END:
                    return
                yield frame
        finally:
            del self._streams[number]

    def keep_alive(self, interval: float) -> None:
        """Ask for a sign of life from now on whenever nothing arrives, and end the connection when none comes.

        A process that hangs, or a machine that has vanished, keeps its connections: nothing else tells of it. What is
        pending fails with `QueryConnectionError`. Ticks are counted and not seconds, so that a pause of this process
        is not taken for one of the other.

        Args:
            interval: Seconds between two looks.
        """
        if not self.is_open:
            return
        self._silences = 0 if self._has_heard or self._is_paused else self._silences + 1
        self._has_heard = False
        if self._silences > _PINGS_UNANSWERED:
            self._end(QueryConnectionError(f"The server has been silent for {self._silences * interval:.1f} seconds."))
            return
        if not self._is_paused:
            self._write(encode(FrameType.PING, 0, b"{}"))
        self._pulse = self._loop.call_later(interval, self.keep_alive, interval)

    def close(self) -> None:
        """Close the connection; what is pending fails."""
        self._end(QueryConnectionError("The connection was closed."))

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand each whole frame to who waits for it."""
        self._has_heard = True
        try:
            frames = self._session.feed(data)
        except QueryError as error:
            self._end(error)
            return
        for frame in frames:
            self._take(frame)

    def connection_lost(self, error: Exception | None) -> None:
        """Let all who wait know."""
        self._end(QueryConnectionError(f"The server closed the connection{f': {error}' if error else ''}."))

    def _take(self, frame: Frame) -> None:
        pending = self._pending.pop(frame.request, None)
        if pending is not None:
            if not pending.done():
                pending.set_result(frame)
            return
        stream = self._streams.get(frame.request)
        if stream is not None:
            stream.parts.append(frame)
            stream.arrived.set()
            if len(stream.parts) >= _UNREAD_PARTS and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        elif frame.type == FrameType.NOTIFICATION:
            self._on_notification(frame)
        elif frame.type == FrameType.SERVER_FAILURE:
            try:
                raise_failure(frame)
            except QueryError as error:
                self._end(error)

    def _write(self, data: bytes) -> None:
        """Requests of one turn of the loop leave together: a system call costs as much as an answer."""
        self._unsent.append(data)
        if len(self._unsent) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        data, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))

    def _end_late_ones(self) -> None:
        """One timer for all requests: a timer for each would cost as much as the request."""
        now = self._loop.time()
        for number in [number for number, end in self._ends.items() if end <= now]:
            answer = self._pending.get(number)
            if answer is not None and not answer.done():
                answer.set_exception(QueryTimeoutError("No answer arrived in time."))
        waiting = bool(self._ends) and self.is_open
        self._watch = self._loop.call_later(_WATCH_SECONDS, self._end_late_ones) if waiting else None

    def _require_open(self) -> None:
        self._session.check_ours()
        if self._failure is not None:
            raise QueryConnectionError(f"The connection has ended: {self._failure}")

    def _end(self, error: QueryError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        if self._pulse is not None:
            self._pulse.cancel()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(error)
        for stream in self._streams.values():
            stream.failure = error
            stream.arrived.set()
        if self._transport is not None:
            self._transport.close()
        if not self.closed.done():
            self.closed.set_result(None)


async def connect(
    address: Address,
    *,
    token: str | None = None,
    ssl: tls_module.SSLContext | None = None,
    on_notification: Callable[[Frame], None] | None = None,
    timeout: float = CONNECT_TIMEOUT,
) -> ClientConnection:
    """Open a connection and introduce oneself.

    Raises:
        QueryConnectionError: Nobody listens there or answers in time, or the TLS of both sides does not fit.
        UnauthorizedError: The token is missing or wrong.
    """
    host, port = address
    session = ClientSession(address)
    name = host if ssl is not None else None
    try:
        async with asyncio.timeout(timeout):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: ClientConnection(session, on_notification), host, port, ssl=ssl, server_hostname=name
            )
    except TimeoutError:
        raise session.silent(timeout) from None
    except (OSError, ValueError) as error:  # a name that no host can have is a ValueError
        raise session.unreachable(error) from error
    await connection.greet(token, timeout)
    return connection
