r"""Frames, the messages of a connection, and the limits of a server for them. No I/O here.

::

    length   uint32   bytes after this field
    version  uint32   0x48465101 ("HFQ\1")
    type     uint8    see FrameType
    request  uint64   number chosen by the client; an answer has the number of its request
    header   uint32   length of the header
    header            one JSON object, UTF-8
    body              bytes; header and type define their meaning

Numbers are big endian. A frame of another version, or longer than the reader's limit, ends the connection. So a client
sends no request before the answer to its greeting, which has the limit.

The header of a request has at most 64 KiB, checked by the sender. The header of an answer may be longer: it describes
all columns of a state.
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
"""Longest header of a request, in bytes."""
MAX_GREETING: Final = 8 * 1024
"""Longest frame that a server accepts before the token was shown."""
_PREFIX: Final = struct.Struct(">IIBQI")
_LENGTH: Final = struct.Struct(">I")
_AFTER_LENGTH: Final = _PREFIX.size - _LENGTH.size
Body = bytes | memoryview
TASK_BYTES: Final = 4096
"""Approximate memory of a waiting request besides its own bytes."""
_LOOK_SECONDS: Final = 0.05


class FrameType(IntEnum):
    """The type of a frame: requests are below 32, answers from 32."""

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


class Frame(NamedTuple):
    """One message. The body of a long answer is a view of the receive buffer, which is not changed any more."""

    type: int
    request: int
    header: bytes
    body: Body

    def fields(self) -> dict[str, Any]:
        return fields_of(self.header)


def encode(kind: int, request: int, header: bytes, *body: Any, limit: int | None = None) -> bytes:
    """Return a frame; the body may come in several parts.

    Args:
        kind: See `FrameType`.
        request: Its number.
        header: A JSON object.
        body: The parts of the body.
        limit: Longest frame that the other side accepts; None if it is unknown.

    Raises:
        LimitExceededError: The frame or its header is too long.
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
        raise LimitExceededError(f"A message of {length} bytes does not fit into a frame. Request fewer keys at once.")
    return b"".join((_PREFIX.pack(length, VERSION, kind, request, len(header)), header, *body))


def check_length(length: int, limit: int) -> None:
    if length > limit:
        raise LimitExceededError(
            f"A message of {length} bytes is above the limit of {limit} bytes. Request fewer keys at once."
        )


def fields_of(header: bytes) -> dict[str, Any]:
    """Parse a header.

    Raises:
        ProtocolError: It is not a JSON object.
    """
    try:
        fields = parse_strict_json(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"The header of a message is not JSON: {header[:80]!r}.") from error
    if type(fields) is not dict:
        raise ProtocolError(f"The header of a message is not a JSON object: {header[:80]!r}.")
    return fields


def to_header(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()


class FrameReader:
    """Splits received bytes into frames.

    Args:
        limit: Longest accepted frame, in bytes.
        header_limit: Longest accepted header; None for a reader of answers, whose headers may be as long as frames.

    Attributes:
        limit: Longest accepted frame; may be changed between two frames.
    """

    def __init__(self, limit: int, header_limit: int | None = MAX_HEADER) -> None:
        self.limit = limit
        self._header_limit = header_limit
        self._rest = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Add received bytes and return the frames that are complete now.

        Raises:
            ProtocolError: The bytes are not a frame of this version.
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
        # A view of an answer keeps the whole buffer in memory, so it must be most of it.
        is_view = self._header_limit is None and 2 * (end - start) > len(data)
        return data[start:end] if is_view else bytes(data[start:end])

    def _needed(self, data: bytes | bytearray | memoryview, at: int) -> int:
        """Return the length of the frame that begins here, as far as it is known, and check the received prefix."""
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

    def pending_bytes(self) -> int:
        """Return the received bytes of an incomplete frame."""
        return len(self._rest)


# Limits of a server for one client, and the memory budget of all clients.


@dataclass(frozen=True)
class Limits:
    """The limits of a server for one client, and for all clients together.

    Attributes:
        message_bytes: Longest request, and longest answer.
        keys: Most keys of one request.
        in_flight: Most waiting requests of one connection.
        connections: Most connections that have shown the token (without a token: that have sent the greeting).
        per_address: Most of these from one address.
        unauthenticated: Most connections that have not; for one more, the one that has waited longest is closed.
        greeting_seconds: Seconds until the greeting must have arrived, including the TLS handshake.
        idle_seconds: An idle connection is closed after this time, at the latest after twice this time.
        unread_bytes: Unread answers of a client after which the server stops answering it.
        stall_seconds: Seconds after which a client that reads nothing is disconnected.
        all_bytes: Memory for waiting requests and unread answers of all connections; None for sixteen of the longest
            messages.
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
        """Memory for waiting requests and unread answers of all connections."""
        return 16 * self.message_bytes if self.all_bytes is None else self.all_bytes

    @property
    def held_bytes(self) -> int:
        """Memory for waiting requests and unread answers of one connection: four of the longest messages."""
        return 4 * self.message_bytes

    @property
    def announced(self) -> dict[str, int]:
        """The limits that the answer to a greeting contains."""
        return {"message_bytes": self.message_bytes, "keys": self.keys, "in_flight": self.in_flight}

    def check_keys(self, count: int) -> None:
        if count > self.keys:
            raise LimitExceededError(f"{count} keys at once are more than the limit of {self.keys}.")

    def check_answer(self, size: int) -> None:
        if size > self.message_bytes:
            raise LimitExceededError(
                f"The answer has at least {size} bytes, the limit is {self.message_bytes}. Request fewer keys."
            )


class Holder(Hashable, Protocol):
    """A connection whose memory the budget counts."""

    def held_bytes(self) -> int:
        """Return the memory of its waiting requests and unread answers."""


class MemoryBudget:
    """Counts the memory that all connections of a server hold; belongs to one event loop.

    A connection reports what it holds when that grows. A shrinking connection does not report, so all are counted again
    before the budget counts as full.

    Args:
        limit: Bytes that all connections may hold.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[Holder, int] = {}
        self._total = 0

    def is_full(self, without: int = 0) -> bool:
        """Return whether the budget is used up.

        Args:
            without: Held bytes that do not count, as they are about to be released.
        """
        if self._total - without >= self._limit:
            for holder in self._held:
                self.update(holder)
        return self._total - without >= self._limit

    def update(self, holder: Holder) -> None:
        """Count again what a connection holds."""
        held = holder.held_bytes()
        self._total += held - self._held.get(holder, 0)
        self._held[holder] = held

    def add(self, holder: Holder, size: int) -> None:
        """Count additional bytes of a connection, without counting it again."""
        self._total += size
        self._held[holder] = self._held.get(holder, 0) + size

    def remove(self, holder: Holder) -> None:
        self._total -= self._held.pop(holder, 0)

    def check(self, without: int = 0) -> None:
        """Check that the budget is not used up, see `is_full`.

        Raises:
            LimitExceededError: It is used up.
        """
        if self.is_full(without):
            raise LimitExceededError(
                f"Requests and answers that wait in the server have reached its limit of {self._limit} bytes "
                "(queryable-state.max-waiting-size). Try again later."
            )

    async def wait_until_free(self, seconds: float) -> None:
        """Wait until the budget is not used up.

        Raises:
            LimitExceededError: It is still used up after this time.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while self.is_full() and loop.time() < ends:
            await asyncio.sleep(_LOOK_SECONDS)
        self.check()
