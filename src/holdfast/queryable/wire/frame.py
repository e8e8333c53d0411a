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

import json
import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

from holdfast.kernel.malformed import strict_json
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
        fields = strict_json(header)
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
