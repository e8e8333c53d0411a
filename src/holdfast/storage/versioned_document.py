"""A versioned document: read it, replace it if it is still the version that was read, watch it.

This is the only compare-and-set of Holdfast. `FileDocument` keeps a document in a directory of any file system or
object store, `MemoryDocument` in a process; ZooKeeper and Kubernetes have theirs in `holdfast.ha`.

Each write carries a random nonce, and each version the nonces of the last 64 writes. After a refusal or a lost answer
the writer reads the document back and looks for its own nonce, so that it can tell its own lost answer from the write
of another process. Nothing depends on clocks.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    CorruptFileError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, base_name, join
from holdfast.storage.local import final_name
from holdfast.storage.state_handle import decode_document, encode_document

logger = get_logger(__name__)

WINDOW: Final = 64
"""How many versions back a writer can find out for certain whether its write was recorded."""
B = TypeVar("B")
_VERSION: Final = re.compile(r"v-([0-9]{20})")
_TRIMMED: Final = "trimmed"
_READ_ATTEMPTS: Final = 100


class WrittenVersion(Protocol):
    """One version of a document.

    Attributes:
        number: Counts the writes from 1; 0 if it was never written.
        history: The nonces of this version and of up to 63 before it, newest first.
        nonce: The nonce of this version; empty if it was never written.
    """

    @property
    def number(self) -> int: ...

    @property
    def history(self) -> tuple[str, ...]: ...

    @property
    def nonce(self) -> str: ...


V = TypeVar("V", bound=WrittenVersion)


@dataclass(frozen=True)
class DocumentFormat(Generic[V]):
    """How the versions of a document are written.

    Attributes:
        name: The kind of document, for messages: ``"register"``.
        never_written: The content before the first version.
        encode: Returns a version as bytes.
        decode: Reads a version from its bytes, the place they were read from (for errors), and the number of the
            version. The number is 0 in stores that do not count; a document whose bytes do not have the number can
            only be kept in files or in memory.
    """

    name: str
    never_written: V
    encode: Callable[[V], bytes]
    decode: Callable[[bytes, str, int], V]


class VersionedDocument(ABC, Generic[V]):
    """A document in which each version replaces the one before it.

    Safe to use from several threads, processes and hosts, as far as its store is shared. All methods block.

    Stores implement `read` and `_write_next`. The outcome of a write that was refused or got no answer is found out
    here, once for all of them.

    Args:
        document_format: How versions are written.
    """

    def __init__(self, document_format: DocumentFormat[V]) -> None:
        self.format: Final = document_format

    @abstractmethod
    def read(self) -> V:
        """Return the newest version; every write that ended before is seen.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: A newer release has written it.
            StorageError: It cannot be read.
        """

    def replace(self, base: V, new: V) -> None:
        """Write the next version if, and only if, the base is still the newest; durably.

        Args:
            base: The version that was read.
            new: Its successor: one number higher, with a new nonce.

        Raises:
            ConflictError: Another version was written meanwhile; nothing happened.
            PossibleInconsistentStateError: It is not known whether the version was written.
            StorageError: It was not written.
        """
        newest = self.try_replace(base, new)
        if newest is None:
            return
        if newest.number - new.number >= WINDOW:
            raise PossibleInconsistentStateError(
                f"It is not known any more whether version {new.number} of {self} was written: "
                f"{newest.number - new.number} versions followed."
            )
        raise ConflictError(
            f"Version {newest.number} of {self} was written meanwhile; nothing was changed. Read it again."
        )

    def try_replace(self, base: V, new: V) -> V | None:
        """Do what `replace` does, and return the newest version on a conflict.

        Returns:
            None if the version was written. Otherwise the newest version, which does not have the new one in its
            history; if it is 64 versions ahead or more, the new one may have been written all the same.

        Raises:
            PossibleInconsistentStateError, StorageError: As for `replace`.
            DocumentRemovedError: The document was removed; nothing happened.
        """
        try:
            self._write_next(base, new)
            return None
        except DocumentRemovedError:
            raise
        except (ConflictError, PossibleInconsistentStateError, fault.AnswerLostError) as error:
            return self.find_outcome(new, error)

    def find_outcome(self, new: V, error: HoldfastError) -> V | None:
        """Find out whether a write was recorded that was refused, or got no answer.

        Args:
            new: The version that was to be written.
            error: The error of the write.

        Returns:
            None if it was recorded; otherwise the newest version.

        Raises:
            PossibleInconsistentStateError: It cannot be found out.
        """
        try:
            newest = self.read()
        except HoldfastError as second:
            raise PossibleInconsistentStateError(
                f"It is not known whether version {new.number} of {self} was written ({error}), and the document could "
                f"not be read ({second}). Nothing is deleted."
            ) from error
        if new.nonce in newest.history:
            self.make_durable(new)
            return None
        if newest.number < new.number and not isinstance(error, ConflictError):
            # The request may still be on its way.
            raise PossibleInconsistentStateError(
                f"It is not known whether version {new.number} of {self} will still be written ({error}). Nothing is "
                "deleted."
            ) from error
        return newest

    def watch(
        self,
        on_version: Callable[[V], None],
        period: float,
        *,
        on_error: Callable[[HoldfastError], None],
        clock: Clock | None = None,
    ) -> DocumentWatch[V]:
        """Follow the document in a thread of its own, by reading it again and again.

        Args:
            on_version: Gets the newest version that was read, at once and then every period, whether it changed or not
                (so that a follower can also react to a version that nobody replaces). Must not raise.
            period: Seconds between two reads.
            on_error: Gets damage and newer formats, which end the watch. A read that the storage refuses is logged and
                repeated.
            clock: Sleeps between two reads.

        Returns:
            What ends the watch.
        """
        return DocumentWatch(self, on_version, on_error, period, clock or SystemClock())

    @abstractmethod
    def _write_next(self, base: V, new: V) -> None:
        """Write the next version if, and only if, its base is the newest; durably. Tried once.

        Raises:
            ConflictError: Another version is there; or this one, by an answer that got lost.
            DocumentRemovedError: The document that had the base was removed, and perhaps made anew; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """

    def make_durable(self, found: V) -> None:
        """Make sure that a version which was read survives a power failure.

        Raises:
            PossibleInconsistentStateError: It may not survive.
        """

    def __str__(self) -> str:
        return f"the {self.format.name}"


class DocumentRemovedError(ConflictError):
    """The document was removed since the base of a write was read; nothing happened."""


class RemovableDocument(VersionedDocument[V]):
    """A document that can be removed as conditionally as it is replaced; one in files is deleted with its directory."""

    @abstractmethod
    def remove(self, base: V) -> None:
        """Remove the document if, and only if, this is its newest version; fine if there is none.

        Raises:
            ConflictError: Another version is there; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """


class DocumentWatch(Generic[V]):
    """Reads a document every period until it is closed; see `VersionedDocument.watch`."""

    def __init__(
        self,
        document: VersionedDocument[V],
        on_version: Callable[[V], None],
        on_error: Callable[[HoldfastError], None],
        period: float,
        clock: Clock,
    ) -> None:
        self._document = document
        self._on_version = on_version
        self._on_error = on_error
        self._period = period
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"watch-{document.format.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch; waits for a callback that is running."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _follow(self) -> None:
        newest = self._document.format.never_written
        while not self._stop.is_set():
            try:
                newest = self._document.read()
            except (StorageError, NotExistError) as error:
                logger.warning("Could not read %s: %s", self._document, error)
            except HoldfastError as error:
                self._on_error(error)
                return
            self._on_version(newest)
            self._clock.sleep(self._period, self._stop)


@dataclass(frozen=True)
class BodyVersion(Generic[B]):
    """One version of a document with a body; the number is not in its bytes.

    Attributes:
        number: Counts the versions from 1; 0 if it was never written.
        body: The content.
        history: Nonces of this version and of up to 63 before it, newest first.
    """

    number: int
    body: B
    history: tuple[str, ...] = ()

    @property
    def nonce(self) -> str:
        return self.history[0] if self.history else ""

    def successor(self, body: B) -> BodyVersion[B]:
        """Return the next version, with a nonce of its own."""
        return BodyVersion(self.number + 1, body, (new_nonce(), *self.history[: WINDOW - 1]))


def body_format(
    kind: str,
    format_version: int,
    empty: B,
    to_json: Callable[[B], Mapping[str, Any]],
    from_json: Callable[[Mapping[str, Any]], B],
) -> DocumentFormat[BodyVersion[B]]:
    """Return the format of a JSON document with a checksum, for files and memory.

    Args:
        kind: The kind of document.
        format_version: The version of its form that is written, and the newest that is read.
        empty: The body before the first version.
        to_json: Returns a body as JSON.
        from_json: Reads a body; raises any of `PARSE_ERRORS` if it is not one.
    """

    def encode(version: BodyVersion[B]) -> bytes:
        body = {"body": dict(to_json(version.body)), "history": list(version.history)}
        return encode_document(kind, format_version, body)

    def decode(data: bytes, where: str, number: int) -> BodyVersion[B]:
        document = decode_document(data, where, kind, format_version)
        try:
            history = tuple(str(nonce) for nonce in document["history"])
            if not history or not isinstance(document["body"], dict):
                raise ValueError("history or body is empty")
            return BodyVersion(number, from_json(document["body"]), history)
        except PARSE_ERRORS as error:
            raise CorruptFileError(where, None, f"a field is missing or wrong: {error!r}.") from error

    return DocumentFormat(kind, BodyVersion(0, empty), encode, decode)


class MemoryDocument(RemovableDocument[V]):
    """A document that lives as long as the object; those who share the object share the document."""

    def __init__(self, document_format: DocumentFormat[V]) -> None:
        super().__init__(document_format)
        self._newest = document_format.never_written
        self._lock = threading.Lock()

    def read(self) -> V:
        return self._newest

    def remove(self, base: V) -> None:
        self._exchange(base, self.format.never_written)

    def _write_next(self, base: V, new: V) -> None:
        self._exchange(base, new)

    def _exchange(self, base: V, new: V) -> None:
        with self._lock:
            if self._newest.nonce != base.nonce:
                raise ConflictError(f"Version {self._newest.number} of {self} is there already.")
            self._newest = new


class FileDocument(VersionedDocument[V]):
    """A document in a directory, local, shared or of an object store; each version is a file, created exclusively.

    Two writers cannot both create version n. But files of old versions are deleted, so a writer that slept could create
    version n in the hole that the real one left. Readers and writers therefore ask for proof. Versions are deleted in
    ascending order only, so::

        version n-1 exists, with the nonce that version n names  =>  the real n-1 was never deleted
                                                                 =>  no n was ever deleted, this one is the first: real

    Version 1 has none before it; a file ``trimmed``, made before the first deletion, says that it may be gone. Without
    the proof a reader lists again, and a writer looks for its nonce in the newest version. A file in a hole is never
    the newest one and is removed by `sweep`.

    No lock of the operating system is used, because those bind one host only.

    Args:
        fs: The file system; it must be able to create files exclusively.
        directory: The directory; the first write makes it.
        document_format: How versions are written.
        trim_note: The content of the file ``trimmed``, for people.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        document_format: DocumentFormat[V],
        trim_note: bytes = b"Version 1 was deleted.\n",
    ) -> None:
        super().__init__(document_format)
        self.fs: Final = fs
        self.directory: Final = directory
        self._trim_note = trim_note
        self._trimmed_through = 0

    def read(self) -> V:
        for _ in range(_READ_ATTEMPTS):
            newest = self._newest_number()
            if newest == 0 and not self._is_trimmed():
                return self.format.never_written
            with suppress(NotExistError):
                version = self._read_version(newest)
                if not self.fs.has_file(self._path(newest + 1)) and self._is_real(version):
                    return version
        raise StorageError(
            f"Could not read {self} in {_READ_ATTEMPTS} attempts: its newest version has no version before it, or "
            "others write faster than it can be read. If files were deleted or copied by hand, bring them back."
        )

    def make_durable(self, found: V) -> None:
        path = self._path(found.number)
        try:
            self.fs.make_durable(path)
        except NotExistError:
            pass  # deleted, because others have gone on from it: their versions are durable
        except HoldfastError as error:
            raise PossibleInconsistentStateError(f"{path!r} was written, but may not survive: {error}") from error

    def sweep(self, unfinished_through: int | None = None) -> None:
        """Delete superfluous files: versions behind the window, files in holes, files that were never finished.

        A temporary file may belong to a writer that is alive; its write then fails without effect.

        Args:
            unfinished_through: Up to which version temporary files are deleted, and versions before the window of it;
                all of them, and those before the window of the newest, if None.
        """
        newest = self._newest_number() if unfinished_through is None else unfinished_through
        self._trim(newest - WINDOW)
        for name in sorted(self.fs.list_names(self.directory)):
            finished = final_name(name)
            match = _VERSION.fullmatch(finished or name)
            if finished is not None and unfinished_through is None:
                is_stale = True
            else:
                last = newest - WINDOW if finished is None else unfinished_through
                is_stale = match is not None and last is not None and int(match[1]) <= last
            if is_stale:
                self.fs.delete_in(self.directory, name)

    def delete_all(self) -> None:
        """Delete all versions, newest first; only for a document without writers."""
        self._trimmed_through = 0
        for name in sorted(self.fs.list_names(self.directory), reverse=True):
            self.fs.delete_in(self.directory, name)
        self.fs.delete_directory(self.directory)

    def _write_next(self, base: V, new: V) -> None:
        path = self._path(new.number)
        try:
            self.fs.create_exclusive(path, self.format.encode(new))
        except AlreadyExistError as error:
            raise ConflictError(f"{path!r} exists already.") from error
        except NotExistError as error:
            # `sweep` of another process has removed the temporary file meanwhile.
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
            logger.warning("Could not delete old versions in %r: %s", self.directory, error)

    def _withdraw(self, path: str) -> None:
        """Delete a version that was just created in a hole, or behind the window.

        Where the whole document was removed meanwhile it would look like the newest version for ever.
        """
        try:
            self.fs.delete_in(self.directory, base_name(path))
        except HoldfastError as error:
            logger.warning("Could not delete the superfluous version %r: %s", path, error)

    def _is_real(self, version: V) -> bool:
        if version.number == 1:
            return not self._is_trimmed()
        try:
            return self._read_version(version.number - 1).nonce == version.history[1]
        except NotExistError:
            return False

    def _trim(self, last: int) -> None:
        """Delete versions up to one, in ascending order; a writer that died may have left some before it."""
        if last < 1:
            return
        first = last
        while first > self._trimmed_through + 1 and self.fs.has_file(self._path(first - 1)):
            first -= 1
        if first == 1:
            with suppress(AlreadyExistError):
                self.fs.create_exclusive(join(self.directory, _TRIMMED), self._trim_note)
        for number in range(first, last + 1):
            self.fs.delete_in(self.directory, base_name(self._path(number)))
        self._trimmed_through = max(self._trimmed_through, last)

    def _newest_number(self) -> int:
        matches = map(_VERSION.fullmatch, self.fs.list_names(self.directory))
        return max((int(match[1]) for match in matches if match), default=0)

    def _is_trimmed(self) -> bool:
        return self.fs.has_file(join(self.directory, _TRIMMED))

    def _path(self, number: int) -> str:
        return join(self.directory, f"v-{number:020d}")

    def _read_version(self, number: int) -> V:
        path = self._path(number)
        return self.format.decode(self.fs.read(path), path, number)

    def __str__(self) -> str:
        return f"the {self.format.name} in {self.directory!r}"
