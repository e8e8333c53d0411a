"""The fenced register in a directory, local or shared; `version_directory.py` beside this file says how it is safe."""

from __future__ import annotations

from typing import Final, Self

from holdfast.errors import HoldfastError
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.exclusive_creation import require_exclusive_creation
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.register.fenced_register import GENESIS, FencedRegister, Lease, RegisterRecord
from holdfast.storage.register.version_directory import VersionDirectory

_log = get_logger(__name__)
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
