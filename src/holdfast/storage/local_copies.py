"""Copies of files on a disk of this host, for storage that is slower to read than a local disk.

A file is copied when it is first mapped, or when this host writes it, and checked before the copy is used. All
processes of a host may share one directory: a copy appears whole under its name by a rename, and one that is mapped
stays readable when another process deletes it to make room.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import xxhash

from holdfast.errors import HoldfastError
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, FilterFileSystem
from holdfast.storage.local import LocalFileSystem

logger = get_logger(__name__)

_TEMPORARY: Final = ".entering-"
_ABANDONED_SECONDS: Final = 3600


class LocalCopies(FilterFileSystem):
    """A file system that copies files to a local disk when they are mapped; everything else goes to the original.

    Args:
        origin: The original.
        directory: The copies, on this host; made if it is missing.
        budget: Bytes that the copies may take; the least recently used are deleted first.
        check: Gets the content and the path of each file that is copied; raises `CorruptFileError` if it is damaged.
    """

    def __init__(
        self, origin: FileSystem, directory: str, budget: int, check: Callable[[memoryview, str], None]
    ) -> None:
        super().__init__(origin)
        self._directory = Path(directory)
        self._budget = budget
        self._check = check
        self._disk = LocalFileSystem()
        self._in_memory: set[str] = set()
        self._unwritten: dict[str, bytes] = {}

    def mmap(self, path: str) -> memoryview:
        """Map the copy, after making it if there is none; the original if the disk cannot take a copy."""
        if path in self._unwritten:
            return memoryview(self._unwritten[path])
        copy = self._copy_of(path)
        with suppress(HoldfastError, OSError):
            self._require_own()
            view = self._disk.mmap(str(copy))
            os.utime(copy)
            self._in_memory.discard(path)
            return view
        try:
            entered = self._enter(path, copy)
        except OSError as error:
            logger.warning("Could not keep a copy of %r on the local disk: %s", path, error)
            entered = None
        if entered is not None:
            return entered
        self._in_memory.add(path)
        return self._origin.mmap(path)

    def write_state(self, path: str, data: bytes | memoryview | Iterable[bytes | memoryview]) -> None:
        chunks = [data] if isinstance(data, bytes | bytearray | memoryview) else list(data)
        if path in self._unwritten:
            self._unwritten[path] = b"".join(chunks)
            return
        self._origin.write_state(path, chunks)
        if sum(map(len, chunks)) > self._budget:
            return
        temporary = self._temporary()
        try:
            self._make_directory()
            with temporary.open("wb") as file:
                file.writelines(chunks)
            temporary.replace(self._copy_of(path))
            self._make_room()
        except OSError as error:
            logger.warning("Could not keep a copy of %r on the local disk: %s", path, error)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def unwritten(self, path: str) -> Iterator[None]:
        """Keep a file that is written in memory only, until the context is left."""
        self._unwritten[path] = b""
        try:
            yield
        finally:
            self._unwritten.pop(path, None)

    def write_after_all(self, path: str) -> None:
        """Write a file that is kept in memory only."""
        self.write_state(path, self._unwritten.pop(path))

    def keeps_mapped(self, path: str) -> bool:
        """Return whether the copy is still there; the original is asked only if there was no copy."""
        if path not in self._in_memory:
            return self._copy_of(path).exists()
        is_there = self._origin.has_file(path)
        if not is_there:
            self._in_memory.discard(path)
        return is_there

    def drop_copy(self, path: str) -> None:
        with suppress(HoldfastError):
            self._disk.delete_in(str(self._directory), self._copy_of(path).name)

    def _enter(self, path: str, copy: Path) -> memoryview | None:
        """Copy a file and check it; return None if it is larger than the budget.

        Raises:
            CorruptFileError: It is damaged.
            OSError: The local disk failed.
        """
        temporary = self._temporary()
        try:
            with self._origin.open_input(path) as source:
                if source.seek(0, io.SEEK_END) > self._budget:
                    return None
                source.seek(0)
                self._make_directory()
                with temporary.open("wb") as file:
                    shutil.copyfileobj(source, file, 1024 * 1024)
            view = self._disk.mmap(str(temporary))
            self._check(view, path)
            temporary.replace(copy)
            self._make_room()
            return view
        finally:
            temporary.unlink(missing_ok=True)

    def _make_directory(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_own()

    def _require_own(self) -> None:
        """Make sure that no other user can change the directory.

        Raises:
            PermissionError: It belongs to another user, or is a link, in which case deleting copies could delete other
                files.
            FileNotFoundError: It is not there.
        """
        status = self._directory.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise PermissionError(f"the directory {str(self._directory)!r} is a link")
        if status.st_uid != os.getuid():
            raise PermissionError(f"the directory {str(self._directory)!r} belongs to another user")

    def _make_room(self) -> None:
        """Delete copies until the rest fits; other processes may do the same at the same time."""
        found: list[tuple[float, int, str]] = []
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):
                status = entry.stat()
                if not entry.name.startswith(_TEMPORARY):
                    found.append((status.st_mtime, status.st_size, entry.path))
                elif status.st_mtime < time.time() - _ABANDONED_SECONDS:
                    Path(entry.path).unlink()
        total = sum(size for _, size, _ in found)
        for _, size, name in sorted(found):
            if total <= self._budget:
                return
            with suppress(FileNotFoundError):
                Path(name).unlink()
            total -= size

    def _copy_of(self, path: str) -> Path:
        return self._directory / f"{xxhash.xxh3_128_hexdigest(path.encode())}.copy"

    def _temporary(self) -> Path:
        return self._directory / f"{_TEMPORARY}{new_nonce()}"

    def content_mark(self, path: str) -> tuple[int, int]:
        return (0, 0) if path in self._unwritten else self._origin.content_mark(path)
