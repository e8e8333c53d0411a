"""The form of what is answered about rescales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.rest.form.checkpoint_form import SPREAD
from holdfast.rest.route import INTEGER, STRING, Schema, array, choice, integer, mapping, named, or_none, record

_COUNTS: Final[Mapping[str, Schema]] = {
    "rescalesCounts": record({name: integer(0) for name in ("completed", "failed", "ignored", "inProgress")})
}
RESCALE: Final = named(
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
OVERVIEW: Final = named(
    "Rescales",
    record(
        {
            **_COUNTS,
            "latest": record({"completed": or_none(RESCALE), "failed": or_none(RESCALE), "ignored": or_none(RESCALE)}),
        }
    ),
)
SUMMARY: Final = record({**_COUNTS, "completedRescalesDurationStatsInMillis": SPREAD})
HISTORY: Final = record({"rescaleHistory": array(RESCALE)})
