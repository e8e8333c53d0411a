"""A job's operators, sources and edges in the form of Flink's plan, with the numbers of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.runtime.graph.plan import JobPlan, Port, Step
from holdfast.runtime.master.job_flow import EdgeFlow, JobFlow, SubtaskFlow
from holdfast.runtime.master.job_master import JobMaster


class JobGraph:
    """The graph of one job; empty before its first attempt.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._flow: JobFlow = master.flow

    def plan(self) -> dict[str, Any]:
        """Return Flink's plan, in which sources are nodes, too."""
        job, plan = self._master.job, self._plan
        nodes = [] if plan is None else [*self._sources(plan), *self._operators(plan)]
        return {"jid": str(job.job_id), "name": job.name, "type": "STREAMING", "nodes": nodes}

    def vertices(self) -> list[dict[str, Any]]:
        """Return the operators with their numbers, as Flink's details of a job have them."""
        return [self._vertex(step) for step in self._steps()]

    def vertex(self, uid: str) -> dict[str, Any] | None:
        """Return one operator with its subtasks, None if there is none of this uid."""
        step = next((step for step in self._steps() if step.uid == uid), None)
        if step is None:
            return None
        subtasks = [
            {
                "subtask": flow.subtask,
                "status": self._master.status.value,
                "epochs": flow.epochs,
                "metrics": _numbers([flow]),
                "last-epoch": {"read-records": flow.last_in, "busy-time": round(flow.last_busy_ms, 3)},
                "saving-time": flow.saving_ms,
            }
            for flow in self._flow.subtasks(uid)
        ]
        return {**self._vertex(step), "now": self._master.job.clock.now_ms(), "subtasks": subtasks}

    @property
    def _plan(self) -> JobPlan | None:
        attempt = self._master.attempt
        return None if attempt is None else attempt.plan

    def _steps(self) -> list[Step]:
        plan = self._plan
        return [] if plan is None else [step for stage in plan.stages for step in stage.steps]

    def _vertex(self, step: Step) -> dict[str, Any]:
        flows = self._flow.subtasks(step.uid)
        numbers = self._master.metrics.numbers.operators.get(step.uid)
        return {
            "id": step.uid,
            "name": step.name,
            "kind": step.kind,
            "maxParallelism": step.max_parallelism,
            "parallelism": max(1, step.parallelism),
            "tasks": len(flows),
            "status": self._master.status.value,
            "metrics": _numbers(flows),
            "skew": {
                "read-records": _skew([flow.records_in for flow in flows]),
                "busy-time": _skew([flow.busy_ms for flow in flows]),
            },
            "last-epoch": {
                "read-records": sum(flow.last_in for flow in flows),
                "busy-time": round(max((flow.last_busy_ms for flow in flows), default=0.0), 3),
            },
            "state-bytes": 0 if numbers is None else numbers.state_bytes,
            "watermark": None if numbers is None else numbers.watermark,
            "sink": self._sink(step),
        }

    def _sink(self, step: Step) -> dict[str, Any] | None:
        """What a sink has committed and what waits; None for other steps, and sinks that commit nothing."""
        numbers = self._master.metrics.numbers.sinks.get(step.uid)
        if numbers is None:
            return None
        return {
            "committed-records": numbers.records,
            "committed-bytes": numbers.bytes,
            "last-epoch": numbers.last_epoch,
            "last-commit-time": numbers.last_ms,
            "commit-time": round(1000 * numbers.seconds, 1),
            "pending-records": numbers.pending_records,
            "pending-committables": numbers.pending,
            "lag": numbers.lag_ms(self._master.job.clock.now_ms()),
        }

    def _sources(self, plan: JobPlan) -> Iterator[dict[str, Any]]:
        for number, epoch_job in enumerate(plan.epoch_jobs):
            for source in epoch_job.sources:
                node = source.node
                yield {
                    "id": source.uid,
                    "parallelism": 1,
                    "operator": "transform" if source.staged else "source",
                    "description": plan.names.get(source.uid) or getattr(node, "name", None) or source.uid,
                    "stage": epoch_job.base - 1 if number == 0 else epoch_job.base,
                    "inputs": [
                        {"num": place, "id": uid, "ship_strategy": "FORWARD", "exchange": "blocking"}
                        for place, uid in enumerate(source.staged)
                    ],
                }

    def _operators(self, plan: JobPlan) -> Iterator[dict[str, Any]]:
        for stage in plan.stages:
            for step in stage.steps:
                yield {
                    "id": step.uid,
                    "parallelism": max(1, step.parallelism),
                    "operator": step.kind,
                    "description": step.name,
                    "stage": stage.index,
                    "inputs": [self._input(plan, step, number, port) for number, port in enumerate(step.inputs)],
                }

    def _input(self, plan: JobPlan, step: Step, number: int, port: Port) -> dict[str, Any]:
        edge = next((edge for edge in plan.edges if edge.name == port.name), None) if port.kind == "edge" else None
        origin = port if edge is None else edge.origin
        strategy = "FORWARD"
        if edge is not None:
            strategy = "HASH" if edge.key is not None else "BROADCAST" if edge.broadcast else "REBALANCE"
        flow = self._flow.edge(port.name, step.uid)
        if flow is None and port.kind == "step" and len(step.inputs) == 1:
            # Handed from one function to the next in the same task: no bytes, and each is read once.
            flows = self._flow.subtasks(step.uid)
            flow = EdgeFlow(sum(one.records_in for one in flows), 0, sum(one.last_in for one in flows), 0)
        return {
            "num": number,
            "id": origin.name,
            "tag": origin.tag,
            "ship_strategy": strategy,
            "exchange": "pipelined" if port.kind == "step" else "blocking",
            "records": None if flow is None else flow.rows,
            "bytes": None if flow is None or port.kind == "step" else flow.bytes,
            "last-records": None if flow is None else flow.last_rows,
            "last-bytes": None if flow is None or port.kind == "step" else flow.last_bytes,
        }


def _numbers(flows: Sequence[SubtaskFlow]) -> dict[str, Any]:
    """Numbers of subtasks under Flink's names."""
    return {
        "read-bytes": sum(flow.bytes_in for flow in flows),
        "read-bytes-complete": True,
        "read-records": sum(flow.records_in for flow in flows),
        "read-records-complete": True,
        "write-records": sum(flow.records_out for flow in flows),
        "write-records-complete": True,
        "accumulated-busy-time": round(sum(flow.busy_ms for flow in flows), 3),
    }


def _skew(values: Sequence[float]) -> float:
    """The greatest divided by the mean: 1 is even; 0 if there is nothing to divide."""
    total = sum(values)
    return round(max(values) * len(values) / total, 2) if total else 0.0
