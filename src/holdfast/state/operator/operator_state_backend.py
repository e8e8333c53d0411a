"""The state of operators without keys, as a job sees it."""

from __future__ import annotations

from abc import abstractmethod

from holdfast.state.declaration.api import OperatorStateStore
from holdfast.state.operator.operator_snapshot import OperatorSnapshot, SnapshotStore


class OperatorStateBackend(OperatorStateStore):
    """The state of one subtask that belongs to no key."""

    @abstractmethod
    def snapshot(self, store: SnapshotStore | None = None) -> OperatorSnapshot | None:
        """Return all registered states, which later changes do not touch; None if none is registered.

        Args:
            store: Where their elements go; None keeps them in the snapshot itself.
        """

    @abstractmethod
    def restore(self, snapshot: OperatorSnapshot, store: SnapshotStore | None = None) -> None:
        """Take over the states of a snapshot, before any is asked for.

        Args:
            snapshot: The part of this subtask.
            store: Where their elements are read from; None if all are in the snapshot itself.
        """

    @abstractmethod
    def dispose(self) -> None:
        """Let go of everything."""
