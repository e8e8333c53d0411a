"""What the coordinator's state machine asks to be done; carrying it out may give it new events."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.pending_checkpoint import PendingCheckpoint
from holdfast.checkpoint.request import CheckpointTriggerRequest
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.errors import CheckpointError


@dataclass(frozen=True)
class Prepare:
    """Plan the checkpoint and get an id for it: events `prepared` or `prepare_failed`."""

    request: CheckpointTriggerRequest


@dataclass(frozen=True)
class Trigger:
    """Decide on the place, trigger the master hooks, then the tasks: events `triggered` or `trigger_failed`."""

    pending: PendingCheckpoint


@dataclass(frozen=True)
class Finalize:
    """Write document and pointer: events `finalized` or `finalize_failed`."""

    pending: PendingCheckpoint


@dataclass(frozen=True)
class Resolve:
    """Tell whoever asked for it that a checkpoint is complete."""

    request: CheckpointTriggerRequest
    checkpoint: CompletedCheckpoint


@dataclass(frozen=True)
class Reject:
    """Tell whoever asked for it that there will be no checkpoint."""

    request: CheckpointTriggerRequest
    error: CheckpointError


@dataclass(frozen=True)
class NotifyComplete:
    """Tell the tasks that a checkpoint is complete."""

    checkpoint_id: int
    timestamp: int
    subsumed_id: int


@dataclass(frozen=True)
class NotifyAborted:
    """Tell the tasks that a checkpoint will not complete."""

    checkpoint_id: int
    timestamp: int
    latest_completed_id: int


@dataclass(frozen=True)
class DiscardLocation:
    """Delete what was made for a checkpoint that did not complete. Run files are left to the sweep."""

    pending: PendingCheckpoint


@dataclass(frozen=True)
class ReportFailure:
    """Tell the failure manager."""

    error: CheckpointError
    checkpoint_id: int
    properties: CheckpointProperties
    execution_id: str | None


@dataclass(frozen=True)
class ReportSuccess:
    """Tell the failure manager."""

    checkpoint_id: int


Instruction = (
    Prepare
    | Trigger
    | Finalize
    | Resolve
    | Reject
    | NotifyComplete
    | NotifyAborted
    | DiscardLocation
    | ReportFailure
    | ReportSuccess
)
