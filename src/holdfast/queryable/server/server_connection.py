"""The settings of a query server, the server's side of one connection, and the acceptor of connections."""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
import ssl as tls_module
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.configuration import ConfigOption, Configuration
from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.follower import DEFAULT_POLL
from holdfast.queryable.wire.connection import IdleWatchdog
from holdfast.queryable.wire.errors import (
    LimitExceededError,
    ProtocolError,
    QueryError,
    QueryTimeoutError,
    UnauthorizedError,
    to_wire,
)
from holdfast.queryable.wire.frame import (
    MAX_GREETING,
    TASK_BYTES,
    Frame,
    FrameReader,
    FrameType,
    Limits,
    MemoryBudget,
    encode,
    to_header,
)

logger = get_logger(__name__)

_ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
_PORTS: Final = 65536
_FLUSH_EVERY: Final = 8
"""Answers that are sent together: fewer system calls, and the client can start with the first ones early."""
_TLS_CHUNK: Final = 256 * 1024
"""Bytes that are encrypted together: asyncio's time for a byte grows with the length of one write."""
_SMALL: Final = 64 * 1024
"""Bytes of an incomplete request that are accepted although the memory budget is used up."""
_LINGER_SECONDS: Final = 2.0
_ALWAYS_ACCEPTED: Final = frozenset({FrameType.HELLO, FrameType.PING, FrameType.REGISTER})
"""Not subject to the memory budget: without them servers would count as lost."""
_BACKLOG: Final = 1024
_TLS_END_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 1.0
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens that a server accepts.

    Attributes:
        readers: Token of clients; None if no token is required.
        servers: Token of servers that register; None if it is the token of clients.
    """

    readers: str | None = None
    servers: str | None = None

    def allows_reads(self, given: Any) -> bool:
        return self.readers is None or _same(given, self.readers)

    def allows_registration(self, given: Any) -> bool:
        """Whether the owner of this token may register: proxies will forward requests to it."""
        return self.allows_reads(given) if self.servers is None else _same(given, self.servers)

    def check(self, given: Any) -> bool:
        """Return whether a token is that of servers.

        Raises:
            UnauthorizedError: The token is neither that of clients nor that of servers.
        """
        is_server = self.allows_registration(given)
        if not is_server and not self.allows_reads(given):
            raise UnauthorizedError("The bearer token is missing or wrong. Use the server's token.")
        return is_server


def _same(given: Any, wanted: str) -> bool:
    # The time of the comparison must reveal nothing about the token.
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a query server.

    Attributes:
        host: The address to listen on.
        ports: Ports to try; the server listens on the first free one. 0 is any free port.
        token: Bearer token that clients must show; None if no token is required.
        server_token: Bearer token that servers show to each other and need to register here; None if it is `token`.
        tls: TLS context of the listening side; None for no TLS.
        peer_tls: TLS context for connections to other servers; None for no TLS.
        limits: Limits for clients.
        poll: Seconds between two checks for a completed checkpoint that was not notified.
        advertised: The host under which others reach this server. If empty, `host`, or the machine's name where `host`
            is all addresses (0.0.0.0, ::).
    """

    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (0,)
    token: str | None = None
    server_token: str | None = None
    tls: tls_module.SSLContext | None = None
    peer_tls: tls_module.SSLContext | None = None
    limits: Limits = field(default_factory=Limits)
    poll: float = DEFAULT_POLL
    advertised: str = ""

    @property
    def tokens(self) -> Tokens:
        """The tokens that clients and servers must show."""
        return Tokens(self.token, self.server_token)

    @property
    def peer_token(self) -> str | None:
        """The token that this server shows to others."""
        return self.token if self.server_token is None else self.server_token

    @property
    def public_host(self) -> str:
        """The host under which others reach this server."""
        return self.advertised or (socket.gethostname() if self.host in _ALL_ADDRESSES else self.host)


def ports_from(configuration: Configuration, option: ConfigOption[str]) -> tuple[int, ...]:
    """Parse an option with ports, such as `9069`, `9069,9071` or `9069-9075`.

    Raises:
        ConfigurationError: The option has another form.
    """
    text = configuration.get(option)
    ports: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            begin, end = int(first), int(last if dash else first)
            if not 0 <= begin <= end < _PORTS:
                raise ValueError(part)
            ports.extend(range(begin, end + 1))
    except ValueError:
        raise ConfigurationError(
            f"Option {option.key!r}: {text!r} is not a list of ports; write '9069', '9069,9071' or '9069-9075'."
        ) from None
    return tuple(ports)


