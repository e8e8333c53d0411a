"""The server's side of one connection.

Requests are answered in the turn of the event loop in which they arrive, where that is possible. While a client does
not read its answers, nothing more is read or answered for it, so it holds at most the answers of one turn; after a
while without progress it is disconnected.
"""

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
from holdfast.queryable.wire.connection import Silence
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

# How a server listens, and who may ask it.

_ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})
_PORTS: Final = 65536


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens that a server asks for.

    Attributes:
        readers: Of whoever reads; None if anybody may.
        servers: Of servers that register what they hold; None if it is that of readers.
    """

    readers: str | None = None
    servers: str | None = None

    def is_of_readers(self, given: Any) -> bool:
        """Whether somebody with this token may read."""
        return self.readers is None or _same(given, self.readers)

    def is_of_servers(self, given: Any) -> bool:
        """Whether somebody with this token may also say that he holds state: others will read it from him."""
        return self.is_of_readers(given) if self.servers is None else _same(given, self.servers)

    def check(self, given: Any) -> bool:
        """Return whether a token is that of servers.

        Raises:
            UnauthorizedError: It is that of nobody.
        """
        is_server = self.is_of_servers(given)
        if not is_server and not self.is_of_readers(given):
            raise UnauthorizedError("The bearer token is missing or wrong. Give the one that the server has.")
        return is_server


def _same(given: Any, wanted: str) -> bool:
    """Compare in a time that tells nothing about the token."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())


@dataclass(frozen=True)
class ServerSettings:
    """How a server listens.

    Attributes:
        host: The address to listen at.
        ports: The first free one is taken; 0 is any.
        token: Bearer token that clients must show; None if anybody may ask.
        server_token: Bearer token that servers show to each other and without which none registers here; None if it is
            the same.
        tls: Of the listening side.
        peer_tls: For connections to other servers.
        limits: What clients may do.
        poll: Seconds between two looks for a completed checkpoint that nobody told of.
        advertised: The host under which others reach this server; if empty the one to listen at, or the machine's name
            where that is all addresses (0.0.0.0, ::).
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
        """What others must show."""
        return Tokens(self.token, self.server_token)

    @property
    def shown_token(self) -> str | None:
        """What this server shows to others."""
        return self.token if self.server_token is None else self.server_token

    @property
    def shown_host(self) -> str:
        """The host that others are told."""
        return self.advertised or (socket.gethostname() if self.host in _ALL_ADDRESSES else self.host)


def ports_from(configuration: Configuration, option: ConfigOption[str]) -> tuple[int, ...]:
    """Return the ports of `9069`, `9069,9071` or `9069-9075`.

    Raises:
        ConfigurationError: It is something else.
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
            f"Option {option.key!r}: {text!r} names no ports; write '9069', '9069,9071' or '9069-9075'."
        ) from None
    return tuple(ports)


_log = get_logger(__name__)
_TOGETHER: Final = 8
"""Answers that leave together: fewer system calls, and yet the client can begin with the first ones."""
_AT_ONCE: Final = 256 * 1024
"""So much is encrypted at once: what asyncio takes for a byte grows with what is written together."""
_SMALL: Final = 64 * 1024
"""Of a request that is not whole yet so much is taken though there is no room."""
_LINGER_SECONDS: Final = 2.0
_ALWAYS_TAKEN: Final = frozenset({FrameType.HELLO, FrameType.PING, FrameType.REGISTER})
"""Whatever else waits: servers would be taken for lost."""


class Service(Protocol):
    """What answers requests."""

    def answer(self, frame: Frame, connection: ServerConnection) -> bytes | Awaitable[bytes] | AsyncIterator[bytes]:
        """Return the frame of the answer, or what will give it.

        Raises:
            QueryError: The request fails.
        """

    def opened(self, connection: ServerConnection) -> None:
        """A connection was made."""

    def closed(self, connection: ServerConnection) -> None:
        """A connection has ended."""


