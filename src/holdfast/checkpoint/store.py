"""The retained checkpoints, and the counter of ids."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.errors import HoldfastError, StateError
from holdfast.kernel.secret import get_logger
from holdfast.storage.register import CheckpointPointer, Lease, RegisterState

# Ids of checkpoints: from 1, ascending, and none is ever used twice.


class CheckpointIDCounter(ABC):
    """Hands out the ids of checkpoints. Safe to use from several threads."""

    INITIAL_CHECKPOINT_ID: Final = 1

    @abstractmethod
    def start(self) -> None:
        """Make the counter ready."""

    @abstractmethod
    def shutdown(self, job_status: str) -> None:
        """End the use of the counter. Its value is kept: ids must stay unique even after the job has ended."""

    @abstractmethod
    def get_and_increment(self) -> int:
        """Return an id that nobody had before.

        Raises:
            FencedError: Another leader hands them out now.
            StorageError: It could not be made sure that nobody else gets it.
        """

    @abstractmethod
    def get(self) -> int:
        """Return the id that comes next."""

    @abstractmethod
    def set_count(self, new_id: int) -> None:
        """Let the next id be this one, if it is ahead; going back would use ids twice and is refused.

        Raises:
            ValueError: Ids from there on were handed out already.
        """

    def get_last(self) -> int:
        """Return the last id that was handed out, 0 if none was."""
        return self.get() - 1


class StandaloneCheckpointIDCounter(CheckpointIDCounter):
    """Counts in memory; for jobs that need not survive this process."""

    def __init__(self) -> None:
        self._next = self.INITIAL_CHECKPOINT_ID
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing needs to be made ready."""

    def shutdown(self, job_status: str) -> None:
        """Nothing needs to be given up."""

    def get_and_increment(self) -> int:
        """Return the next id."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def get(self) -> int:
        """Return the id that comes next."""
        return self._next

    def set_count(self, new_id: int) -> None:
        """Let the next id be this one."""
        with self._lock:
            if new_id < self._next:
                raise ValueError(f"Checkpoint ids from {new_id} on were handed out already; the next is {self._next}.")
            self._next = new_id


class RegisterCheckpointIDCounter(CheckpointIDCounter):
    """Reserves ids in blocks in the job's register.

    A block that a leader reserved and did not use up is lost, so gaps between ids are normal. Usually no write is made
    for a block: whoever writes the register anyway passes the new state through `reserve`.

    Args:
        lease: The right to write the register.
        block: How many ids are reserved at once.
    """

    def __init__(self, lease: Lease, block: int = 10) -> None:
        self._lease = lease
        self._block = block
        self._lock = threading.Lock()
        self._next = lease.state.next_checkpoint_id
        self._limit = self._next

    def start(self) -> None:
        """Nothing needs to be made ready: the register is."""

    def shutdown(self, job_status: str) -> None:
        """Nothing is given up: the register keeps what was reserved."""

    def get_and_increment(self) -> int:
        """Return the next id; writes the register if the block is used up."""
        with self._lock:
            if self._next >= self._limit:
                self._reserve_now(self._next)
            self._next += 1
            return self._next - 1

    def get(self) -> int:
        """Return the id that comes next."""
        return self._next

    def set_count(self, new_id: int) -> None:
        """Let the next id be this one, and reserve a block from there."""
        with self._lock:
            if new_id < self._next:
                raise ValueError(f"Checkpoint ids from {new_id} on were handed out already; the next is {self._next}.")
            if new_id + 1 > self._limit:
                self._reserve_now(new_id)
            self._next = new_id

    def reserve(self, state: RegisterState) -> RegisterState:
        """Return a state of the register in which ids for the near future are reserved.

        Call `reserved` once it was written.
        """
        if self._limit - self._next > self._block // 2:
            return state
        return replace(state, next_checkpoint_id=max(state.next_checkpoint_id, self._next + self._block))

    def reserved(self, state: RegisterState) -> None:
        """Take note of a state that was written; everything below its next id is this leader's."""
        with self._lock:
            self._limit = max(self._limit, state.next_checkpoint_id)

    def _reserve_now(self, first: int) -> None:
        state = self._lease.write(
            lambda old: replace(old, next_checkpoint_id=max(old.next_checkpoint_id, first + self._block))
        )
        self._limit = state.next_checkpoint_id


# Which completed checkpoints a newer one replaces.

C = TypeVar("C")


