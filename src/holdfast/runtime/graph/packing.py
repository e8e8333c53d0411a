"""Which exchanges elements cross in messages, and not as rows of the engine."""

from __future__ import annotations

from dataclasses import replace

from holdfast.runtime.graph.plan import EpochJob, JobPlan, Stage


def with_packed_exchanges(plan: JobPlan, batch_rows: int) -> JobPlan:
    """Return the plan in which elements cross in messages wherever both sides of an exchange are Python.

    Where an operator behind it orders its rows, they cross as rows: the engine sorts them, on disk if need be.

    Args:
        plan: The plan.
        batch_rows: How many rows the engine hands to a task at once.
    """
    return replace(plan, epoch_jobs=tuple(_packed(epoch_job, batch_rows) for epoch_job in plan.epoch_jobs))


def _packed(epoch_job: EpochJob, batch_rows: int) -> EpochJob:
    before = [at > 0 and not _orders_rows(stage) for at, stage in enumerate(epoch_job.stages)]
    stages = zip(epoch_job.stages, before, [*before[1:], False], strict=True)
    return replace(
        epoch_job,
        stages=tuple(
            replace(stage, arrives_packed=packed, leaves_packed=after, batch_rows=batch_rows)
            for stage, packed, after in stages
        ),
    )


def _orders_rows(stage: Stage) -> bool:
    return any(edge.key is not None and edge.key.spec.order_by for edge in stage.arriving)
