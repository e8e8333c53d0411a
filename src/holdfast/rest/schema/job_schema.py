"""Schemas for a job."""

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
from holdfast.rest.schema.flow_schema import JOB_VERTEX, PLAN, PROGRESS
from holdfast.rest.schema.flow_schema import STATUS as STATE

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
