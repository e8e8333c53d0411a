"""The kinds of snapshots and what is to be done with each when it is no longer needed."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class SnapshotSharing(Enum):
    """Whose files a snapshot may refer to."""

    FORWARD_BACKWARD = "may refer to files of earlier snapshots, later ones may refer to its files"
    FORWARD = "refers to no earlier files, later ones may refer to its files"
    NO_SHARING = "everything is its own"


class SavepointFormatType(Enum):
    """What a savepoint was asked to be good for.

    There is one form of state, which every backend reads, and a savepoint holds all of its files. So each savepoint can
    do what Flink promises of a canonical one, and the two differ in what their document says alone.
    """

    CANONICAL = "canonical"
    NATIVE = "native"


class SnapshotType(Enum):
    """The kinds of snapshots."""

    CHECKPOINT = "Checkpoint"
    FULL_CHECKPOINT = "Full Checkpoint"
    SAVEPOINT = "Savepoint"
    SUSPEND_SAVEPOINT = "Suspend Savepoint"
    TERMINATE_SAVEPOINT = "Terminate Savepoint"

    def is_savepoint(self) -> bool:
        """Whether it is a savepoint of any kind."""
        return self.name.endswith("SAVEPOINT")

    def is_synchronous(self) -> bool:
        """Whether the job stops with it."""
        return self in (SnapshotType.SUSPEND_SAVEPOINT, SnapshotType.TERMINATE_SAVEPOINT)

    def should_drain(self) -> bool:
        """Whether sources and timers come to their end before it."""
        return self is SnapshotType.TERMINATE_SAVEPOINT

    def get_name(self) -> str:
        """Return the name for people."""
        return self.value

    def get_sharing_files_strategy(self) -> SnapshotSharing:
        """Return whose files it may refer to."""
        if self is SnapshotType.CHECKPOINT:
            return SnapshotSharing.FORWARD_BACKWARD
        if self is SnapshotType.FULL_CHECKPOINT:
            return SnapshotSharing.FORWARD
        return SnapshotSharing.NO_SHARING


class CheckpointType(Enum):
    """The two kinds that tasks are told apart by; `SnapshotType` has the finer ones."""

    CHECKPOINT = False
    SAVEPOINT = True

    def is_savepoint(self) -> bool:
        """Whether it is a savepoint."""
        return self.value


class CheckpointRetentionPolicy(Enum):
    """When the checkpoints of a job are kept after the job has ended."""

    RETAIN_ON_CANCELLATION = "kept if the job was cancelled, has failed or was suspended"
    RETAIN_ON_FAILURE = "kept if the job has failed"
    NEVER_RETAIN_AFTER_TERMINATION = "never kept"


@dataclass(frozen=True)
class CheckpointProperties:
    """What a snapshot is and in which events its state is deleted.

    Two snapshots that differ only in being unclaimed are equal.
    """

    forced: bool
    snapshot_type: SnapshotType
    discard_subsumed: bool
    discard_finished: bool
    discard_cancelled: bool
    discard_failed: bool
    discard_suspended: bool
    format_type: SavepointFormatType | None = None
    unclaimed: bool = field(default=False, compare=False)

    @classmethod
    def for_checkpoint(cls, policy: CheckpointRetentionPolicy) -> CheckpointProperties:
        """Return those of a periodic or manual checkpoint."""
        if policy is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION:
            keeps = (False, False, False)
        elif policy is CheckpointRetentionPolicy.RETAIN_ON_FAILURE:
            keeps = (True, False, True)
        else:
            keeps = (True, True, True)
        return cls(False, SnapshotType.CHECKPOINT, True, True, *keeps)

    @classmethod
    def for_savepoint(
        cls, force: bool = True, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> CheckpointProperties:
        """Return those of a savepoint, which belongs to the user and is never deleted by the job."""
        return cls(force, SnapshotType.SAVEPOINT, False, False, False, False, False, format_type)

    @classmethod
    def for_sync_savepoint(
        cls,
        force: bool,
        terminate: bool,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> CheckpointProperties:
        """Return those of the savepoint with which a job stops; `terminate` drains it first."""
        kind = SnapshotType.TERMINATE_SAVEPOINT if terminate else SnapshotType.SUSPEND_SAVEPOINT
        return cls(force, kind, False, False, False, False, False, format_type)

    @classmethod
    def for_unclaimed_snapshot(cls) -> CheckpointProperties:
        """Return those of a snapshot that was restored without taking it over."""
        return cls(False, SnapshotType.SAVEPOINT, False, False, False, False, False, None, unclaimed=True)

    def as_full_checkpoint(self) -> CheckpointProperties:
        """Return the same for a checkpoint that may refer to no earlier file."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return CheckpointProperties(**{**values, "snapshot_type": SnapshotType.FULL_CHECKPOINT})

    def force_checkpoint(self) -> bool:
        """Whether it is triggered however many others are under way."""
        return self.forced

    def get_checkpoint_type(self) -> SnapshotType:
        """Return the kind."""
        return self.snapshot_type

    def is_savepoint(self) -> bool:
        """Whether it is a savepoint of any kind."""
        return self.snapshot_type.is_savepoint()

    def is_synchronous(self) -> bool:
        """Whether the job stops with it."""
        return self.snapshot_type.is_synchronous()

    def is_unclaimed(self) -> bool:
        """Whether it was restored without taking it over."""
        return self.unclaimed

    def discard_on_subsumed(self) -> bool:
        """Whether it is deleted when later ones have replaced it."""
        return self.discard_subsumed

    def discard_on_job_finished(self) -> bool:
        """Whether it is deleted when the job has finished."""
        return self.discard_finished

    def discard_on_job_cancelled(self) -> bool:
        """Whether it is deleted when the job was cancelled."""
        return self.discard_cancelled

    def discard_on_job_failed(self) -> bool:
        """Whether it is deleted when the job has failed."""
        return self.discard_failed

    def discard_on_job_suspended(self) -> bool:
        """Whether it is deleted when the job was suspended."""
        return self.discard_suspended

    def discard_on(self, status: str) -> bool:
        """Whether it is deleted when the job ends with a status; unknown ones delete nothing."""
        return {
            "FINISHED": self.discard_finished,
            "CANCELED": self.discard_cancelled,
            "FAILED": self.discard_failed,
            "SUSPENDED": self.discard_suspended,
        }.get(status, False)

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint's document says of it."""
        return {
            "type": self.snapshot_type.name,
            "format": None if self.format_type is None else self.format_type.name,
            "forced": self.forced,
            "discard": [
                event
                for event in ("subsumed", "finished", "cancelled", "failed", "suspended")
                if getattr(self, f"discard_{event}")
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointProperties:
        """Read what `to_json` wrote; what is missing means that nothing is deleted.

        Raises:
            ValueError: The kind or the format is none that is known, or something has a wrong type.
        """
        try:
            return cls._from_json(value)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"properties {reprlib.repr(value)} are not those of a snapshot: {error!r}") from error

    @classmethod
    def _from_json(cls, value: Mapping[str, Any]) -> CheckpointProperties:
        kind = value.get("format")
        discard = set(value.get("discard", ()))
        return cls(
            bool(value.get("forced", False)),
            SnapshotType[value["type"]],
            "subsumed" in discard,
            "finished" in discard,
            "cancelled" in discard,
            "failed" in discard,
            "suspended" in discard,
            None if kind is None else SavepointFormatType[kind],
        )
