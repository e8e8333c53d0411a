"""The interface of file systems, paths and URIs as text, and the translation of errors of the operating system.

Every write is durable when it returns (content and name), and a file appears under its name whole or not at all. No
path is ever written twice: a write over an existing path is refused.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel import fault

_TRAILING_DOTS: Final = re.compile(r"(?:/\.?)+\Z")
# Answers of a file system without hard links.
NO_LINK_ERRNOS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_PATH_ERRORS: Final = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
_LONGEST: Final = 4096
"""Characters of a path in a message; Linux takes no longer path."""
_Names = list[str]


def may_pass(error: Exception) -> bool:
    """Return whether code of a program raised an error of the operating system that may not come again.

    With a wrong path the program is wrong. Code that knows that its target is unreachable raises a `StorageError`.
    """
    return isinstance(error, OSError) and not isinstance(error, _PATH_ERRORS)


def join(directory: str, *names: str) -> str:
    return "/".join([directory.rstrip("/"), *names])


def parent(path: str) -> str:
    """Return the directory of a path or URI; ``"."`` for a bare name."""
    head, slash, _ = path.rstrip("/").rpartition("/")
    return head or slash or "."


def base_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def strip_trailing_slash(path: str) -> str:
    """Return a directory's path without a trailing ``/`` or ``/.``, with which the system would follow a link."""
    return _TRAILING_DOTS.sub("", path) or "/"


def is_absolute(path: str) -> bool:
    """Return whether a path or URI means the same place in every process."""
    return path.startswith(("/", "file:")) or "://" in path


def absolute(path: str) -> str:
    """Return a path so that it means the same in other processes, and after this one has changed its directory.

    Raises:
        ConfigurationError: It is empty, such as the value of a variable that is not set.
    """
    if not path.strip():
        raise ConfigurationError("The path is empty; name a directory, such as /shared/savepoints.")
    return path if is_absolute(path) else str(Path(path).absolute())


def is_in_directory(name: str) -> bool:
    """Return whether a relative path stays below the directory it is joined to, and has no empty part."""
    return {"", ".", ".."}.isdisjoint(name.split("/"))


def local_path(uri: str) -> str | None:
    """Return the local path of a path or ``file:`` URI; None for another scheme.

    Raises:
        ConfigurationError: It is not a URI, or one of another host.
    """
    if uri.startswith("file:"):
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise ConfigurationError(f"{uri!r:.300} is not a path: {error}.") from error
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{uri!r} names a host; write file:///path for a path of this machine (three slashes)."
            )
        return unquote(parts.path)
    return None if "://" in uri else uri


def is_encodable_path(path: str) -> bool:
    """Return whether the operating system takes a local path: it can be encoded and has no zero byte."""
    if path.isascii():
        return "\0" not in path
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


# The request was certainly not carried out. Everything else (EIO, ETIMEDOUT, ESTALE, ...) may be the lost answer of a
# request that a file server did carry out.
DEFINITE_ERRNOS: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.EMLINK,
        errno.EXDEV,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENAMETOOLONG,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
    }
)


_ADVICE: Final = {
    errno.ENOSPC: "The disk is full: free space on it. A running job retries by itself, and loses nothing.",
    errno.EDQUOT: "The disk quota is used up: free space or raise it. A running job retries by itself.",
    errno.EACCES: "Permission is denied: give this user the right to read and write there.",
    errno.EPERM: "The operation is not permitted: give this user the right to read and write there.",
    errno.EROFS: "The file system is mounted read-only: mount it for writing, or choose another directory.",
    errno.ENOTDIR: "A part of the path is a file: choose another directory.",
    errno.EISDIR: "The path is a directory, but a file was expected.",
    errno.ENAMETOOLONG: "The name is too long for this file system: choose a shorter directory.",
    errno.EMFILE: "This process has too many files open: raise its limit (ulimit -n).",
    errno.EIO: "The device or the file server failed: check it. A running job retries by itself.",
    errno.ESTALE: "The file server no longer knows the file: check the mount. A running job retries by itself.",
}


def translate(error: OSError, action: str, path: str) -> HoldfastError:
    """Return Holdfast's error for an error of the operating system.

    Args:
        error: The error.
        action: The attempted action, as a verb: ``"read"``.
        path: The file.
    """
    named = repr(path)
    if len(named) > _LONGEST:  # perhaps from a damaged document
        named = f"{named[: _LONGEST // 2]}...{named[-_LONGEST // 2 :]} ({len(path):,} characters)"
    if isinstance(error, FileNotFoundError):
        return NotExistError(f"Could not {action} {named}: it does not exist.")
    if isinstance(error, FileExistsError):
        return AlreadyExistError(f"Could not {action} {named}: it exists already.")
    number = error.errno if error.errno is not None else 0
    advice = _ADVICE.get(number, "Check the storage, then run the job again.")
    name = errno.errorcode.get(number, "unknown error")
    return StorageError(f"Could not {action} {named}: {error.strerror or error} ({name}). {advice}")


