"""A client's connection to a server: many requests in flight, each answered under its number."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl as tls_module
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.queryable.wire.errors import ProtocolError, QueryConnectionError, QueryError, QueryTimeoutError, from_wire
from holdfast.queryable.wire.frame import Frame, FrameReader, FrameType, encode, to_header
from holdfast.queryable.wire.location import Address

MAX_ANSWER: Final = 256 * 1024 * 1024
CONNECT_TIMEOUT: Final = 10.0
"""Seconds to open a connection, and again to wait for the answer to its greeting."""
GREETING: Final = 0
"""The request number of the greeting; requests are numbered from 1."""
_WATCH_SECONDS: Final = 0.1
_MAX_MISSED_PINGS: Final = 3
_UNREAD_PARTS: Final = 2
"""Parts of a stream that may wait for a slow reader; then nothing more is read from the connection."""


class ClientSession:
    """The client's side of the protocol, without I/O; blocking and asyncio connections share it.

    ::

        bytes of greeting() --> server --> its answer: accept_greeting() --> bytes of request() --> server --> feed()

    Args:
        address: Address of the server, for errors.

    Attributes:
        max_in_flight: Requests that may be in flight at one time, as the server announced; None if it did not.
        max_bytes: Longest request. A longer one would end the connection, and with it all other requests on it.
    """

    def __init__(self, address: Address) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._reader = FrameReader(MAX_ANSWER, header_limit=None)
        self._numbers = itertools.count(GREETING + 1)
        self._process = os.getpid()
        self.max_in_flight: int | None = None
        self.max_bytes: int | None = None

    @property
    def is_own_process(self) -> bool:
        """Whether this process opened the connection; a forked child inherits it and must not use it."""
        return self._process == os.getpid()

    def check_own_process(self) -> None:
        """Check that this process opened the connection: a forked child would read its parent's answers.

        Raises:
            QueryConnectionError: Another process opened it.
        """
        if not self.is_own_process:
            raise _never_connected(
                f"The connection to {self._name} belongs to process {self._process}, and this is its child "
                f"{os.getpid()}: start the query again in the child, on a connection of its own."
            )

    def greeting(self, token: str | None) -> bytes:
        return encode(FrameType.HELLO, GREETING, to_header({} if token is None else {"token": token}))

    def accept_greeting(self, answer: Frame) -> None:
        """Read the limits of the server from its answer to the greeting.

        Raises:
            UnauthorizedError: The token is missing or wrong.
            ProtocolError: The frame is not an answer to a greeting.
        """
        if raise_failure(answer).type != FrameType.RESULT:
            raise ProtocolError(f"{self._name} answered a greeting with a message of type {answer.type}.")
        limits = answer.fields().get("limits")
        if isinstance(limits, dict):
            self.max_in_flight = _positive(limits.get("in_flight"))
            self.max_bytes = _positive(limits.get("message_bytes"))

    def request(self, kind: FrameType, header: bytes, body: Any = ()) -> tuple[int, bytes]:
        """Return the number and the frame of a request.

        Raises:
            LimitExceededError: The request exceeds the server's limit; the connection stays usable.
        """
        number = next(self._numbers)
        return number, encode(kind, number, header, *body, limit=self.max_bytes)

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes and return the frames that are complete now.

        Raises:
            ProtocolError or LimitExceededError: A server of this version does not send such bytes.
        """
        return self._reader.feed(data)

    def unreachable(self, reason: object) -> QueryConnectionError:
        return _never_connected(f"No connection to {self._name}: {reason}.")

    def greeting_unanswered(self, seconds: float) -> QueryConnectionError:
        return _never_connected(f"{self._name} did not answer within {seconds} seconds.")


def raise_failure(frame: Frame) -> Frame:
    """Return the frame, or raise the error that it contains.

    Raises:
        QueryError: The error that the server sent.
    """
    if frame.type in (FrameType.FAILURE, FrameType.SERVER_FAILURE):
        fields = frame.fields()
        raise from_wire(fields.get("error"), fields.get("message"))
    return frame


def _positive(limit: Any) -> int | None:
    return limit if type(limit) is int and limit > 0 else None


def _never_connected(text: str) -> QueryConnectionError:
    error = QueryConnectionError(text)
    error.was_connected = False
    return error


class _Stream:
    """The received and unread parts of one streamed answer."""

    def __init__(self) -> None:
        self.parts: deque[Frame] = deque()
        self.arrived = asyncio.Event()
        self.failure: QueryError | None = None


