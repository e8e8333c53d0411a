"""Paths of Flink's interface that have no meaning here: each is answered with the reason and what to do instead."""

from __future__ import annotations

from typing import Final

_SPARK: Final = "Spark runs the tasks: look at its own web interface and REST, at spark.ui.port (4040)."
_ONE_JOB: Final = (
    "There is no cluster here but Spark's. This is the master of one job, which runs in the process that was started "
    "with `holdfast run` or `python`, or by a job manager; it serves /jobs. Jobs are submitted to a job manager."
)

ABSENT: Final[dict[str, str]] = {
    "POST /jobs": _ONE_JOB,
    "GET /jobs/:jobid/accumulators": (
        "Functions have no accumulators. Emit what is to be counted, or look at /jobs/:jobid/metrics."
    ),
    "PATCH /jobs/:jobid/clientHeartbeat": (
        "No client is attached to a job: it lives and ends with the process that runs it, so it needs no heartbeat."
    ),
    "POST /jobs/:jobid/coordinators/:uid": "Operators have no coordinators that could be asked.",
    "GET /jobs/:jobid/vertices/:vertexid/*": f"{_SPARK} What a subtask gave to a checkpoint is at "
    "/jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:uid.",
    "GET /taskmanagers*": _SPARK,
    "GET /jobmanager/*": _ONE_JOB,
    "GET /overview": _ONE_JOB,
    "GET /config": _ONE_JOB,
    "GET /datasets*": _ONE_JOB,
    "DELETE /datasets*": _ONE_JOB,
    "GET /jars*": _ONE_JOB,
    "POST /jars*": _ONE_JOB,
    "DELETE /jars*": _ONE_JOB,
    "GET /applications*": _ONE_JOB,
    "POST /applications*": _ONE_JOB,
    "DELETE /cluster": f"{_ONE_JOB} End it with PATCH /jobs/:jobid?mode=cancel, or with POST /jobs/:jobid/stop.",
}
"""By method and path; `*` stands for anything, also for nothing. They are answered with 501."""
