"""Stores of completed checkpoints: what a recovery finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.store.id_counter import RegisterCheckpointIDCounter
from holdfast.checkpoint.store.subsume import subsume
from holdfast.errors import HoldfastError, StateError
from holdfast.kernel.secret import get_logger
from holdfast.storage.register.fenced_register import CheckpointPointer, Lease, RegisterState

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
    (`holdfast.checkpoint.retention.sweeper`).

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
