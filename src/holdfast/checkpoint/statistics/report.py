"""The statistics of checkpoints as JSON, in the form of Flink's REST interface.

Paths below ``/jobs/:id``: ``checkpoints`` is `overview`, ``checkpoints/details/:cid`` is `details`,
``checkpoints/details/:cid/subtasks/:vid`` is `subtask_details`, ``checkpoints/config`` is `config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.checkpoint.config.checkpoint_config import CoordinatorConfiguration
from holdfast.checkpoint.document.snapshot_type import CheckpointRetentionPolicy
from holdfast.checkpoint.statistics.tracker import (
    COMPLETED,
    FAILED,
    CheckpointStats,
    StatsSnapshot,
    SubtaskStats,
    Summary,
)

_SUMMARISED: Final = ("checkpointed_size", "state_size", "end_to_end_duration", "processed_data")
_ZERO: Final = Summary(()).to_json()


def overview(snapshot: StatsSnapshot) -> dict[str, Any]:
    """Return counts, summary, the latest of each kind, and the history."""
    restored = snapshot.restored
    return {
        "counts": {
            "restored": snapshot.counts.restored,
            "total": snapshot.counts.total,
            "in_progress": snapshot.counts.in_progress,
            "completed": snapshot.counts.completed,
            "failed": snapshot.counts.failed,
        },
        "summary": {name: snapshot.summary(name).to_json() for name in _SUMMARISED}
        | {"alignment_buffered": _ZERO, "persisted_data": _ZERO},
        "latest": {
            "completed": _entry_or_none(snapshot.latest_completed),
            "savepoint": _entry_or_none(snapshot.latest_savepoint),
            "failed": _entry_or_none(snapshot.latest_failed),
            "restored": None
            if restored is None
            else {
                "id": restored.checkpoint_id,
                "restore_timestamp": restored.restore_timestamp,
                "is_savepoint": restored.properties.is_savepoint(),
                "external_path": restored.external_path,
            },
        },
        "history": [entry(stats) for stats in snapshot.history],
    }


def entry(stats: CheckpointStats) -> dict[str, Any]:
    """Return one checkpoint without its subtasks."""
    properties = stats.properties
    kind = (
        "SYNC_SAVEPOINT" if properties.is_synchronous() else "SAVEPOINT" if properties.is_savepoint() else "CHECKPOINT"
    )
    result: dict[str, Any] = {
        "className": stats.status.lower(),
        "id": stats.checkpoint_id,
        "status": stats.status,
        "is_savepoint": properties.is_savepoint(),
        "savepointFormat": None if properties.format_type is None else properties.format_type.name,
        "trigger_timestamp": stats.trigger_timestamp,
        "latest_ack_timestamp": stats.latest_ack_timestamp,
        "checkpointed_size": stats.checkpointed_size,
        "state_size": stats.state_size,
        "end_to_end_duration": stats.end_to_end_duration,
        "alignment_buffered": 0,
        "processed_data": stats.processed_data,
        "persisted_data": 0,
        "num_subtasks": stats.num_subtasks,
        "num_acknowledged_subtasks": stats.num_acknowledged,
        "checkpoint_type": kind,
        "tasks": {},
    }
    if stats.status == COMPLETED:
        result |= {"external_path": stats.external_path, "discarded": stats.is_discarded}
    if stats.status == FAILED:
        result |= {"failure_timestamp": stats.end_timestamp, "failure_message": stats.failure_message}
    return result


def details(stats: CheckpointStats) -> dict[str, Any]:
    """Return one checkpoint with a summary of each vertex."""
    return entry(stats) | {"tasks": {vertex: _vertex(stats, vertex) for vertex in stats.parallelism}}


def subtask_details(stats: CheckpointStats, vertex: str) -> dict[str, Any] | None:
    """Return the subtasks of one vertex in one checkpoint; None if it takes no part."""
    if vertex not in stats.parallelism:
        return None
    acknowledged = stats.subtasks.get(vertex, {})
    subtasks = [_subtask(index, acknowledged.get(index)) for index in range(stats.parallelism[vertex])]
    known = list(acknowledged.values())
    summary = {
        "checkpointed_size": _summary([s.metrics.bytes_persisted for s in known]),
        "state_size": _summary([s.metrics.total_bytes for s in known]),
        "end_to_end_duration": _summary([s.end_to_end_duration for s in known]),
        "checkpoint_duration": {
            "sync": _summary([s.metrics.sync_duration for s in known]),
            "async": _summary([s.metrics.async_duration for s in known]),
        },
        "start_delay": _summary([s.metrics.start_delay for s in known]),
    }
    return _vertex(stats, vertex) | {"summary": summary, "subtasks": subtasks}


def config(configuration: CoordinatorConfiguration, *, state_backend: str, checkpoint_storage: str) -> dict[str, Any]:
    """Return how checkpoints are configured.

    Args:
        configuration: The options as the coordinator uses them.
        state_backend: Name of the backend.
        checkpoint_storage: Name of the storage.
    """
    policy = configuration.policy
    return {
        "mode": configuration.mode.name.lower(),
        "interval": configuration.interval,
        "timeout": configuration.timeout,
        "min_pause": configuration.min_pause,
        "max_concurrent": configuration.max_concurrent,
        "externalization": {
            "enabled": policy is not CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
            "delete_on_cancellation": policy is not CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
        },
        "state_backend": state_backend,
        "checkpoint_storage": checkpoint_storage,
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": configuration.tolerable_failures,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "none",
    }


def _entry_or_none(stats: CheckpointStats | None) -> dict[str, Any] | None:
    return None if stats is None else entry(stats)


def _vertex(stats: CheckpointStats, vertex: str) -> dict[str, Any]:
    acknowledged = stats.subtasks.get(vertex, {}).values()
    latest = max((subtask.ack_timestamp for subtask in acknowledged), default=-1)
    return {
        "id": stats.checkpoint_id,
        "status": stats.status,
        "latest_ack_timestamp": latest,
        "checkpointed_size": sum(subtask.metrics.bytes_persisted for subtask in acknowledged),
        "state_size": sum(subtask.metrics.total_bytes for subtask in acknowledged),
        "end_to_end_duration": latest - stats.trigger_timestamp if latest >= 0 else -1,
        "alignment_buffered": 0,
        "processed_data": sum(subtask.metrics.processed for subtask in acknowledged),
        "persisted_data": 0,
        "num_subtasks": stats.parallelism[vertex],
        "num_acknowledged_subtasks": len(acknowledged),
    }


def _subtask(index: int, stats: SubtaskStats | None) -> dict[str, Any]:
    if stats is None:
        return {"index": index, "status": "pending_or_failed"}
    metrics = stats.metrics
    return {
        "index": index,
        "status": "completed",
        "ack_timestamp": stats.ack_timestamp,
        "end_to_end_duration": stats.end_to_end_duration,
        "checkpointed_size": metrics.bytes_persisted,
        "state_size": metrics.total_bytes,
        "checkpoint": {"sync": metrics.sync_duration, "async": metrics.async_duration},
        "alignment": {"buffered": 0, "processed": metrics.processed, "persisted": 0, "duration": 0},
        "start_delay": metrics.start_delay,
        "unaligned_checkpoint": False,
        "aborted": False,
    }


def _summary(values: Sequence[int]) -> dict[str, Any]:
    return Summary(values).to_json()
