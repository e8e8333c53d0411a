"""The jobs of an epoch, one after the other: each is one job of the engine, and reads what those before have staged.

::

    job 0: tasks --barriers--> accepted --names of staged files--> job 1: tasks --barriers--> accepted --> ...

An epoch job begins when all tasks of the one before have answered and agree, and it reads exactly the files that they
name: of each task the attempt whose rows were used elsewhere, too. One that fails takes the epoch with it. So what a
job reads cannot change under it, however often Spark evaluates it.

Staged files are scratch. Their names carry token, epoch and attempt; no checkpoint names them. They are removed when
the last epoch job is over, and when a later one fails; what tasks leave whose own epoch job fails, and an attempt that
dies, is swept with the other files that nobody names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.errors import HoldfastError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.exchange.barrier import Barrier, EpochReport, accept
from holdfast.runtime.exchange.descriptor import EpochDescriptor
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.engine import Engine, EpochInput, StagedInput
from holdfast.storage.file_system.path import join
from holdfast.storage.job.job_directory import JobDirectory

logger = get_logger(__name__)


def run_epoch_jobs(
    engine: Engine, plan: JobPlan, directory: JobDirectory, epoch: EpochDescriptor, epoch_input: EpochInput | None
) -> EpochReport:
    """Runs one attempt at an epoch and returns the barriers of all its stages.

    Args:
        engine: Runs the tasks.
        plan: The job's epoch jobs.
        directory: The job's directory, where staged files are.
        epoch: The attempt at the epoch.
        epoch_input: The epoch's input; None for a tick.

    Raises:
        InconsistentEpochError: The acknowledgements of an epoch job disagree; nothing of the epoch may be used.
        HoldfastError: A task or the engine failed.
    """
    stages: tuple[tuple[Barrier, ...], ...] = ()
    files: dict[str, tuple[str, ...]] = {}
    staged: list[str] = []
    try:
        for number, epoch_job in enumerate(plan.epoch_jobs):
            given = StagedInput(number, files) if number else epoch_input
            report = accept(engine.execute(epoch, given), epoch_job.tasks)
            stages += report.stages
            epoch = replace(epoch, event_time=epoch.event_time.plus(report.observed()))
            for step in report.steps():
                paths = tuple(join(directory.taskowned_dir, name) for name in step.staged)
                files[step.uid] = files.get(step.uid, ()) + paths
                staged += step.staged
    finally:
        # Also where a later one fails: many attempts may fail before a checkpoint completes, and no sweep comes before.
        _remove(directory, staged)
    return EpochReport(stages)


def _remove(directory: JobDirectory, names: Iterable[str]) -> None:
    """Remove scratch that was used; what cannot be removed is left to the sweep."""
    for name in names:
        try:
            directory.fs.delete_in(directory.taskowned_dir, name)
        except (HoldfastError, OSError) as error:
            logger.warning("could not delete the staged file %r, a sweep will: %s", name, error)
