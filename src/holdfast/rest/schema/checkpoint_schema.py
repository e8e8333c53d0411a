"""Schemas for checkpoints and savepoints. `checkpoint/statistics.py` makes the answers about checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.checkpoint.snapshot_type import SavepointFormatType
from holdfast.rest.route import (
    FLAG,
    INTEGER,
    NUMBER,
    STRING,
    TEXT,
    TRIGGER_ID,
    Schema,
    any_of,
    array,
    choice,
    component,
    described,
    integer,
    mapping,
    matching,
    nullable,
    record,
)
from holdfast.rest.schema.job_schema import CAUSE

_STATUS: Final = choice("IN_PROGRESS", "COMPLETED", "FAILED")
SPREAD: Final = component(
    "Spread",
    record(dict.fromkeys(("min", "max", "avg", "p50", "p90", "p95", "p99", "p999"), NUMBER)),
)
_SIZES: Final[Mapping[str, Schema]] = {
    "latest_ack_timestamp": INTEGER,
    "checkpointed_size": integer(0),
    "state_size": integer(0),
    "end_to_end_duration": INTEGER,
    "alignment_buffered": integer(0),
    "processed_data": integer(0),
    "persisted_data": integer(0),
    "num_subtasks": integer(0),
    "num_acknowledged_subtasks": integer(0),
    "alignment_duration": described("Longest alignment of a barrier in a subtask, in milliseconds.", integer(0)),
    "sync_duration": described("Longest part of a snapshot for which elements waited, in milliseconds.", integer(0)),
}
_VERTEX: Final = component("CheckpointedVertex", record({"id": integer(1), "status": _STATUS, **_SIZES}))
DETAILS: Final = component(
    "Checkpoint",
    record(
        {
            "className": choice("in_progress", "completed", "failed"),
            "id": integer(1),
            "status": _STATUS,
            "is_savepoint": FLAG,
            "savepointFormat": nullable(STRING),
            "trigger_timestamp": INTEGER,
            **_SIZES,
            "checkpoint_type": choice("CHECKPOINT", "SAVEPOINT", "SYNC_SAVEPOINT"),
            "tasks": mapping(_VERTEX),
        },
        {
            "external_path": STRING,
            "discarded": FLAG,
            "failure_timestamp": INTEGER,
            "failure_message": nullable(STRING),
        },
    ),
)
_SUMMARIZED: Final = (
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "processed_data",
    "alignment_buffered",
    "persisted_data",
)
_RESTORED: Final = record(
    {"id": integer(1), "restore_timestamp": INTEGER, "is_savepoint": FLAG, "external_path": STRING}
)
OVERVIEW: Final = component(
    "Checkpoints",
    record(
        {
            "counts": record(
                {name: integer(0) for name in ("restored", "total", "in_progress", "completed", "failed")}
            ),
            "summary": record(dict.fromkeys(_SUMMARIZED, SPREAD)),
            "latest": record(
                {
                    **dict.fromkeys(("completed", "savepoint", "failed"), nullable(DETAILS)),
                    "restored": nullable(_RESTORED),
                }
            ),
            "history": array(DETAILS),
        }
    ),
)
_SUBTASK: Final = any_of(
    record({"index": integer(0), "status": choice("pending_or_failed")}),
    record(
        {
            "index": integer(0),
            "status": choice("completed"),
            "ack_timestamp": INTEGER,
            "end_to_end_duration": INTEGER,
            "checkpointed_size": integer(0),
            "state_size": integer(0),
            "checkpoint": record({"sync": integer(0), "async": integer(0)}),
            "alignment": record({name: integer(0) for name in ("buffered", "processed", "persisted", "duration")}),
            "start_delay": integer(0),
            "unaligned_checkpoint": FLAG,
            "aborted": FLAG,
        }
    ),
)
SUBTASKS: Final = component(
    "CheckpointedSubtasks",
    record(
        {
            "id": integer(1),
            "status": _STATUS,
            **_SIZES,
            "summary": record(
                {
                    **dict.fromkeys(("checkpointed_size", "state_size", "end_to_end_duration", "start_delay"), SPREAD),
                    "checkpoint_duration": record({"sync": SPREAD, "async": SPREAD}),
                    "alignment": record(dict.fromkeys(("buffered", "processed", "persisted", "duration"), SPREAD)),
                }
            ),
            "subtasks": array(_SUBTASK),
        }
    ),
)
CONFIG: Final = component(
    "CheckpointConfig",
    record(
        {
            "mode": choice("exactly_once", "at_least_once"),
            "interval": INTEGER,
            "timeout": INTEGER,
            "min_pause": INTEGER,
            "max_concurrent": integer(1),
            "externalization": record({"enabled": FLAG, "delete_on_cancellation": FLAG}),
            "state_backend": STRING,
            "checkpoint_storage": STRING,
            "unaligned_checkpoints": FLAG,
            "tolerable_failed_checkpoints": INTEGER,
            "aligned_checkpoint_timeout": INTEGER,
            "checkpoints_after_tasks_finish": FLAG,
            "state_changelog_enabled": FLAG,
            "changelog_periodic_materialization_interval": INTEGER,
            "changelog_storage": STRING,
        }
    ),
)

TRIGGERED: Final = component("Triggered", record({"request-id": STRING}))
_TRIGGER: Final[Mapping[str, Schema]] = {
    "triggerId": described("Id of the operation. A second request with the same id starts nothing.", TRIGGER_ID)
}
_DIRECTORY: Final[Mapping[str, Schema]] = {
    "target-directory": described("Absolute path or URI.", TEXT),
    "targetDirectory": described("Same as target-directory.", TEXT),
}
_FORMAT: Final[Mapping[str, Schema]] = {"formatType": choice(*(kind.name for kind in SavepointFormatType))}
CHECKPOINT_REQUEST: Final = record(
    None,
    {
        "checkpointType": choice(
            "CONFIGURED",
            "INCREMENTAL",
            refused={"FULL": (400, "Checkpoints are always incremental. Trigger a savepoint instead.")},
        ),
        **_TRIGGER,
    },
)
SAVEPOINT_REQUEST: Final = record(None, {**_DIRECTORY, "cancel-job": FLAG, **_FORMAT, **_TRIGGER})
STOP_REQUEST: Final = record(None, {**_DIRECTORY, "drain": FLAG, **_FORMAT, **_TRIGGER})
DISPOSAL_REQUEST: Final = record(
    {"savepoint-path": matching(r"(/|file:|.*://)", "the absolute path or the URI of a savepoint")}, _TRIGGER
)


def _operation(outcome: Schema) -> Schema:
    return any_of(
        record({"status": record({"id": choice("IN_PROGRESS")}), "operation": {"type": "null"}}),
        record(
            {
                "status": record({"id": choice("COMPLETED")}),
                "operation": any_of(outcome, record({"failure-cause": CAUSE})),
            }
        ),
    )


CHECKPOINT_STATUS: Final = component("CheckpointOperation", _operation(record({"checkpointId": integer(1)})))
SAVEPOINT_STATUS: Final = component("SavepointOperation", _operation(record({"location": STRING})))
DISPOSAL_STATUS: Final = component("DisposalOperation", _operation(record()))
