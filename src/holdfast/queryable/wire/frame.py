r"""Frames: how messages are told apart on a connection. No I/O here.

::

    length   uint32   bytes after this field
    version  uint32   0x48465101 ("HFQ\1")
    type     uint8    see FrameType
    request  uint64   chosen by the client; an answer carries its request's
    header   uint32   length of the header
    header            one JSON object, UTF-8
    body              bytes, whose meaning the header and the type decide

Numbers are big endian. A frame that is longer than the reader's limit, or of another version, ends the connection. So
a client sends no request before the answer to its greeting, which says how long one may be.

The header of a request is at most 64 KiB, which its sender is told before it is sent; that of an answer may be longer,
as it describes all columns of a state.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from holdfast.kernel.parsing import parse_strict_json
from holdfast.queryable.wire.errors import LimitExceededError, ProtocolError

VERSION: Final = 0x48465101
MAX_HEADER: Final = 64 * 1024
"""The longest header of a request, in bytes."""
MAX_GREETING: Final = 8 * 1024
"""The longest frame that a server takes from somebody who has not given a token yet."""
_PREFIX: Final = struct.Struct(">IIBQI")
_LENGTH: Final = struct.Struct(">I")
_AFTER_LENGTH: Final = _PREFIX.size - _LENGTH.size


class FrameType(IntEnum):
    """What a frame is: requests below 32, answers above."""

    HELLO = 1
    JOBS = 2
    DESCRIBE = 3
    GET = 4
    SCAN = 5
    LOCATE = 6
    REGISTER = 7
    CANCEL = 8
    PING = 9
    RESULT = 32
    BATCH = 33
    END = 34
    FAILURE = 35
    SERVER_FAILURE = 36
    NOTIFICATION = 37


Body = bytes | memoryview


class Frame(NamedTuple):
    """One message; the body of a long answer is a view of what has arrived, which nobody changes any more."""

    type: int
    request: int
    header: bytes
    body: Body

    def fields(self) -> dict[str, Any]:
        """Return the header as an object.

        Raises:
            ProtocolError: It is none.
        """
        return fields_of(self.header)


def encode(kind: int, request: int, header: bytes, *body: Any, limit: int | None = None) -> bytes:
    """Return a frame; the body may come in several parts.

    Args:
        kind: See `FrameType`.
        request: Its number.
        header: A JSON object.
        body: The parts of the body.
        limit: The longest frame that the other side takes; None if it has not said.

    Raises:
        LimitExceededError: It is longer than that or than a frame can be, or a request whose header is longer than a
            server takes.
    """
    if len(header) > MAX_HEADER and kind < FrameType.RESULT:
        raise LimitExceededError(
            f"The header of a request has {len(header)} bytes, above the limit of {MAX_HEADER}: its names, namespace "
            "or conditions are too long."
        )
    length = _AFTER_LENGTH + len(header)
    for part in body:
        length += len(part) if type(part) is bytes else memoryview(part).nbytes
    if limit is not None:
        check_length(length, limit)
    if length > 0xFFFF_FFFF:
        raise LimitExceededError(f"A message of {length} bytes does not fit into a frame. Ask for less at once.")
    return b"".join((_PREFIX.pack(length, VERSION, kind, request, len(header)), header, *body))


def check_length(length: int, limit: int) -> None:
    """Check the length of a frame, as it stands in its first field.

    Raises:
        LimitExceededError: It is too long.
    """
    if length > limit:
        raise LimitExceededError(
            f"A message of {length} bytes is above the limit of {limit} bytes. Ask for fewer keys at once."
        )


def fields_of(header: bytes) -> dict[str, Any]:
    """Return a header as an object.

    Raises:
        ProtocolError: It is none.
    """
    try:
        fields = parse_strict_json(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"The header of a message is not JSON: {header[:80]!r}.") from error
    if type(fields) is not dict:
        raise ProtocolError(f"The header of a message is not a JSON object: {header[:80]!r}.")
    return fields


def to_header(fields: dict[str, Any]) -> bytes:
    """Return the JSON of a header."""
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()


class FrameReader:
    """Cuts what arrives on a connection into frames.

    Args:
        limit: The longest frame that is taken, in bytes.
        header_limit: The longest header; None for a reader of answers, whose headers may be as long as frames.

    Attributes:
        limit: The same; may be changed between two frames.
    """

    def __init__(self, limit: int, header_limit: int | None = MAX_HEADER) -> None:
        self.limit = limit
        self._header_limit = header_limit
        self._rest = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take bytes and return the frames that are whole now.

        Raises:
            ProtocolError: What arrived is not a frame of this version.
            LimitExceededError: A frame is longer than the limit; nothing of it is kept.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed(self._rest, 0):
                return []
            data, self._rest = memoryview(self._rest), bytearray()
        frames = []
        at, size = 0, len(data)
        while size - at >= _PREFIX.size:
            end = at + self._needed(data, at)
            if end > size:
                break
            _, _, kind, request, header = _PREFIX.unpack_from(data, at)
            at += _PREFIX.size
            frames.append(Frame(kind, request, bytes(data[at : at + header]), self._body(data, at + header, end)))
            at = end
        if at < size:
            self._rest += data[at:]
            self._needed(self._rest, 0)
        return frames

    def _body(self, data: bytes | memoryview, start: int, end: int) -> Body:
        """The body of a frame; that of an answer is not copied if it is most of what it would keep in memory."""
        is_view = self._header_limit is None and 2 * (end - start) > len(data)
        return data[start:end] if is_view else bytes(data[start:end])

    def _needed(self, data: bytes | bytearray | memoryview, at: int) -> int:
        """The length of the frame that begins here, as far as it is known; checks what has arrived of the prefix."""
        available = len(data) - at
        if available >= 8:
            version = _LENGTH.unpack_from(data, at + 4)[0]
            if version != VERSION:
                raise ProtocolError(f"A message of version {version:#010x} arrived, not of {VERSION:#010x}.")
        if available >= 4:
            length: int = _LENGTH.unpack_from(data, at)[0]
            check_length(length, self.limit)
            if length < _AFTER_LENGTH:
                raise ProtocolError(f"A message cannot have {length} bytes.")
            if available >= _PREFIX.size:
                header = _LENGTH.unpack_from(data, at + _PREFIX.size - 4)[0]
                if header > min(self._header_limit or length, length - _AFTER_LENGTH):
                    raise ProtocolError(f"A message of {length} bytes cannot have a header of {header} bytes.")
            return _LENGTH.size + length
        return _PREFIX.size

    def waiting(self) -> int:
        """Return how many bytes of an unfinished frame are kept."""
        return len(self._rest)


# What clients of a server may do, and what all of them together may hold in its memory.

TASK_BYTES: Final = 4096
"""What a request that waits takes besides its own bytes, about."""
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Limits:
    """What a server takes from one client, and from all of them.

    Attributes:
        message_bytes: Longest request, and longest answer.
        keys: Most keys of one request.
        in_flight: Most requests of one connection that wait for something.
        connections: Most connections of those who have greeted.
        per_address: The same, of one address.
        unauthenticated: Most connections that have not greeted yet; one more, and the one that has waited longest ends.
        greeting_seconds: How long a greeting may take, and before it the handshake of TLS.
        idle_seconds: After so long without a request and with nothing to answer a connection ends, or twice as long at
            most.
        unread_bytes: Answers that a client may leave unread before nothing more is answered.
        stall_seconds: How long a client may read nothing of what waits for it.
        all_bytes: Requests that wait, and answers that wait to be read, of all connections; None for sixteen of the
            longest messages.
    """

    message_bytes: int = 16 * 1024 * 1024
    keys: int = 100_000
    in_flight: int = 256
    connections: int = 1_000
    per_address: int = 500
    unauthenticated: int = 128
    greeting_seconds: float = 10.0
    idle_seconds: float = 1_800.0
    unread_bytes: int = 1024 * 1024
    stall_seconds: float = 60.0
    all_bytes: int | None = None

    @property
    def budget_bytes(self) -> int:
        """Requests that wait, and answers that wait to be read, of all connections."""
        return 16 * self.message_bytes if self.all_bytes is None else self.all_bytes

    @property
    def held_bytes(self) -> int:
        """Requests that wait, and answers that wait to be read, of one connection: four of the longest messages."""
        return 4 * self.message_bytes

    @property
    def shown(self) -> dict[str, int]:
        """What clients are told when they greet."""
        return {"message_bytes": self.message_bytes, "keys": self.keys, "in_flight": self.in_flight}

    def check_keys(self, count: int) -> None:
        """Check the number of keys of a request.

        Raises:
            LimitExceededError: There are too many.
        """
        if count > self.keys:
            raise LimitExceededError(f"{count} keys at once are more than the limit of {self.keys}.")

    def check_answer(self, size: int) -> None:
        """Check the length of an answer, in bytes.

        Raises:
            LimitExceededError: It is too long.
        """
        if size > self.message_bytes:
            raise LimitExceededError(
                f"The answer has at least {size} bytes, the limit is {self.message_bytes}. Ask for fewer keys."
            )


class Holder(Hashable, Protocol):
    """A connection, seen from the room."""

    def held_bytes(self) -> int:
        """Return how much of it waits in memory, in bytes."""


class MemoryBudget:
    """What all connections of a server hold together; belongs to one event loop.

    A connection says what it holds when that grows. That a client has read is noticed later, so everybody is counted
    again before the room counts as full.

    Args:
        most: Bytes that all may hold.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self._total = 0

    def is_full(self, without: int = 0) -> bool:
        """Whether nobody may hold more at the moment.

        Args:
            without: So many bytes that are held are about to go.
        """
        if self._total - without >= self._most:
            for holder in self._held:
                self.note(holder)
        return self._total - without >= self._most

    def note(self, holder: Holder) -> None:
        """Count what a connection holds now."""
        held = holder.held_bytes()
        self._total += held - self._held.get(holder, 0)
        self._held[holder] = held

    def add(self, holder: Holder, size: int) -> None:
        """Count more of a connection without counting all that it holds."""
        self._total += size
        self._held[holder] = self._held.get(holder, 0) + size

    def leave(self, holder: Holder) -> None:
        """Count a connection no more."""
        self._total -= self._held.pop(holder, 0)

    def check(self, without: int = 0) -> None:
        """Check that there is room, as `is_full` says.

        Raises:
            LimitExceededError: There is none.
        """
        if self.is_full(without):
            raise LimitExceededError(
                f"Requests and answers that wait in the server have {self._most} bytes together, which is its limit "
                "(queryable-state.max-waiting-size). Try again later."
            )

    async def wait_until_free(self, seconds: float) -> None:
        """Wait until there is room.

        Raises:
            LimitExceededError: There is none in that time.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while self.is_full() and loop.time() < ends:
            await asyncio.sleep(_LOOK_SECONDS)
        self.check()
