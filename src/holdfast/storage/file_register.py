"""The fenced register in a directory, local or shared: each version is a file that is created exclusively.

Two writers cannot both create version n. But files of old versions are deleted, so a writer that slept could create
version n in the hole that the real one left. Who reads or writes therefore asks for proof. Versions are deleted in
ascending order only, so::

    version n-1 exists, with the nonce that version n names   =>   the real n-1 was never deleted
                                                              =>   no n was ever deleted, this one is the first: real

Version 1 has none before it; a file ``trimmed``, made before the first deletion, says that it may be gone. Without the
proof a reader lists again, and a writer looks for its nonce in the newest version. A file in a hole is never the newest
one and is removed by whoever leads.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Final

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.storage.exclusive_creation import require_exclusive_creation
from holdfast.storage.file import FileSystem
from holdfast.storage.local import final_name
from holdfast.storage.path import join
from holdfast.storage.register import GENESIS, WINDOW, FencedRegister, Lease, RegisterRecord

_log = logging.getLogger(__name__)
_VERSION: Final = re.compile(r"v-([0-9]{20})")
_TRIMMED: Final = "trimmed"
_LOAD_ATTEMPTS: Final = 100


class FileRegister(FencedRegister):
    """A register in a directory that several processes may share.

    Args:
        fs: The file system; it must be able to create exclusively.
        directory: The directory; it is made by the first write.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    def raise_token(self, owner: str) -> Lease:
        """Fence everybody who has written so far, and remove what deposed leaders left in the directory."""
        lease = super().raise_token(owner)
        try:
            self._sweep(lease.state.version)
        except HoldfastError as error:  # the token is raised; the next leader tries again
            _log.warning("Could not clean up the register: %s", error)
        return lease

    def require_exclusive_creation(self) -> None:
        """Make sure that the directory can be written and keeps two writers apart.

        Raises:
            StorageError: It cannot, or does not.
        """
        require_exclusive_creation(self._fs, self._directory)

    def _load(self) -> RegisterRecord:
        for _ in range(_LOAD_ATTEMPTS):
            newest = max(self._versions(), default=0)
            if newest == 0 and not self._is_trimmed():
                return GENESIS
            with suppress(NotExistError):
                record = self._read(newest)
                if not self._fs.exists(self._path(newest + 1)) and self._is_real(record):
                    return record
        raise StorageError(
            f"The register in {self._directory!r} could not be read in {_LOAD_ATTEMPTS} attempts: its newest version "
            "has no version before it, or others write faster than it can be read. If files were deleted or copied by "
            "hand, bring them back."
        )

    def _swap(self, base: RegisterRecord, new: RegisterRecord) -> None:
        path = self._path(new.state.version)
        try:
            self._fs.create_exclusive(path, new.encode())
        except AlreadyExistError as error:
            raise ConflictError(f"{path!r} exists already.") from error
        except NotExistError as error:
            # Whoever raised the token meanwhile has removed the temporary file.
            raise ConflictError(f"{path!r} was not created: its temporary file is gone.") from error
        try:
            is_real = self._is_real(new)
        except HoldfastError as error:
            raise PossibleInconsistentStateError(f"{path!r} was created, but not checked: {error}") from error
        if not is_real:
            self._withdraw(path)
            raise ConflictError(f"{path!r} was created long after others had gone on.")
        try:
            self._trim(new.state.version - WINDOW)
        except HoldfastError as error:  # the version is written; the next write tries again
            _log.warning("Could not delete old versions of the register: %s", error)

    def _withdraw(self, path: str) -> None:
        """Delete a version that was just created in a hole, or behind the window: nobody needs it.

        Where the whole register was removed meanwhile it would look like the newest version for ever.
        """
        try:
            self._fs.delete(path)
        except HoldfastError as error:
            _log.warning("Could not delete %r, which nobody needs: %s", path, error)

    def _is_real(self, record: RegisterRecord) -> bool:
        """Whether the version before this one still exists; see the module's description."""
        version = record.state.version
        if version == 1:
            return not self._is_trimmed()
        try:
            return self._read(version - 1).nonce == record.history[1]
        except NotExistError:
            return False

    def _trim(self, last: int) -> None:
        """Delete versions up to one, in ascending order; a leader that died may have left some before it."""
        if last < 1:
            return
        first = last
        while first > 1 and self._fs.exists(self._path(first - 1)):
            first -= 1
        if first == 1:
            with suppress(AlreadyExistError):
                self._fs.create_exclusive(join(self._directory, _TRIMMED), b"Version 1 of the register was deleted.\n")
        for version in range(first, last + 1):
            self._fs.delete(self._path(version))

    def _sweep(self, own: int) -> None:
        """Delete what nobody needs: versions behind the window, files in holes, files that were never finished.

        A temporary file for a version up to the own one is of a writer that died or is fenced; later ones may be of
        a leader with a higher token, whose files are not ours to delete.
        """
        self._trim(own - WINDOW)
        for name in sorted(self._fs.list_names(self._directory)):
            temporary_of = final_name(name)
            match = _VERSION.fullmatch(temporary_of or name)
            if match is not None and int(match[1]) <= (own if temporary_of else own - WINDOW):
                self._fs.delete(join(self._directory, name))

    def _versions(self) -> list[int]:
        return [int(match[1]) for match in map(_VERSION.fullmatch, self._fs.list_names(self._directory)) if match]

    def _is_trimmed(self) -> bool:
        return self._fs.exists(join(self._directory, _TRIMMED))

    def _path(self, version: int) -> str:
        return join(self._directory, f"v-{version:020d}")

    def _read(self, version: int) -> RegisterRecord:
        path = self._path(version)
        return RegisterRecord.decode(self._fs.read(path), path)

    def __repr__(self) -> str:
        return f"FileRegister({self._directory!r})"
