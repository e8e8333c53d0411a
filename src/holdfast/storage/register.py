"""The fenced register of a job: the one place that decides which leader may write and which checkpoints exist.

Each job has one register, a versioned document with the token, the pointers of completed checkpoints, the next
checkpoint id and the terminal status. A job attempt first raises the token, then reads; each later write is conditional
on the version before it::

    register.raise_token("driver 1")            version 7, token 3   (fences every leader with a token below 3)
        |
        v
      RegisterWriter 3 --write(change)--> version 8 --write(change)--> version 9 ...
        |
        +-- another leader raised the token:  FencedError                      the writer ends; nothing happened
        +-- a version came in between:        ConflictError                    nothing happened; the writer goes on
        +-- the outcome is unknown:           PossibleInconsistentStateError   the writer ends; raise the token again

Nothing depends on clocks, or on a leader knowing that it was deposed. `holdfast.storage.versioned_document` says how a
writer finds out what happened to its write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from holdfast.errors import ConflictError, CorruptFileError, FencedError, HoldfastError, PossibleInconsistentStateError
from holdfast.kernel import fault
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, translate
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import require_exclusive_creation
from holdfast.storage.state_handle import decode_document, encode_document
from holdfast.storage.versioned_document import (
    WINDOW,
    DocumentFormat,
    DocumentRemovedError,
    FileDocument,
    MemoryDocument,
    RemovableDocument,
    VersionedDocument,
)

logger = get_logger(__name__)

KIND: Final = "register"
FORMAT_VERSION: Final = 2
_WITHOUT_INCARNATIONS: Final = 1
"""The format of a register that no job has used yet; older releases read it."""
MOST_INCARNATIONS: Final = 64
_COUNTERS: Final = ("version", "token", "next_checkpoint_id", "newest_committed")
_NAMES_IN_JSON: Final = {"newest_committed": "notified", "requested_start": "request"}
"""Fields of the state with another name in the document, which older releases read."""
_MOST: Final = 2**62
"""No counter gets that high, and it fits into names of files."""
_MOST_READ: Final = 2**61
"""The limit of a counter that is read is lower, so that counting on from it does not exceed the other limit."""
_ATTEMPTS: Final = 100
_TRIM_NOTE: Final = b"Version 1 of the register was deleted.\n"


@dataclass(frozen=True, slots=True)
class CheckpointPointer:
    """Where a completed checkpoint is, and what its document must be.

    Attributes:
        checkpoint_id: The checkpoint.
        path: Its document, relative to the job directory, or absolute if it is elsewhere (a restored savepoint).
        length: Size of the document in bytes.
        digest: SHA-256 of the document in hexadecimal.
        token: Token of the leader that completed it.
        is_savepoint: Whether it belongs to the user: the job never deletes its files.
    """

    checkpoint_id: int
    path: str
    length: int
    digest: str
    token: int
    is_savepoint: bool = False

    def __post_init__(self) -> None:
        _require(type(self.checkpoint_id) is int and self.checkpoint_id >= 1, "checkpoint_id", self.checkpoint_id)
        _require(type(self.path) is str and bool(self.path), "path", self.path)
        _require(type(self.length) is int and self.length >= 0, "length", self.length)
        _require(type(self.digest) is str, "digest", self.digest)
        _require(type(self.token) is int and self.token >= 0, "token", self.token)
        _require(type(self.is_savepoint) is bool, "is_savepoint", self.is_savepoint)


@dataclass(frozen=True, slots=True)
class RegisterState:
    """The content of one version of a register.

    Attributes:
        version: Counts the writes, from 1; 0 is a register that was never written.
        token: The highest token that was raised; only its owner can write.
        next_checkpoint_id: The lowest checkpoint id that is not reserved.
        checkpoints: The retained completed checkpoints; a recovery starts from the last one.
        terminal: The job's terminal status, once it has one.
        newest_committed: The newest checkpoint whose output all sinks are known to have committed; it may lag behind.
        owner: The leader that raised the token, for messages.
        incarnations: The newest incarnations that the job has had in this directory, the current one last.
        requested_start: The start for which the current incarnation was made, until a process that was started so ends
            by itself.
    """

    version: int = 0
    token: int = 0
    next_checkpoint_id: int = 1
    checkpoints: tuple[CheckpointPointer, ...] = ()
    terminal: str | None = None
    newest_committed: int = 0
    owner: str = ""
    incarnations: tuple[str, ...] = ()
    requested_start: str = ""

    def __post_init__(self) -> None:
        for name, value in self.counters().items():
            _require(type(value) is int and 0 <= value <= _MOST, name, value)
        _require(self.next_checkpoint_id >= 1, "next_checkpoint_id", self.next_checkpoint_id)
        _require(self.terminal is None or type(self.terminal) is str, "terminal", self.terminal)
        _require(type(self.owner) is str, "owner", self.owner)
        _require(all(type(name) is str for name in self.incarnations), "incarnations", self.incarnations)
        _require(type(self.requested_start) is str, "request", self.requested_start)
        paths = [pointer.path for pointer in self.checkpoints]
        _require(len(set(paths)) == len(paths), "checkpoints (one path twice)", paths)
        for pointer in self.checkpoints:
            _require(pointer.checkpoint_id < self.next_checkpoint_id, "checkpoint_id (never reserved)", pointer)

    def counters(self) -> dict[str, int]:
        """Return the fields that only increase, by their name in the document."""
        return {_NAMES_IN_JSON.get(name, name): getattr(self, name) for name in _COUNTERS}

    @property
    def newest(self) -> CheckpointPointer | None:
        """The checkpoint that a recovery starts from, None if there is none."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def incarnation(self) -> str | None:
        """The current incarnation of the job, None if there is none."""
        return self.incarnations[-1] if self.incarnations else None

    def with_incarnation(self, incarnation: str, requested_start: str) -> RegisterState:
        """Return the state with a current incarnation and the start that it was made for."""
        others = tuple(name for name in self.incarnations if name != incarnation)
        known = self.incarnations if incarnation == self.incarnation else (*others, incarnation)
        return replace(self, incarnations=known[-MOST_INCARNATIONS:], requested_start=requested_start)


