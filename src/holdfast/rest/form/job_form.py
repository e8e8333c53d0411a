"""The form of what is answered about a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.rest.form.flow_form import PLAN, PROGRESS, VERTEX_OF_JOB
from holdfast.rest.form.flow_form import STATUS as STATE
from holdfast.rest.route import (
    ANY,
    FLAG,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    array,
    choice,
    either,
    integer,
    mapping,
    named,
    or_none,
    record,
    told,
)

_MS: Final[Schema] = told("Milliseconds since 1970, -1 if it has not happened.", INTEGER)
NOTHING: Final = record()

JOBS: Final = named("Jobs", record({"jobs": array(record({"id": STRING, "status": STATE}))}))
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
    "last-failure": or_none(STRING),
}
OF_DISPATCHER: Final[Mapping[str, Schema]] = {
    "processes": told("How often the job has been started.", integer(0)),
    "taken-over": told("When it was taken over from a leader before.", or_none(INTEGER)),
}
_OWN_FIELDS: Final[Mapping[str, Schema]] = {**SUMMARY_FIELDS, "last-modification": _MS}
OVERVIEW: Final = named(
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
    "vertices": array(VERTEX_OF_JOB),
    "status-counts": mapping(integer(0)),
    "plan": PLAN,
    "pending-operators": integer(0),
    "progress": or_none(PROGRESS),
}
DETAILS: Final = named("JobDetails", record(_DETAILS))
DETAILS_OF_PROCESS: Final = record({**_DETAILS, **OF_DISPATCHER})
CONFIG: Final = named(
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
PLAN_OF_JOB: Final = record({"plan": PLAN})

EXCEPTIONS: Final = named(
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
                                "taskName": or_none(STRING),
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
    None, {"maxExceptions": told("How many are answered; 20 if it is not said.", integer(1, 999_999_999))}
)
_NO_STOP: Final = (
    'The termination mode "stop" has been removed. For an ungraceful shutdown, please use "cancel" instead. For a '
    'graceful shutdown, please use "jobs/:jobId/stop" instead.'
)
CANCEL_QUERY: Final = record(None, {"mode": choice("cancel", refused={"stop": (308, _NO_STOP)})})
METRICS: Final = named("Metrics", array(record({"id": STRING}, {"value": STRING})))
METRICS_QUERY: Final = record(None, {"get": told("Names, separated by commas.", STRING)})
SAMPLES: Final = named(
    "Samples",
    array(record({"name": STRING, "value": NUMBER, "help": STRING, "is_counter": FLAG, "labels": mapping(STRING)})),
)

CAUSE: Final = named("Cause", record({"class": STRING, "message": STRING}, {"stack-trace": STRING}))
_RESULT: Final[dict[str, Any]] = {
    "id": STRING,
    "application-status": choice("SUCCEEDED", "CANCELED", "FAILED", "UNKNOWN"),
    "accumulator-results": mapping(ANY),
    "net-runtime": integer(0),
}
RESULT: Final = named(
    "ExecutionResult",
    either(
        record({"status": record({"id": choice("IN_PROGRESS")})}),
        record(
            {
                "status": record({"id": choice("COMPLETED")}),
                "job-execution-result": record(_RESULT, {"failure-cause": CAUSE}),
            }
        ),
    ),
)

REQUIREMENTS: Final = named(
    "Requirements", mapping(record({"parallelism": record({"lowerBound": integer(1), "upperBound": integer(1)})}))
)
WANTED_REQUIREMENTS: Final = named(
    "WantedRequirements",
    mapping(record({"parallelism": record({"upperBound": integer(1)}, {"lowerBound": integer(1)})}), least=1),
)
RESCALING_QUERY: Final = record(None, {"parallelism": integer(1)})
