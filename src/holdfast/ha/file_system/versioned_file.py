"""A small document in a directory, local or shared, with compare-and-set: each version is created exclusively.

Two writers cannot both create version n. But files of old versions are deleted, so a writer that slept could create
version n in the hole that the real one left. Who reads or writes therefore asks for proof, as the file register of
``holdfast.storage`` does. Versions are deleted in ascending order only, so::

    version n-1 exists, with the nonce that version n names   =>   the real n-1 was never deleted
                                                              =>   no n was ever deleted, this one is the first: real

Version 1 has none before it; a file ``trimmed``, made before the first deletion, says that it may be gone. A version
names the nonces of the last 64, by which a writer finds out what became of its own write.

No lock of the operating system is used, because those bind one host only, and no clock.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    CorruptFileError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel.ids import new_nonce
from holdfast.storage.document import decode_document, encode_document
from holdfast.storage.file_system import FileSystem, join

_log = logging.getLogger(__name__)
_VERSION: Final = re.compile(r"v-([0-9]{20})")
_TRIMMED: Final = "trimmed"
_WINDOW: Final = 64
_LOAD_ATTEMPTS: Final = 100


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
        self._fs = fs
        self.directory: Final = directory
        self._kind = kind
        self._format_version = format_version

    def load(self) -> FileVersion:
        """Read the newest version.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer release.
            StorageError: It cannot be read.
        """
        for _ in range(_LOAD_ATTEMPTS):
            newest = max(self._numbers(), default=0)
            if newest == 0 and not self._is_trimmed():
                return NEVER_WRITTEN
            with suppress(NotExistError):
                version = self._read(newest)
                if not self._fs.exists(self._path(newest + 1)) and self._is_real(version):
                    return version
        raise StorageError(
            f"The versions in {self.directory!r} could not be read in {_LOAD_ATTEMPTS} attempts: the newest has none "
            "before it, or others write faster than it can be read. If files were deleted or copied by hand, bring "
            "them back."
        )

    def swap(self, base: FileVersion, body: Mapping[str, Any]) -> FileVersion:
        """Write the next version if, and only if, the base is still the newest.

        Raises:
            ConflictError: Another version is there; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """
        new = FileVersion(base.number + 1, dict(body), (new_nonce(), *base.history[: _WINDOW - 1]))
        try:
            self._create(new)
        except (ConflictError, PossibleInconsistentStateError) as error:
            self._look_back(base, new, error)
        return new

    def sweep(self) -> None:
        """Delete what nobody needs: versions behind the window, files in holes, temporary files of dead writers.

        A temporary file may belong to a writer that is alive; its write then fails without effect, and is tried again.
        """
        newest = max(self._numbers(), default=0)
        self._trim(newest - _WINDOW)
        for name in sorted(self._fs.list_names(self.directory)):
            match = _VERSION.fullmatch(name)
            if name.endswith(".tmp") or (match is not None and int(match[1]) <= newest - _WINDOW):
                self._fs.delete(join(self.directory, name))

    def remove(self) -> None:
        """Delete all versions, newest first; only for a document that nobody writes any more."""
        for name in sorted(self._fs.list_names(self.directory), reverse=True):
            self._fs.delete(join(self.directory, name))
        self._fs.delete_directory(self.directory)

    def _create(self, new: FileVersion) -> None:
        path = self._path(new.number)
        document = encode_document(
            self._kind, self._format_version, {"body": dict(new.body), "history": list(new.history)}
        )
        try:
            self._fs.create_exclusive(path, document)
        except AlreadyExistError as error:
            raise ConflictError(f"{path!r} exists already.") from error
        except NotExistError as error:
            raise ConflictError(f"{path!r} was not created: somebody has removed its temporary file.") from error
        try:
            is_real = self._is_real(new)
        except HoldfastError as error:
            raise PossibleInconsistentStateError(f"{path!r} was created, but not checked: {error}") from error
        if not is_real:
            self._withdraw(path)
            raise ConflictError(f"{path!r} was created long after others had gone on.")
        try:
            self._trim(new.number - _WINDOW)
        except HoldfastError as error:  # the version is written; the next write tries again
            _log.warning("Could not delete old versions in %r: %s", self.directory, error)

    def _withdraw(self, path: str) -> None:
        """Delete a version that was created in a hole, or behind the window: nobody needs it.

        Where the document was removed meanwhile, as by ``remove``, it would look like the newest version for ever.
        """
        try:
            self._fs.delete(path)
        except HoldfastError as error:
            _log.warning("Could not delete %r, which nobody needs: %s", path, error)

    def _look_back(self, base: FileVersion, new: FileVersion, error: HoldfastError) -> None:
        """Find out what became of a write; returns if it was recorded."""
        try:
            newest = self.load()
        except HoldfastError as second:
            raise PossibleInconsistentStateError(
                f"It is not known whether version {new.number} in {self.directory!r} was written ({error}), and it "
                f"could not be read back ({second})."
            ) from error
        if new.nonce in newest.history:
            return
        later = newest.number - new.number
        if later < 0 and not isinstance(error, ConflictError):
            raise PossibleInconsistentStateError(
                f"It is not known whether version {new.number} in {self.directory!r} is still going to be written "
                f"({error})."
            ) from error
        if later >= _WINDOW:
            raise PossibleInconsistentStateError(
                f"Whether version {new.number} in {self.directory!r} was written is no longer known: {later} versions "
                "followed."
            ) from error
        raise ConflictError(
            f"Version {newest.number} in {self.directory!r} was written meanwhile, on another base than version "
            f"{base.number}; nothing was changed."
        ) from error

    def _is_real(self, version: FileVersion) -> bool:
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
                self._fs.create_exclusive(join(self.directory, _TRIMMED), b"Version 1 was deleted.\n")
        for number in range(first, last + 1):
            self._fs.delete(self._path(number))

    def _numbers(self) -> list[int]:
        return [int(match[1]) for match in map(_VERSION.fullmatch, self._fs.list_names(self.directory)) if match]

    def _is_trimmed(self) -> bool:
        return self._fs.exists(join(self.directory, _TRIMMED))

    def _path(self, number: int) -> str:
        return join(self.directory, f"v-{number:020d}")

    def _read(self, number: int) -> FileVersion:
        path = self._path(number)
        document = decode_document(self._fs.read(path), path, self._kind, self._format_version)
        try:
            history = tuple(str(nonce) for nonce in document["history"])
            body = document["body"]
            if not history or not isinstance(body, dict):
                raise ValueError("history or body is empty")
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(path, None, f"a field is missing or wrong: {error!r}.") from error
        return FileVersion(number, body, history)

    def __repr__(self) -> str:
        return f"VersionedFile({self.directory!r})"