@dataclass(frozen=True, slots=True)
class RegisterRecord:
    """A version of the register, with the writes before it.

    Attributes:
        state: The content.
        history: Nonces of this version and of up to 63 before it, newest first.
        raised: Up to 64 tokens, newest first, each with the version that raised it.
    """

    state: RegisterState
    history: tuple[str, ...]
    raised: tuple[tuple[int, int], ...] = ()

    @property
    def number(self) -> int:
        return self.state.version

    @property
    def nonce(self) -> str:
        return self.history[0] if self.history else ""

    def successor(self, state: RegisterState, nonce: str) -> RegisterRecord:
        numbered = replace(state, version=self.state.version + 1)
        raised = self.raised
        if state.token != self.state.token:
            raised = ((state.token, numbered.version), *raised[: WINDOW - 1])
        return RegisterRecord(numbered, (nonce, *self.history[: WINDOW - 1]), raised)

    def has_recorded(self, older: RegisterRecord) -> bool | None:
        """Return whether a writer's write is among the versions before this one; None if that is no longer known.

        For the last 64 versions the nonces say it. Before that, every version between the raising of the writer's token
        and that of the next one is the writer's own.
        """
        if older.nonce in self.history:
            return True
        if self.state.version - older.state.version < WINDOW:
            return False
        next_raised = dict(self.raised).get(older.state.token + 1)
        return None if next_raised is None else older.state.version < next_raised

    def encode(self) -> bytes:
        body: dict[str, Any] = {_NAMES_IN_JSON.get(name, name): value for name, value in asdict(self.state).items()}
        body["history"] = self.history
        body["raised"] = self.raised
        if self.state.incarnations or self.state.requested_start:
            return encode_document(KIND, FORMAT_VERSION, body)
        del body["incarnations"], body["request"]
        return encode_document(KIND, _WITHOUT_INCARNATIONS, body)

    @classmethod
    def decode(cls, data: bytes, path: str) -> Self:
        """Read a record.

        Args:
            data: The document.
            path: The file or entry, for errors.

        Raises:
            CorruptFileError: It is not a whole, unchanged record.
            FormatVersionError: It was written by a newer version.
        """
        body = decode_document(data, path, KIND, FORMAT_VERSION)
        try:
            for name in ("history", "raised", "checkpoints"):
                _require(type(body[name]) is list, name, body[name])
            history = tuple(body.pop("history"))
            _require(all(type(nonce) is str for nonce in history), "history", history)
            raised = tuple((token, version) for token, version in body.pop("raised"))
            _require(all(type(number) is int for pair in raised for number in pair), "raised", raised)
            pointers = tuple(CheckpointPointer(**pointer) for pointer in body.pop("checkpoints"))
            incarnations = body.pop("incarnations", [])
            _require(type(incarnations) is list, "incarnations", incarnations)
            for name, in_json in _NAMES_IN_JSON.items():
                if in_json in body:
                    body[name] = body.pop(in_json)
            state = RegisterState(**body, checkpoints=pointers, incarnations=tuple(incarnations))
            for name, value in state.counters().items():
                _require(value <= _MOST_READ, name, value)
            return cls(state, history, raised)
        except PARSE_ERRORS as error:
            raise CorruptFileError(path, None, f"a field of the register is missing or wrong: {error}.") from error


