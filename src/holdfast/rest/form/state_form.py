"""The form of what is answered about the state of checkpoints and savepoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.rest.route import (
    ANY,
    FLAG,
    INTEGER,
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

_SNAPSHOT: Final[Mapping[str, Schema]] = {
    "id": integer(1),
    "type": choice("CHECKPOINT", "SAVEPOINT"),
    "path": STRING,
    "timestamp": or_none(INTEGER),
    "state_size": or_none(integer(0)),
}
_OF_SNAPSHOT: Final = named("Snapshot", record(_SNAPSHOT))
SNAPSHOTS: Final = named("Snapshots", record({"snapshots": array(_OF_SNAPSHOT)}))
STATES: Final = named(
    "States",
    record(
        {
            **_SNAPSHOT,
            "epoch": integer(0),
            "counted": FLAG,
            "states": told("Operator, name, kind, type and sizes of each.", array(mapping(ANY))),
        }
    ),
)
STATES_QUERY: Final = record(
    None, {"count": told("Whether entries are counted, which reads all.", choice("true", "false"))}
)
DIFFERENCE: Final = named(
    "StateDifference", record({"before": _OF_SNAPSHOT, "after": _OF_SNAPSHOT, "differences": array(mapping(ANY))})
)
ROWS: Final = named(
    "StateRows",
    record(
        {
            "checkpoint": integer(1),
            "columns": array(record({"name": STRING, "type": STRING})),
            "rows": array(mapping(STRING)),
            "read": integer(0),
            "cut": told("Whether there were more than are answered.", FLAG),
            "next": told("From which key group on the rest is.", or_none(integer(0))),
        }
    ),
)
_COUNT: Final = integer(0, 999_999_999)
ROWS_QUERY: Final = record(
    None,
    {
        "key": told("Only the rows of this key.", STRING),
        "where": told("Conditions on columns, such as value > 100.", STRING),
        "contains": told("Text that a column has in it.", STRING),
        "start": told("From which key group on.", _COUNT),
        "limit": told("About how many rows.", _COUNT),
    },
)
_LARGE: Final = mapping(either(STRING, INTEGER))
LARGEST: Final = named(
    "LargestKeys",
    record(
        {
            "checkpoint": integer(1),
            "keys": integer(0),
            "rows": integer(0),
            "bytes": integer(0),
            "groups": integer(1),
            "stopped_at": told("Up to which key group there was time.", or_none(integer(0))),
            "largest_keys": array(_LARGE),
            "largest_groups": array(_LARGE),
        }
    ),
)
