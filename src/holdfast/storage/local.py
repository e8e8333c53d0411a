"""Files of this machine, or of a server that is mounted.

A new file is written under a temporary name, synced, linked to its name with a hard link (which, unlike a rename, fails
if the name is taken, on one host and over NFS), and the directory is synced. A file system without hard links is
refused, because two drivers could not be kept apart on it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    HoldfastError,
    NotExistError,
    StorageError,
)
from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system import (
    DEFINITE_ERRNOS,
    NO_LINK_ERRNOS,
    FileStatus,
    FileSystem,
    base_name,
    is_encodable_path,
    join,
    local_path,
    strip_trailing_slash,
    translate,
    unknown_outcome,
)

_CONTENT: Final = b"Written to check that this directory can be written and that a file can be created only once.\n"
_Listing = list[FileStatus]
_Names = list[str]
TEMPORARY_SUFFIX: Final = ".tmp"
_MODE: Final = 0o666


def open_regular(path: str, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading; the caller closes it.

    The path may come from a document of another process: opening a pipe would block, and a device may have no end.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    file = open(path, "rb", buffering, opener=_open_nonblocking)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise IsADirectoryError(errno.EISDIR, "it is not a regular file")
    return file


def read_regular(path: str, offset: int, length: int | None) -> bytes:
    """Return bytes of a regular file; fewer than `length` if it ends before.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    with open_regular(path, buffering=0) as file:
        if offset:
            file.seek(offset)
        if length is None:
            return file.read()
        # The length may come from a damaged document: allocate no more than the file has.
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


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def open_real_directory(path: str, refusal: str) -> Iterator[int]:
    """Open a directory that is not a link, so that no process can replace it by a link before a file in it is touched.

    Args:
        path: The directory.
        refusal: The action that was not done, for the message.

    Raises:
        StorageError: It is a link.
        OSError: It cannot be opened.
    """
    local = strip_trailing_slash(path or ".")
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        place = Path(local)
        if place.is_symlink():
            raise StorageError(
                f"{refusal}: {path!r} is a link to {str(place.readlink())!r}, and its files may belong to "
                "another job. Put a directory in its place, or a mount."
            ) from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def link(source: str, target: str, path: str) -> None:
    """Give a file a second name.

    Raises:
        StorageError: The file system of `path` has no hard links.
        OSError: Any other failure.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in NO_LINK_ERRNOS:
            raise StorageError(
                f"The file system of {path!r} refuses hard links ({error.strerror}), without which two drivers on one "
                "directory cannot be kept apart. Use a directory on a file system with hard links, such as ext4, XFS "
                "or NFS."
            ) from error
        raise


def link_or_move(source: str, target: str, directory: int) -> None:
    """Give a file a second name, or move it where there are no links; fine if the target is there.

    Args:
        source: The file.
        target: Its other name.
        directory: Descriptor of the directory of the source.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in NO_LINK_ERRNOS:
            raise
        os.rename(base_name(source), target, src_dir_fd=directory)


def require_exclusive_creation(fs: FileSystem, directory: str) -> None:
    """Create one file twice, and delete it: the second attempt must fail.

    Raises:
        StorageError: The directory cannot be written, or the second attempt succeeded.
    """
    path = join(directory, f"probe-{new_nonce()}")
    try:
        fs.create_exclusive(path, _CONTENT)
    except NotExistError as error:
        raise StorageError(f"{directory!r} cannot be written: {error}") from error
    try:
        fs.create_exclusive(path, _CONTENT)
    except AlreadyExistError:
        return
    finally:
        with suppress(HoldfastError):
            fs.delete(path)
    raise StorageError(
        f"The storage of {directory!r} let a file be created twice, so two leaders could not be kept apart on it. Use "
        "storage that can create a file only if it does not exist."
    )


def temporary_name(name: str) -> str:
    """Return the name, unique to this call, under which a file is written before it gets its own."""
    return f".{name}.{new_nonce()}{TEMPORARY_SUFFIX}"


def final_name(temporary: str) -> str | None:
    """Return the final name of a temporary one, None for any other name."""
    if not temporary.startswith(".") or not temporary.endswith(TEMPORARY_SUFFIX):
        return None
    return temporary[1 : -len(TEMPORARY_SUFFIX)].rpartition(".")[0] or None


