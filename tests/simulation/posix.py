"""The calls of the operating system that the real `LocalFileSystem` makes, answered by the disk in memory.

Each is a switch point and a crash point, and the weather may let it fail, happen without an answer, happen later than
it was answered, or be asked twice.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.simulation.disk import Directory, Disk, File
from tests.simulation.weather import Weather
from tests.simulation.world import World

_NAMES = ("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_WRONLY", "O_CREAT", "O_EXCL", "O_NONBLOCK")


class ReadFile(io.BytesIO):
    """A file that is open for reading: its bytes as they were when it was opened."""

    def __init__(self, file: File, number: int) -> None:
        super().__init__(file.data)
        self._number = number

    def fileno(self) -> int:
        return self._number


class WrittenFile(io.BytesIO):
    """A new file while it is written; its bytes are the file's when it is flushed."""

    def __init__(self, file: File, number: int) -> None:
        super().__init__()
        self._file = file
        self._number = number

    def fileno(self) -> int:
        return self._number

    def flush(self) -> None:
        if not self.closed:
            self._file.data = self.getvalue()

    def close(self) -> None:
        self.flush()
        super().close()


class Posix:
    """What stands in the place of the module `os`, and of `open`.

    Args:
        world: The world.
        disk: The disk.
        weather: What goes wrong.
        seen: Called after each change, with the call and its paths; auditors.
    """

    def __init__(self, world: World, disk: Disk, weather: Weather, seen: Callable[..., None]) -> None:
        self._world, self._disk, self._weather, self._seen = world, disk, weather, seen
        self._opened: dict[int, File | tuple[str, Directory]] = {}
        self._next = 100
        self.strerror = os.strerror
        for name in _NAMES:
            setattr(self, name, getattr(os, name))
        self.path = SimpleNamespace(
            join=posixpath.join,
            split=posixpath.split,
            dirname=posixpath.dirname,
            basename=posixpath.basename,
            isdir=self._isdir,
            islink=lambda path: False,
            realpath=posixpath.normpath,
        )

    def open_file(self, path: str, mode: str, buffering: int = -1, opener: Any = None) -> Any:
        """The function `open`."""
        if mode == "rb":
            file = self._read("open", path, lambda: self._disk.file(path))
            return ReadFile(file, self._number(file))
        assert mode == "xb"
        file = self._do("create", lambda: self._disk.create(path), path)
        return WrittenFile(file, self._number(file))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """A descriptor."""
        node = self._disk.find(path)
        return self._number(node if isinstance(node, File) else (path, node))

    def close(self, number: int) -> None:
        del self._opened[number]

    def fsync(self, number: int) -> None:
        opened = self._opened[number]
        if isinstance(opened, File):
            self._do("fsync", lambda: setattr(opened, "synced", opened.data), "")
        else:
            path, directory = opened
            self._do("fsync directory", lambda: self._disk.sync_directory(directory), path)

    def link(self, source: str, target: str) -> None:
        self._do("link", lambda: self._disk.link(source, target), target, source)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        whole = self._in(dir_fd, path)
        self._do("unlink", lambda: self._disk.unlink(whole), whole)

    def rename(self, source: str, target: str, *, src_dir_fd: int | None = None) -> None:
        whole = self._in(src_dir_fd, source)
        self._do("rename", lambda: self._disk.rename(whole, target), target, whole)

    def mkdir(self, path: str) -> None:
        self._do("mkdir", lambda: self._disk.make_directory(path), path)

    def rmdir(self, path: str) -> None:
        self._do("rmdir", lambda: self._disk.remove_directory(path), path)

    def listdir(self, path: str) -> list[str]:
        return list(self._read("list", path, lambda: list(self._disk.directory(path).entries)))

    @contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[Any]]:
        entries = self._read("list", path, lambda: dict(self._disk.directory(path).entries))
        yield iter([_entry(name, node) for name, node in entries.items()])

    def stat(self, path: str) -> Any:
        return self._read("stat", path, lambda: _status(self._disk.find(path)))

    def fstat(self, number: int) -> Any:
        opened = self._opened[number]
        return _status(opened if isinstance(opened, File) else opened[1])

    def map(self, path: str) -> memoryview:
        """What `LocalFileSystem.mmap` does."""
        return memoryview(self._read("map", path, lambda: self._disk.file(path)).data)

    def _in(self, directory: int | None, path: str) -> str:
        if directory is None:
            return path
        opened = self._opened[directory]
        assert isinstance(opened, tuple)
        return f"{opened[0]}/{path}"

    def _isdir(self, path: str) -> bool:
        try:
            return isinstance(self._disk.find(path), Directory)
        except OSError:
            return False

    def _number(self, opened: File | tuple[str, Directory]) -> int:
        self._next += 1
        self._opened[self._next] = opened
        return self._next

    def _read(self, call: str, path: str, read: Callable[[], Any]) -> Any:
        if self._world.current is not None:
            self._weather.before_read(call, path)
        return read()

    def _do(self, call: str, do: Callable[[], Any], path: str, source: str = "") -> Any:
        if self._world.current is None:
            return do()
        return self._weather.around(call, path, do, lambda: self._seen(call, path, source))


def _status(node: File | Directory) -> Any:
    size, mode = (len(node.data), stat.S_IFREG) if isinstance(node, File) else (0, stat.S_IFDIR)
    return SimpleNamespace(st_size=size, st_mtime_ns=int(node.mtime * 1_000_000), st_mode=mode)


def _entry(name: str, node: File | Directory) -> Any:
    return SimpleNamespace(
        name=name,
        stat=lambda follow_symlinks=True: _status(node),
        is_dir=lambda follow_symlinks=True: isinstance(node, Directory),
    )


def failure(number: int) -> OSError:
    """An error of the operating system."""
    return OSError(number, os.strerror(number))


__all__ = ["Posix", "errno", "failure"]
