"""Which exchanges elements cross in messages, and not as rows of the engine."""

from __future__ import annotations

from dataclasses import replace

from holdfast.runtime.graph.plan import EpochJob, JobPlan, Stage


def packing_pays(plan: JobPlan) -> bool:
    """Whether messages cost nothing: all inputs are read by tasks, so that no rows come out of the engine.

    Messages need a limit of the bytes that the engine hands to a task at once, and to keep it costs it time for each
    row of an input, about as much as the messages save.
    """
    readers = {
        step.inputs[0].name
        for stage in plan.stages
        for step in stage.steps
        if step.operator is not None and step.operator.shape == "splits"
    }
    sources = [source for epoch_job in plan.epoch_jobs for source in epoch_job.sources]
    return bool(sources) and all(source.uid in readers for source in sources)


def with_packed_exchanges(plan: JobPlan) -> JobPlan:
    """Return the plan in which elements cross in messages wherever both sides of an exchange are Python.

    Where an operator behind it orders its rows, they cross as rows: the engine sorts them, on disk if need be.
    """
    return replace(plan, epoch_jobs=tuple(map(_packed, plan.epoch_jobs)))


def _packed(epoch_job: EpochJob) -> EpochJob:
    before = [at > 0 and not _orders_rows(stage) for at, stage in enumerate(epoch_job.stages)]
    stages = zip(epoch_job.stages, before, [*before[1:], False], strict=True)
    return replace(
        epoch_job,
        stages=tuple(replace(stage, arrives_packed=packed, leaves_packed=after) for stage, packed, after in stages),
    )


def _orders_rows(stage: Stage) -> bool:
    return any(edge.key is not None and edge.key.spec.order_by for edge in stage.arriving)
