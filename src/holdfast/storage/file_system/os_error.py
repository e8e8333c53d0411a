"""Errors of the operating system, translated at the border of the storage package."""

from __future__ import annotations

import errno
from typing import Final

from holdfast.errors import (
    AlreadyExistError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)

# The request was certainly not carried out. Everything else (EIO, ETIMEDOUT, ESTALE, ...) may be the lost answer of a
# request that a file server did carry out.
DEFINITE: Final = frozenset(
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
# What a file system answers that has no hard links.
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
# What says that a path is wrong, and nothing of the storage. A program is to blame whose code raises it: what knows its
# target to be away raises a StorageError.
OF_A_PATH: Final = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)

_LONGEST: Final = 4096
"""Characters of a path in a message; no path that Linux takes has more."""

_ADVICE: Final = {
    errno.ENOSPC: "The disk is full: free space on it, then run the job again; nothing that was complete is lost.",
    errno.EDQUOT: "The disk quota is used up: free space or raise it, then run the job again.",
    errno.EACCES: "Permission is denied: give this user the right to read and write there.",
    errno.EPERM: "The operation is not permitted: give this user the right to read and write there.",
    errno.EROFS: "The file system is mounted read-only: mount it for writing, or choose another directory.",
    errno.ENOTDIR: "A part of the path is a file: choose another directory.",
    errno.EISDIR: "The path is a directory where a file was expected.",
    errno.ENAMETOOLONG: "The name is too long for this file system: choose a shorter directory.",
    errno.EMFILE: "This process has too many files open: raise its limit (ulimit -n).",
    errno.EIO: "The device or the file server failed: check it, then run the job again.",
    errno.ESTALE: "The file server no longer knows the file: check the mount, then run the job again.",
}


def translate(error: OSError, action: str, path: str) -> HoldfastError:
    """Return the error of our tree for one of the operating system.

    Args:
        error: What was raised.
        action: What was tried, as a verb: ``"read"``.
        path: On what.
    """
    named = repr(path)
    if len(named) > _LONGEST:  # from a damaged document, perhaps
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
    """Return the error of a creation of which nobody knows whether it happened."""
    return PossibleInconsistentStateError(
        f"It is not known whether {path!r} was created ({error.strerror}): the storage failed in between. Nothing is "
        "deleted; read it again once the storage works."
    )