def subsume(
    checkpoints: Sequence[C],
    retained: int,
    is_savepoint: Callable[[C], bool],
    is_synchronous: Callable[[C], bool] = lambda checkpoint: False,
) -> tuple[list[C], list[C]]:
    """Split the checkpoints of a store into those that stay and those that go.

    While there are too many, the oldest go; but never the newest one, and never the newest one that is not a savepoint,
    because the job could not recover without it, unless the newest is the savepoint with which the job stops. A
    savepoint may always go: forgetting it does not delete it.

    Args:
        checkpoints: Oldest first.
        retained: How many stay, at least 1.
        is_savepoint: Whether one belongs to the user.
        is_synchronous: Whether one is the savepoint with which a job stops.

    Returns:
        Those that stay and those that go, each oldest first.
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


# Stores of completed checkpoints: what a recovery finds.

_log = get_logger(__name__)
Discard = Callable[[CompletedCheckpoint], None]


class CompletedCheckpointStore(ABC):
    """Keeps the newest completed checkpoints of a job.

    Args:
        max_retained: How many are kept at least, 1 or more.
    """

    def __init__(self, max_retained: int) -> None:
        if max_retained < 1:
            raise ValueError(f"At least one checkpoint must be retained, not {max_retained!r}.")
        self._max_retained = max_retained
        self._checkpoints: list[CompletedCheckpoint] = []
        self._is_shut_down = False

    def add_checkpoint_and_subsume_oldest_one(self, checkpoint: CompletedCheckpoint) -> CompletedCheckpoint | None:
        """Make a checkpoint the newest one, durably, and let go of those it replaces.

        Returns:
            The newest of those that were let go, None if there was none.

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

    def mark_notified(self, checkpoint_id: int) -> None:  # noqa: B027 - only what others recover from has to know
        """Note that all sinks were told of a checkpoint; recorded along with the next one."""

    @abstractmethod
    def _record(self, checkpoint: CompletedCheckpoint, stay: list[CompletedCheckpoint]) -> None:
        """Make the retained checkpoints durable, the new one last."""

    @abstractmethod
    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        """See to it that the files of a checkpoint go that no other needs."""

    @abstractmethod
    def requires_externalized_checkpoints(self) -> bool:
        """Whether the store needs checkpoints to have a document outside of this process."""

    @abstractmethod
    def shutdown(self, job_status: str) -> None:
        """End the use of the store; what becomes of the checkpoints depends on how the job ended."""

    def get_latest_checkpoint(self) -> CompletedCheckpoint | None:
        """Return what a recovery starts from, None if there is nothing."""
        return self._checkpoints[-1] if self._checkpoints else None

    def get_latest_checkpoint_id(self) -> int:
        """Return the id of the newest checkpoint, 0 if there is none."""
        return self._checkpoints[-1].checkpoint_id if self._checkpoints else 0

    def get_all_checkpoints(self) -> list[CompletedCheckpoint]:
        """Return the retained checkpoints, the newest last."""
        return list(self._checkpoints)

    def get_number_of_retained_checkpoints(self) -> int:
        """Return how many there are."""
        return len(self._checkpoints)

    def get_max_number_of_retained_checkpoints(self) -> int:
        """Return how many are kept."""
        return self._max_retained

    def _try_discard(self, checkpoint: CompletedCheckpoint) -> None:
        try:
            self._discard(checkpoint)
        except HoldfastError as error:
            _log.warning("Could not discard checkpoint %d; a later sweep will: %s", checkpoint.checkpoint_id, error)


class StandaloneCompletedCheckpointStore(CompletedCheckpointStore):
    """Keeps checkpoints in the memory of this process; when it ends, nobody finds them by themselves.

    Args:
        max_retained: How many are kept.
        discard: Deletes the files of a checkpoint; by default its own directory.
    """

    def __init__(self, max_retained: int = 1, discard: Discard | None = None) -> None:
        super().__init__(max_retained)
        self._discard_checkpoint = discard or CompletedCheckpoint.discard_state

    def _record(self, checkpoint: CompletedCheckpoint, stay: list[CompletedCheckpoint]) -> None:
        """Memory needs nothing more."""

    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        self._discard_checkpoint(checkpoint)

    def requires_externalized_checkpoints(self) -> bool:
        """Nobody looks for the checkpoints elsewhere."""
        return False

    def shutdown(self, job_status: str) -> None:
        """Forget all checkpoints and discard those that are not to be kept after this ending."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for checkpoint in self._checkpoints:
            if checkpoint.should_be_discarded_on_shutdown(job_status):
                self._try_discard(checkpoint)
        self._checkpoints = []


class RegisterCompletedCheckpointStore(CompletedCheckpointStore):
    """Keeps the pointers in the job's fenced register; one write adds a checkpoint and subsumes others.

    Files are not deleted here: the sweep deletes what no pointer names any more, after its grace period
    (`holdfast.checkpoint.retention`).

    Args:
        lease: The right to write the register.
        max_retained: How many are kept.
        recovered: The checkpoints that the register names, in its order, as `recovery.recover_all` reads them.
        counter: The id counter on the same register; ids are reserved along with the pointers.
    """

    TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})

    def __init__(
        self,
        lease: Lease,
        max_retained: int,
        recovered: list[CompletedCheckpoint] | None = None,
        counter: RegisterCheckpointIDCounter | None = None,
    ) -> None:
        super().__init__(max_retained)
        self._lease = lease
        self._checkpoints = list(recovered or [])
        self._counter = counter
        self._notified = lease.state.notified

    def mark_notified(self, checkpoint_id: int) -> None:
        """Note that all sinks were told of a checkpoint; written along with the next pointer."""
        self._notified = max(self._notified, checkpoint_id)

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
                notified=max(state.notified, self._notified),
            )
            return added if self._counter is None else self._counter.reserve(added)

        written = self._lease.write(change)
        if self._counter is not None:
            self._counter.reserved(written)

    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        checkpoint.is_discarded = True

    def requires_externalized_checkpoints(self) -> bool:
        """The register points to documents."""
        return True

    def shutdown(self, job_status: str) -> None:
        """Forget the checkpoints in memory; if the job has ended for good, also in the register, as each asks for.

        The status is recorded in the same write. A status that is not terminal changes nothing.

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
            self._lease.write(
                lambda state: replace(
                    state,
                    checkpoints=tuple(pointer for pointer in state.checkpoints if pointer.path in kept),
                    notified=max(state.notified, self._notified),
                    terminal=job_status,
                )
            )
            for checkpoint in self._checkpoints:
                checkpoint.is_discarded = checkpoint.pointer.path not in kept
        self._checkpoints = []


def _pointer(checkpoint: CompletedCheckpoint) -> CheckpointPointer:
    return replace(checkpoint.pointer, is_savepoint=checkpoint.properties.is_savepoint())