class ServerConnection(asyncio.Protocol):
    """One connection.

    Args:
        service: Answers the requests.
        limits: What the client may do.
        tokens: What the client must show.
        budget: What all connections hold.
        quota: Who has connected.

    Attributes:
        is_server: Whether the other side has shown the token of servers.
        signs_of_life: Once it watches, the connection ends when the other side hangs, or its machine is gone.
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
        self._is_known = False
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
        self.signs_of_life = Silence(self._abort)
        self._idle = Silence(self._end_if_idle)
        self._ending: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._is_encrypted = False

    def arrived(self, plain: socket.socket) -> None:
        """Somebody has connected; his greeting is expected, and before it the handshake of TLS."""
        self._plain = plain
        late = QueryTimeoutError("No greeting arrived.")
        self._greeting = asyncio.get_running_loop().call_later(self._limits.greeting_seconds, self.send_away, late)

    def send_away(self, error: QueryError) -> None:
        """End the connection of somebody who has not greeted, at once; amid a handshake nothing can be said."""
        if self._transport is not None:
            self._fail(error)
            self._abort()
        elif self._plain is not None:
            self._is_ended = True
            with suppress(OSError):
                self._plain.shutdown(socket.SHUT_RDWR)
        self._quota.left(self)

    def send(self, frame: bytes) -> None:
        """Send a frame on the server's own account, such as a notification."""
        if self._transport is not None and not self._is_ended:
            self._write(self._transport, frame)
            self._budget.note(self)

    def close(self) -> None:
        """End the connection after what is sent already."""
        self._is_ended = True
        if self._transport is not None:
            self._transport.close()

    def held_bytes(self) -> int:
        """Return how much of this connection waits in memory, in bytes."""
        waiting = sum(len(frame.body) for frame in self._waiting) if self._waiting else 0
        unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._reader.waiting() + waiting + self._held + len(self._tasks) * TASK_BYTES + unread

    async def until_writable(self) -> None:
        """Wait until the client has read so much that an answer can be made for it."""
        while not self._writable.is_set():
            await self._writable.wait()

    async def until_answerable(self, frame: Frame) -> None:
        """The same, and check that there is room for the answer of a request that has waited.

        Raises:
            LimitExceededError: All connections hold too much besides the request itself.
        """
        await self.until_writable()
        self._budget.check(_waiting_bytes(frame))

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=self._limits.unread_bytes)
        if self._is_ended:  # sent away in the moment in which the handshake was done
            transport.abort()
            return
        self._service.opened(self)

    def data_received(self, data: bytes) -> None:
        """Answer what has arrived."""
        if self._is_ended:
            return
        self.signs_of_life.is_broken = self._idle.is_broken = True
        try:
            self._waiting.extend(self._reader.feed(data))
            self._answer_waiting()
            self._budget.note(self)
            if self._reader.waiting() > _SMALL:
                self._budget.check()
        except QueryError as error:
            self._answer_waiting()
            self._fail(error, lingers=True)

    def pause_writing(self) -> None:
        """The client does not read: take nothing more from it."""
        self._writable.clear()
        assert self._transport is not None
        self._transport.pause_reading()
        self._unread = self._transport.get_write_buffer_size()
        self._stalled = asyncio.get_running_loop().call_later(self._limits.stall_seconds, self._abort_stalled)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._writable.set()
        if self._stalled is not None:
            self._stalled.cancel()
        if not self._is_ended and self._transport is not None:
            self._answer_waiting()
            self._budget.note(self)
            if self._writable.is_set() and not self._transport.is_closing():
                self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop everything that was done for the client."""
        self._is_ended = True
        self._writable.set()
        for timer in (self._stalled, self._greeting, self._ending):
            if timer is not None:
                timer.cancel()  # one that is left would hold the connection
        self.signs_of_life.stop()
        self._idle.stop()
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        self._budget.leave(self)
        self._quota.left(self)
        self._service.closed(self)

    # Answering.

    def _answer_waiting(self) -> None:
        while self._waiting and self._writable.is_set() and not self._is_ended:
            self._answer(self._waiting.popleft())
            if len(self._unsent) >= _TOGETHER:
                self._flush()
        self._flush()

    def _answer(self, frame: Frame) -> None:
        try:
            if not self._is_known:
                self._greet(frame)
                return
            if frame.type not in _ALWAYS_TAKEN:
                self._budget.check()
            answer = self._service.answer(frame, self)
        except (ProtocolError, UnauthorizedError) as error:
            self._fail(error)
            return
        except Exception as error:
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
            task.add_done_callback(partial(self._let_go, len(frame.body)))
            # A task that is cancelled before its first step has not touched what it would have awaited.
            task.add_done_callback(lambda _: _discard(answer))

    async def _answer_later(self, frame: Frame, answer: Awaitable[bytes] | AsyncIterator[bytes]) -> None:
        try:
            if isinstance(answer, Awaitable):
                data = await answer
                self._budget.check(_waiting_bytes(frame))
                await self._send_when_writable(data)
            else:
                await self._send_parts(answer)
        except Exception as error:
            await self.until_writable()
            self.send(_failure(frame.request, error))

    def _let_go(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._held -= size

    async def _send_parts(self, parts: AsyncIterator[bytes]) -> None:
        """Send what a scan gives. A batch is made when the last one of any scan of this connection has left.

        Who has begun to read waits for room, rather than that all he has read was in vain.
        """
        await self._send_when_writable(await anext(parts))  # what it is about: small, and may wait for a checkpoint
        while not self._is_ended:
            async with self._batches:
                await self.until_writable()
                await self._budget.until_free(self._limits.stall_seconds)
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
                await self.until_writable()
            finally:
                self._held -= len(frame)
        self.send(frame)

    def _too_much(self, what: str) -> LimitExceededError:
        return LimitExceededError(f"{what} of one connection have more than {self._limits.held_bytes} bytes together.")

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            data, self._unsent = self._unsent, []
            if not self._transport.is_closing():
                self._write(self._transport, data[0] if len(data) == 1 else b"".join(data))

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        if not self._is_encrypted or len(data) <= _AT_ONCE:
            transport.write(data)
            return
        content = memoryview(data)
        for at in range(0, len(data), _AT_ONCE):
            transport.write(content[at : at + _AT_ONCE])

    def _greet(self, frame: Frame) -> None:
        if frame.type != FrameType.HELLO:
            raise UnauthorizedError("The first message of a connection must be a greeting.")
        self.is_server = self._tokens.check(frame.fields().get("token"))
        full = self._quota.admit(self)
        if full is not None:
            self._fail(LimitExceededError(full))
            return
        self._is_known = True
        self._idle.watch(self._limits.idle_seconds, 0)
        if self._greeting is not None:
            self._greeting.cancel()
        self._reader.limit = self._limits.message_bytes
        self._unsent.append(encode(FrameType.RESULT, frame.request, to_header({"limits": self._limits.shown})))

    def _fail(self, error: QueryError, *, lingers: bool = False) -> None:
        """Say why, and end the connection.

        Args:
            error: Why.
            lingers: Take for a while, and throw away, what the client is still sending: it would not see the answer.
        """
        if self._is_ended:
            return
        self._unsent.append(encode(FrameType.SERVER_FAILURE, 0, to_header(to_wire(error))))
        self._flush()
        if lingers and self._transport is not None:
            self._is_ended = True
            self._reader = FrameReader(0)
            self._budget.note(self)
            self._transport.resume_reading()
            self._ending = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.close)
        else:
            self.close()

    def _end_if_idle(self) -> None:
        """Without a word: a client takes that for a lost connection, and makes another one when it needs it."""
        if self._tasks or self._waiting:
            self._idle.is_broken = True
            self._idle.watch(self._limits.idle_seconds, 0)
        else:
            self.close()

    def _abort_stalled(self) -> None:
        assert self._transport is not None
        unread = self._transport.get_write_buffer_size()
        if unread < self._unread:  # slow, but it reads
            self._unread = unread
            self._stalled = asyncio.get_running_loop().call_later(self._limits.stall_seconds, self._abort_stalled)
            return
        _log.info("A client has not read its answers for %s s; it is disconnected.", self._limits.stall_seconds)
        self._abort()

    def _abort(self) -> None:
        self._is_ended = True
        if self._transport is not None:
            self._transport.abort()


def _discard(answer: object) -> None:
    """Close a coroutine or generator that nobody will run to its end."""
    close: Callable[[], object] | None = getattr(answer, "close", None)
    if close is not None:
        close()


def _waiting_bytes(frame: Frame) -> int:
    """What a request takes while it waits."""
    return len(frame.body) + TASK_BYTES


def _failure(request: int, error: Exception) -> bytes:
    if not isinstance(error, HoldfastError):
        _log.error("A query failed in an unexpected way.", exc_info=error)
    return encode(FrameType.FAILURE, request, to_header(to_wire(error)))


# Takes the connections of a query server. Each counts from its first packet, also while its TLS handshake lasts.

_BACKLOG: Final = 1024
_TLS_END_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 1.0
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Listens; belongs to one event loop.

    Args:
        make: Makes the server's side of a connection.
        quota: Counts them.
        limits: How long strangers may take, and how many there may be.
        tls: None for none.
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
        """Listen at all addresses of a host from now on; returns the port.

        Raises:
            OSError: It is not possible.
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
        """Listen no more; what has been taken stays."""
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
                    _log.warning("No connection can be taken for the moment: %s", error)
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            connection = self._make()
            connection.arrived(plain)
            longest = self._quota.arrived(connection, str(address[0]))
            if longest is not None:
                longest.send_away(
                    LimitExceededError(
                        f"More than {self._limits.strangers} connections wait for a greeting. Greet at once."
                    )
                )
            self._keep(self._take(connection, plain))
            await asyncio.sleep(0)  # others have their turn, however many connect

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
            _log.debug("A connection ended before it was one: %s", error)
            connection.connection_lost(error)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
