"""Whether a directory can be written, and keeps two writers of one name apart."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from holdfast.errors import AlreadyExistError, HoldfastError, NotExistError, StorageError
from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.file_system.path import join

_CONTENT: Final = b"Made to see whether this directory can be written, and a file be created once only.\n"


def require_exclusive_creation(fs: FileSystem, directory: str) -> None:
    """Create one file twice: the second attempt must fail. Leaves nothing behind.

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
        "one that can create a file only if it does not exist."
    )