def unknown_outcome(error: OSError, path: str) -> PossibleInconsistentStateError:
    """Return the error of a creation that may or may not have happened."""
    return PossibleInconsistentStateError(
        f"It is not known whether {path!r} was created ({error.strerror}): the storage failed meanwhile. Nothing is "
        "deleted; read it again when the storage works."
    )


class FileStatus(NamedTuple):
    """One entry of a directory.

    Attributes:
        name: The name without the directory.
        size: In bytes; 0 for a directory.
        mtime: Time of the last change in milliseconds since 1970, by the clock of the file server.
        is_directory: Whether it is a directory.
    """

    name: str
    size: int
    mtime: int
    is_directory: bool = False


# The method `list` below hides the type within the class.
_Listing = list[FileStatus]


class FileSystem(ABC):
    """Files by path or URI, on a disk or in an object store.

    All methods block, and raise `NotExistError`, `AlreadyExistError` or `StorageError` (it failed, and the target path
    is as before); `create_exclusive` also `PossibleInconsistentStateError`.
    """

    @abstractmethod
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a file.

        Args:
            path: The file.
            offset: The first byte.
            length: How many bytes; fewer are returned if the file ends before. None: all.
        """

    @abstractmethod
    def open_input(self, path: str) -> BinaryIO:
        """Open a file for reading; the caller closes it."""

    @abstractmethod
    def mmap(self, path: str) -> memoryview:
        """Return the whole file, mapped where that is possible; it stays readable after the file was deleted."""

    def keeps_mapped(self, path: str) -> bool:
        """Return whether a file that was mapped is still there; if not, only the mapping keeps its disk in use."""
        return self.has_file(path)

    def content_mark(self, path: str) -> tuple[int, int]:
        """Return size and time of a mapped file, which change if somebody replaces it; constant in an object store.

        Raises:
            NotExistError: It does not exist; an object store does not find out.
        """
        status = self.status(path)
        return status.size, status.mtime

    def drop_copy(self, path: str) -> None:  # noqa: B027 - most file systems keep no copies
        """Delete the copy that this host keeps of a file, because it is damaged."""

    @abstractmethod
    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a new file that appears, whole and durable, when the context is left without an error.

        Raises:
            AlreadyExistError: On leaving the context, if something has that path by then.
        """

    def write_atomic(self, path: str, data: bytes | memoryview | Iterable[bytes | memoryview]) -> None:
        """Write a new file, whole and durable; missing directories are made.

        Raises:
            AlreadyExistError: Something has that path already.
        """
        with self.open_output(path) as out:
            if isinstance(data, bytes | bytearray | memoryview):
                out.write(data)
            else:
                for chunk in data:
                    out.write(chunk)

    def write_state(self, path: str, data: bytes | memoryview | Iterable[bytes | memoryview]) -> None:
        """Write a new file of state, as `write_atomic` does; `DelayedWrites` does it later."""
        try:
            with fault.point("run.write"):
                self.write_atomic(path, data)
        except OSError as error:
            raise translate(error, "write", path) from error

    @abstractmethod
    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a file with its content if, and only if, there is none; `FileDocument` is built on it.

        Of any number of processes on any number of hosts exactly one succeeds.

        Raises:
            AlreadyExistError: Another process was faster, or this call itself, whose first answer got lost: compare the
                content.
            PossibleInconsistentStateError: It is not known whether the file was created.
            StorageError: It was not created, or this storage has no such operation.
        """

    def make_durable(self, path: str) -> None:  # noqa: B027 - what an object store has written is durable
        """Make sure that a file which can be read survives a power failure.

        Needed for a file that another process wrote, or whose creation got no answer: its writer may have failed before
        the file was durable.

        Raises:
            NotExistError: It is not there.
            StorageError: It may not survive.
        """

    def create_private(self, path: str, data: bytes) -> None:
        """Create a file as `create_exclusive` does, readable only for the user of this process.

        An object store has no users: who may read the bucket may read it.
        """
        self.create_exclusive(path, data)

    def make_private(self, path: str) -> None:  # noqa: B027 - an object store has no users
        """Let only the user of this process read a file or a directory.

        Raises:
            NotExistError: It does not exist.
            StorageError: It belongs to another user.
        """

    @abstractmethod
    def list(self, path: str) -> _Listing:
        """Return the entries of a directory, ordered by name; none if it does not exist."""

    @abstractmethod
    def list_names(self, path: str) -> _Names:
        """Return the names in a directory, in no order; none if it does not exist. Cheaper than `list`."""

    @abstractmethod
    def status(self, path: str) -> FileStatus:
        """Return size and time of a file."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether there is a file or a directory."""

    def has_file(self, path: str) -> bool:
        """Return whether there is a file. Cheaper than `exists` in an object store; elsewhere the same."""
        return self.exists(path)

    @abstractmethod
    def mkdirs(self, path: str) -> None:
        """Make a directory and those above it, durably; fine if it exists."""

    @abstractmethod
    def delete(self, path: str) -> bool:
        """Delete a file; return whether it was there. An object store does not find out and returns True."""

    def delete_in(self, directory: str, name: str) -> bool:
        """Delete a file of a directory; return what `delete` returns.

        Raises:
            StorageError: The directory is a link, so the file may belong to another job.
        """
        return self.delete(join(directory, name))

    def is_link(self, path: str) -> bool:
        """Return whether the path itself is a link. Object stores have none."""
        return False

    def resolved(self, path: str) -> str:
        """Return the path with all links resolved."""
        return path

    @abstractmethod
    def delete_directory(self, path: str) -> bool:
        """Delete a directory if it is empty; return whether it is gone.

        In an object store a directory goes with its last file, so nothing is done, and True is returned.
        """

    @abstractmethod
    def link(self, source: str, target: str, *, is_durable: bool = True) -> None:
        """Give a file that never changes a second name, without copying it.

        Args:
            source: The file.
            target: Its second name.
            is_durable: Whether the name must survive a power failure.

        Raises:
            AlreadyExistError: Something has the target path already.
            StorageError: It cannot be done, for instance between two devices: copy it.
        """

    def link_all(self, names: Sequence[tuple[str, str]]) -> None:
        """Give files second names, durably, and set their time to now where that is possible; skip missing files.

        A file that has its second name keeps it. A file system without links moves the files.

        Args:
            names: Pairs of source and target. No other process uses the name of a target.
        """
        for source, target in names:
            with suppress(NotExistError, AlreadyExistError):
                self.link(source, target)

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Move a file, durably, and never over another.

        Not atomic: after a crash both names may be there.

        Raises:
            AlreadyExistError: Something has the target path already.
            StorageError: The directory of the source is a link, so the file may belong to another job.
        """

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Move files, each in one step, and sync both directories; missing files are skipped.

        Args:
            moves: Pairs of source and target. No other process uses the name of a target.

        Raises:
            StorageError: This file system cannot move a file in one step, or the directory of a source is a link.
        """
        raise StorageError(f"{self!r} cannot move a file in one step.")

    def rename_all(self, moves: Sequence[tuple[str, str]]) -> Sequence[AlreadyExistError | NotExistError | None]:
        """Move several files, each as `rename` does; cheaper than one by one where that is possible.

        Args:
            moves: Pairs of source and target.

        Returns:
            For each pair None, or why it was not moved: its target is taken, or its source is not there.
        """
        outcomes: list[AlreadyExistError | NotExistError | None] = []
        for source, target in moves:
            try:
                self.rename(source, target)
                outcomes.append(None)
            except (AlreadyExistError, NotExistError) as error:
                outcomes.append(error)
        return outcomes


