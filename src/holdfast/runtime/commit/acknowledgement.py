"""What the coordinator is told of an epoch's tasks: who acknowledged, and what they measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.checkpoint.message.trigger import CheckpointMetrics
from holdfast.checkpoint.protocol.pending_checkpoint import Task
from holdfast.kernel.key_group import subtask_of
from holdfast.runtime.epoch.job_epochs import EpochResult, JobEpochs

NOTHING: Final = CheckpointMetrics()


@dataclass(frozen=True)
class AcknowledgedTask(Task):
    """A subtask that has acknowledged the last epoch of a checkpoint.

    Attributes:
        metrics: What state it has, how much of it is new, and how long it took to save it in that epoch.
    """

    metrics: CheckpointMetrics = NOTHING


@dataclass
class _Bytes:
    """Sizes of one subtask's state: what the checkpoint wrote, and all of it."""

    new: int = 0
    all: int = 0

    def add(self, size: int, is_new: bool) -> None:
        self.all += size
        self.new += size if is_new else 0


def tasks_of(result: EpochResult, epochs: JobEpochs, since: int) -> list[AcknowledgedTask]:
    """The subtasks that have acknowledged an epoch.

    Args:
        result: The epoch.
        epochs: What it left.
        since: The epoch of the checkpoint before: what was written after it is new.
    """
    sizes = _sizes(epochs, since)
    nothing = _Bytes()
    return [
        AcknowledgedTask(
            f"{barrier.attempt}/{step.uid}",
            step.uid,
            step.subtask,
            metrics=CheckpointMetrics(
                bytes_persisted=sizes.get((step.uid, step.subtask), nothing).new,
                total_bytes=sizes.get((step.uid, step.subtask), nothing).all,
                sync_duration=step.saving[0],
                async_duration=step.saving[1],
            ),
        )
        for stage in result.report.stages
        for barrier in stage
        for step in barrier.steps
    ]


def _sizes(epochs: JobEpochs, since: int) -> Mapping[tuple[str, int], _Bytes]:
    """The sizes by uid and subtask; those who share a run since a rescaling have their part of it."""
    sizes: dict[tuple[str, int], _Bytes] = {}
    for step in epochs.plan.stateful_steps():
        for run in epochs.versions[step.uid].runs if step.codec else ():
            first, last = (subtask_of(group, step.max_parallelism, step.parallelism) for group in run.key_groups)
            each, rest = divmod(run.size, last - first + 1)
            for subtask in range(first, last + 1):
                size = each + (rest if subtask == first else 0)
                sizes.setdefault((step.uid, subtask), _Bytes()).add(size, run.epoch > since)
    for uid, snapshots in epochs.operator_states.for_epoch().items():
        for subtask, snapshot in enumerate(snapshots):
            if snapshot is not None:
                found = sizes.setdefault((uid, subtask), _Bytes())
                found.all += snapshot.size()
                found.new += snapshot.new_size(since)
    return sizes