def _require(holds: bool, field: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{field} of a register cannot be {value!r:.200}")


GENESIS: Final = RegisterRecord(RegisterState(), ())


REGISTER_FORMAT: Final = DocumentFormat(
    KIND, GENESIS, RegisterRecord.encode, lambda data, where, number: RegisterRecord.decode(data, where)
)


class FencedRegister:
    """A job's register. Safe to use from several threads, processes and hosts, as far as its store is shared.

    Args:
        document: Where it is kept.
    """

    document: VersionedDocument[RegisterRecord]

    def __init__(self, document: VersionedDocument[RegisterRecord]) -> None:
        self.document = document

    def read(self) -> RegisterState:
        """Return the newest version. Blocks.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: A newer release has written it.
            StorageError: It cannot be read.
        """
        return self.document.read().state

    def raise_token(self, owner: str) -> RegisterWriter:
        """Fence every leader so far, and return the right to write. Blocks.

        Args:
            owner: The new leader, for messages, such as host and process.

        Raises:
            ConflictError: Others raised the token again and again, without an end.
            PossibleInconsistentStateError: The storage failed, and it is not known whether the token was raised.
        """
        for _ in range(_ATTEMPTS):
            base = self.document.read()
            if base.number:
                # Its writer may have died before it was durable, and no version may follow one that a power failure
                # can take.
                self.document.make_durable(base)
            raised = replace(base.state, token=base.state.token + 1, owner=owner)
            record = base.successor(raised, new_nonce())
            with suppress(FencedError):  # removed in between, by the clean-up of the job before
                if self._write(base, record) is None:
                    return RegisterWriter(self, record)
        raise ConflictError(
            f"{owner!r} could not raise the token in {_ATTEMPTS} attempts, because others kept writing. "
            "Two leaders are fighting over this job: stop one of them."
        )

    def _write(self, base: RegisterRecord, new: RegisterRecord) -> RegisterRecord | None:
        """Write a version; returns None if it was recorded, otherwise the newest version (see `try_replace`)."""
        try:
            return self._require_ahead(base, self.document.try_replace(base, new))
        except DocumentRemovedError as error:
            raise FencedError(str(error)) from error

    def _find_outcome(self, base: RegisterRecord, new: RegisterRecord, error: HoldfastError) -> RegisterRecord | None:
        return self._require_ahead(base, self.document.find_outcome(new, error))

    def _require_ahead(self, base: RegisterRecord, newest: RegisterRecord | None) -> RegisterRecord | None:
        if newest is not None and newest.number < base.number:
            raise FencedError(
                f"The register went back from version {base.number} to {newest.number}: it was removed or replaced. "
                "This leader stops and changes nothing."
            )
        return newest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.document})"


