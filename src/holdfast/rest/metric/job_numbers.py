"""The numbers of a job by their Flink names: checkpoints as the coordinator counts them, and what became of the job."""

from __future__ import annotations

from typing import Any, Final

from holdfast.checkpoint.statistics.tracker import StatsSnapshot
from holdfast.runtime.job.status import JobStatus
from holdfast.runtime.master.job_master import JobMaster

_NONE: Final = -1
"""What Flink says of a number that is not known yet."""


def metrics_of(master: JobMaster) -> dict[str, Any]:
    """Return the metrics of a job by name."""
    status, entered, now = master.status, master.history.entered, master.job.clock.now_ms()
    recent = master.progress.recent
    found: dict[str, Any] = {
        "numRestarts": master.history.failure_count,
        "triesInARow": master.tries,
        "uptime": now - entered.get(JobStatus.RUNNING, now) if status is JobStatus.RUNNING else _NONE,
        "downtime": now - entered.get(status, now) if status is JobStatus.RESTARTING else 0,
        **_checkpoints(master.statistics.create_snapshot()),
    }
    if recent:
        found |= {
            "lastEpoch": recent[-1].epoch,
            "lastEpochRows": recent[-1].rows,
            "lastEpochDuration": recent[-1].duration_ms,
            "rowsPerSecond": round(recent[-1].rows_per_second, 1),
            "stateSize": recent[-1].state_bytes,
        }
    return found


def _checkpoints(snapshot: StatsSnapshot) -> dict[str, Any]:
    counts, last, restored = snapshot.counts, snapshot.latest_completed, snapshot.restored
    return {
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "lastCheckpointRestoreTimestamp": _NONE if restored is None else restored.restore_timestamp,
        "lastCheckpointSize": _NONE if last is None else last.checkpointed_size,
        "lastCheckpointFullSize": _NONE if last is None else last.state_size,
        "lastCheckpointMetadataSize": _NONE if last is None else last.metadata_size,
        "lastCheckpointDuration": _NONE if last is None else last.end_to_end_duration,
        "lastCheckpointProcessedData": _NONE if last is None else last.processed_data,
        "lastCheckpointPersistedData": _NONE if last is None else 0,
        "lastCheckpointExternalPath": "n/a" if last is None else last.external_path,
        "lastCompletedCheckpointId": _NONE if last is None else last.checkpoint_id,
        "lastCheckpointCompletedTimestamp": _NONE if last is None else last.end_timestamp,
    }
