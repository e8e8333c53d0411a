"""Bytes as Java's `DataOutput` and Flink's serializers write them."""

from __future__ import annotations

import struct
from typing import Final

from holdfast.errors import CorruptFileError

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_FLOAT: Final = struct.Struct(">f")
_DOUBLE: Final = struct.Struct(">d")
_HIGH_BIT: Final = 0x80
_CHARS_OF_A_STRING: Final = 5  # bytes of the number of them, at most


class DataInput:
    """Reads values one after the other; what is not there, or is none, is an error that names the file.

    Args:
        data: The bytes.
        path: Where they come from.
        base: Where in the file they begin; None if that cannot be said.
    """

    __slots__ = ("_base", "_data", "path", "position")

    def __init__(self, data: bytes, path: str, base: int | None = 0) -> None:
        self._data = data
        self.path = path
        self.position = 0
        self._base = base

    @property
    def remaining(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self.position

    def corrupt(self, message: str) -> CorruptFileError:
        """Return the error that says what is wrong here."""
        return CorruptFileError(self.path, None if self._base is None else self._base + self.position, message)

    def take(self, count: int) -> bytes:
        """Read so many bytes."""
        end = self.position + count
        if count < 0 or end > len(self._data):
            raise self.corrupt(f"{count} bytes should follow, and {self.remaining} do.")
        found = self._data[self.position : end]
        self.position = end
        return found

    def byte(self) -> int:
        """Read a byte, from 0 to 255."""
        if self.position >= len(self._data):
            raise self.corrupt("it ends in the middle of a value.")
        found = self._data[self.position]
        self.position += 1
        return found

    def boolean(self) -> bool:
        """Read a boolean."""
        found = self.byte()
        if found > 1:
            raise self.corrupt(f"a boolean is 0 or 1, not {found}.")
        return found == 1

    def signed_byte(self) -> int:
        """Read a byte, from -128 to 127."""
        found = self.byte()
        return found - 256 if found >= _HIGH_BIT else found

    def short(self) -> int:
        """Read a number of 16 bits."""
        return int(_SHORT.unpack(self.take(2))[0])

    def int32(self) -> int:
        """Read a number of 32 bits."""
        return int(_INT.unpack(self.take(4))[0])

    def long(self) -> int:
        """Read a number of 64 bits."""
        return int(_LONG.unpack(self.take(8))[0])

    def float32(self) -> float:
        """Read a floating point number of 32 bits."""
        return float(_FLOAT.unpack(self.take(4))[0])

    def double(self) -> float:
        """Read a floating point number of 64 bits."""
        return float(_DOUBLE.unpack(self.take(8))[0])

    def count(self, least: int = 1) -> int:
        """Read how many values follow.

        Args:
            least: Bytes that each of them has at least, so that no number is believed for which there is no room.
        """
        found = self.int32()
        if found < 0 or found * least > self.remaining:
            raise self.corrupt(f"{found} values should follow, for which there is no room.")
        return found

    def utf(self) -> str:
        """Read a text as `DataOutput.writeUTF` writes it: UTF-16 units, of which each is encoded by itself."""
        data = self.take(self.short() & 0xFFFF)
        try:
            units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except ValueError as error:
            raise self.corrupt(f"a text is not encoded as Java does it: {error}.") from error

    def string(self) -> str | None:
        """Read a text as Flink's `StringValue` writes it: length and UTF-16 units with a variable number of bytes."""
        length = self._variable(_CHARS_OF_A_STRING)
        if length == 0:
            return None
        length -= 1
        if length > self.remaining:
            raise self.corrupt(f"a text of {length} characters should follow, for which there is no room.")
        plain = self._data[self.position : self.position + length]
        if plain.isascii():
            self.position += length
            return plain.decode("ascii")
        units = b"".join(self._unit() for _ in range(length))
        try:
            return units.decode("utf-16-le")
        except ValueError as error:
            raise self.corrupt(f"a text is no UTF-16: {error}.") from error

    def variable(self) -> int:
        """Read a count of up to 64 bits with seven of them a byte, the lowest first."""
        return self._variable(9)

    def _unit(self) -> bytes:
        unit = self._variable(3)
        if unit > 0xFFFF:
            raise self.corrupt(f"{unit:#x} is no character.")
        return unit.to_bytes(2, "little")

    def _variable(self, most: int) -> int:
        found = shift = 0
        for _ in range(most):
            part = self.byte()
            found |= (part & 0x7F) << shift
            if part < _HIGH_BIT:
                return found
            shift += 7
        raise self.corrupt("a number has no end.")

    def require_end(self, of: str) -> None:
        """Make sure that nothing follows."""
        if self.remaining:
            raise self.corrupt(f"{self.remaining} bytes follow after {of}.")
