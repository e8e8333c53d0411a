"""Completed checkpoints and savepoints: the counter of their ids, their store, and reading them.

The store is in memory or in the job's register. Documents are read by the register's pointers or by path; runs are
opened in tasks. A damaged checkpoint is never skipped silently: the error names the file and proposes another one,
which the operator may choose with `execution.state-recovery.path` (`-s PATH`).
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata, decode
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.errors import CorruptFileError, FormatVersionError, HoldfastError, NotExistError, StateError
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, absolute, base_name, join, parent
from holdfast.storage.job_directory import METADATA_NAME, JobDirectory, resolve_pointer
from holdfast.storage.register import CheckpointPointer, RegisterState, RegisterWriter
from holdfast.storage.scheme import file_system_for
from holdfast.storage.state_handle import StateObject

logger = get_logger(__name__)

C = TypeVar("C")


class CompletedCheckpoint(StateObject):
    """A completed checkpoint or savepoint, taken or restored.

    Attributes:
        metadata: Its document.
        path: Its directory, absolute; a restore takes this path.
        pointer: Its entry in the register.
        properties: Kind of the snapshot and when it is deleted.
        timestamp: Time of the trigger, in milliseconds since 1970; 0 for a restored one.
    """

    def __init__(
        self,
        metadata: CheckpointMetadata,
        path: str,
        pointer: CheckpointPointer,
        *,
        properties: CheckpointProperties | None = None,
        timestamp: int = 0,
        fs: FileSystem | None = None,
    ) -> None:
        self.metadata = metadata
        self.path = path
        self.pointer = pointer
        self.properties = properties or CheckpointProperties.from_json(metadata.properties)
        self.timestamp = timestamp
        self._fs = fs
        self.is_discarded = False

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id

    def get_checkpoint_id(self) -> int:
        """Return the id."""
        return self.metadata.checkpoint_id

    def get_job_id(self) -> str:
        """Return the job's 32 hexadecimal digits."""
        return self.metadata.job_id

    def get_timestamp(self) -> int:
        """Return the time of the trigger, in milliseconds since 1970; 0 for a restored one."""
        return self.timestamp

    def get_completion_timestamp(self) -> int:
        """Return the time of completion, in milliseconds since 1970."""
        return self.metadata.completed_at

    def get_duration(self) -> int:
        """Return the milliseconds from trigger to completion; 0 for a restored one."""
        return self.metadata.completed_at - self.timestamp if self.timestamp else 0

    def get_external_pointer(self) -> str:
        """Return the directory from which it can be restored."""
        return self.path

    def get_operator_states(self) -> Mapping[str, OperatorMetadata]:
        """Return the state of each operator, by uid."""
        return {operator.uid: operator for operator in self.metadata.operators}

    def get_properties(self) -> CheckpointProperties:
        """Return the kind of snapshot and when it is deleted."""
        return self.properties

    def get_state_size(self) -> int:
        """Return the size of its state in bytes."""
        return self.metadata.state_size

    def get_metadata_size(self) -> int:
        """Return the size of its document in bytes."""
        return self.pointer.length

    def should_be_discarded_on_subsume(self) -> bool:
        """Return whether its files are deleted when newer checkpoints replace it."""
        return self.properties.discard_on_subsumed()

    def should_be_discarded_on_shutdown(self, job_status: str) -> bool:
        """Return whether its files are deleted when the job ends with a status, such as ``"FINISHED"``."""
        return self.properties.discard_on(job_status)

    def discard_state(self) -> None:
        """Delete its own directory. Run files may be shared with other checkpoints; the sweep deletes them.

        Raises:
            StorageError: A file could not be deleted.
        """
        self.is_discarded = True
        if self._fs is None:
            return
        for status in self._fs.list(self.path):
            if not status.is_directory:
                self._fs.delete_in(self.path, status.name)
        self._fs.delete_directory(self.path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompletedCheckpoint):
            return NotImplemented
        return (self.metadata, self.path, self.properties) == (other.metadata, other.path, other.properties)

    def __hash__(self) -> int:
        return hash((self.metadata.checkpoint_id, self.path))

    def __repr__(self) -> str:
        return f"CompletedCheckpoint({self.checkpoint_id}, epoch {self.metadata.epoch}, {self.path!r})"


def pointer_for(metadata: CheckpointMetadata, data: bytes, path: str) -> CheckpointPointer:
    """Return the pointer to a document.

    Args:
        metadata: Its content.
        data: Its bytes.
        path: Its path, relative to the job directory if it is in there.
    """
    return CheckpointPointer(
        checkpoint_id=metadata.checkpoint_id,
        path=path,
        length=len(data),
        digest=hashlib.sha256(data).hexdigest(),
        token=metadata.token,
        is_savepoint=metadata.is_savepoint,
    )


