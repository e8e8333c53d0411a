"""A small JSON document in a directory, local or shared, with compare-and-set.

`holdfast.storage.register.version_directory` says how it is safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.errors import ConflictError, CorruptFileError, PossibleInconsistentStateError
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.malformed import MALFORMED
from holdfast.storage.file_system.scheme import FileSystem
from holdfast.storage.handle.document import decode_document, encode_document
from holdfast.storage.register.version_directory import VersionDirectory
from holdfast.storage.register.written_version import WINDOW, look_back

_TRIM_NOTE: Final = b"Version 1 was deleted.\n"


@dataclass(frozen=True)
class FileVersion:
    """One version of a document.

    Attributes:
        number: Counts the versions from 1; 0 if nobody has written.
        body: The content, JSON.
        history: Nonces of this version and of up to 63 before it, newest first.
    """

    number: int
    body: Mapping[str, Any]
    history: tuple[str, ...] = field(repr=False)

    @property
    def nonce(self) -> str:
        """What tells this version from any other with the same number; empty if nobody has written."""
        return self.history[0] if self.history else ""


NEVER_WRITTEN: Final = FileVersion(0, {}, ())


class VersionedFile:
    """A document whose versions are files of one directory.

    Args:
        fs: The file system; it must be able to create exclusively.
        directory: The directory; the first write makes it.
        kind: The kind of document.
        format_version: The newest version of its form that this release reads, and the one it writes.
    """

    def __init__(self, fs: FileSystem, directory: str, kind: str, format_version: int) -> None:
        self.directory: Final = directory
        self._kind = kind
        self._format_version = format_version
        self._versions = VersionDirectory(
            fs, directory, f"The {kind}", NEVER_WRITTEN, self._encode, self._decode, _TRIM_NOTE
        )

    def load(self) -> FileVersion:
        """Read the newest version.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer release.
            StorageError: It cannot be read.
        """
        return self._versions.load()

    def swap(self, base: FileVersion, body: Mapping[str, Any]) -> FileVersion:
        """Write the next version if, and only if, the base is still the newest.

        Raises:
            ConflictError: Another version is there; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """
        new = FileVersion(base.number + 1, dict(body), (new_nonce(), *base.history[: WINDOW - 1]))
        try:
            self._versions.create(new)
            return new
        except (ConflictError, PossibleInconsistentStateError) as error:
            newest = look_back(new, self.load, error, f"in {self.directory!r}")
            if newest is None:
                return new
            if newest.number - new.number >= WINDOW:
                raise PossibleInconsistentStateError(
                    f"Whether version {new.number} in {self.directory!r} was written is no longer known: "
                    f"{newest.number - new.number} versions followed."
                ) from error
            raise ConflictError(
                f"Version {newest.number} in {self.directory!r} was written meanwhile, on another base than version "
                f"{base.number}; nothing was changed."
            ) from error

    def sweep(self) -> None:
        """Delete what nobody needs: versions behind the window, files in holes, temporary files of dead writers.

        A temporary file may belong to a writer that is alive; its write then fails without effect, and is tried again.
        """
        self._versions.sweep(self._versions.newest_number())

    def remove(self) -> None:
        """Delete all versions, newest first; only for a document that nobody writes any more."""
        self._versions.remove()

    def _encode(self, version: FileVersion) -> bytes:
        body = {"body": dict(version.body), "history": list(version.history)}
        return encode_document(self._kind, self._format_version, body)

    def _decode(self, data: bytes, path: str, number: int) -> FileVersion:
        document = decode_document(data, path, self._kind, self._format_version)
        try:
            history = tuple(str(nonce) for nonce in document["history"])
            body = document["body"]
            if not history or not isinstance(body, dict):
                raise ValueError("history or body is empty")
        except MALFORMED as error:
            raise CorruptFileError(path, None, f"a field is missing or wrong: {error!r}.") from error
        return FileVersion(number, body, history)

    def __repr__(self) -> str:
        return f"VersionedFile({self.directory!r})"
