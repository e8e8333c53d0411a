"""Paths of Flink's interface that have no meaning here: each is answered with the reason and what to do instead."""

from __future__ import annotations

from typing import Final

_SPARK: Final = "Spark runs the tasks: look at its own web interface and REST, at spark.ui.port (4040)."
_ONE_JOB: Final = (
    "There is no cluster here but Spark's. This is the master of one job, which runs in the process that was started "
    "with `holdfast run` or `python`, or by a job manager; it serves /jobs. Jobs are submitted to a job manager."
)
_PROGRAMS: Final = "Programs are Python, not jars: submit one with its files to a job manager, with POST /jobs."
_SUBTASKS: Final = (
    f"{_SPARK} What a subtask gave to a checkpoint is at /jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:uid."
)

_OF_A_JOB: Final[dict[str, str]] = {
    "GET /jobs/metrics": "Numbers of all jobs are at /metrics, those of one at /jobs/:jobid/metrics.",
    "GET /jobs/:jobid/accumulators": (
        "Functions have no accumulators. Count with the metrics group of the runtime context, and look at "
        "/jobs/:jobid/metrics."
    ),
    "PATCH /jobs/:jobid/clientHeartbeat": (
        "No client is attached to a job: it lives and ends with the process that runs it, so it needs no heartbeat."
    ),
    "POST /jobs/:jobid/coordinators/:uid": "Operators have no coordinators that could be asked.",
    "GET /jobs/:jobid/rescaling/:triggerid": "Rescaling by this path is given up, in Flink too: see "
    "/jobs/:jobid/rescales.",
    "GET /jobs/:jobid/vertices/:vertexid/*": _SUBTASKS,
    "GET /jobs/:jobid/taskmanagers*": _SPARK,
    "GET /jobs/:jobid/jobmanager/*": "The options of a job are at /jobs/:jobid/config, and its log is at "
    "/jobs/:jobid/log of its job manager.",
    "GET /taskmanagers*": _SPARK,
    "POST /taskmanagers*": _SPARK,
    "GET /datasets*": "Nothing is kept between jobs but their output and their checkpoints.",
    "DELETE /datasets*": "Nothing is kept between jobs but their output and their checkpoints.",
    "GET /jars*": _PROGRAMS,
    "POST /jars*": _PROGRAMS,
    "DELETE /jars*": _PROGRAMS,
}

ABSENT: Final[dict[str, str]] = {
    **_OF_A_JOB,
    "POST /jobs": _ONE_JOB,
    "GET /jobmanager/*": _ONE_JOB,
    "POST /jobmanager/*": _ONE_JOB,
    "GET /overview": _ONE_JOB,
    "GET /config": _ONE_JOB,
    "GET /applications*": _ONE_JOB,
    "POST /applications*": _ONE_JOB,
    "DELETE /cluster": f"{_ONE_JOB} End it with PATCH /jobs/:jobid?mode=cancel, or with POST /jobs/:jobid/stop.",
}
"""By method and path; `*` stands for anything, also for nothing. They are answered with 501."""

_LOGS: Final = "A job manager logs to where its process was told to; the log of a job is at /jobs/:jobid/log."
_DISPOSAL: Final = "`holdfast savepoint --dispose PATH` deletes a savepoint; it needs no job, and no job manager."
_APPLICATIONS: Final = "A program is one job: look at /jobs."
ABSENT_OF_JOB_MANAGERS: Final[dict[str, str]] = {
    **_OF_A_JOB,
    "POST /savepoint-disposal": _DISPOSAL,
    "GET /savepoint-disposal/*": _DISPOSAL,
    "GET /config": "It is what Flink's page asks for; the one here has nothing that could be configured.",
    "GET /jobmanager/config": "It has the options that it was started with; those of a job are at /jobs/:jobid/config.",
    "GET /jobmanager/environment": "There is no JVM; the version of Holdfast is at /overview.",
    "GET /jobmanager/metrics": "Its numbers are at /metrics.",
    "GET /jobmanager/log*": _LOGS,
    "GET /jobmanager/stdout": _LOGS,
    "GET /jobmanager/thread-dump": "The process is not a JVM: `py-spy dump` shows what its threads do.",
    "GET /jobmanager/profiler*": "The process is not a JVM: `py-spy` profiles it.",
    "POST /jobmanager/profiler*": "The process is not a JVM: `py-spy` profiles it.",
    "GET /applications*": _APPLICATIONS,
    "POST /applications*": _APPLICATIONS,
    "DELETE /cluster": "A job manager is ended on its host: one that gets SIGTERM hands its jobs over to the next.",
}
"""The same of a job manager."""
