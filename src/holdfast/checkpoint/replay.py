"""Prepares the replay of the epoch after a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_path, root_of
from holdfast.checkpoint.metadata import CLAIMED, EVENT_TIME, EVENT_TIME_AGAIN, TARGETS, CheckpointMetadata
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import SystemClock
from holdfast.storage.file_system import base_name, is_absolute, join, parent
from holdfast.storage.job_directory import SHARED, TASK_OWNED, FileName, checkpoint_id_of
from holdfast.storage.scheme import file_system_for

AGAIN: Final = "again"
"""Key in the positions of streams: the newest batch was planned and must be run (again)."""


class RecordedClock(SystemClock):
    """Clock whose time is fixed."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        # Fixed as well: `ForwardTime` goes on by it.
        return 0.0


@dataclass(frozen=True)
class Replay:
    """Input of a replay of one epoch.

    Attributes:
        metadata: The document to start from.
        now: Wall-clock time during the replay, in milliseconds since 1970.
        recorded: Processing time of the original epoch; None if it is not known any more.
    """

    metadata: CheckpointMetadata
    now: int
    recorded: int | None


def prepare_replay(checkpoint: CompletedCheckpoint) -> Replay:
    """Prepare the replay of the epoch after a checkpoint or savepoint.

    The paths of the returned document are absolute: nothing is copied. Staged output and the targets of sinks are left
    out, because a replay commits nothing. If the checkpoint of the next epoch still exists, its processing time and its
    batch are used.

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
            # Timers that have become due meanwhile must not start an epoch before that of the batch.
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
    """Return the checkpoint with what was read next in the same incarnation; None if it does not exist any more."""
    if checkpoint.metadata.is_savepoint:
        return None
    directory = parent(checkpoint.path)
    names = [name for name in file_system_for(directory).list_names(directory) if checkpoint_id_of(name) is not None]
    for name in sorted(names, key=lambda name: checkpoint_id_of(name) or 0):
        if (checkpoint_id_of(name) or 0) <= checkpoint.checkpoint_id:
            continue
        try:
            found = read_by_path(join(directory, name))
        except HoldfastError:
            continue  # it was aborted, or is about to be deleted
        same = found.metadata.incarnation == checkpoint.metadata.incarnation
        if same and not found.metadata.is_savepoint:
            return found if _follows(checkpoint.metadata, found.metadata) else None
    return None


def _follows(before: CheckpointMetadata, after: CheckpointMetadata) -> bool:
    """Return whether a checkpoint is that of the next epoch, or of the next batch.

    Epochs of a real-time job that were abandoned have numbers, and no batches.
    """
    batch, next_batch = _batch(before.source_positions), _batch(after.source_positions)
    return after.epoch == before.epoch + 1 or (batch is not None and next_batch == batch + 1)


def _batch(positions: Any) -> int | None:
    streaming = positions.get("streaming") if isinstance(positions, Mapping) else None
    return None if not streaming else int(streaming["batch_id"])


def _value(value: Any, root: str) -> Any:
    """Return a JSON value in which the paths of the job's files are absolute."""
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
