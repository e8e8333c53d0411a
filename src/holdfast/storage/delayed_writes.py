"""Files of state that are written after the task that made them has gone on."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from holdfast.errors import AlreadyExistError
from holdfast.storage.file_system import FileSystem, FilterFileSystem


class DelayedWrites(FilterFileSystem):
    """Keeps files of state in memory, where they can be read, until another thread makes them durable.

    Args:
        origin: The file system that they are written to; it does everything else.
    """

    def __init__(self, origin: FileSystem) -> None:
        super().__init__(origin)
        self._kept: dict[str, bytes] = {}

    def write_state(self, path: str, data: bytes | memoryview | Iterable[bytes | memoryview]) -> None:
        """Keep a file. Does not block."""
        self._kept[path] = (
            data if isinstance(data, bytes) else b"".join([data] if isinstance(data, memoryview) else data)
        )

    def kept(self) -> list[str]:
        """Return the files that are not durable yet, in their order."""
        return list(self._kept)

    def make_all_durable(self, paths: Sequence[str]) -> None:
        """Write those of the files that are still kept. Blocks; called by one thread.

        Raises:
            StorageError: One could not be written. It and those behind it are kept, and may be written later.
        """
        for path in paths:
            data = self._kept.get(path)
            if data is None:
                continue
            try:
                self._origin.write_state(path, data)
            except AlreadyExistError:
                # No other file has this name: an earlier call wrote it, and did not learn so.
                if self._origin.read(path) != data:
                    raise
                self._origin.make_durable(path)
            del self._kept[path]

    # Another thread may make a file durable at any time, so each method looks it up once.

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._kept.get(path)
        if data is None:
            return super().read(path, offset, length)
        return data[offset:] if length is None else data[offset : offset + length]

    def open_input(self, path: str) -> BinaryIO:
        data = self._kept.get(path)
        return super().open_input(path) if data is None else io.BytesIO(data)

    def mmap(self, path: str) -> memoryview:
        data = self._kept.get(path)
        return super().mmap(path) if data is None else memoryview(data)

    def keeps_mapped(self, path: str) -> bool:
        return path in self._kept or super().keeps_mapped(path)

    def content_mark(self, path: str) -> tuple[int, int]:
        return (0, 0) if path in self._kept else super().content_mark(path)

    def has_file(self, path: str) -> bool:
        return path in self._kept or super().has_file(path)

    def exists(self, path: str) -> bool:
        return path in self._kept or super().exists(path)