class RemovableRegister(FencedRegister):
    """A register that can be removed when its job is over; one of files goes with the directory of its job instead.

    A removal needs no leadership because it is conditional like a write: versions that were written before it stay, and
    a leader that writes after it with a writer of an older token is fenced.
    """

    document: RemovableDocument[RegisterRecord]

    def __init__(self, document: RemovableDocument[RegisterRecord]) -> None:
        super().__init__(document)

    def remove(self) -> bool:
        """Remove the register, unless it names checkpoints; may be repeated. Blocks.

        Returns:
            False if nothing was removed: it names checkpoints, or another leader has raised the token meanwhile.

        Raises:
            ConflictError: Others wrote again and again, without an end; nothing was removed.
            PossibleInconsistentStateError: It is not known whether it was removed.
            StorageError, CorruptFileError: It cannot be read, or not be removed.
        """
        token = self.read().token
        for _ in range(_ATTEMPTS):
            base = self.document.read()
            if base.state.checkpoints or base.state.token > token:
                return False
            with suppress(ConflictError):
                self.document.remove(base)
                return True
        raise ConflictError(f"{self!r} was not removed in {_ATTEMPTS} attempts, because others kept writing.")


class FileRegister(FencedRegister):
    """A register in a directory that several processes may share.

    Args:
        fs: The file system; it must be able to create files exclusively.
        directory: The directory; the first write makes it.
    """

    document: FileDocument[RegisterRecord]

    def __init__(self, fs: FileSystem, directory: str) -> None:
        super().__init__(FileDocument(fs, directory, REGISTER_FORMAT, _TRIM_NOTE))

    @classmethod
    def of(cls, directory: JobDirectory) -> Self:
        """Return the register in a job's directory."""
        return cls(directory.fs, directory.register_dir)

    def raise_token(self, owner: str) -> RegisterWriter:
        """Fence every leader so far, and remove what deposed leaders left in the directory."""
        writer = super().raise_token(owner)
        try:
            # A temporary file for a version up to the own one is of a writer that died or is fenced; later ones may be
            # of a leader with a higher token, whose files this one must not delete.
            self.document.sweep(unfinished_through=writer.state.version)
        except HoldfastError as error:  # the token is raised; the next leader tries again
            logger.warning("Could not clean up %s: %s", self.document, error)
        return writer

    def require_exclusive_creation(self) -> None:
        """Make sure that the directory can be written and keeps two writers apart.

        Raises:
            StorageError: It cannot, or does not.
        """
        require_exclusive_creation(self.document.fs, self.document.directory)


class EmbeddedRegister(RemovableRegister):
    """A register that lives as long as the object; several leaders of one process share the object."""

    def __init__(self) -> None:
        super().__init__(MemoryDocument(REGISTER_FORMAT))


