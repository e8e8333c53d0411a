"""Schemas for epochs, operators and the plan of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.rest.route import (
    FLAG,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    array,
    choice,
    component,
    described,
    integer,
    nullable,
    record,
)
from holdfast.runtime.job.control import JobStatus

_OF_JOB_MANAGERS: Final = ("INITIALIZING", "UNKNOWN")
STATUS: Final = component("JobStatus", choice(*(status.value for status in JobStatus), *_OF_JOB_MANAGERS))

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
    "status": STATUS,
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
        "status": STATUS,
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
