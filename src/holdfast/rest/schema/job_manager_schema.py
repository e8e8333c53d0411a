"""Schemas for a job manager."""

from __future__ import annotations

from typing import Final

from holdfast.rest.route import (
    FLAG,
    STRING,
    TEXT,
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
from holdfast.rest.schema.job_schema import DISPATCHER_FIELDS, PROCESS_DETAILS, SUMMARY_FIELDS

OVERVIEW: Final = component(
    "Overview",
    record(
        {
            "holdfast-version": STRING,
            "host": STRING,
            "pid": integer(1),
            "leader": FLAG,
            "ready": FLAG,
            "session": nullable(STRING),
            "leads-since": nullable(integer(0)),
            "jobs-taken-over": integer(0),
            "jobs-running": integer(0),
            "jobs-ended": integer(0),
        }
    ),
)
_SUMMARY: Final = component(
    "JobSummary",
    record(
        {
            **SUMMARY_FIELDS,
            **DISPATCHER_FIELDS,
            "left-to-clean-up": described("The error of the last clean-up.", nullable(STRING)),
        }
    ),
)
JOBS_OVERVIEW: Final = record({"jobs": array(_SUMMARY)})
DETAILS: Final = any_of(_SUMMARY, PROCESS_DETAILS)
SUBMISSION: Final = component(
    "Submission",
    record(
        {
            "script": described("The file that is the program.", TEXT),
            "files": described("Base64 contents by file name.", mapping(STRING, least=1)),
        },
        {"jobId": TEXT, "jobName": TEXT, "arguments": array(STRING), "options": mapping(STRING)},
    ),
)
SUBMITTED: Final = component("Submitted", record({"jobid": STRING, "name": STRING}))
_STOP: Final = "To stop a job, POST to /jobs/:jobid/stop."
CANCEL_QUERY: Final = record(None, {"mode": choice("cancel", refused={"stop": (400, _STOP)})})
