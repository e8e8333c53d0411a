"""JSON schemas of requests and responses for jobs, operators and rescales. Those of other paths are beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.rest.route import (
    ANY,
    FLAG,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    any_of,
    array,
    choice,
    component,
    described,
    integer,
    mapping,
    nullable,
    record,
)
from holdfast.runtime.job.control import JobStatus

_OF_JOB_MANAGERS: Final = ("INITIALIZING", "UNKNOWN")
STATE: Final = component("JobStatus", choice(*(status.value for status in JobStatus), *_OF_JOB_MANAGERS))

_SINK: Final = {
    "id": STRING,
    "epoch": nullable(integer(0)),
    "commit_ms": NUMBER,
    "behind": described("Accepted epochs whose output is not committed yet.", integer(0)),
}
_SHARE: Final = integer(0, 1000)
_TIME_OF_OPERATOR: Final = {"id": STRING, **dict.fromkeys(("busy", "back_pressured", "idle"), _SHARE)}
_REAL_TIME: Final = record(
    {
        "alignment_ms": described("Longest alignment of the barrier in a task.", NUMBER),
        "sync_ms": described("Longest snapshot of a task, for which elements have waited.", NUMBER),
        "operators": described(
            "Where the time of the least idle subtask went in the last second, in milliseconds.",
            array(record(_TIME_OF_OPERATOR)),
        ),
    }
)
PROGRESS: Final = component(
    "Progress",
    record(
        {
            "epoch": integer(0),
            "checkpoint_id": nullable(integer(1)),
            "rows": integer(0),
            **dict.fromkeys(("duration_ms", "checkpoint_ms", "commit_ms"), NUMBER),
            "state_bytes": integer(0),
            "position": STRING,
            "started": INTEGER,
            **dict.fromkeys(("task_ms", "function_ms", "saving_ms"), NUMBER),
            "watermark": nullable(INTEGER),
            "rows_per_second": NUMBER,
            "sinks": described(
                "The last committed epoch of each sink, and the duration of its commit.", array(record(_SINK))
            ),
            "real_time": described("Null for an epoch of a job by epochs.", nullable(_REAL_TIME)),
        }
    ),
)
_WAITING: Final = {
    "behind": described("Unread records.", integer(0)),
    "files_behind": described("Unread files.", integer(0)),
    "bytes_behind": described("Bytes of unread files.", integer(0)),
}
EPOCHS: Final = component(
    "Epochs",
    record(
        {
            "now": INTEGER,
            "total": integer(0),
            "repeated": integer(0),
            "rows": integer(0),
            "sources": array(record({"id": STRING}, _WAITING)),
            "sinks": array(
                record(
                    {
                        **_SINK,
                        "pending_rows": described("Rows staged in accepted epochs and not committed yet.", integer(0)),
                        "lag_ms": described("Age of the oldest of them, in milliseconds.", integer(0)),
                    }
                )
            ),
            "epochs": array(PROGRESS),
        }
    ),
)
EPOCHS_QUERY: Final = record(
    None, {"since": described("Only epochs that started later, in milliseconds since 1970.", integer(0, 10**15 - 1))}
)

_NUMBERS: Final = component(
    "FlowNumbers",
    record(
        {
            "read-bytes": integer(0),
            "read-bytes-complete": FLAG,
            "read-records": integer(0),
            "read-records-complete": FLAG,
            "write-records": integer(0),
            "write-records-complete": FLAG,
            "accumulated-busy-time": NUMBER,
        }
    ),
)
_LAST: Final = record({"read-records": integer(0), "busy-time": NUMBER})
_COMMITTED: Final = record(
    {
        **dict.fromkeys(("committed-records", "committed-bytes"), integer(0)),
        "last-epoch": described("The last committed epoch.", nullable(integer(0))),
        "last-commit-time": described("Duration of its commit, in milliseconds.", NUMBER),
        "commit-time": described("Duration of all commits, including failed ones, in milliseconds.", NUMBER),
        "pending-records": described("Rows staged in accepted epochs and not committed yet.", integer(0)),
        "pending-committables": integer(0),
        "lag": described("Age of the oldest of them, in milliseconds.", integer(0)),
    }
)
_LIVE: Final = {
    **dict.fromkeys(("busy", "back-pressured", "idle"), _SHARE),
    **dict.fromkeys(("read-records", "write-records"), described("Elements a second.", NUMBER)),
}
_LIVE_SUBTASK: Final = {
    **_LIVE,
    "watermark": described("Watermark of its input.", nullable(INTEGER)),
    "alignment-time": described("Milliseconds that the last barrier took to arrive from all producers.", NUMBER),
    "sync-time": described("Milliseconds for which elements waited for the last snapshot.", NUMBER),
}
_IN_REAL_TIME: Final = described(
    "The last second of a real-time job: where the time of the least idle subtask went, in milliseconds, and elements. "
    "Null in a job by epochs.",
    nullable(record(_LIVE)),
)
_VERTEX: Final[Mapping[str, Schema]] = {
    "id": STRING,
    "name": STRING,
    "kind": STRING,
    "maxParallelism": integer(0),
    "parallelism": integer(1),
    "tasks": integer(0),
    "status": STATE,
    "metrics": _NUMBERS,
    "skew": described("Maximum divided by mean over subtasks.", record({"read-records": NUMBER, "busy-time": NUMBER})),
    "last-epoch": _LAST,
    "state-bytes": integer(0),
    "watermark": nullable(INTEGER),
    "sink": described("Null for operators that are not sinks with commits.", nullable(_COMMITTED)),
    "real-time": _IN_REAL_TIME,
}
JOB_VERTEX: Final = component("VertexOfJob", record(_VERTEX))
_SUBTASK: Final = record(
    {
        "subtask": integer(0),
        "status": STATE,
        "epochs": integer(0),
        "metrics": _NUMBERS,
        "last-epoch": _LAST,
        "saving-time": NUMBER,
        "real-time": nullable(record(_LIVE_SUBTASK)),
    }
)
VERTEX: Final = component(
    "Vertex",
    record(
        {
            **_VERTEX,
            "now": INTEGER,
            "subtasks-since": described(
                "Time from which the subtasks count: start of the process, or rescale.", INTEGER
            ),
            "subtasks": array(_SUBTASK),
        }
    ),
)

_LEVEL: Final = described("ok up to 0.1, low up to 0.5.", choice("ok", "low", "high"))
_RATIO: Final = {"type": "number", "minimum": 0, "maximum": 1}
BACK_PRESSURE: Final = component(
    "BackPressure",
    record(
        {
            "status": described(
                "deprecated without numbers: in jobs by epochs, and while tasks start.", choice("ok", "deprecated")
            )
        },
        {
            "backpressure-level": described("That of the most back-pressured subtask.", _LEVEL),
            "end-timestamp": INTEGER,
            "subtasks": array(
                record(
                    {
                        "subtask": integer(0),
                        "backpressure-level": _LEVEL,
                        **dict.fromkeys(("ratio", "idleRatio", "busyRatio"), _RATIO),
                    }
                )
            ),
        },
    ),
)

_FLOW: Final = dict.fromkeys(("records", "bytes", "last-records", "last-bytes"), nullable(integer(0)))
_INPUT: Final = record(
    {"num": integer(0), "id": STRING, "ship_strategy": STRING, "exchange": choice("blocking", "pipelined")},
    {"tag": nullable(STRING), **_FLOW},
)
_NODE: Final = record(
    {
        "id": STRING,
        "parallelism": integer(1),
        "operator": STRING,
        "description": STRING,
        "stage": INTEGER,
        "inputs": array(_INPUT),
    },
    {"real-time": _IN_REAL_TIME},
)
PLAN: Final = component(
    "Plan", record({"jid": STRING, "name": STRING, "type": choice("STREAMING"), "nodes": array(_NODE)})
)


_MS: Final[Schema] = described("Milliseconds since 1970, -1 if it has not happened.", INTEGER)
EMPTY: Final = record()

JOBS: Final = component("Jobs", record({"jobs": array(record({"id": STRING, "status": STATE}))}))
STATUS: Final = record({"status": STATE})

SUMMARY_FIELDS: Final[Mapping[str, Schema]] = {
    "jid": STRING,
    "name": STRING,
    "state": STATE,
    "start-time": _MS,
    "end-time": _MS,
    "duration": integer(0),
    "restarts": integer(0),
    "tries-in-a-row": integer(0),
    "last-failure": nullable(STRING),
}
DISPATCHER_FIELDS: Final[Mapping[str, Schema]] = {
    "processes": described("Starts of the job's process.", integer(0)),
    "taken-over": described("Time of the takeover from an earlier leader.", nullable(INTEGER)),
}
_OWN_FIELDS: Final[Mapping[str, Schema]] = {**SUMMARY_FIELDS, "last-modification": _MS}
OVERVIEW: Final = component(
    "JobsOverview",
    record(
        {
            "jobs": array(
                record({**_OWN_FIELDS, "tasks": record({"total": integer(0)}), "pending-operators": integer(0)})
            )
        }
    ),
)
_DETAILS: Final[Mapping[str, Schema]] = {
    **_OWN_FIELDS,
    "isStoppable": FLAG,
    "job-type": choice("STREAMING"),
    "now": _MS,
    "timestamps": mapping(_MS),
    "vertices": array(JOB_VERTEX),
    "status-counts": mapping(integer(0)),
    "plan": PLAN,
    "pending-operators": integer(0),
    "progress": nullable(PROGRESS),
    "engine-url": described("Web interface of Spark; null if it is off.", nullable(STRING)),
}
DETAILS_QUERY: Final = record(
    None,
    {
        "watch": described(
            "Interval at which the client polls, in milliseconds. When the job ends, its process waits for the next "
            "poll, at most some seconds.",
            integer(1, 60_000),
        )
    },
)
DETAILS: Final = component("JobDetails", record(_DETAILS))
PROCESS_DETAILS: Final = record({**_DETAILS, **DISPATCHER_FIELDS})
CONFIG: Final = component(
    "JobConfig",
    record(
        {
            "jid": STRING,
            "name": STRING,
            "execution-config": record(
                {"job-parallelism": integer(1), "object-reuse-mode": FLAG, "user-config": mapping(STRING)}
            ),
        }
    ),
)
JOB_PLAN: Final = record({"plan": PLAN})

EXCEPTIONS: Final = component(
    "Exceptions",
    record(
        {
            "exceptionHistory": record(
                {
                    "entries": array(
                        record(
                            {"exceptionName": STRING, "stacktrace": STRING, "timestamp": _MS},
                            {
                                "message": STRING,
                                "taskName": nullable(STRING),
                                "concurrentExceptions": array(ANY),
                                "failureLabels": mapping(STRING),
                            },
                        )
                    ),
                    "truncated": FLAG,
                }
            )
        }
    ),
)
EXCEPTIONS_QUERY: Final = record(
    None, {"maxExceptions": described("Maximum number of exceptions; 20 by default.", integer(1, 999_999_999))}
)
_NO_STOP: Final = (
    'The termination mode "stop" has been removed. For an ungraceful shutdown, please use "cancel" instead. For a '
    'graceful shutdown, please use "jobs/:jobId/stop" instead.'
)
CANCEL_QUERY: Final = record(None, {"mode": choice("cancel", refused={"stop": (308, _NO_STOP)})})
METRICS: Final = component("Metrics", array(record({"id": STRING}, {"value": STRING})))
METRICS_QUERY: Final = record(None, {"get": described("Names, separated by commas.", STRING)})
SAMPLES: Final = component(
    "Samples",
    array(record({"name": STRING, "value": NUMBER, "help": STRING, "is_counter": FLAG, "labels": mapping(STRING)})),
)

CAUSE: Final = component("Cause", record({"class": STRING, "message": STRING}, {"stack-trace": STRING}))
_RESULT: Final[dict[str, Any]] = {
    "id": STRING,
    "application-status": choice("SUCCEEDED", "CANCELED", "FAILED", "UNKNOWN"),
    "accumulator-results": mapping(ANY),
    "net-runtime": integer(0),
}
RESULT: Final = component(
    "ExecutionResult",
    any_of(
        record({"status": record({"id": choice("IN_PROGRESS")})}),
        record(
            {
                "status": record({"id": choice("COMPLETED")}),
                "job-execution-result": record(_RESULT, {"failure-cause": CAUSE}),
            }
        ),
    ),
)

REQUIREMENTS: Final = component(
    "Requirements", mapping(record({"parallelism": record({"lowerBound": integer(1), "upperBound": integer(1)})}))
)
REQUIREMENTS_REQUEST: Final = component(
    "WantedRequirements",
    mapping(record({"parallelism": record({"upperBound": integer(1)}, {"lowerBound": integer(1)})}), least=1),
)
RESCALING_QUERY: Final = record(None, {"parallelism": integer(1)})

LOG: Final = component(
    "Log", record({"offset": integer(0), "next": integer(0), "text": STRING, "ended": FLAG, "host": STRING})
)
_BYTES: Final = integer(0, 10**18 - 1)
LOG_QUERY: Final = record(
    None,
    {
        "offset": described("Offset of the first byte.", _BYTES),
        "tail": described("Number of bytes from the end of the log.", _BYTES),
    },
)


_COUNTS: Final[Mapping[str, Schema]] = {
    "rescalesCounts": record({name: integer(0) for name in ("completed", "failed", "ignored", "inProgress")})
}
SPREAD: Final = component(
    "Spread",
    record(dict.fromkeys(("min", "max", "avg", "p50", "p90", "p95", "p99", "p999"), NUMBER)),
)
RESCALE: Final = component(
    "Rescale",
    record(
        {
            "rescaleUuid": STRING,
            "rescaleAttemptId": integer(0),
            "triggerCause": choice("UPDATE_REQUIREMENT"),
            "terminalState": choice("COMPLETED", "FAILED"),
            "terminatedReason": STRING,
            "startTimestampInMillis": INTEGER,
            "endTimestampInMillis": INTEGER,
            "vertices": mapping(
                record(
                    {
                        "jobVertexId": STRING,
                        "desiredParallelism": integer(1),
                        "preRescaleParallelism": integer(1),
                        "postRescaleParallelism": integer(1),
                    }
                )
            ),
            "slots": record(),
            "schedulerStates": array(record()),
        }
    ),
)
RESCALE_CONFIG: Final = record({"rescaleHistoryMax": integer(0)})
RESCALE_OVERVIEW: Final = component(
    "Rescales",
    record(
        {
            **_COUNTS,
            "latest": record(
                {"completed": nullable(RESCALE), "failed": nullable(RESCALE), "ignored": nullable(RESCALE)}
            ),
        }
    ),
)
RESCALE_SUMMARY: Final = record({**_COUNTS, "completedRescalesDurationStatsInMillis": SPREAD})
RESCALE_HISTORY: Final = record({"rescaleHistory": array(RESCALE)})