class Service(Protocol):
    """Answers the requests of connections; see `QueryService`."""

    def answer(self, frame: Frame, connection: ServerConnection) -> bytes | Awaitable[bytes] | AsyncIterator[bytes]:
        """Return the frame of the answer, or an awaitable or iterator of frames.

        Raises:
            QueryError: The request fails.
        """

    def opened(self, connection: ServerConnection) -> None: ...

    def closed(self, connection: ServerConnection) -> None: ...


class ServerConnection(asyncio.Protocol):
    """The server's side of one connection.

    Requests are answered in the turn of the event loop in which they arrive, where possible. While a client does not
    read its answers, the server reads and answers nothing more on the connection, so it holds the answers of at most
    one turn. A client that makes no progress for some time is disconnected.

    Args:
        service: Answers the requests.
        limits: Limits for the client.
        tokens: Accepted tokens.
        budget: The memory budget of all connections.
        quota: Counts the connections.

    Attributes:
        is_server: Whether the other side has shown the token of servers.
        peer_watchdog: Once it watches, it ends the connection when the other side hangs or its machine vanishes.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits,
        tokens: Tokens,
        budget: MemoryBudget,
        quota: ConnectionQuota[ServerConnection],
    ) -> None:
        self._service = service
        self._limits = limits
        self._tokens = tokens
        self._budget = budget
        self._quota = quota
        self.is_server = False
        self._is_greeted = False
        self._reader = FrameReader(MAX_GREETING)
        self._waiting: deque[Frame] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plain: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._stalled: asyncio.TimerHandle | None = None
        self._greeting: asyncio.TimerHandle | None = None
        self._unsent: list[bytes] = []
        self._unread = 0
        self._held = 0
        self._batches = asyncio.Lock()
        self.peer_watchdog = IdleWatchdog(self._abort)
        self._idle_watchdog = IdleWatchdog(self._end_if_idle)
        self._ending: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._is_encrypted = False

    def expect_greeting(self, plain: socket.socket) -> None:
        """Start the timeout for the TLS handshake and the greeting of a new connection."""
        self._plain = plain
        late = QueryTimeoutError("No greeting arrived.")
        self._greeting = asyncio.get_running_loop().call_later(self._limits.greeting_seconds, self.reject, late)

    def reject(self, error: QueryError) -> None:
        """Close a connection that has not sent its greeting; during a TLS handshake no error can be sent."""
        if self._transport is not None:
            self._fail(error)
            self._abort()
        elif self._plain is not None:
            self._is_ended = True
            with suppress(OSError):
                self._plain.shutdown(socket.SHUT_RDWR)
        self._quota.remove(self)

    def send(self, frame: bytes) -> None:
        """Send a frame that no request asked for, such as a notification."""
        if self._transport is not None and not self._is_ended:
            self._write(self._transport, frame)
            self._budget.update(self)

    def close(self) -> None:
        """Close the connection after the answers that are already written."""
        self._is_ended = True
        if self._transport is not None:
            self._transport.close()

    def held_bytes(self) -> int:
        """Return the memory of waiting requests and unread answers, in bytes."""
        waiting = sum(len(frame.body) for frame in self._waiting) if self._waiting else 0
        unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._reader.pending_bytes() + waiting + self._held + len(self._tasks) * TASK_BYTES + unread

    async def wait_writable(self) -> None:
        """Wait until the client has read enough of its answers for the next one."""
        while not self._writable.is_set():
            await self._writable.wait()

    async def wait_for_room(self, frame: Frame) -> None:
        """Wait as `wait_writable` does, then check the memory budget for the answer of a request that has waited.

        Raises:
            LimitExceededError: The budget is used up, the request itself not counted.
        """
        await self.wait_writable()
        self._budget.check(_waiting_bytes(frame))

    # Callbacks of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=self._limits.unread_bytes)
        if self._is_ended:  # rejected just before the TLS handshake was done
            transport.abort()
            return
        self._service.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._is_ended:
            return
        self.peer_watchdog.has_traffic = self._idle_watchdog.has_traffic = True
        try:
            self._waiting.extend(self._reader.feed(data))
            self._answer_waiting()
            self._budget.update(self)
            if self._reader.pending_bytes() > _SMALL:
                self._budget.check()
        except QueryError as error:
            self._answer_waiting()
            self._fail(error, lingers=True)

    def pause_writing(self) -> None:
        """The client does not read its answers: read nothing more from it."""
        self._writable.clear()
        assert self._transport is not None
        self._transport.pause_reading()
        self._unread = self._transport.get_write_buffer_size()
        self._stalled = asyncio.get_running_loop().call_later(self._limits.stall_seconds, self._abort_stalled)

    def resume_writing(self) -> None:
        self._writable.set()
        if self._stalled is not None:
            self._stalled.cancel()
        if not self._is_ended and self._transport is not None:
            self._answer_waiting()
            self._budget.update(self)
            if self._writable.is_set() and not self._transport.is_closing():
                self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_ended = True
        self._writable.set()
        for timer in (self._stalled, self._greeting, self._ending):
            if timer is not None:
                timer.cancel()  # a timer that is left would keep the connection in memory
        self.peer_watchdog.stop()
        self._idle_watchdog.stop()
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        self._budget.remove(self)
        self._quota.remove(self)
        self._service.closed(self)

    def _answer_waiting(self) -> None:
        while self._waiting and self._writable.is_set() and not self._is_ended:
            self._answer(self._waiting.popleft())
            if len(self._unsent) >= _FLUSH_EVERY:
                self._flush()
        self._flush()

    def _answer(self, frame: Frame) -> None:
        try:
            if not self._is_greeted:
                self._greet(frame)
                return
            if frame.type not in _ALWAYS_ACCEPTED:
                self._budget.check()
            answer = self._service.answer(frame, self)
        except (ProtocolError, UnauthorizedError) as error:
            self._fail(error)
            return
        except Exception as error:  # noqa: BLE001 - the client gets it as its response
            self._unsent.append(_failure(frame.request, error))
            return
        if isinstance(answer, bytes):
            self._unsent.append(answer)
            if len(answer) > self._limits.unread_bytes:
                self._flush()
        elif len(self._tasks) >= self._limits.in_flight:
            _discard(answer)
            limit = LimitExceededError(f"More than {self._limits.in_flight} requests of one connection are waiting.")
            self._unsent.append(_failure(frame.request, limit))
        elif self._held + len(frame.body) > self._limits.held_bytes:
            _discard(answer)
            self._unsent.append(_failure(frame.request, self._too_much("Requests")))
        else:
            self._held += len(frame.body)
            self._budget.add(self, _waiting_bytes(frame))
            task = asyncio.get_running_loop().create_task(self._answer_later(frame, answer))
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_task_done, len(frame.body)))
            # A task that is cancelled before its first step never awaits the answer, so it must be closed.
            task.add_done_callback(lambda _: _discard(answer))

    async def _answer_later(self, frame: Frame, answer: Awaitable[bytes] | AsyncIterator[bytes]) -> None:
        try:
            if isinstance(answer, Awaitable):
                data = await answer
                self._budget.check(_waiting_bytes(frame))
                await self._send_when_writable(data)
            else:
                await self._send_parts(answer)
        except Exception as error:  # noqa: BLE001 - the client gets it as its response
            await self.wait_writable()
            self.send(_failure(frame.request, error))

    def _on_task_done(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._held -= size

    async def _send_parts(self, parts: AsyncIterator[bytes]) -> None:
        """Send the parts of a scan, each after the last part of any scan on this connection has been written.

        A running scan waits for the memory budget instead of failing: what the client has read would be lost.
        """
        await self._send_when_writable(await anext(parts))  # the head: small, and may wait for a checkpoint
        while not self._is_ended:
            async with self._batches:
                await self.wait_writable()
                await self._budget.wait_until_free(self._limits.stall_seconds)
                part = await anext(parts, None)
                if part is None:
                    return
                await self._send_when_writable(part)

    async def _send_when_writable(self, frame: bytes) -> None:
        if not self._writable.is_set():
            if self._held + len(frame) > self._limits.held_bytes:
                raise self._too_much("Answers that are not read")
            self._held += len(frame)
            try:
                await self.wait_writable()
            finally:
                self._held -= len(frame)
        self.send(frame)

    def _too_much(self, what: str) -> LimitExceededError:
        return LimitExceededError(f"{what} of one connection exceed the limit of {self._limits.held_bytes} bytes.")

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            data, self._unsent = self._unsent, []
            if not self._transport.is_closing():
                self._write(self._transport, data[0] if len(data) == 1 else b"".join(data))

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        if not self._is_encrypted or len(data) <= _TLS_CHUNK:
            transport.write(data)
            return
        content = memoryview(data)
        for at in range(0, len(data), _TLS_CHUNK):
            transport.write(content[at : at + _TLS_CHUNK])

    def _greet(self, frame: Frame) -> None:
        if frame.type != FrameType.HELLO:
            raise UnauthorizedError("The first message of a connection must be a greeting.")
        self.is_server = self._tokens.check(frame.fields().get("token"))
        full = self._quota.admit(self)
        if full is not None:
            self._fail(LimitExceededError(full))
            return
        self._is_greeted = True
        self._idle_watchdog.watch(self._limits.idle_seconds, 0)
        if self._greeting is not None:
            self._greeting.cancel()
        self._reader.limit = self._limits.message_bytes
        self._unsent.append(encode(FrameType.RESULT, frame.request, to_header({"limits": self._limits.announced})))

    def _fail(self, error: QueryError, *, lingers: bool = False) -> None:
        """Send an error and close the connection.

        Args:
            error: The error.
            lingers: Read and discard for a while what the client is still sending; otherwise it would not see the
                error.
        """
        if self._is_ended:
            return
        self._unsent.append(encode(FrameType.SERVER_FAILURE, 0, to_header(to_wire(error))))
        self._flush()
        if lingers and self._transport is not None:
            self._is_ended = True
            self._reader = FrameReader(0)
            self._budget.update(self)
            self._transport.resume_reading()
            self._ending = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.close)
        else:
            self.close()

    def _end_if_idle(self) -> None:
        # No error is sent: the client treats the connection as lost and opens another one when it needs it.
        if self._tasks or self._waiting:
            self._idle_watchdog.has_traffic = True
            self._idle_watchdog.watch(self._limits.idle_seconds, 0)
        else:
            self.close()

    def _abort_stalled(self) -> None:
        assert self._transport is not None
        unread = self._transport.get_write_buffer_size()
        if unread < self._unread:  # slow, but it reads
            self._unread = unread
            self._stalled = asyncio.get_running_loop().call_later(self._limits.stall_seconds, self._abort_stalled)
            return
        logger.info("A client has read none of its answers for %s s and is disconnected.", self._limits.stall_seconds)
        self._abort()

    def _abort(self) -> None:
        self._is_ended = True
        if self._transport is not None:
            self._transport.abort()


def _discard(answer: object) -> None:
    """Close a coroutine or generator that will not be run to its end."""
    close: Callable[[], object] | None = getattr(answer, "close", None)
    if close is not None:
        close()


def _waiting_bytes(frame: Frame) -> int:
    """Memory of a request while it waits."""
    return len(frame.body) + TASK_BYTES


def _failure(request: int, error: Exception) -> bytes:
    if not isinstance(error, HoldfastError):
        logger.error("A query failed with an unexpected error.", exc_info=error)
    return encode(FrameType.FAILURE, request, to_header(to_wire(error)))


class Acceptor:
    """Listens and accepts connections; belongs to one event loop.

    A connection counts from its first packet on, also during its TLS handshake.

    Args:
        make: Makes the server's side of a connection.
        quota: Counts the connections.
        limits: Limits for unauthenticated connections.
        tls: TLS context; None for no TLS.
    """

    def __init__(
        self,
        make: Callable[[], ServerConnection],
        quota: ConnectionQuota[ServerConnection],
        limits: Limits,
        tls: tls_module.SSLContext | None,
    ) -> None:
        self._make = make
        self._quota = quota
        self._limits = limits
        self._tls = tls
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Start listening on all addresses of a host and return the port.

        Raises:
            OSError: The address cannot be used.
        """
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(asyncio.Protocol, host, port, reuse_address=True, start_serving=False)
        self._listening = [one.dup() for one in bound.sockets]
        bound.close()
        for one in self._listening:
            one.setblocking(False)
            one.listen(_BACKLOG)
            self._keep(self._accept(one))
        return int(self._listening[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._listening:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                plain, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    logger.warning("No connection can be accepted at the moment: %s", error)
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            connection = self._make()
            connection.expect_greeting(plain)
            longest = self._quota.add(connection, str(address[0]))
            if longest is not None:
                longest.reject(
                    LimitExceededError(
                        f"More than {self._limits.unauthenticated} connections have not sent a greeting. Send it at "
                        "once."
                    )
                )
            self._keep(self._take(connection, plain))
            await asyncio.sleep(0)  # many new connections must not delay requests

    async def _take(self, connection: ServerConnection, plain: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._tls is None:
                await loop.connect_accepted_socket(lambda: connection, plain)
            else:
                await loop.connect_accepted_socket(
                    lambda: connection,
                    plain,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._limits.greeting_seconds,
                    ssl_shutdown_timeout=_TLS_END_SECONDS,
                )
        except OSError as error:
            logger.debug("A connection ended before it was established: %s", error)
            connection.connection_lost(error)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
