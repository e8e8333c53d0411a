"""A file system whose every request passes a gate, so that a test can stop its user between any two of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, BinaryIO, TypeVar

from holdfast.storage.file_system import FileStatus, FileSystem

R = TypeVar("R")
_Listing = list[FileStatus]
_Names = list[str]


class GatedFileSystem(FileSystem):
    """Hands every request on to another file system and calls the gate before and after it.

    Args:
        inner: The file system that does the work.
        gate: Called with ``"before <request> <last part of the path>"`` and ``"after ..."``; it may raise.
    """

    def __init__(self, inner: FileSystem, gate: Callable[[str], None]) -> None:
        self._inner = inner
        self._gate = gate

    def _pass(self, name: str, request: Callable[..., R], path: str, *arguments: Any) -> R:
        what = f"{name} {path.rpartition('/')[2]}"
        self._gate(f"before {what}")
        result = request(path, *arguments)
        self._gate(f"after {what}")
        return result

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read, gated."""
        return self._pass("read", self._inner.read, path, offset, length)

    def open_input(self, path: str) -> BinaryIO:
        """Open for reading, gated."""
        return self._pass("open_input", self._inner.open_input, path)

    def mmap(self, path: str) -> memoryview:
        """Map, gated."""
        return self._pass("mmap", self._inner.mmap, path)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open for writing, gated; the write itself is one step of the inner file system."""
        return self._pass("open_output", self._inner.open_output, path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create, gated."""
        self._pass("create_exclusive", self._inner.create_exclusive, path, data)

    def create_private(self, path: str, data: bytes) -> None:
        """Create, gated."""
        self._pass("create_private", self._inner.create_private, path, data)

    def list(self, path: str) -> _Listing:
        """List, gated."""
        return self._pass("list", self._inner.list, path)

    def list_names(self, path: str) -> _Names:
        """List names, gated."""
        return self._pass("list_names", self._inner.list_names, path)

    def status(self, path: str) -> FileStatus:
        """Look at a file, gated."""
        return self._pass("status", self._inner.status, path)

    def exists(self, path: str) -> bool:
        """Ask, gated."""
        return self._pass("exists", self._inner.exists, path)

    def mkdirs(self, path: str) -> None:
        """Make directories, gated."""
        self._pass("mkdirs", self._inner.mkdirs, path)

    def delete(self, path: str) -> bool:
        """Delete, gated."""
        return self._pass("delete", self._inner.delete, path)

    def delete_directory(self, path: str) -> bool:
        """Delete a directory, gated."""
        return self._pass("delete_directory", self._inner.delete_directory, path)

    def link(self, source: str, target: str, *, is_durable: bool = True) -> None:
        """Link, gated."""
        self._pass("link", partial(self._inner.link, is_durable=is_durable), source, target)

    def rename(self, source: str, target: str) -> None:
        """Rename, gated."""
        self._pass("rename", self._inner.rename, source, target)
