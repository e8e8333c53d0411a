"""`/jobs/:jobid/epochs` and `/jobs/:jobid/vertices/:vertexid`."""

from __future__ import annotations

import re
from typing import Final

from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.graph.job_graph import JobGraph
from holdfast.runtime.master.job_master import JobMaster

_TIME: Final = re.compile("[0-9]{1,15}")


class FlowApi:
    """What goes on in the one job of a master.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._graph = JobGraph(master)

    def epochs(self, request: Request) -> Answer:
        """GET /jobs/:jobid/epochs: the recent ones, oldest first, or with ?since=TIME those that began later."""
        since = request.query.get("since", "0")
        if not _TIME.fullmatch(since):
            raise RefusedError(400, f"since is a time in milliseconds since 1970, not {since!r:.40}.")
        recent = [epoch.to_dict() for epoch in self._master.progress.recent if epoch.started > int(since)]
        numbers = self._master.metrics.numbers
        return Answer(
            {
                "now": self._master.job.clock.now_ms(),
                "total": numbers.epochs,
                "repeated": numbers.repeated,
                "rows": numbers.rows,
                "epochs": recent,
            }
        )

    def vertex(self, request: Request) -> Answer:
        """GET /jobs/:jobid/vertices/:vertexid."""
        uid = request.path["vertexid"]
        found = self._graph.vertex(uid)
        if found is None:
            raise RefusedError(404, f"The job has no operator {uid!r:.80}.")
        return Answer(found)
