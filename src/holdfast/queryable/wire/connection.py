"""A client's connection to a server: many requests in flight, each answered under its number."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
import ssl as tls_module
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.queryable.wire.errors import ProtocolError, QueryConnectionError, QueryError, QueryTimeoutError, from_wire
from holdfast.queryable.wire.frame import Frame, FrameReader, FrameType, encode, to_header
from holdfast.queryable.wire.location import Address

# The client's side of one connection, without the connection: what is sent on it, and what has arrived. No I/O here.
#
# ::
#
#     bytes of greeting() --> the server --> its answer: greeted() --> bytes of request() --> the server --> feed()

MAX_ANSWER: Final = 256 * 1024 * 1024
CONNECT_TIMEOUT: Final = 10.0
"""Seconds until there is a connection, and again until its greeting is answered."""
GREETING: Final = 0
"""The number of the greeting; requests are numbered from 1."""


class ClientSession:
    """What both kinds of connections do in the same way.

    Args:
        address: Of the server, for errors.

    Attributes:
        most_in_flight: Requests that may wait at the server at one time, as its greeting says; None if it does not.
        most_bytes: The longest request; a longer one would end the connection, and with it what others have asked on
            it.
    """

    def __init__(self, address: Address) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._reader = FrameReader(MAX_ANSWER, header_limit=None)
        self._numbers = itertools.count(GREETING + 1)
        self._process = os.getpid()
        self.most_in_flight: int | None = None
        self.most_bytes: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process began it; a forked child has the connection too, and must not use it."""
        return self._process == os.getpid()

    def check_ours(self) -> None:
        """Refuse to be used by a forked child, which would take its parent's answers.

        Raises:
            QueryConnectionError: This process is one.
        """
        if not self.is_ours:
            raise _never_connected(
                f"The connection to {self._name} is that of process {self._process}, and this is its child "
                f"{os.getpid()}: begin again here, on a connection of its own."
            )

    def greeting(self, token: str | None) -> bytes:
        """Return the first frame of the connection."""
        return encode(FrameType.HELLO, GREETING, to_header({} if token is None else {"token": token}))

    def greeted(self, answer: Frame) -> None:
        """Take the answer to the greeting, which says what may be sent.

        Raises:
            UnauthorizedError: The token is missing or wrong.
            ProtocolError: It is no such answer.
        """
        if raise_failure(answer).type != FrameType.RESULT:
            raise ProtocolError(f"{self._name} answered a greeting with a message of type {answer.type}.")
        limits = answer.fields().get("limits")
        if isinstance(limits, dict):
            self.most_in_flight = _positive(limits.get("in_flight"))
            self.most_bytes = _positive(limits.get("message_bytes"))

    def request(self, kind: FrameType, header: bytes, body: Any = ()) -> tuple[int, bytes]:
        """Return the number and the frame of a request.

        Raises:
            LimitExceededError: It is longer than the server takes; the connection stays as it is.
        """
        number = next(self._numbers)
        return number, encode(kind, number, header, *body, limit=self.most_bytes)

    def feed(self, data: bytes) -> list[Frame]:
        """Take what has arrived, and return the answers that are whole now.

        Raises:
            ProtocolError or LimitExceededError: It is nothing that a server of this version sends.
        """
        return self._reader.feed(data)

    def unreachable(self, reason: object) -> QueryConnectionError:
        """Make the error for a connection that was not made."""
        return _never_connected(f"No connection to {self._name}: {reason}.")

    def silent(self, seconds: float) -> QueryConnectionError:
        """Make the error for a server that does not answer a greeting."""
        return _never_connected(f"{self._name} did not answer within {seconds} seconds.")


def raise_failure(frame: Frame) -> Frame:
    """Return the frame, unless it says that the request failed.

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


# Notices that nothing arrives on a connection.


class Silence:
    """Looks at times whether anything has arrived; belongs to an event loop.

    Looks are counted and not seconds, so that a pause of this process is not taken for one of the other.

    Args:
        on_silence: Called once, when there was nothing for too long; then `watch` may be called again.

    Attributes:
        is_broken: To be set whenever something arrives.
    """

    def __init__(self, on_silence: Callable[[], None]) -> None:
        self._on_silence = on_silence
        self.is_broken = True
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, interval: float, most: int) -> None:
        """Look from now on.

        Args:
            interval: Seconds between two looks.
            most: So many looks one after the other may find nothing.
        """
        self.stop()
        self._looks = 0 if self.is_broken else self._looks + 1
        self.is_broken = False
        if self._looks > most:
            self._looks = 0
            self._on_silence()
        else:
            self._timer = asyncio.get_running_loop().call_later(interval, self.watch, interval, most)

    def stop(self) -> None:
        """Look no more: a timer that is left would hold the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# TLS contexts of both sides.


def client_context(tls: ssl.SSLContext | str | bool | None) -> ssl.SSLContext | None:
    """Return the context of a client.

    Args:
        tls: True for the system's authorities, a file with certificates, or a context; None or False for no TLS.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        return ssl.create_default_context(cafile=tls if isinstance(tls, str) else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"The certificates in {tls!r} cannot be read: {error}") from error


def server_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the context of a server; None without a certificate.

    Raises:
        ConfigurationError: A file cannot be read, or they do not belong together.
    """
    if certificate is None:
        if key is not None:
            raise ConfigurationError("queryable-state.tls.key is of no use without queryable-state.tls.certificate.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"The certificate {certificate!r} and key {key!r} cannot be used: {error}") from error
    return context
