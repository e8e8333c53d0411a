"""A document with compare-and-set in a directory, local or shared: each version is a file that is created exclusively.

Two writers cannot both create version n. But files of old versions are deleted, so a writer that slept could create
version n in the hole that the real one left. Who reads or writes therefore asks for proof. Versions are deleted in
ascending order only, so::

    version n-1 exists, with the nonce that version n names   =>   the real n-1 was never deleted
                                                              =>   no n was ever deleted, this one is the first: real

Version 1 has none before it; a file ``trimmed``, made before the first deletion, says that it may be gone. Without the
proof a reader lists again, and a writer looks for its nonce in the newest version. A file in a hole is never the newest
one and is removed by whoever sweeps.

No lock of the operating system is used, because those bind one host only, and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, Self

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, base_name, join
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import final_name, require_exclusive_creation
from holdfast.storage.register import GENESIS, WINDOW, FencedRegister, Lease, RegisterRecord, V

_log = get_logger(__name__)
_VERSION: Final = re.compile(r"v-([0-9]{20})")
_TRIMMED: Final = "trimmed"
_LOAD_ATTEMPTS: Final = 100


class VersionDirectory(Generic[V]):
    """The versions of one document.

    Args:
        fs: The file system; it must be able to create exclusively.
        directory: The directory; the first write makes it.
        document: What it is, for messages, such as ``The register``.
        never_written: What there is before the first version.
        encode: Gives a version as the bytes of its file.
        decode: Reads a version from the bytes of its file, its path, which is for errors, and its number.
        trim_note: What the file that tells of the first deletion says to people.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        document: str,
        never_written: V,
        encode: Callable[[V], bytes],
        decode: Callable[[bytes, str, int], V],
        trim_note: bytes,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._document = document
        self._never_written = never_written
        self._encode = encode
        self._decode = decode
        self._trim_note = trim_note

    def load(self) -> V:
        """Read the newest version; sees every write that had ended before.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer release.
            StorageError: It cannot be read.
        """
        for _ in range(_LOAD_ATTEMPTS):
            newest = self.newest_number()
            if newest == 0 and not self._is_trimmed():
                return self._never_written
            with suppress(NotExistError):
                version = self._read(newest)
                if not self._fs.exists(self._path(newest + 1)) and self._is_real(version):
                    return version
        raise StorageError(
            f"{self._document} in {self._directory!r} could not be read in {_LOAD_ATTEMPTS} attempts: its newest "
            "version has no version before it, or others write faster than it can be read. If files were deleted or "
            "copied by hand, bring them back."
        )

    def create(self, new: V) -> None:
        """Make a version the newest if, and only if, the one before it is the newest now; durably.

        Raises:
            ConflictError: Another version is there; or this one, by an answer that got lost.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """
        path = self._path(new.number)
        try:
            self._fs.create_exclusive(path, self._encode(new))
        except AlreadyExistError as error:
            raise ConflictError(f"{path!r} exists already.") from error
        except NotExistError as error:
            # Whoever sweeps has removed the temporary file meanwhile.
            raise ConflictError(f"{path!r} was not created: its temporary file is gone.") from error
        try:
            is_real = self._is_real(new)
        except HoldfastError as error:
            raise PossibleInconsistentStateError(f"{path!r} was created, but not checked: {error}") from error
        if not is_real:
            self._withdraw(path)
            raise ConflictError(f"{path!r} was created long after others had gone on.")
        try:
            self._trim(new.number - WINDOW)
        except HoldfastError as error:  # the version is written; the next write tries again
            _log.warning("Could not delete old versions in %r: %s", self._directory, error)

    def make_durable(self, number: int) -> None:
        """See to it that a version which was found survives a power failure.

        Raises:
            PossibleInconsistentStateError: It may not survive.
        """
        path = self._path(number)
        try:
            self._fs.make_durable(path)
        except NotExistError:
            pass  # deleted, because others have gone on from it: their versions are durable
        except HoldfastError as error:
            raise PossibleInconsistentStateError(f"{path!r} is there, but may not survive: {error}") from error

    def newest_number(self) -> int:
        """The highest number that a file has, 0 if none has one."""
        matches = map(_VERSION.fullmatch, self._fs.list_names(self._directory))
        return max((int(match[1]) for match in matches if match), default=0)

    def sweep(self, newest: int, unfinished_through: int | None = None) -> None:
        """Delete what nobody needs: versions behind the window, files in holes, files that were never finished.

        A temporary file may be of a writer that is alive; its write then fails without effect.

        Args:
            newest: The number of the newest version.
            unfinished_through: Up to which version temporary files are deleted; all of them if None.
        """
        self._trim(newest - WINDOW)
        for name in sorted(self._fs.list_names(self._directory)):
            finished = final_name(name)
            match = _VERSION.fullmatch(finished or name)
            if finished is not None and unfinished_through is None:
                is_stale = True
            else:
                last = newest - WINDOW if finished is None else unfinished_through
                is_stale = match is not None and last is not None and int(match[1]) <= last
            if is_stale:
                self._fs.delete_in(self._directory, name)

    def remove(self) -> None:
        """Delete all versions, newest first; only for a document that nobody writes any more."""
        for name in sorted(self._fs.list_names(self._directory), reverse=True):
            self._fs.delete_in(self._directory, name)
        self._fs.delete_directory(self._directory)

    def _withdraw(self, path: str) -> None:
        """Delete a version that was just created in a hole, or behind the window: nobody needs it.

        Where the whole document was removed meanwhile it would look like the newest version for ever.
        """
        try:
            self._fs.delete_in(self._directory, base_name(path))
        except HoldfastError as error:
            _log.warning("Could not delete %r, which nobody needs: %s", path, error)

    def _is_real(self, version: V) -> bool:
        """Whether the version before this one still exists; see the module's description."""
        if version.number == 1:
            return not self._is_trimmed()
        try:
            return self._read(version.number - 1).nonce == version.history[1]
        except NotExistError:
            return False

    def _trim(self, last: int) -> None:
        """Delete versions up to one, in ascending order; a writer that died may have left some before it."""
        if last < 1:
            return
        first = last
        while first > 1 and self._fs.exists(self._path(first - 1)):
            first -= 1
        if first == 1:
            with suppress(AlreadyExistError):
                self._fs.create_exclusive(join(self._directory, _TRIMMED), self._trim_note)
        for number in range(first, last + 1):
            self._fs.delete_in(self._directory, base_name(self._path(number)))

    def _is_trimmed(self) -> bool:
        return self._fs.exists(join(self._directory, _TRIMMED))

    def _path(self, number: int) -> str:
        return join(self._directory, f"v-{number:020d}")

    def _read(self, number: int) -> V:
        path = self._path(number)
        return self._decode(self._fs.read(path), path, number)