class FilterFileSystem(FileSystem):
    """Passes every call to another file system; subclasses change some of them.

    Args:
        origin: The other file system.
    """

    def __init__(self, origin: FileSystem) -> None:
        self._origin = origin

    def mmap(self, path: str) -> memoryview:
        return self._origin.mmap(path)

    def keeps_mapped(self, path: str) -> bool:
        return self._origin.keeps_mapped(path)

    def content_mark(self, path: str) -> tuple[int, int]:
        return self._origin.content_mark(path)

    def drop_copy(self, path: str) -> None:
        self._origin.drop_copy(path)

    def write_atomic(self, path: str, data: bytes | memoryview | Iterable[bytes | memoryview]) -> None:
        self._origin.write_atomic(path, data)

    def write_state(self, path: str, data: bytes | memoryview | Iterable[bytes | memoryview]) -> None:
        self._origin.write_state(path, data)

    def make_durable(self, path: str) -> None:
        self._origin.make_durable(path)

    def create_private(self, path: str, data: bytes) -> None:
        self._origin.create_private(path, data)

    def make_private(self, path: str) -> None:
        self._origin.make_private(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._origin.read(path, offset, length)

    def open_input(self, path: str) -> BinaryIO:
        return self._origin.open_input(path)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self._origin.open_output(path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._origin.create_exclusive(path, data)

    def list(self, path: str) -> _Listing:
        return self._origin.list(path)

    def list_names(self, path: str) -> _Names:
        return self._origin.list_names(path)

    def status(self, path: str) -> FileStatus:
        return self._origin.status(path)

    def exists(self, path: str) -> bool:
        return self._origin.exists(path)

    def has_file(self, path: str) -> bool:
        return self._origin.has_file(path)

    def mkdirs(self, path: str) -> None:
        self._origin.mkdirs(path)

    def delete(self, path: str) -> bool:
        return self._origin.delete(path)

    def delete_in(self, directory: str, name: str) -> bool:
        return self._origin.delete_in(directory, name)

    def is_link(self, path: str) -> bool:
        return self._origin.is_link(path)

    def resolved(self, path: str) -> str:
        return self._origin.resolved(path)

    def delete_directory(self, path: str) -> bool:
        return self._origin.delete_directory(path)

    def link(self, source: str, target: str, *, is_durable: bool = True) -> None:
        self._origin.link(source, target, is_durable=is_durable)

    def rename(self, source: str, target: str) -> None:
        self._origin.rename(source, target)

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        self._origin.move_all(moves)

    def rename_all(self, moves: Sequence[tuple[str, str]]) -> Sequence[AlreadyExistError | NotExistError | None]:
        return self._origin.rename_all(moves)