def directory_of(metadata_path: str) -> str:
    """Return the directory of a document, which is the external pointer of its checkpoint."""
    return parent(metadata_path) if base_name(metadata_path) == METADATA_NAME else metadata_path


class CheckpointIDCounter(ABC):
    """Counter of checkpoint ids: from 1, ascending, none is used twice. Safe to use from several threads."""

    INITIAL_CHECKPOINT_ID: Final = 1

    @abstractmethod
    def start(self) -> None:
        """Prepare the counter."""

    @abstractmethod
    def shutdown(self, job_status: str) -> None:
        """Release the counter. Its value is kept: ids stay unique after the end of the job."""

    @abstractmethod
    def get_and_increment(self) -> int:
        """Return a new id. May block for a write.

        Raises:
            FencedError: Another leader took over.
            StorageError: The id could not be reserved.
        """

    @abstractmethod
    def get(self) -> int:
        """Return the next id."""

    @abstractmethod
    def set_count(self, new_id: int) -> None:
        """Set the next id.

        Raises:
            ValueError: It is below the next id, so ids would be used twice.
        """

    def get_last(self) -> int:
        """Return the last id that was used; 0 if none was."""
        return self.get() - 1


class StandaloneCheckpointIDCounter(CheckpointIDCounter):
    """Counter in memory, for jobs that need not survive this process."""

    def __init__(self) -> None:
        self._next = self.INITIAL_CHECKPOINT_ID
        self._lock = threading.Lock()

    def start(self) -> None:
        """Do nothing."""

    def shutdown(self, job_status: str) -> None:
        """Do nothing."""

    def get_and_increment(self) -> int:
        """Return the next id."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def get(self) -> int:
        """Return the next id."""
        return self._next

    def set_count(self, new_id: int) -> None:
        """Set the next id."""
        with self._lock:
            if new_id < self._next:
                raise ValueError(f"Checkpoint ids from {new_id} on are used already; the next is {self._next}.")
            self._next = new_id


class RegisterCheckpointIDCounter(CheckpointIDCounter):
    """Counter that reserves ids in blocks in the job's register.

    Unused ids of a block are lost, so gaps between ids are normal. Usually a block needs no write of its own: the write
    of a pointer reserves ids along with it, through `reserve`.

    Args:
        writer: The leader's writer.
        block: Number of ids that are reserved at once.
    """

    def __init__(self, writer: RegisterWriter, block: int = 10) -> None:
        self._writer = writer
        self._block = block
        self._lock = threading.Lock()
        self._next = writer.state.next_checkpoint_id
        self._limit = self._next

    def start(self) -> None:
        """Do nothing: the register exists."""

    def shutdown(self, job_status: str) -> None:
        """Do nothing: the register keeps the reserved ids."""

    def get_and_increment(self) -> int:
        """Return the next id; writes the register if the block is used up."""
        with self._lock:
            if self._next >= self._limit:
                self._reserve_now(self._next)
            self._next += 1
            return self._next - 1

    def get(self) -> int:
        """Return the next id."""
        return self._next

    def set_count(self, new_id: int) -> None:
        """Set the next id, and reserve a block from there."""
        with self._lock:
            if new_id < self._next:
                raise ValueError(f"Checkpoint ids from {new_id} on are used already; the next is {self._next}.")
            if new_id + 1 > self._limit:
                self._reserve_now(new_id)
            self._next = new_id

    def reserve(self, state: RegisterState) -> RegisterState:
        """Return a state of the register in which further ids are reserved.

        Call `reserved` after it was written.
        """
        if self._limit - self._next > self._block // 2:
            return state
        return replace(state, next_checkpoint_id=max(state.next_checkpoint_id, self._next + self._block))

    def reserved(self, state: RegisterState) -> None:
        """Use the ids that a written state of the register reserves."""
        with self._lock:
            self._limit = max(self._limit, state.next_checkpoint_id)

    def _reserve_now(self, first: int) -> None:
        state = self._writer.write(
            lambda old: replace(old, next_checkpoint_id=max(old.next_checkpoint_id, first + self._block))
        )
        self._limit = state.next_checkpoint_id


def subsume(
    checkpoints: Sequence[C],
    retained: int,
    is_savepoint: Callable[[C], bool],
    is_synchronous: Callable[[C], bool] = lambda checkpoint: False,
) -> tuple[list[C], list[C]]:
    """Split the checkpoints of a store into those to keep and those to remove.

    The oldest are removed while there are too many. Never removed are the newest one, and the newest one that is not a
    savepoint, because a recovery needs it, unless the newest is the savepoint with which the job stops. A savepoint may
    be removed: its files stay.

    Args:
        checkpoints: Oldest first.
        retained: Number of checkpoints to keep, at least 1.
        is_savepoint: Whether one belongs to the user.
        is_synchronous: Whether one is the savepoint with which the job stops.

    Returns:
        Those to keep and those to remove, each oldest first.
    """
    if retained < 1:
        raise ValueError(f"At least one checkpoint must be retained, not {retained!r}.")
    if not checkpoints:
        return [], []
    newest = checkpoints[-1]
    needed = next((checkpoint for checkpoint in reversed(checkpoints) if not is_savepoint(checkpoint)), None)
    stay, go = list(checkpoints), []
    for checkpoint in checkpoints[:-1]:
        if len(stay) <= retained:
            break
        if is_savepoint(checkpoint) or is_synchronous(newest) or checkpoint is not needed:
            stay.remove(checkpoint)
            go.append(checkpoint)
    return stay, go


class CompletedCheckpointStore(ABC):
    """Store of the newest completed checkpoints of a job.

    Args:
        max_retained: Number of checkpoints to keep, at least 1.

    Raises:
        ValueError: The number is below 1.
    """

    def __init__(self, max_retained: int) -> None:
        if max_retained < 1:
            raise ValueError(f"At least one checkpoint must be retained, not {max_retained!r}.")
        self._max_retained = max_retained
        self._checkpoints: list[CompletedCheckpoint] = []
        self._is_shut_down = False

    def add_checkpoint_and_subsume_oldest_one(self, checkpoint: CompletedCheckpoint) -> CompletedCheckpoint | None:
        """Add a checkpoint durably as the newest one, and remove those that it replaces. Blocks.

        Returns:
            The newest of the removed ones; None if none was removed.

        Raises:
            StateError: The store was shut down.
            FencedError: Another leader took over; nothing changed.
            PossibleInconsistentStateError: It is not known whether the checkpoint was added; nothing was discarded.
            StorageError: It could not be added; nothing changed.
        """
        if self._is_shut_down:
            raise StateError("The checkpoint store has already been shut down.")
        others = [other for other in self._checkpoints if other.path != checkpoint.path]
        stay, go = subsume(
            [*others, checkpoint],
            self._max_retained,
            lambda other: other.properties.is_savepoint(),
            lambda other: other.properties.is_synchronous(),
        )
        self._record(checkpoint, stay)
        self._checkpoints = stay
        for subsumed in go:
            if subsumed.should_be_discarded_on_subsume():
                self._try_discard(subsumed)
        return go[-1] if go else None

    def mark_committed(self, checkpoint_id: int) -> None:  # noqa: B027 - only what others recover from has to know
        """Note that all sinks have committed a checkpoint; recorded with the next one."""

    @abstractmethod
    def _record(self, checkpoint: CompletedCheckpoint, stay: list[CompletedCheckpoint]) -> None:
        """Make the retained checkpoints durable, the new one last."""

    @abstractmethod
    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Arrange the deletion of the files that no other checkpoint needs."""

    @abstractmethod
    def requires_externalized_checkpoints(self) -> bool:
        """Return whether checkpoints need a document outside of this process."""

    @abstractmethod
    def shutdown(self, job_status: str) -> None:
        """Close the store; whether checkpoints are deleted depends on the job's status."""

    def get_latest_checkpoint(self) -> CompletedCheckpoint | None:
        """Return the checkpoint that a recovery starts from; None if there is none."""
        return self._checkpoints[-1] if self._checkpoints else None

    def get_latest_checkpoint_id(self) -> int:
        """Return the id of the newest checkpoint, 0 if there is none."""
        return self._checkpoints[-1].checkpoint_id if self._checkpoints else 0

    def get_all_checkpoints(self) -> list[CompletedCheckpoint]:
        """Return the retained checkpoints, the newest last."""
        return list(self._checkpoints)

    def get_number_of_retained_checkpoints(self) -> int:
        """Return the number of retained checkpoints."""
        return len(self._checkpoints)

    def get_max_number_of_retained_checkpoints(self) -> int:
        """Return the number of checkpoints to keep."""
        return self._max_retained

    def _try_discard(self, checkpoint: CompletedCheckpoint) -> None:
        try:
            self._discard(checkpoint)
        except HoldfastError as error:
            logger.warning("Could not discard checkpoint %d; a later sweep will: %s", checkpoint.checkpoint_id, error)