class ClientConnection(asyncio.Protocol):
    """A connection with many requests in flight, opened by `connect`; belongs to its event loop.

    Args:
        session: The protocol state of the connection.
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
        self._is_paused = False
        self._watchdog = IdleWatchdog(self._end_idle, self._ping)
        self._ping_seconds = 0.0
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        return self._failure is None and self._session.is_own_process

    @property
    def has_room(self) -> bool:
        """Whether another request can be sent within the server's limit of requests in flight."""
        limit = self._session.max_in_flight
        return limit is None or len(self._pending) < limit

    async def greet(self, token: str | None, timeout: float) -> None:
        """Send the greeting and wait for its answer; nothing else may be sent before.

        Raises:
            QueryConnectionError: The server does not answer in time.
            UnauthorizedError: The token is missing or wrong.
        """
        hello = self._pending[GREETING] = self._loop.create_future()
        self._write(self._session.greeting(token))
        try:
            self._session.accept_greeting(await asyncio.wait_for(hello, timeout))
        except TimeoutError:
            self.close()
            raise self._session.greeting_unanswered(timeout) from None
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
                self._watch = self._loop.call_later(_WATCH_SECONDS, self._expire_requests)
        try:
            return raise_failure(await answer)
        finally:
            self._pending.pop(number, None)
            self._ends.pop(number, None)

    def send(self, kind: FrameType, header: bytes, *body: Any) -> tuple[int, asyncio.Future[Frame]]:
        """Send a request and return its number and the future of its answer, which may be the frame of an error."""
        self._require_open()
        number, data = self._session.request(kind, header, body)
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._pending[number] = answer
        self._write(data)
        return number, answer

    async def stream(
        self, kind: FrameType, header: bytes, *body: Any, timeout: float | None = None
    ) -> AsyncGenerator[Frame]:
        """Send a request and yield the parts of its answer; parts are read as fast as the caller consumes them.

        A stream needs its own connection: a slow reader stops all other answers on it.

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
        """Ping the server from now on, and close the connection when several pings in a row are not answered.

        A hanging process or a vanished machine does not close its connections, so only pings detect it. Pending
        requests fail with `QueryConnectionError`.

        Args:
            interval: Seconds between two pings.
        """
        if self.is_open:
            self._ping_seconds = interval
            self._watchdog.watch(interval, _MAX_MISSED_PINGS)

    def _ping(self) -> None:
        if self._is_paused:
            self._watchdog.has_traffic = True  # the server is not read, so it cannot be blamed
        else:
            self._write(encode(FrameType.PING, 0, b"{}"))

    def _end_idle(self) -> None:
        seconds = (_MAX_MISSED_PINGS + 1) * self._ping_seconds
        self._end(QueryConnectionError(f"The server has not answered for {seconds:.1f} seconds."))

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        self._end(QueryConnectionError("The connection was closed."))

    # Callbacks of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._watchdog.has_traffic = True
        try:
            frames = self._session.feed(data)
        except QueryError as error:
            self._end(error)
            return
        for frame in frames:
            self._dispatch(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(QueryConnectionError(f"The server closed the connection{f': {error}' if error else ''}."))

    def _dispatch(self, frame: Frame) -> None:
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
        """Send all requests of one turn of the loop together: a system call costs as much as an answer."""
        self._unsent.append(data)
        if len(self._unsent) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        data, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))

    def _expire_requests(self) -> None:
        """Fail requests whose time is over. One timer serves all: a timer each would cost as much as the request."""
        now = self._loop.time()
        for number in [number for number, end in self._ends.items() if end <= now]:
            answer = self._pending.get(number)
            if answer is not None and not answer.done():
                answer.set_exception(QueryTimeoutError("No answer arrived in time."))
        waiting = bool(self._ends) and self.is_open
        self._watch = self._loop.call_later(_WATCH_SECONDS, self._expire_requests) if waiting else None

    def _require_open(self) -> None:
        self._session.check_own_process()
        if self._failure is not None:
            raise QueryConnectionError(f"The connection has ended: {self._failure}")

    def _end(self, error: QueryError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._watchdog.stop()
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
    """Open a connection and send the greeting.

    Raises:
        QueryConnectionError: No server listens or answers in time, or TLS is used by one side only.
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
        raise session.greeting_unanswered(timeout) from None
    except (OSError, ValueError) as error:  # an invalid host name is a ValueError
        raise session.unreachable(error) from error
    await connection.greet(token, timeout)
    return connection


class IdleWatchdog:
    """Detects that nothing arrives on a connection, by checking at intervals; belongs to an event loop.

    Idle intervals are counted instead of seconds, so that a pause of this process is not blamed on the other side.

    Args:
        on_idle: Called once after too many idle intervals; `watch` may be called again afterwards.
        on_check: Called at each check that does not call `on_idle`.

    Attributes:
        has_traffic: Set by the owner whenever something arrives.
    """

    def __init__(self, on_idle: Callable[[], None], on_check: Callable[[], None] | None = None) -> None:
        self._on_idle = on_idle
        self._on_check = on_check
        self.has_traffic = True
        self._idle_intervals = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, interval: float, max_idle: int) -> None:
        """Start checking.

        Args:
            interval: Seconds between two checks.
            max_idle: Number of idle intervals in a row that are tolerated.
        """
        self.stop()
        self._idle_intervals = 0 if self.has_traffic else self._idle_intervals + 1
        self.has_traffic = False
        if self._idle_intervals > max_idle:
            self._idle_intervals = 0
            self._on_idle()
            return
        if self._on_check is not None:
            self._on_check()
        self._timer = asyncio.get_running_loop().call_later(interval, self.watch, interval, max_idle)

    def stop(self) -> None:
        """Stop checking: a timer that is left would keep the connection in memory."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def client_context(tls: tls_module.SSLContext | str | bool | None) -> tls_module.SSLContext | None:
    """Return the TLS context of a client.

    Args:
        tls: True for the system's authorities, a file with certificates, or a context; None or False for no TLS.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    if tls is None or tls is False:
        return None
    if isinstance(tls, tls_module.SSLContext):
        return tls
    try:
        return tls_module.create_default_context(cafile=tls if isinstance(tls, str) else None)
    except (OSError, tls_module.SSLError) as error:
        raise ConfigurationError(f"The certificates in {tls!r} cannot be read: {error}") from error


def server_context(certificate: str | None, key: str | None) -> tls_module.SSLContext | None:
    """Return the TLS context of a server; None without a certificate.

    Raises:
        ConfigurationError: A file cannot be read, or certificate and key do not belong together.
    """
    if certificate is None:
        if key is not None:
            raise ConfigurationError("queryable-state.tls.key is set without queryable-state.tls.certificate.")
        return None
    context = tls_module.SSLContext(tls_module.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls_module.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, tls_module.SSLError) as error:
        raise ConfigurationError(f"The certificate {certificate!r} and key {key!r} cannot be used: {error}") from error
    return context
