"""The lease of a cluster in a directory that its processes share."""

from __future__ import annotations

from typing import Final

from holdfast.errors import CorruptFileError
from holdfast.ha.entry_map import Leadership
from holdfast.ha.file_system.versioned_file import FileVersion, VersionedFile
from holdfast.ha.lease import Lease
from holdfast.storage.file_system import FileSystem

_KIND: Final = "leader-lease"
_FORMAT_VERSION: Final = 1


class LeaseFile(Leadership):
    """Reads and writes the lease; safe to use from several threads."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._file = VersionedFile(fs, directory, _KIND, _FORMAT_VERSION)

    def read(self) -> tuple[FileVersion, Lease | None]:
        """Read the newest version; the lease is None if nobody has ever led.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer release.
            StorageError: It cannot be read.
        """
        found = self._file.load()
        if found.number == 0:
            return found, None
        try:
            return found, Lease.from_json(found.body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFileError(self._file.directory, None, f"a field is missing or wrong: {error!r}.") from error

    def write(self, base: FileVersion, lease: Lease) -> FileVersion:
        """Write the next version if the base is still the newest.

        Raises:
            ConflictError: It is not; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """
        return self._file.swap(base, lease.to_json())

    def term_of(self, lock_identity: str) -> int | None:
        """The term under which this identity holds the lease; one that ran out is held until it is taken over."""
        _, lease = self.read()
        holds = lease is not None and lease.holder == lock_identity and not lease.released
        return lease.term if lease is not None and holds else None

    def sweep(self) -> None:
        """Delete what dead writers left behind."""
        self._file.sweep()

    def remove(self) -> None:
        """Delete everything; only when nobody campaigns any more."""
        self._file.remove()

    def __repr__(self) -> str:
        return repr(self._file.directory)