class LocalFileSystem(FileSystem):
    """Files of this machine, or of a server that is mounted; takes plain paths and ``file:`` URIs."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        try:
            return read_regular(_local(path), offset, length)
        except OSError as error:
            raise translate(error, "read", path) from error

    def open_input(self, path: str) -> BinaryIO:
        try:
            return open_regular(_local(path))
        except OSError as error:
            raise translate(error, "read", path) from error

    def mmap(self, path: str) -> memoryview:
        """Map the whole file; it is unmapped with the last view of it."""
        # Imported here: a process that reads only registers and documents need not wait for it.
        import pyarrow as pa

        local = _local(path)
        try:
            if os.stat(local).st_size == 0:
                return memoryview(b"")
            # Python's own mmap keeps a file descriptor for each mapping, and a task maps thousands of runs.
            with pa.memory_map(local) as file:
                return memoryview(file.read_buffer())
        except OSError as error:
            raise translate(error, "map", path) from error

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        target = _local(path)
        directory, name = os.path.split(target)
        temporary = os.path.join(directory, temporary_name(name))
        try:
            file = self._open_temporary(temporary, path)
            try:
                with file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                link(temporary, target, path)
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
            _sync_directory(directory)
        except FileNotFoundError as error:
            raise StorageError(
                f"Could not write {path!r}: its directory was removed meanwhile. Bring it back."
            ) from error
        except OSError as error:
            raise translate(error, "write", path) from error

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._create(path, data, _MODE)

    def create_private(self, path: str, data: bytes) -> None:
        self._create(path, data, 0o600)

    def make_private(self, path: str) -> None:
        local = _local(path)
        try:
            mode = os.stat(local).st_mode
            if stat.S_IMODE(mode) & 0o077:
                os.chmod(local, stat.S_IMODE(mode) & 0o700)
        except OSError as error:
            raise translate(error, "change the rights of", path) from error

    def make_durable(self, path: str) -> None:
        target = _local(path)
        try:
            # Non-blocking, so that a pipe without a writer is not waited for.
            descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            _sync_directory(os.path.dirname(target))
        except OSError as error:
            raise translate(error, "sync", path) from error

    def _create(self, path: str, data: bytes, mode: int) -> None:
        target = _local(path)
        directory, name = os.path.split(target)
        temporary = os.path.join(directory, temporary_name(name))
        try:
            try:
                with self._open_temporary(temporary, path, mode) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise translate(error, "create", path) from error
            try:
                link(temporary, target, path)
            except OSError as error:
                if error.errno in DEFINITE_ERRNOS:
                    raise translate(error, "create", path) from error
                raise unknown_outcome(error, path) from error
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        try:
            _sync_directory(directory)
        except OSError as error:
            raise unknown_outcome(error, path) from error

    def _open_temporary(self, temporary: str, path: str, mode: int = _MODE) -> BinaryIO:
        def opener(name: str, flags: int) -> int:
            return os.open(name, flags, mode)

        try:
            return open(temporary, "xb", opener=opener)
        except FileNotFoundError:
            self.mkdirs(os.path.dirname(temporary))
            return open(temporary, "xb", opener=opener)

    def list(self, path: str) -> _Listing:
        found = []
        try:
            with os.scandir(_local(path)) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # deleted meanwhile
                        continue
                    directory = entry.is_dir(follow_symlinks=False)
                    size = 0 if directory else status.st_size
                    found.append(FileStatus(entry.name, size, status.st_mtime_ns // 1_000_000, directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise translate(error, "list", path) from error
        return sorted(found)

    def list_names(self, path: str) -> _Names:
        try:
            return os.listdir(_local(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise translate(error, "list", path) from error

    def status(self, path: str) -> FileStatus:
        local = _local(path)
        try:
            status = os.stat(local)
        except OSError as error:
            raise translate(error, "look at", path) from error
        directory = os.path.isdir(local)
        size = 0 if directory else status.st_size
        return FileStatus(os.path.basename(local), size, status.st_mtime_ns // 1_000_000, directory)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or a directory.

        Raises:
            StorageError: It cannot be found out, for instance because a directory above may not be read.
        """
        try:
            os.stat(_local(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise translate(error, "look at", path) from error
        return True

    def mkdirs(self, path: str) -> None:
        try:
            _make_directory(_local(path) or ".")
        except OSError as error:
            raise translate(error, "make directory", path) from error

    def delete(self, path: str) -> bool:
        try:
            os.unlink(_local(path))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise translate(error, "delete", path) from error
        return True

    def delete_in(self, directory: str, name: str) -> bool:
        try:
            with open_real_directory(_local(directory), f"{name!r} was not deleted") as descriptor:
                os.unlink(name, dir_fd=descriptor)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise translate(error, "delete", f"{directory}/{name}") from error
        return True

    def is_link(self, path: str) -> bool:
        return os.path.islink(strip_trailing_slash(_local(path)))

    def resolved(self, path: str) -> str:
        return os.path.realpath(_local(path))

    def delete_directory(self, path: str) -> bool:
        local = _local(path)
        try:
            os.rmdir(local)
        except FileNotFoundError:
            return True
        except OSError as error:
            # POSIX allows either answer for a directory that is not empty.
            with suppress(OSError):
                if os.listdir(local):
                    return False
            raise translate(error, "delete", path) from error
        return True

    def link(self, source: str, target: str, *, is_durable: bool = True) -> None:
        old, new = _local(source), _local(target)
        try:
            _make_directory(os.path.dirname(new) or ".")
            link(old, new, target)
            if is_durable:
                _sync_directory(os.path.dirname(new))
        except FileNotFoundError as error:
            raise translate(error, "link", source) from error
        except OSError as error:
            raise translate(error, f"link {source!r} to", target) from error

    def link_all(self, names: Sequence[tuple[str, str]]) -> None:
        try:
            for source, target in names:
                old, new = _local(source), _local(target)
                _make_directory(os.path.dirname(new) or ".")
                with suppress(FileNotFoundError), open_real_directory(*_source_directory(old)) as opened:
                    with suppress(PermissionError):  # a file of another user keeps its time
                        os.utime(old)
                    link_or_move(old, new, opened)
            for directory in dict.fromkeys(os.path.dirname(_local(target)) for _, target in names):
                _sync_directory(directory)
        except OSError as error:
            raise translate(error, "link files of", os.path.dirname(names[0][0])) from error

    def rename(self, source: str, target: str) -> None:
        old, new = _local(source), _local(target)
        try:
            with open_real_directory(*_source_directory(old)) as opened:
                link(old, new, target)
                _sync_directory(os.path.dirname(new))
                os.unlink(os.path.basename(old), dir_fd=opened)
            _sync_directory(os.path.dirname(old))
        except FileNotFoundError as error:
            raise translate(error, "rename", source) from error
        except OSError as error:
            raise translate(error, f"rename {source!r} to", target) from error

    def rename_all(self, moves: Sequence[tuple[str, str]]) -> Sequence[AlreadyExistError | NotExistError | None]:
        """Move several files: link them all, sync each directory once, then remove the old names.

        The removal is not synced: after a crash both names may be there, as with `rename`.
        """
        outcomes: list[AlreadyExistError | NotExistError | None] = []
        for source, target in moves:
            old = _local(source)
            try:
                with open_real_directory(*_source_directory(old)):
                    link(old, _local(target), target)
                outcomes.append(None)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                failure = translate(
                    error, "rename" if missing else f"rename {source!r} to", source if missing else target
                )
                if not isinstance(failure, AlreadyExistError | NotExistError):
                    raise failure from error
                outcomes.append(failure)
        moved = [move for move, outcome in zip(moves, outcomes, strict=True) if outcome is None]
        try:
            for directory in dict.fromkeys(os.path.dirname(_local(target)) for _, target in moved):
                _sync_directory(directory)
            for source, _ in moved:
                with open_real_directory(*_source_directory(_local(source))) as opened:
                    os.unlink(os.path.basename(source), dir_fd=opened)
        except OSError as error:
            raise translate(error, "rename files of", os.path.dirname(moved[0][0])) from error
        return outcomes

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        try:
            for source, target in moves:
                old = _local(source)
                with suppress(FileNotFoundError), open_real_directory(*_source_directory(old)) as opened:
                    os.rename(os.path.basename(old), _local(target), src_dir_fd=opened)
            for side in (1, 0):
                for directory in dict.fromkeys(os.path.dirname(_local(move[side])) for move in moves):
                    if os.path.isdir(directory):
                        _sync_directory(directory)
        except OSError as error:
            raise translate(error, "move files of", os.path.dirname(moves[0][0])) from error

    def __repr__(self) -> str:
        return "LocalFileSystem()"


def _local(path: str) -> str:
    local = path if path.startswith("/") else local_path(path)
    if local is None:
        raise ConfigurationError(f"{path!r} is not a path of the local file system.")
    if not is_encodable_path(local):
        raise StorageError(f"{path!r:.1000} cannot be the path of a file.")
    return local


def _make_directory(local: str) -> None:
    if os.path.isdir(local):
        return
    above = os.path.dirname(local.rstrip("/")) or "."
    _make_directory(above)
    try:
        os.mkdir(local)
    except FileExistsError:
        if not os.path.isdir(local):
            raise NotADirectoryError(20, "Not a directory", local) from None
        return
    _sync_directory(above)


def _source_directory(path: str) -> tuple[str, str]:
    directory, name = os.path.split(path)
    return directory, f"{name!r} was not moved"


def _sync_directory(local: str) -> None:
    descriptor = os.open(local or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
