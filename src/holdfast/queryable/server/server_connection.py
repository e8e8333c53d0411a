"""The server's side of one connection.

Requests are answered in the turn of the event loop in which they arrive, where that is possible. While a client does
not read its answers, nothing more is read or answered for it, so it holds at most the answers of one turn; after a
while without progress it is disconnected.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from holdfast.errors import HoldfastError
from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.secret import get_logger
from holdfast.queryable.server.server_settings import Tokens
from holdfast.queryable.wire.errors import (
    LimitExceededError,
    ProtocolError,
    QueryError,
    QueryTimeoutError,
    UnauthorizedError,
    to_wire,
)
from holdfast.queryable.wire.frame import MAX_GREETING, Frame, FrameReader, FrameType, encode, to_header
from holdfast.queryable.wire.limits import TASK_BYTES, Limits, MemoryBudget
from holdfast.queryable.wire.silence import Silence

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
