"""From which document a job runs the epoch after a checkpoint once more, without touching what it has left.

Paths in the document are absolute, so nothing is copied, and what it starts from belongs to nobody. Output that was
staged and the targets of sinks are left out: who runs an epoch again commits nothing. If the checkpoint of the next
epoch is still there, what it recorded is used again: its processing time, and which rows its batch had. Event time goes
on from where it was after the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import CLAIMED, EVENT_TIME, EVENT_TIME_AGAIN, TARGETS, CheckpointMetadata
from holdfast.checkpoint.recovery.retained import load, root_of
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import SystemClock
from holdfast.storage.file_system.path import base_name, is_absolute, join, parent
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import SHARED, TASK_OWNED, checkpoint_id_of
from holdfast.storage.job.naming import FileName

AGAIN: Final = "again"
"""In the positions of streams: the newest batch was planned, and is to be run (once more)."""


class RecordedClock(SystemClock):
    """A clock whose wall-clock time stands still at what was recorded."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time that was recorded."""
        return self._now_ms


@dataclass(frozen=True)
class Replay:
    """How an epoch is run once more.

    Attributes:
        metadata: From which document.
        now: What the clock says meanwhile, in milliseconds.
        recorded: The processing time that the epoch had, None if nobody knows any more.
    """

    metadata: CheckpointMetadata
    now: int
    recorded: int | None


def replay_of(checkpoint: CompletedCheckpoint) -> Replay:
    """Return how the epoch after a checkpoint or savepoint is run once more.

    Raises:
        StorageError: The directory cannot be listed.
    """
    metadata = checkpoint.metadata
    following = _following(checkpoint)
    positions = metadata.source_positions
    start, now, recorded = metadata.processing_time, metadata.processing_time, None
    root = root_of(checkpoint)
    if following is not None:
        after = following.metadata
        recorded = after.processing_time
        before, newest = _batch(positions), _batch(after.source_positions)
        if newest is not None and newest != before:
            streaming = {**after.source_positions["streaming"], AGAIN: True}
            positions = {**after.source_positions, "streaming": streaming}
            # Timers that have come due meanwhile are not to begin an epoch before that of the batch.
            start = recorded - 1
        else:
            now = recorded
    extra = {name: value for name, value in metadata.extra.items() if name not in (CLAIMED, TARGETS, EVENT_TIME)}
    if EVENT_TIME in metadata.extra:
        extra[EVENT_TIME_AGAIN] = metadata.extra[EVENT_TIME]
    operators = tuple(
        replace(
            operator,
            runs=tuple(replace(run, path=_absolute(run.path, root)) for run in operator.runs),
            subtasks=tuple(_value(part, root) for part in operator.subtasks),
            committables={},
        )
        for operator in metadata.operators
    )
    made = replace(
        metadata,
        operators=operators,
        source_positions=_value(positions, root),
        processing_time=start,
        properties={**metadata.properties, "type": "CHECKPOINT", "format": None},
        extra=extra,
    )
    return Replay(made, now, recorded)


def _following(checkpoint: CompletedCheckpoint) -> CompletedCheckpoint | None:
    """The checkpoint of the next epoch of the same incarnation, if it is still there."""
    if checkpoint.metadata.is_savepoint:
        return None
    directory = parent(checkpoint.path)
    names = [name for name in file_system_for(directory).list_names(directory) if checkpoint_id_of(name) is not None]
    for name in sorted(names, key=lambda name: checkpoint_id_of(name) or 0):
        if (checkpoint_id_of(name) or 0) <= checkpoint.checkpoint_id:
            continue
        try:
            found = load(join(directory, name))
        except HoldfastError:
            continue  # it was given up, or is about to be deleted
        same = found.metadata.lineage == checkpoint.metadata.lineage
        if same and not found.metadata.is_savepoint and found.metadata.epoch == checkpoint.metadata.epoch + 1:
            return found
    return None


def _batch(positions: Any) -> int | None:
    streaming = positions.get("streaming") if isinstance(positions, Mapping) else None
    return None if not streaming else int(streaming["batch_id"])


def _value(value: Any, root: str) -> Any:
    """A JSON value in which the paths of files of the job are absolute."""
    if isinstance(value, str):
        return _absolute(value, root)
    if isinstance(value, Mapping):
        return {name: _value(part, root) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_value(part, root) for part in value]
    return value


def _absolute(path: str, root: str) -> str:
    is_own = path.startswith((SHARED + "/", TASK_OWNED + "/")) and FileName.parse(base_name(path)) is not None
    return join(root, path) if is_own and not is_absolute(path) else path
