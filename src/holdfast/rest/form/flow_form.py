"""The form of what is answered about what flows through a job."""

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
    integer,
    named,
    or_none,
    record,
    told,
)
from holdfast.runtime.job.control import JobStatus

_OF_JOB_MANAGERS: Final = ("INITIALIZING", "UNKNOWN")
STATUS: Final = named("JobStatus", choice(*(status.value for status in JobStatus), *_OF_JOB_MANAGERS))

_SINK: Final = {
    "id": STRING,
    "epoch": or_none(integer(0)),
    "commit_ms": NUMBER,
    "behind": told("Epochs that are accepted, and whose output it has not committed.", integer(0)),
}
PROGRESS: Final = named(
    "Progress",
    record(
        {
            "epoch": integer(0),
            "checkpoint_id": or_none(integer(1)),
            "rows": integer(0),
            **dict.fromkeys(("duration_ms", "checkpoint_ms", "commit_ms"), NUMBER),
            "state_bytes": integer(0),
            "position": STRING,
            "started": INTEGER,
            **dict.fromkeys(("task_ms", "function_ms", "saving_ms"), NUMBER),
            "watermark": or_none(INTEGER),
            "rows_per_second": NUMBER,
            "sinks": told(
                "Sinks: the last epoch of each that is committed, and how long that took.", array(record(_SINK))
            ),
        }
    ),
)
_WAITING: Final = {
    "behind": told("Records that no epoch has read yet.", integer(0)),
    "files_behind": told("Files that no epoch has read yet.", integer(0)),
    "bytes_behind": told("Bytes of these files.", integer(0)),
}
EPOCHS: Final = named(
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
                        "pending_rows": told("Staged in accepted epochs, and not committed.", integer(0)),
                        "lag_ms": told("How long the oldest of them waits.", integer(0)),
                    }
                )
            ),
            "epochs": array(PROGRESS),
        }
    ),
)
EPOCHS_QUERY: Final = record(
    None, {"since": told("Only epochs that began later, in milliseconds since 1970.", integer(0, 10**15 - 1))}
)

_NUMBERS: Final = named(
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
        "last-epoch": told("The last epoch that is committed.", or_none(integer(0))),
        "last-commit-time": told("Milliseconds that its commit took.", NUMBER),
        "commit-time": told("Milliseconds that all commits took, with those that failed.", NUMBER),
        "pending-records": told("Staged in accepted epochs, and not committed.", integer(0)),
        "pending-committables": integer(0),
        "lag": told("Milliseconds that the oldest of them waits.", integer(0)),
    }
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
    "skew": told("The greatest divided by the mean.", record({"read-records": NUMBER, "busy-time": NUMBER})),
    "last-epoch": _LAST,
    "state-bytes": integer(0),
    "watermark": or_none(INTEGER),
    "sink": told("Of a sink that commits what it has staged.", or_none(_COMMITTED)),
}
VERTEX_OF_JOB: Final = named("VertexOfJob", record(_VERTEX))
_SUBTASK: Final = record(
    {
        "subtask": integer(0),
        "status": STATUS,
        "epochs": integer(0),
        "metrics": _NUMBERS,
        "last-epoch": _LAST,
        "saving-time": NUMBER,
    }
)
VERTEX: Final = named("Vertex", record({**_VERTEX, "now": INTEGER, "subtasks": array(_SUBTASK)}))

_FLOW: Final = dict.fromkeys(("records", "bytes", "last-records", "last-bytes"), or_none(integer(0)))
_INPUT: Final = record(
    {"num": integer(0), "id": STRING, "ship_strategy": STRING, "exchange": choice("blocking", "pipelined")},
    {"tag": or_none(STRING), **_FLOW},
)
_NODE: Final = record(
    {
        "id": STRING,
        "parallelism": integer(1),
        "operator": STRING,
        "description": STRING,
        "stage": INTEGER,
        "inputs": array(_INPUT),
    }
)
PLAN: Final = named("Plan", record({"jid": STRING, "name": STRING, "type": choice("STREAMING"), "nodes": array(_NODE)}))
