"""`/jobs/:jobid/epochs` and `/jobs/:jobid/vertices/:vertexid`."""

from __future__ import annotations

from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.form import flow_form
from holdfast.rest.graph.job_graph import JobGraph
from holdfast.rest.route.route import serves
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_metrics import lags


class FlowApi:
    """What goes on in the one job of a master.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._graph = JobGraph(master)

    @serves("GET", "/jobs/:jobid/epochs", flow_form.EPOCHS, query=flow_form.EPOCHS_QUERY)
    def epochs(self, request: Request) -> Answer:
        """The recent epochs of a job, oldest first, or with ?since=TIME those that began later."""
        since = request.query.get("since", 0)
        recent = [epoch.to_dict() for epoch in self._master.progress.recent if epoch.started > since]
        master = self._master
        numbers, now = master.metrics.numbers, master.job.clock.now_ms()
        return Answer(
            {
                "now": now,
                "total": numbers.epochs,
                "repeated": numbers.repeated,
                "rows": numbers.rows,
                **lags(numbers.sinks, master.job.engine.source_numbers(), now),
                "epochs": recent,
            }
        )

    @serves("GET", "/jobs/:jobid/vertices/:vertexid", flow_form.VERTEX)
    def vertex(self, request: Request) -> Answer:
        """An operator with its subtasks."""
        uid = request.path["vertexid"]
        found = self._graph.vertex(uid)
        if found is None:
            raise RefusedError(404, f"The job has no operator {uid!r:.80}.")
        return Answer(found)
