"""Key groups that Flink has compressed: Snappy in frames."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from holdfast.kernel.malformed import MALFORMED
from holdfast.state_processor.flink.data_input import DataInput

_STREAM: Final = 0xFF
_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_SKIPPABLE: Final = 0x80
_MOST: Final = 1 << 16
"""Bytes of a frame, decompressed: so many at most, says the format."""
_CODEC: Final = pa.Codec("snappy")


def decompressed(data: bytes, offset: int, path: str) -> bytes:
    """Return all frames of a stream that begins at an offset and ends where the next begins, or the file.

    Raises:
        CorruptFileError: It is damaged.
    """
    source = DataInput(data, path)
    source.position = offset
    found: list[bytes] = []
    while source.remaining:
        kind = source.byte()
        length = int.from_bytes(source.take(3), "little")
        if kind == _STREAM:
            if found:
                break  # the next key group
            if source.take(length) != b"sNaPpY":
                raise source.corrupt("compressed key groups do not begin as such.")
        elif kind in (_COMPRESSED, _PLAIN):
            found.append(_frame(source, kind, length))
        elif kind >= _SKIPPABLE:
            source.take(length)
        else:
            raise source.corrupt(f"{kind} is no frame of compressed state.")
    return b"".join(found)


def _frame(source: DataInput, kind: int, length: int) -> bytes:
    checksum = int.from_bytes(source.take(4), "little")
    data = source.take(length - 4)
    if kind == _COMPRESSED:
        size = DataInput(data, source.path, None).variable()
        if size > _MOST:
            raise source.corrupt(f"a frame would have {size} bytes.")
        try:
            data = _CODEC.decompress(data, size, asbytes=True)
        except (OSError, *MALFORMED) as error:
            raise source.corrupt(f"a frame cannot be decompressed: {error}.") from error
    if _masked(_crc32c(data)) != checksum:
        raise source.corrupt("the checksum of a frame is another one.")
    return data


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF


def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return tuple(found)


_TABLE: Final = _table()


def _crc32c(data: bytes) -> int:
    crc, table = 0xFFFF_FFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFF_FFFF
