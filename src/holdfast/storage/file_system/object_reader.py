"""Reading an object of a store as a file."""

from __future__ import annotations

import io

from holdfast.storage.file_system.file import FileSystem


class ObjectReader(io.RawIOBase):
    """An object as a file, fetched piece by piece; put a buffer before it.

    Args:
        fs: Where the object is.
        path: The object.
        size: Its size; it never changes.
    """

    def __init__(self, fs: FileSystem, path: str, size: int) -> None:
        self._fs = fs
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether any position can be read: always."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, which may be behind the end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"Cannot seek to {base + offset}, which is before the beginning.")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fetch as many bytes as fit; none at the end."""
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0
        data = self._fs.read(self._path, self._position, length)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