# The fenced register in a directory, local or shared; `version_directory.py` beside this file says how it is safe.

_TRIM_NOTE: Final = b"Version 1 of the register was deleted.\n"


class FileRegister(FencedRegister):
    """A register in a directory that several processes may share.

    Args:
        fs: The file system; it must be able to create exclusively.
        directory: The directory; it is made by the first write.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._versions = VersionDirectory(
            fs, directory, "The register", GENESIS, RegisterRecord.encode, _decode, _TRIM_NOTE
        )

    @classmethod
    def of(cls, directory: JobDirectory) -> Self:
        """The register in a job's directory."""
        return cls(directory.fs, directory.register_dir)

    def raise_token(self, owner: str) -> Lease:
        """Fence everybody who has written so far, and remove what deposed leaders left in the directory."""
        lease = super().raise_token(owner)
        own = lease.state.version
        try:
            # A temporary file for a version up to the own one is of a writer that died or is fenced; later ones may be
            # of a leader with a higher token, whose files are not ours to delete.
            self._versions.sweep(own, unfinished_through=own)
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
        return self._versions.load()

    def _swap(self, base: RegisterRecord, new: RegisterRecord) -> None:
        self._versions.create(new)

    def _make_durable(self, found: RegisterRecord) -> None:
        self._versions.make_durable(found.number)

    def __repr__(self) -> str:
        return f"FileRegister({self._directory!r})"


def _decode(data: bytes, path: str, number: int) -> RegisterRecord:
    return RegisterRecord.decode(data, path)
