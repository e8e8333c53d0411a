"""What the fenced register of a job holds, and its form in bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from holdfast.errors import CorruptFileError
from holdfast.kernel.malformed import MALFORMED
from holdfast.storage.handle.document import decode_document, encode_document
from holdfast.storage.register.written_version import WINDOW

KIND: Final = "register"
FORMAT_VERSION: Final = 2
_WITHOUT_INCARNATIONS: Final = 1
"""The version in which a register is written that no job has used yet; older releases read it."""
MOST_INCARNATIONS: Final = 64
_COUNTERS: Final = ("version", "token", "next_checkpoint_id", "notified")
_MOST: Final = 2**62
"""No counter comes that far, and names of files have place for it."""
_MOST_READ: Final = 2**61
"""Nor does one that is read: whoever goes on counting from there is not to come upon the other limit."""


@dataclass(frozen=True, slots=True)
class CheckpointPointer:
    """Where a completed checkpoint is, and what its document must be.

    Attributes:
        checkpoint_id: The checkpoint.
        path: Its document, relative to the job directory, or absolute if it is elsewhere (a restored savepoint).
        length: Size of the document in bytes.
        digest: SHA-256 of the document in hexadecimal.
        token: Token of the leader that completed it.
        is_savepoint: Whether it belongs to the user: its files are never deleted by the job.
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
    """One version of a register.

    Attributes:
        version: Counts the writes, from 1; 0 is a register that nobody has written.
        token: The highest token that was raised; only its owner can write.
        next_checkpoint_id: The lowest checkpoint id that nobody has reserved.
        checkpoints: The retained completed checkpoints; the last one is what a recovery starts from.
        terminal: The job's terminal status, once it has one.
        notified: The newest checkpoint of which all sinks are known to have been told.
        owner: Who raised the token, for messages.
        incarnations: The newest incarnations that the job has had in this directory, the current one last.
        request: The start that the current one was made for, until a process that was started so ends by itself.
    """

    version: int = 0
    token: int = 0
    next_checkpoint_id: int = 1
    checkpoints: tuple[CheckpointPointer, ...] = ()
    terminal: str | None = None
    notified: int = 0
    owner: str = ""
    incarnations: tuple[str, ...] = ()
    request: str = ""

    def __post_init__(self) -> None:
        for name, value in self.counters().items():
            _require(type(value) is int and 0 <= value <= _MOST, name, value)
        _require(self.next_checkpoint_id >= 1, "next_checkpoint_id", self.next_checkpoint_id)
        _require(self.terminal is None or type(self.terminal) is str, "terminal", self.terminal)
        _require(type(self.owner) is str, "owner", self.owner)
        _require(all(type(name) is str for name in self.incarnations), "incarnations", self.incarnations)
        _require(type(self.request) is str, "request", self.request)
        paths = [pointer.path for pointer in self.checkpoints]
        _require(len(set(paths)) == len(paths), "checkpoints (one path twice)", paths)
        for pointer in self.checkpoints:
            _require(pointer.checkpoint_id < self.next_checkpoint_id, "checkpoint_id (never reserved)", pointer)

    def counters(self) -> dict[str, int]:
        """What only rises, by name."""
        return {name: getattr(self, name) for name in _COUNTERS}

    @property
    def newest(self) -> CheckpointPointer | None:
        """The checkpoint that a recovery starts from, None if there is none."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def incarnation(self) -> str | None:
        """The current incarnation of the job, None if there is none."""
        return self.incarnations[-1] if self.incarnations else None

    def begun(self, incarnation: str, request: str) -> RegisterState:
        """Return the state in which an incarnation is the current one, and a start is remembered."""
        others = tuple(name for name in self.incarnations if name != incarnation)
        known = self.incarnations if incarnation == self.incarnation else (*others, incarnation)
        return replace(self, incarnations=known[-MOST_INCARNATIONS:], request=request)


@dataclass(frozen=True, slots=True)
class RegisterRecord:
    """A version together with who wrote it and the versions before it.

    Attributes:
        state: The version.
        history: Nonces of the writes, newest first, of this version and up to 63 before it.
        raised: Up to 64 tokens, newest first, each with the version that raised it.
    """

    state: RegisterState
    history: tuple[str, ...]
    raised: tuple[tuple[int, int], ...] = ()

    @property
    def number(self) -> int:
        """The version."""
        return self.state.version

    @property
    def nonce(self) -> str:
        """The nonce of the write that made this version; empty if nobody has written."""
        return self.history[0] if self.history else ""

    def successor(self, state: RegisterState, nonce: str) -> RegisterRecord:
        """Return the record of the next version with a new state."""
        numbered = replace(state, version=self.state.version + 1)
        raised = self.raised
        if state.token != self.state.token:
            raised = ((state.token, numbered.version), *raised[: WINDOW - 1])
        return RegisterRecord(numbered, (nonce, *self.history[: WINDOW - 1]), raised)

    def has_recorded(self, older: RegisterRecord) -> bool | None:
        """Tell whether a write of a lease is among the versions before this one; None if it is no longer known.

        The nonces tell it for the last 64 versions. Before that, every version between the raising of the writer's
        token and that of the next one is the writer's own.
        """
        if older.nonce in self.history:
            return True
        if self.state.version - older.state.version < WINDOW:
            return False
        next_raised = dict(self.raised).get(older.state.token + 1)
        return None if next_raised is None else older.state.version < next_raised

    def encode(self) -> bytes:
        """Return the record as a document."""
        body: dict[str, Any] = asdict(self.state)
        body["history"] = self.history
        body["raised"] = self.raised
        if self.state.incarnations or self.state.request:
            return encode_document(KIND, FORMAT_VERSION, body)
        del body["incarnations"], body["request"]
        return encode_document(KIND, _WITHOUT_INCARNATIONS, body)

    @classmethod
    def decode(cls, data: bytes, path: str) -> Self:
        """Read a record.

        Args:
            data: The document.
            path: Where it was, for errors.

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
            state = RegisterState(**body, checkpoints=pointers, incarnations=tuple(incarnations))
            for name, value in state.counters().items():
                _require(value <= _MOST_READ, name, value)
            return cls(state, history, raised)
        except MALFORMED as error:
            raise CorruptFileError(path, None, f"a field of the register is missing or wrong: {error}.") from error


def _require(holds: bool, field: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{field} of a register cannot be {value!r:.200}")


GENESIS: Final = RegisterRecord(RegisterState(), ())
