"""What the coordinator is told of an epoch's tasks: who acknowledged, and what they measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.checkpoint.pending_checkpoint import Task
from holdfast.checkpoint.trigger import CheckpointMetrics
from holdfast.runtime.barrier import StepReport
from holdfast.runtime.epoch import EpochResult
from holdfast.state.operator_snapshot import size_of

NOTHING: Final = CheckpointMetrics()


@dataclass(frozen=True)
class AcknowledgedTask(Task):
    """A subtask that has acknowledged the last epoch of a checkpoint.

    Attributes:
        metrics: What it made durable in that epoch.
    """

    metrics: CheckpointMetrics = NOTHING


def tasks_of(result: EpochResult) -> list[AcknowledgedTask]:
    """The subtasks that have acknowledged an epoch."""
    return [
        AcknowledgedTask(f"{barrier.attempt}/{step.uid}", step.uid, step.subtask, metrics=_metrics(step))
        for level in result.report.levels
        for barrier in level
        for step in barrier.steps
    ]


def _metrics(step: StepReport) -> CheckpointMetrics:
    if step.run is None and step.operator_state is None:
        return NOTHING
    written = size_of(step.operator_state) + (0 if step.run is None else int(step.run["size"]))
    return CheckpointMetrics(bytes_persisted=written, total_bytes=written)
