"""Opening what is a file, and nothing else: a path may come from a document that somebody else has written.

A pipe would be waited for, and a device may have no end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import StorageError
from holdfast.storage.file_system.os_error import NO_LINKS
from holdfast.storage.file_system.path import base_name, without_itself


def open_regular(path: str, buffering: int = -1) -> BinaryIO:
    """Open a file for reading; the caller closes it.

    Raises:
        OSError: It cannot be opened, or is no file.
    """
    file = open(path, "rb", buffering, opener=_at_once)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise IsADirectoryError(errno.EISDIR, "it is no file")
    return file


def read_regular(path: str, offset: int, length: int | None) -> bytes:
    """Return the bytes of a file from an offset; fewer than asked for if it ends before.

    Raises:
        OSError: It cannot be read, or is no file.
    """
    with open_regular(path, buffering=0) as file:
        if offset:
            file.seek(offset)
        if length is None:
            return file.read()
        # Who says how much there is may be wrong: no more is made room for than is there.
        rest = os.fstat(file.fileno()).st_size - offset
        return _read_fully(file, min(length, max(rest, 0)))


def _read_fully(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    while len(data) < length:
        more = file.read(length - len(data))
        if not more:
            break
        data += more
    return data


def _at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody at the other end, if it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def own_directory(path: str, refusal: str) -> Iterator[int]:
    """Open a directory that is no link: nobody can put one there before something is taken out of what was opened.

    Args:
        path: The directory.
        refusal: What was not done, for the message.

    Raises:
        StorageError: It is a link.
        OSError: It cannot be opened.
    """
    local = without_itself(path or ".")
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        place = Path(local)
        if place.is_symlink():
            raise StorageError(
                f"{refusal}: {path!r} is a link to {str(place.readlink())!r}, and what lies there may belong to "
                "somebody else. Put a directory in its place, or a mount."
            ) from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def link(source: str, target: str, path: str) -> None:
    """Gives a file a second name.

    Raises:
        StorageError: The file system has no links; the message says so of `path`.
        OSError: It cannot be done otherwise.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in NO_LINKS:
            raise StorageError(
                f"The file system of {path!r} refuses hard links ({error.strerror}), without which two drivers on one "
                "directory cannot be kept apart. Use a directory on a file system that has them, such as ext4, XFS "
                "or NFS."
            ) from error
        raise


def link_or_move(source: str, target: str, directory: int) -> None:
    """Gives a file a second name, or another one where there are no links; one that has it keeps it.

    Args:
        source: The file.
        target: Its other name.
        directory: That of the source, opened.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.rename(base_name(source), target, src_dir_fd=directory)