class StandaloneCompletedCheckpointStore(CompletedCheckpointStore):
    """Store in the memory of this process; another process does not find its checkpoints.

    Args:
        max_retained: Number of checkpoints to keep.
        discard: Deletes the files of a checkpoint; None to delete its own directory.
    """

    def __init__(self, max_retained: int = 1, discard: Callable[[CompletedCheckpoint], None] | None = None) -> None:
        super().__init__(max_retained)
        self._discard_checkpoint = discard or CompletedCheckpoint.discard_state

    def _record(self, checkpoint: CompletedCheckpoint, stay: list[CompletedCheckpoint]) -> None:
        """Do nothing."""

    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        self._discard_checkpoint(checkpoint)

    def requires_externalized_checkpoints(self) -> bool:
        """Return False."""
        return False

    def shutdown(self, job_status: str) -> None:
        """Forget all checkpoints and discard those that the job's status deletes."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for checkpoint in self._checkpoints:
            if checkpoint.should_be_discarded_on_shutdown(job_status):
                self._try_discard(checkpoint)
        self._checkpoints = []


class RegisterCompletedCheckpointStore(CompletedCheckpointStore):
    """Store of pointers in the job's fenced register; one write adds a checkpoint and removes others.

    It deletes no files: the sweep deletes them when no pointer names them and the grace period is over
    (`holdfast.checkpoint.retention`).

    Args:
        writer: The leader's writer.
        max_retained: Number of checkpoints to keep.
        recovered: The checkpoints that the register names, in its order, as `read_retained` reads them.
        counter: The id counter on the same register; it reserves ids along with the pointers.
    """

    TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})

    def __init__(
        self,
        writer: RegisterWriter,
        max_retained: int,
        recovered: list[CompletedCheckpoint] | None = None,
        counter: RegisterCheckpointIDCounter | None = None,
    ) -> None:
        super().__init__(max_retained)
        self._writer = writer
        self._checkpoints = list(recovered or [])
        self._counter = counter
        self._newest_committed = writer.state.newest_committed

    def mark_committed(self, checkpoint_id: int) -> None:
        """Note that all sinks have committed a checkpoint; written with the next pointer."""
        self._newest_committed = max(self._newest_committed, checkpoint_id)

    def _record(self, checkpoint: CompletedCheckpoint, stay: list[CompletedCheckpoint]) -> None:
        kept = {other.pointer.path for other in stay}

        def change(state: RegisterState) -> RegisterState:
            pointers = [
                pointer
                for pointer in state.checkpoints
                if pointer.path in kept and pointer.path != checkpoint.pointer.path
            ]
            added = replace(
                state,
                checkpoints=(*pointers, _pointer(checkpoint)),
                next_checkpoint_id=max(state.next_checkpoint_id, checkpoint.checkpoint_id + 1),
                newest_committed=max(state.newest_committed, self._newest_committed),
            )
            return added if self._counter is None else self._counter.reserve(added)

        written = self._writer.write(change)
        if self._counter is not None:
            self._counter.reserved(written)

    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        checkpoint.is_discarded = True

    def requires_externalized_checkpoints(self) -> bool:
        """Return True."""
        return True

    def shutdown(self, job_status: str) -> None:
        """Forget the checkpoints; for a terminal status also remove those from the register that the status deletes.

        The same write records the status. Any other status changes nothing in the register.

        Raises:
            FencedError: Another leader took over; nothing changed.
        """
        if self._is_shut_down:
            return
        self._is_shut_down = True
        if job_status in self.TERMINAL:
            kept = {
                other.pointer.path
                for other in self._checkpoints
                if not other.should_be_discarded_on_shutdown(job_status)
            }
            self._writer.write(
                lambda state: replace(
                    state,
                    checkpoints=tuple(pointer for pointer in state.checkpoints if pointer.path in kept),
                    newest_committed=max(state.newest_committed, self._newest_committed),
                    terminal=job_status,
                )
            )
            for checkpoint in self._checkpoints:
                checkpoint.is_discarded = checkpoint.pointer.path not in kept
        self._checkpoints = []


def _pointer(checkpoint: CompletedCheckpoint) -> CheckpointPointer:
    return replace(checkpoint.pointer, is_savepoint=checkpoint.properties.is_savepoint())


def read_newest(directory: JobDirectory, state: RegisterState) -> CompletedCheckpoint | None:
    """Return the checkpoint that a recovery starts from; None if none has completed.

    Args:
        directory: The job's directory.
        state: The job's register, read after the token was raised.

    Raises:
        CorruptFileError: Its document is damaged or gone; the message proposes the one before.
        FormatVersionError: It was written by a newer version.
    """
    return read_by_pointer(directory, state, state.newest) if state.newest is not None else None


def read_by_pointer(directory: JobDirectory, state: RegisterState, pointer: CheckpointPointer) -> CompletedCheckpoint:
    """Read a checkpoint that the register names, and compare it with its pointer.

    Raises:
        CorruptFileError: Its document is damaged or gone; the message proposes the one before.
        FormatVersionError: It was written by a newer version.
    """
    path = directory.absolute(pointer.path)
    try:
        data = directory.fs.read(path, 0, pointer.length + 1)
        if len(data) != pointer.length or hashlib.sha256(data).hexdigest() != pointer.digest:
            raise CorruptFileError(
                path, None, f"it differs from the document of {pointer.length} bytes that was completed."
            )
        metadata = decode(data, path)
    except (CorruptFileError, NotExistError) as error:
        damage = f"checkpoint {pointer.checkpoint_id} cannot be restored. {error} "
        raise CorruptFileError(path, None, damage + _proposal(directory, state, pointer)) from error
    return CompletedCheckpoint(metadata, directory_of(path), pointer, fs=directory.fs)


def read_retained(directory: JobDirectory, state: RegisterState) -> list[CompletedCheckpoint]:
    """Read all checkpoints that the register names, oldest first.

    Raises:
        CorruptFileError: One is damaged or missing.
    """
    return [read_by_pointer(directory, state, pointer) for pointer in state.checkpoints]


def try_read_retained(
    directory: JobDirectory, state: RegisterState
) -> list[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]]:
    """Read all checkpoints that the register names; for each its content or the error."""
    found: list[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]] = []
    for pointer in state.checkpoints:
        try:
            found.append((pointer, read_by_pointer(directory, state, pointer)))
        except HoldfastError as error:
            found.append((pointer, error))
    return found


def read_by_path(path: str) -> CompletedCheckpoint:
    """Read the checkpoint or savepoint at a path or URI.

    Args:
        path: Its directory, with or without a slash at the end, or its `_metadata` file.

    Raises:
        ConfigurationError: The path is empty.
        NotExistError: There is no checkpoint.
        CorruptFileError: Its document is damaged.
        FormatVersionError: It was written by a newer version.
    """
    if path is None:
        raise TypeError("The path of a checkpoint cannot be None.")
    fs = file_system_for(path.strip())
    directory = resolve_pointer(fs, absolute(path.strip()))
    document = join(directory, METADATA_NAME)
    data = fs.read(document)
    metadata = decode(data, document)
    return CompletedCheckpoint(metadata, directory, pointer_for(metadata, data, document), fs=fs)


def root_of(checkpoint: CompletedCheckpoint) -> str:
    """Return the directory to which the paths in the document are relative."""
    return checkpoint.path if checkpoint.metadata.is_savepoint else parent(checkpoint.path)


def is_in(checkpoint: CompletedCheckpoint, directory: JobDirectory) -> bool:
    """Return whether a checkpoint is in a job's directory, also if the paths differ by a link or a scheme."""
    root = root_of(checkpoint)
    return file_system_for(root).resolved(root).rstrip("/") == directory.fs.resolved(directory.path).rstrip("/")


def _proposal(directory: JobDirectory, state: RegisterState, damaged: CheckpointPointer) -> str:
    """Describe which other checkpoint can be restored: the newest undamaged one."""
    position = state.checkpoints.index(damaged)
    for pointer in reversed(state.checkpoints):
        path = directory.absolute(pointer.path)
        if pointer == damaged or not _is_whole(directory, path, pointer):
            continue
        is_older = state.checkpoints.index(pointer) < position
        which = "The one before it" if is_older else "The newest one"
        return (
            f"{which}, checkpoint {pointer.checkpoint_id}, is whole: start with -s {directory_of(path)} "
            f"(execution.state-recovery.path) to go {'back to it' if is_older else 'on from it'}; what came after it "
            "is processed again."
        )
    return (
        "No other checkpoint of the job is whole. Bring the file back from a copy, start from a savepoint with "
        "-s PATH, or start without state with --fresh."
    )


def _is_whole(directory: JobDirectory, path: str, pointer: CheckpointPointer) -> bool:
    try:
        data = directory.fs.read(path, 0, pointer.length + 1)
        decode(data, path)
    except (CorruptFileError, NotExistError, FormatVersionError):
        return False
    return hashlib.sha256(data).hexdigest() == pointer.digest
