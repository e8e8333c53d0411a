"""Kinds of snapshots, and when the state of each is deleted."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class SnapshotSharing(Enum):
    """Whether a snapshot shares files with others."""

    FORWARD_BACKWARD = "may refer to files of earlier snapshots, later ones may refer to its files"
    FORWARD = "refers to no earlier files, later ones may refer to its files"
    NO_SHARING = "everything is its own"


class SavepointFormatType(Enum):
    """Format that a savepoint's document states.

    Holdfast has one format of state, which every backend reads, and a savepoint has all of its files. So both values
    have all properties of Flink's canonical format.
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
        """Return whether it is a savepoint of any kind."""
        return self.name.endswith("SAVEPOINT")

    def is_synchronous(self) -> bool:
        """Return whether the job stops with it."""
        return self in (SnapshotType.SUSPEND_SAVEPOINT, SnapshotType.TERMINATE_SAVEPOINT)

    def should_drain(self) -> bool:
        """Return whether sources and timers are drained first."""
        return self is SnapshotType.TERMINATE_SAVEPOINT

    def get_name(self) -> str:
        """Return the display name."""
        return self.value

    def get_sharing_files_strategy(self) -> SnapshotSharing:
        """Return whether it shares files with other snapshots."""
        if self is SnapshotType.CHECKPOINT:
            return SnapshotSharing.FORWARD_BACKWARD
        if self is SnapshotType.FULL_CHECKPOINT:
            return SnapshotSharing.FORWARD
        return SnapshotSharing.NO_SHARING


class CheckpointType(Enum):
    """The two kinds that tasks distinguish; `SnapshotType` has the finer kinds."""

    CHECKPOINT = False
    SAVEPOINT = True

    def is_savepoint(self) -> bool:
        """Return whether it is a savepoint."""
        return self.value


class CheckpointRetentionPolicy(Enum):
    """When the checkpoints of a job are kept after its end."""

    RETAIN_ON_CANCELLATION = "kept if the job was cancelled, has failed or was suspended"
    RETAIN_ON_FAILURE = "kept if the job has failed"
    NEVER_RETAIN_AFTER_TERMINATION = "never kept"


@dataclass(frozen=True)
class CheckpointProperties:
    """Kind of a snapshot and the events that delete its state.

    Equality ignores `unclaimed`.

    Attributes:
        forced: Whether it is triggered however many checkpoints are pending.
        snapshot_type: The kind.
        discard_subsumed: Whether newer checkpoints delete it.
        discard_finished: Whether it is deleted when the job finishes.
        discard_cancelled: Whether it is deleted when the job is cancelled.
        discard_failed: Whether it is deleted when the job fails.
        discard_suspended: Whether it is deleted when the job is suspended.
        format_type: Format of a savepoint; None for a checkpoint.
        unclaimed: Whether a job was restored from it without owning it.
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
        """Return the properties of a periodic or requested checkpoint."""
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
        """Return the properties of a savepoint, which belongs to the user and is never deleted by the job."""
        return cls(force, SnapshotType.SAVEPOINT, False, False, False, False, False, format_type)

    @classmethod
    def for_sync_savepoint(
        cls,
        force: bool,
        terminate: bool,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> CheckpointProperties:
        """Return the properties of the savepoint with which a job stops; `terminate` drains it first."""
        kind = SnapshotType.TERMINATE_SAVEPOINT if terminate else SnapshotType.SUSPEND_SAVEPOINT
        return cls(force, kind, False, False, False, False, False, format_type)

    @classmethod
    def for_unclaimed_snapshot(cls) -> CheckpointProperties:
        """Return the properties of a snapshot that a job was restored from without owning it."""
        return cls(False, SnapshotType.SAVEPOINT, False, False, False, False, False, None, unclaimed=True)

    def as_full_checkpoint(self) -> CheckpointProperties:
        """Return the properties of a checkpoint that must not use earlier files."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return CheckpointProperties(**{**values, "snapshot_type": SnapshotType.FULL_CHECKPOINT})

    def force_checkpoint(self) -> bool:
        """Return whether it is triggered however many checkpoints are pending."""
        return self.forced

    def get_checkpoint_type(self) -> SnapshotType:
        """Return the kind."""
        return self.snapshot_type

    def is_savepoint(self) -> bool:
        """Return whether it is a savepoint of any kind."""
        return self.snapshot_type.is_savepoint()

    def is_synchronous(self) -> bool:
        """Return whether the job stops with it."""
        return self.snapshot_type.is_synchronous()

    def is_unclaimed(self) -> bool:
        """Return whether a job was restored from it without owning it."""
        return self.unclaimed

    def discard_on_subsumed(self) -> bool:
        """Return whether newer checkpoints delete it."""
        return self.discard_subsumed

    def discard_on_job_finished(self) -> bool:
        """Return whether it is deleted when the job finishes."""
        return self.discard_finished

    def discard_on_job_cancelled(self) -> bool:
        """Return whether it is deleted when the job is cancelled."""
        return self.discard_cancelled

    def discard_on_job_failed(self) -> bool:
        """Return whether it is deleted when the job fails."""
        return self.discard_failed

    def discard_on_job_suspended(self) -> bool:
        """Return whether it is deleted when the job is suspended."""
        return self.discard_suspended

    def discard_on(self, status: str) -> bool:
        """Return whether it is deleted when the job ends with a status; False for an unknown status."""
        return {
            "FINISHED": self.discard_finished,
            "CANCELED": self.discard_cancelled,
            "FAILED": self.discard_failed,
            "SUSPENDED": self.discard_suspended,
        }.get(status, False)

    def to_json(self) -> dict[str, Any]:
        """Return the form in a checkpoint's document."""
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
        """Read the result of `to_json`; missing fields mean that nothing is deleted.

        Raises:
            ValueError: The kind or the format is unknown, or a value has a wrong type.
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