class RegisterWriter:
    """The right to write a register under one token, until another leader raises a higher one.

    Safe to use from several threads: writes queue up.

    Attributes:
        token: The token.
        owner: The leader that raised it.
    """

    def __init__(self, register: FencedRegister, record: RegisterRecord) -> None:
        self._register = register
        self._record = record
        self._lock = threading.Lock()
        self._ended: HoldfastError | None = None
        self.token: Final = record.state.token
        self.owner: Final = record.state.owner

    @property
    def state(self) -> RegisterState:
        """The version that this writer wrote or read last."""
        return self._record.state

    @property
    def has_ended(self) -> bool:
        """Whether a write was fenced or its outcome is unknown; from then on its owner deletes nothing."""
        return self._ended is not None

    def write(self, change: Callable[[RegisterState], RegisterState]) -> RegisterState:
        """Write the next version. Blocks.

        Args:
            change: Gets the newest version and returns the next one; version, token and owner are set for it. If it
                returns the same version, nothing is written.

        Returns:
            The version that was written.

        Raises:
            FencedError: A higher token was raised; this and every later write does nothing.
            ConflictError: Another version came in between; nothing happened, and the next write sees it.
            PossibleInconsistentStateError: It is not known whether it was written; every later write raises this as
                well.
            StorageError: It could not be written; nothing happened.
            ValueError: The change does not return a valid version.
        """
        with self._lock:
            self._require_not_ended()
            base = self._record
            changed = change(base.state)
            if changed == base.state:
                return changed
            record = base.successor(self._checked(base.state, changed), new_nonce())
            try:
                newest = self._write_record(base, record)
            except (FencedError, PossibleInconsistentStateError) as error:
                self._ended = error
                raise
            if newest is None or self._has_recorded(newest, record):
                self._record = record
                return record.state
            self._require_own(newest)
            self._record = newest
            raise ConflictError(
                f"Version {newest.state.version} of the register was written meanwhile; nothing was changed. Try again."
            )

    def check(self) -> RegisterState:
        """Read the newest version and make sure that no higher token was raised. Blocks.

        Raises:
            FencedError: A higher token was raised.
        """
        with self._lock:
            self._require_not_ended()
            newest = self._register.document.read()
            self._require_own(newest)
            self._record = newest
            return newest.state

    def _write_record(self, base: RegisterRecord, record: RegisterRecord) -> RegisterRecord | None:
        if record.state.checkpoints == base.state.checkpoints:
            return self._register._write(base, record)
        has_ended = False
        try:
            with fault.point("pointer.write"):
                newest = self._register._write(base, record)
                has_ended = True
            return newest
        except fault.AnswerLostError as error:
            return self._register._find_outcome(base, record, error)
        except (fault.FaultInjectedError, OSError) as error:
            if has_ended:
                raise PossibleInconsistentStateError(f"A fault struck after the write: {error}") from error
            if isinstance(error, OSError):
                raise translate(error, "write", "the register") from error
            raise

    def _has_recorded(self, newest: RegisterRecord, record: RegisterRecord) -> bool:
        found = newest.has_recorded(record)
        if found is None:
            self._ended = PossibleInconsistentStateError(
                f"Whether version {record.state.version} of the register was written is no longer known: it is at "
                f"version {newest.state.version}, written by {newest.state.owner!r}. Nothing is deleted."
            )
            raise self._ended
        return found

    def _checked(self, old: RegisterState, new: RegisterState) -> RegisterState:
        if new.next_checkpoint_id < old.next_checkpoint_id or new.newest_committed < old.newest_committed:
            raise ValueError(f"A register never goes back: {old!r} cannot become {new!r}.")
        return replace(new, token=self.token, owner=self.owner)

    def _require_not_ended(self) -> None:
        if isinstance(self._ended, FencedError):
            raise FencedError(f"Leader {self.owner!r} with token {self.token} was fenced before: {self._ended}")
        if self._ended is not None:
            raise PossibleInconsistentStateError(
                f"The outcome of an earlier write of {self.owner!r} is unknown; raise the token again: {self._ended}"
            )

    def _require_own(self, newest: RegisterRecord) -> None:
        state = newest.state
        ahead = state.version - self._record.state.version
        # A register that was removed and begun anew counts tokens from 1 again: two leaders may have the same token.
        is_another = ahead < 0 or (ahead < WINDOW and self._record.nonce not in newest.history)
        if state.token != self.token or is_another:
            begun_anew = " in a register that was removed and begun anew" if is_another else ""
            self._ended = FencedError(
                f"Leader {self.owner!r} with token {self.token} is fenced: {state.owner!r} leads with token "
                f"{state.token}{begun_anew}. This process stops; it has changed and deletes nothing."
            )
            raise self._ended

    def __repr__(self) -> str:
        return f"RegisterWriter(token={self.token}, owner={self.owner!r}, version={self._record.state.version})"
