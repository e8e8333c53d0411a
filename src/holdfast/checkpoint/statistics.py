"""Statistics of a job's checkpoints: counts, history, summaries, details by subtask, and their form in REST.

Metrics with these numbers are declared in `runtime/master/metric_catalog.py`.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.checkpoint.messages import CheckpointMetrics
from holdfast.checkpoint.snapshot_type import CheckpointProperties, CheckpointRetentionPolicy
from holdfast.errors import ConfigurationError

IN_PROGRESS: Final = "IN_PROGRESS"
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
UNKNOWN: Final = "UNKNOWN"
"""A failure without a reason."""
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_SUMMARISED: Final = ("checkpointed_size", "state_size", "end_to_end_duration", "processed_data")


@dataclass(frozen=True)
class SubtaskStats:
    """Statistics of one subtask in one checkpoint; times in milliseconds, sizes in bytes."""

    index: int
    ack_timestamp: int
    end_to_end_duration: int
    metrics: CheckpointMetrics


@dataclass(frozen=True)
class CheckpointStats:
    """Statistics of one checkpoint; times in milliseconds since 1970, sizes in bytes.

    Attributes:
        parallelism: Number of subtasks, by vertex.
        subtasks: The subtasks that have acknowledged, by vertex and index.
    """

    checkpoint_id: int
    properties: CheckpointProperties
    trigger_timestamp: int
    parallelism: dict[str, int]
    status: str = IN_PROGRESS
    subtasks: dict[str, dict[int, SubtaskStats]] = field(default_factory=dict)
    state_size: int = 0
    checkpointed_size: int = 0
    metadata_size: int = 0
    end_timestamp: int = -1
    external_path: str | None = None
    is_discarded: bool = False
    failure_message: str | None = None

    def __repr__(self) -> str:
        return f"CheckpointStats({self.checkpoint_id}, {self.status}, {self.state_size} bytes of state)"

    @property
    def num_subtasks(self) -> int:
        """Number of subtasks that take part."""
        return sum(self.parallelism.values())

    @property
    def num_acknowledged(self) -> int:
        """Number of subtasks that have acknowledged."""
        return sum(len(by_index) for by_index in self.subtasks.values())

    @property
    def latest_ack_timestamp(self) -> int:
        """Time of the last acknowledgement; -1 before the first."""
        return max(
            (stats.ack_timestamp for by_index in self.subtasks.values() for stats in by_index.values()), default=-1
        )

    @property
    def end_to_end_duration(self) -> int:
        """Milliseconds from trigger to end; -1 while it is pending."""
        return self.end_timestamp - self.trigger_timestamp if self.end_timestamp >= 0 else -1

    @property
    def processed_data(self) -> int:
        """Bytes that were processed meanwhile."""
        return sum(stats.metrics.processed for by in self.subtasks.values() for stats in by.values())


class SummaryValues(NamedTuple):
    """The numbers of a completed checkpoint that enter summaries; the only ones kept of thousands of checkpoints."""

    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    processed_data: int


@dataclass(frozen=True)
class RestoredStats:
    """The checkpoint that the job was restored from."""

    checkpoint_id: int
    properties: CheckpointProperties
    restore_timestamp: int
    external_path: str


@dataclass(frozen=True)
class Counts:
    """Numbers of checkpoints; none is ever negative."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Summary:
    """Minimum, maximum, average and quantiles of one number over completed checkpoints."""

    values: Sequence[int]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as REST shows it; zeros for no values, because JSON has no NaN."""
        if not self.values:
            return {"min": 0, "max": 0, "avg": 0, **dict.fromkeys(_QUANTILES, 0.0)}
        ordered = sorted(self.values)
        result: dict[str, Any] = {"min": ordered[0], "max": ordered[-1], "avg": sum(ordered) // len(ordered)}
        return result | {name: _quantile(ordered, share) for name, share in _QUANTILES.items()}


def _quantile(ordered: Sequence[int], share: float) -> float:
    position = share * (len(ordered) - 1)
    lower = math.floor(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])


@dataclass(frozen=True)
class StatsSnapshot:
    """The statistics at one moment.

    Attributes:
        history: Newest first.
        completed: Numbers of the completed checkpoints that summaries cover.
        failures: Number of failures by reason, the name of a `CheckpointFailureReason`.
    """

    counts: Counts
    history: tuple[CheckpointStats, ...]
    completed: tuple[SummaryValues, ...]
    latest_completed: CheckpointStats | None
    latest_savepoint: CheckpointStats | None
    latest_failed: CheckpointStats | None
    restored: RestoredStats | None
    failures: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = self.counts
        return (
            f"StatsSnapshot({counts.completed} completed, {counts.in_progress} in progress, {counts.failed} failed, "
            f"latest {self.latest_completed!r})"
        )

    def find(self, checkpoint_id: int) -> CheckpointStats | None:
        """Return the statistics of a checkpoint; None if it is unknown or forgotten."""
        known = (*self.history, self.latest_completed, self.latest_savepoint, self.latest_failed)
        return next((stats for stats in known if stats is not None and stats.checkpoint_id == checkpoint_id), None)

    def summary(self, name: str) -> Summary:
        """Return the summary of one of the numbers in `SummaryValues`, such as ``"state_size"``."""
        return Summary([getattr(stats, name) for stats in self.completed])


class CheckpointStatsTracker:
    """Collects the statistics. Safe to use from several threads.

    Args:
        history_size: Number of checkpoints that are kept in detail; with 0 only the latest of each kind.

    Raises:
        ConfigurationError: The size is negative.
    """

    SUMMARY_SIZE: Final = 10_000

    def __init__(self, history_size: int = 10) -> None:
        if history_size < 0:
            raise ConfigurationError(
                f"The size of the history (web.checkpoints.history) must be 0 or more, not {history_size!r}."
            )
        self._size = history_size
        self._lock = threading.Lock()
        self._counts = Counts()
        self._history: OrderedDict[int, CheckpointStats] = OrderedDict()
        self._open: dict[int, CheckpointStats] = {}
        self._completed: deque[SummaryValues] = deque(maxlen=self.SUMMARY_SIZE)
        self._latest: dict[str, CheckpointStats] = {}
        self._restored: RestoredStats | None = None
        self._failures: Counter[str] = Counter()

    def report_pending(
        self, checkpoint_id: int, timestamp: int, properties: CheckpointProperties, parallelism: dict[str, int]
    ) -> None:
        """Count a triggered checkpoint."""
        with self._lock:
            counts = self._counts
            self._counts = replace(counts, total=counts.total + 1, in_progress=counts.in_progress + 1)
            self._keep(CheckpointStats(checkpoint_id, properties, timestamp, parallelism))

    def report_subtask(self, checkpoint_id: int, vertex: str, index: int, metrics: CheckpointMetrics, now: int) -> None:
        """Record the acknowledgement of a subtask, in time or late."""
        with self._lock:
            known = self._open.get(checkpoint_id) or self._history.get(checkpoint_id)
            if known is None:
                return
            stats = SubtaskStats(index, now, max(0, now - known.trigger_timestamp), metrics)
            # All copies of this entry share the dictionary; `_copy` makes one for a snapshot.
            known.subtasks.setdefault(vertex, {}).setdefault(index, stats)

    def report_completed(
        self, checkpoint_id: int, now: int, *, path: str, state_size: int, new_size: int, metadata_size: int
    ) -> bool:
        """Count a completed checkpoint; returns False if its details are forgotten."""
        with self._lock:
            return self._end(
                checkpoint_id,
                COMPLETED,
                now,
                external_path=path,
                state_size=state_size,
                checkpointed_size=new_size,
                metadata_size=metadata_size,
            )

    def report_failed(self, checkpoint_id: int, now: int, message: str, reason: str = UNKNOWN) -> bool:
        """Count a failed checkpoint; returns False if its details are forgotten."""
        with self._lock:
            self._failures[reason] += 1
            return self._end(checkpoint_id, FAILED, now, failure_message=message)

    def report_failed_without_in_progress(self, reason: str = UNKNOWN) -> None:
        """Count a request that failed before anything was triggered."""
        with self._lock:
            self._failures[reason] += 1
            counts = self._counts
            self._counts = replace(counts, total=counts.total + 1, failed=counts.failed + 1)

    def report_discarded(self, checkpoint_id: int) -> None:
        """Mark a checkpoint as discarded."""
        with self._lock:
            known = self._history.get(checkpoint_id)
            if known is not None:
                self._keep(replace(known, is_discarded=True))

    def report_restored(self, restored: RestoredStats) -> None:
        """Count a restore."""
        with self._lock:
            self._counts = replace(self._counts, restored=self._counts.restored + 1)
            self._restored = restored

    def create_snapshot(self) -> StatsSnapshot:
        """Return the statistics at this moment."""
        with self._lock:
            return StatsSnapshot(
                self._counts,
                tuple(_copy(stats) for stats in reversed(self._history.values())),
                tuple(self._completed),
                self._latest.get(COMPLETED),
                self._latest.get("SAVEPOINT"),
                self._latest.get(FAILED),
                self._restored,
                dict(self._failures),
            )

    def _end(self, checkpoint_id: int, status: str, now: int, **known_now: Any) -> bool:
        counts = self._counts
        in_progress = max(0, counts.in_progress - 1)
        if status == COMPLETED:
            self._counts = replace(counts, in_progress=in_progress, completed=counts.completed + 1)
        else:
            self._counts = replace(counts, in_progress=in_progress, failed=counts.failed + 1)
        pending = self._open.pop(checkpoint_id, None)
        if pending is None:
            return False
        ended = replace(pending, status=status, end_timestamp=now, **known_now)
        if status == FAILED:
            self._latest[FAILED] = ended
        else:
            self._latest["SAVEPOINT" if ended.properties.is_savepoint() else COMPLETED] = ended
            self._completed.append(SummaryValues(*(getattr(ended, name) for name in SummaryValues._fields)))
        if checkpoint_id in self._history:
            self._history[checkpoint_id] = ended
        return True

    def _keep(self, stats: CheckpointStats) -> None:
        """Add or replace an entry of the history."""
        if stats.status == IN_PROGRESS:
            self._open[stats.checkpoint_id] = stats
        self._history[stats.checkpoint_id] = stats
        while len(self._history) > self._size:
            self._history.popitem(last=False)


def _copy(stats: CheckpointStats) -> CheckpointStats:
    return replace(stats, subtasks={vertex: dict(by_index) for vertex, by_index in stats.subtasks.items()})


# The statistics as JSON, in the form of Flink's REST interface. Paths below ``/jobs/:id``: ``checkpoints`` is
# `overview`, ``checkpoints/details/:cid`` is `details`, ``checkpoints/details/:cid/subtasks/:vid`` is
# `subtask_details`, ``checkpoints/config`` is `config`.

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
        **_slowest(one.metrics for by_index in stats.subtasks.values() for one in by_index.values()),
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
        "alignment": {
            **dict.fromkeys(("buffered", "persisted"), _ZERO),
            "processed": _summary([s.metrics.processed for s in known]),
            "duration": _summary([s.metrics.alignment_duration for s in known]),
        },
        "start_delay": _summary([s.metrics.start_delay for s in known]),
    }
    return _vertex(stats, vertex) | {"summary": summary, "subtasks": subtasks}


def config(configuration: CoordinatorConfiguration, *, state_backend: str, checkpoint_storage: str) -> dict[str, Any]:
    """Return the configuration of checkpoints.

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
        **_slowest(subtask.metrics for subtask in acknowledged),
    }


def _slowest(subtasks: Iterable[CheckpointMetrics]) -> dict[str, int]:
    """Return the longest alignment and the longest synchronous part of any subtask."""
    known = list(subtasks)
    return {
        "alignment_duration": max((one.alignment_duration for one in known), default=0),
        "sync_duration": max((one.sync_duration for one in known), default=0),
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
        "alignment": {
            "buffered": 0,
            "processed": metrics.processed,
            "persisted": 0,
            "duration": metrics.alignment_duration,
        },
        "start_delay": metrics.start_delay,
        "unaligned_checkpoint": False,
        "aborted": False,
    }


def _summary(values: Sequence[int]) -> dict[str, Any]:
    return Summary(values).to_json()
