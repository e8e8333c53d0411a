"""Bugs in the register, in pointers and documents. `bugs` has them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.checkpoint import instruction_executor as completion
from holdfast.checkpoint import storage as location
from holdfast.checkpoint.completed_checkpoint import RegisterCheckpointIDCounter, pointer_for
from holdfast.checkpoint.metadata import encode
from holdfast.errors import ConflictError, PossibleInconsistentStateError, StorageError
from holdfast.runtime import restore
from holdfast.storage import local, register
from holdfast.storage.register import FencedRegister, RegisterWriter
from holdfast.storage.versioned_document import FileDocument, VersionedDocument

Patch = tuple[Any, str, Any]


# The register


def token_not_checked() -> Iterator[Patch]:
    """A leader that lost its leadership uses the newest version of the register and continues to write."""
    yield RegisterWriter, "_require_own", lambda self, newest: None


def register_overwrites() -> Iterator[Patch]:
    """A new version of the register overwrites an existing one."""

    def create(self: Any, path: str, data: bytes, mode: int) -> None:
        temporary = f"{path}.tmp"
        with self._open_temporary(temporary, path, mode) as file:
            file.write(data)
            file.flush()
            local.os.fsync(file.fileno())
        local.os.rename(temporary, path)

    yield local.LocalFileSystem, "_create", create


def lost_answer_is_success() -> Iterator[Patch]:
    """A write of the register whose response was lost counts as done."""

    def try_replace(self: Any, base: Any, new: Any) -> Any:
        try:
            self._write_next(base, new)
        except PossibleInconsistentStateError:
            return None
        except ConflictError as error:
            return self.find_outcome(new, error)
        return None

    yield VersionedDocument, "try_replace", try_replace


def lost_answer_is_failure() -> Iterator[Patch]:
    """A write of the register whose response was lost counts as not done."""

    def try_replace(self: Any, base: Any, new: Any) -> Any:
        try:
            self._write_next(base, new)
        except PossibleInconsistentStateError as error:
            raise StorageError(str(error)) from error
        except ConflictError as error:
            return self.find_outcome(new, error)
        return None

    yield VersionedDocument, "try_replace", try_replace


def own_nonce_not_looked_for() -> Iterator[Patch]:
    """A rejected write counts as a write of another process, also if the own first try had succeeded."""

    yield VersionedDocument, "find_outcome", lambda self, new, error: self.read()


def request_on_its_way_forgotten() -> Iterator[Patch]:
    """If a write without a response has no effect yet, it counts as never taking effect."""

    def find_outcome(self: Any, new: Any, error: Any) -> Any:
        newest = self.read()
        return None if new.nonce in newest.history else newest

    yield VersionedDocument, "find_outcome", find_outcome


def read_before_token() -> Iterator[Patch]:
    """A leader reads the checkpoints in the register before it increments its token, not after."""
    real = FencedRegister.raise_token

    def raise_token(self: Any, owner: str) -> Any:
        before = self.document.read().state
        writer = real(self, owner)
        state = replace(writer._record.state, checkpoints=before.checkpoints)
        writer._record = replace(writer._record, state=state)
        return writer

    yield FencedRegister, "raise_token", raise_token


def token_not_raised() -> Iterator[Patch]:
    """A new leader continues with the token that it finds."""

    def raise_token(self: Any, owner: str) -> Any:
        base = self.document.read()
        raised = replace(base.state, token=max(1, base.state.token), owner=owner)
        record = base.successor(raised, register.new_nonce())
        if self._write(base, record) is not None:
            raise ConflictError("somebody was faster")
        return RegisterWriter(self, record)

    yield FencedRegister, "raise_token", raise_token


def holes_not_looked_for() -> Iterator[Patch]:
    """A version of the register that is written at the number of a deleted version is accepted."""
    yield FileDocument, "_is_real", lambda self, version: True


# Documents and pointers


def pointer_before_document() -> Iterator[Patch]:
    """The pointer is written before the document to which it points."""

    def write(pending: Any, metadata: Any, storage: Any, store: Any) -> Any:
        data = encode(metadata)
        place = pending.location
        checkpoint = completion.CompletedCheckpoint(
            metadata,
            place.get_external_pointer(),
            pointer_for(metadata, data, completion._pointer_path(place, storage)),
            properties=pending.properties,
            timestamp=pending.timestamp,
            fs=place.fs,
        )
        try:
            subsumed = None
            if not pending.properties.is_savepoint():
                subsumed = store.add_checkpoint_and_subsume_oldest_one(checkpoint)
            place.write_metadata(metadata)
        except Exception as error:
            raise completion.CompletionError(error, keep_files=True) from error
        return completion.WrittenCheckpoint(checkpoint, subsumed)

    from holdfast.checkpoint import instruction_executor

    yield instruction_executor, "write_checkpoint", write


def files_of_unknown_outcome_deleted() -> Iterator[Patch]:
    """If the outcome of a checkpoint is unknown, files that it may use are deleted."""
    real = completion.CompletionError.__init__

    def init(self: Any, cause: BaseException, *, keep_files: bool) -> None:
        real(self, cause, keep_files=False)

    yield completion.CompletionError, "__init__", init


def ids_not_reserved() -> Iterator[Patch]:
    """Checkpoint ids are used without being reserved."""

    def next_id(self: Any) -> int:
        self._next += 1
        return int(self._next - 1)

    yield RegisterCheckpointIDCounter, "get_and_increment", next_id
    yield RegisterCheckpointIDCounter, "reserve", lambda self, state: state


def oldest_is_restored() -> Iterator[Patch]:
    """A leader restores the oldest retained checkpoint."""
    real = restore.read_retained
    yield restore, "read_retained", lambda directory, state: real(directory, state)[::-1]


def newest_is_subsumed() -> Iterator[Patch]:
    """The write that adds a checkpoint removes the newest one."""
    write_of_register = RegisterWriter.write

    def write(self: Any, change: Any) -> Any:
        def changed(state: Any) -> Any:
            new = change(state)
            kept = new.checkpoints[:-1] if len(new.checkpoints) > 1 else new.checkpoints
            return replace(new, checkpoints=kept)

        return write_of_register(self, changed)

    yield RegisterWriter, "write", write


def document_written_in_place() -> Iterator[Patch]:
    """A document is written in place, so a reader may see a part of it."""

    def write(self: Any, metadata: Any) -> bytes:
        data = encode(metadata)
        self.fs.mkdirs(self.path)
        file = local.open(self.metadata_path, "xb")
        file.write(data)
        file.close()
        return data

    yield location.FileCheckpointLocation, "write_metadata", write
