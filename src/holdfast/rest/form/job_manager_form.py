"""The form of what is asked of a job manager, and answered."""

from __future__ import annotations

from typing import Final

from holdfast.rest.form.job_form import DETAILS_OF_PROCESS, OF_DISPATCHER, SUMMARY_FIELDS
from holdfast.rest.route import (
    FLAG,
    STRING,
    TEXT,
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

OVERVIEW: Final = named(
    "Overview",
    record(
        {
            "holdfast-version": STRING,
            "host": STRING,
            "pid": integer(1),
            "leader": FLAG,
            "ready": FLAG,
            "session": or_none(STRING),
            "leads-since": or_none(integer(0)),
            "jobs-taken-over": integer(0),
            "jobs-running": integer(0),
            "jobs-ended": integer(0),
        }
    ),
)
_SUMMARY: Final = named(
    "JobSummary",
    record(
        {
            **SUMMARY_FIELDS,
            **OF_DISPATCHER,
            "left-to-clean-up": told("What the clean-up could not do.", or_none(STRING)),
        }
    ),
)
JOBS_OVERVIEW: Final = record({"jobs": array(_SUMMARY)})
DETAILS: Final = either(_SUMMARY, DETAILS_OF_PROCESS)
SUBMISSION: Final = named(
    "Submission",
    record(
        {
            "script": told("Which of the files is the program.", TEXT),
            "files": told("Contents in base64 by name.", mapping(STRING, least=1)),
        },
        {"jobId": TEXT, "jobName": TEXT, "arguments": array(STRING), "options": mapping(STRING)},
    ),
)
SUBMITTED: Final = named("Submitted", record({"jobid": STRING, "name": STRING}))
_STOP: Final = "To stop a job, POST to /jobs/:jobid/stop."
CANCEL_QUERY: Final = record(None, {"mode": choice("cancel", refused={"stop": (400, _STOP)})})
LOG: Final = named(
    "Log", record({"offset": integer(0), "next": integer(0), "text": STRING, "ended": FLAG, "host": STRING})
)
_BYTES: Final = integer(0, 10**18 - 1)
LOG_QUERY: Final = record(
    None,
    {"offset": told("From which byte on.", _BYTES), "tail": told("So many of the last bytes.", _BYTES)},
)
