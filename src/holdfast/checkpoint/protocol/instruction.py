"""What the coordinator's state machine asks to be done; carrying it out may give it new events."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.snapshot_type import CheckpointProperties
from holdfast.checkpoint.protocol.pending_checkpoint import PendingCheckpoint, Task
from holdfast.checkpoint.protocol.request import CheckpointTriggerRequest
from holdfast.errors import CheckpointError


@dataclass(frozen=True)
class EpochEnd:
    """The end of an epoch, at which a job master takes checkpoints.

    Attributes:
        epoch: The epoch.
        tasks: Those who must acknowledge.
    """

    epoch: int
    tasks: tuple[Task, ...] = ()


@dataclass(frozen=True)
class TriggerTasks:
    """Begin a checkpoint: get an id, decide on the place, trigger the master hooks, then the tasks.

    Events: `prepare_failed`, or else `prepared` and then `triggered` or `trigger_failed`.

    Attributes:
        request: Who wishes it.
        end: The end of an epoch that it covers; None if the tasks are asked.
        pending: Gets the checkpoint, or None if it failed at once.
    """

    request: CheckpointTriggerRequest
    end: EpochEnd | None = None
    pending: Future[PendingCheckpoint | None] = field(default_factory=Future)


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
    TriggerTasks
    | Finalize
    | Resolve
    | Reject
    | NotifyComplete
    | NotifyAborted
    | DiscardLocation
    | ReportFailure
    | ReportSuccess
)
