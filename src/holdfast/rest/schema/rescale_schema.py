"""Schemas for rescales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.rest.route import INTEGER, STRING, Schema, array, choice, component, integer, mapping, nullable, record
from holdfast.rest.schema.checkpoint_schema import SPREAD

_COUNTS: Final[Mapping[str, Schema]] = {
    "rescalesCounts": record({name: integer(0) for name in ("completed", "failed", "ignored", "inProgress")})
}
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
CONFIG: Final = record({"rescaleHistoryMax": integer(0)})
OVERVIEW: Final = component(
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
SUMMARY: Final = record({**_COUNTS, "completedRescalesDurationStatsInMillis": SPREAD})
HISTORY: Final = record({"rescaleHistory": array(RESCALE)})
